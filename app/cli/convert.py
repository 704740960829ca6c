"""`stowplan convert`: a model of another format or an older opset as an ONNX file. Needs no server."""

import argparse
import sys
from pathlib import Path

from app.cli.submit import beside


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model and the file that is written."""
    parser.add_argument(
        "model", type=Path, help="NAME-symbol.json of MXNet, its parameters beside it; or an ONNX file"
    )
    parser.add_argument("out", type=Path, help="ONNX file to write")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0, or 1 when the model is refused."""
    from app.engine.model.load import load
    from app.engine.report.onnx import export
    from app.engine.types.errors import EngineError

    if arguments.out.suffix != ".onnx":
        print(f"stowplan convert: {arguments.out}: expected a name that ends with .onnx", file=sys.stderr)
        return 1
    try:
        loaded = load(arguments.model, external=beside(arguments.model))
        export(loaded.model, arguments.out)
    except (EngineError, OSError) as error:
        print(f"stowplan convert: {error}", file=sys.stderr)
        return 1
    for note in loaded.notes:
        print(note)
    print(arguments.out)
    return 0
