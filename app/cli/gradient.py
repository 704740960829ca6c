"""`stowplan gradient`: the training graph of a model and the memory that it takes. Needs no server."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from app.cli.console import training_lines
from app.cli.explain import bindings
from app.cli.submit import add_repeatable_arguments, beside

SHOWN = 10  # values kept for backward


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, what is differentiated by what, and where the result goes."""
    parser.add_argument("model", metavar="SAMPLE|PATH", help="sample, ONNX file or NAME-symbol.json")
    parser.add_argument("--loss", required=True, help="value whose sum is differentiated")
    parser.add_argument(
        "--wrt", metavar="NAMES", help="inputs and initializers, comma-separated (default: all float weights)"
    )
    parser.add_argument(
        "--row-sparse", metavar="NAMES", default="", help="tables whose gradients are row_sparse outputs"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the training graph")
    add_repeatable_arguments(parser, "--input", "--value")
    parser.add_argument("--no-peaks", action="store_true", help="do not plan both graphs to compare peaks")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0, or 1 when the model is refused."""
    from app.engine.entry.training import peaks, write
    from app.engine.types.errors import EngineError
    from app.samples import file_of

    wrt = None if arguments.wrt is None else [n for n in arguments.wrt.split(",") if n]
    try:
        known = bindings(arguments)
        with file_of(arguments.model) as path:
            external = beside(path)
            tables = [n for n in arguments.row_sparse.split(",") if n]
            summary = write(path, arguments.loss, wrt, known, arguments.out, external, tables)
            if not arguments.no_peaks:
                summary |= peaks(path, arguments.out, known, external)
    except (EngineError, OSError, ValueError) as error:
        print(f"stowplan gradient: {error}", file=sys.stderr)
        return 1
    print(json.dumps(summary, indent=1) if arguments.json else "\n".join(_told(summary, arguments.out)))
    return 0


def _told(summary: dict[str, Any], out: Path) -> list[str]:
    nodes = summary["nodes"]
    lines = [
        f"{out}: {nodes['forward']} forward and {nodes['backward']} backward nodes",
        f"loss: {summary['loss']}",
        *(f"gradient of {name}: {output}" for name, output in summary["gradients"].items()),
        f"kept for backward: {_size(summary['kept_bytes'])}",
        *(f"  {_size(row['bytes'])}  {row['name']}" for row in summary["kept"][:SHOWN]),
    ]
    if "forward_peak_bytes" in summary:
        forward, training = summary["forward_peak_bytes"], summary["training_peak_bytes"]
        lines.append(f"peak of activations: {_size(forward)} forward, {_size(training)} training graph")
        lines += training_lines(summary["memory"])
    return lines


def _size(nbytes: int) -> str:
    return f"{nbytes:,} byte"
