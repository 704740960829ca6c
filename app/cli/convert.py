"""`stowplan convert`: a model of another format, opset or place of weights as ONNX. Needs no server."""

import argparse
from pathlib import Path

from app.cli.graphs import add_out, in_process, source, write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A model, where it goes and how it is written there."""
    parser.add_argument(
        "model", type=Path, help="NAME-symbol.json of MXNet, its parameters beside it; or an ONNX file"
    )
    add_out(parser)
    parser.add_argument("--opset", type=int, help="version of the standard operators (default: as it is)")


@in_process
def run(arguments: argparse.Namespace) -> None:
    """Write the model; but for the opset, all stays as it is spelled."""
    from app.engine.report.opset import at_opset

    model = source(arguments.model).read()
    write(model if arguments.opset is None else at_opset(model, arguments.opset), arguments)
