"""`make bench`: our latency beside onnxruntime's, interleaved in one process per model and thread count.

Models are built on the spot with seeded weights (`app.samples`); any ONNX file can be given too.
Each figure is the median; the ratio is onnxruntime over ours, so above 1 we are faster.
"""

import argparse
import json
import multiprocessing
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from app import samples
from app.engine import session
from app.engine.benchmark import measure_in_turn, pinned
from app.engine.exchange.onnx import export
from app.engine.execute import Executor
from app.engine.inputs import tensors
from app.engine.load import load
from app.engine.options import Bindings, Options
from app.engine.oracle import runtime
from app.engine.registry import load as load_registry
from app.engine.target import host
from app.engine.verify import compare
from app.kernels.cpu.compiler import Compiler
from app.settings import Settings

DEFAULT = ("squeezenet", "mobilenetv2", "resnet50")


def measure(path: str, threads: int, seconds: float, kernels: str) -> dict[str, Any]:
    """One row: medians of both sides, milliseconds, and how far the outputs are apart."""
    options = Options(threads=threads)
    loaded = load(Path(path))
    with tempfile.TemporaryDirectory() as scratch, pinned(threads) as cores:
        converted = Path(scratch) / "converted.onnx"
        export(loaded.model, converted)
        compilation = session.canonical(loaded, host(), options, Bindings(), load_registry())
        inputs = tensors(compilation, Bindings(), seed=0)
        executor = Executor(session.planned(compilation, options), Compiler(Path(kernels)), cores=cores)
        peer = runtime(converted, threads=threads, optimized=True)
        differences = compare(peer(inputs), executor.run(inputs), tolerance=1e-3)
        ours, theirs = measure_in_turn([lambda: executor.run(inputs), lambda: peer(inputs)], seconds)
        executor.close()
    return {
        "threads": threads,
        "ours_ms": ours.p50 * 1e3,
        "onnxruntime_ms": theirs.p50 * 1e3,
        "ratio": theirs.p50 / ours.p50,
        "max_rel": max(d.max_rel for d in differences),
        "samples": [len(ours.seconds), len(theirs.seconds)],
    }


def main() -> None:
    """Print the table; write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=DEFAULT, help="samples or paths of ONNX files")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=6.0, help="per model, thread count and side")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    kernels = str(Settings.from_environment().data.absolute() / "kernels")
    machine = host()
    rows: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.models:
            path = Path(name)
            if name in samples.SAMPLES:
                path = Path(scratch) / f"{name}.onnx"
                path.write_bytes(samples.build(name))
            for threads in arguments.threads:
                if threads > machine.cores:
                    print(
                        f"{name}: skipped {threads} threads, the machine has {machine.cores} cores",
                        file=sys.stderr,
                    )
                    continue
                # A process of its own: no peer's thread pool or heap outlives its row.
                with context.Pool(1) as pool:
                    row = pool.apply(measure, (str(path), threads, arguments.seconds, kernels))
                rows.append({"model": path.stem, **row})
    table = Table(
        title=f"batch 1, fp32, {machine.cpu_model}, {machine.cores} cores, {', '.join(machine.isa)}"
    )
    for heading in ("model", "threads", "stowplan ms", "onnxruntime ms", "ratio", "max rel. difference"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in rows:
        table.add_row(
            row["model"],
            str(row["threads"]),
            f"{row['ours_ms']:.2f}",
            f"{row['onnxruntime_ms']:.2f}",
            f"{row['ratio']:.2f}x",
            f"{row['max_rel']:.1e}",
        )
    console = Console()
    console.print(table)
    for threads in arguments.threads:
        ratios = [r["ratio"] for r in rows if r["threads"] == threads]
        if ratios:
            console.print(f"geometric mean, {threads} threads: {np.exp(np.mean(np.log(ratios))):.2f}x")
    if arguments.json:
        facts = {
            "machine": machine.cpu_model,
            "isa": machine.isa,
            "python": platform.python_version(),
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
