"""Commands that read and write files without a server: values, extract, compose, convert and join-wheels."""

import argparse
import io
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli import service
from app.cli.explain import bindings
from app.cli.submit import add_repeatable_arguments, beside, names, pairs

if TYPE_CHECKING:
    import onnx_ir as ir

    from app.engine.entry.derive import Source

SYMBOL = "-symbol.json"  # end of a name

_Run = Callable[[argparse.Namespace], None]


def in_process(run: _Run) -> Callable[[argparse.Namespace], int]:
    """Exit code 0, or 1 where the engine refuses, with its reason, or 2 where a file is missing."""

    @wraps(run)
    def told(arguments: argparse.Namespace) -> int:
        from app.engine.types.errors import EngineError

        try:
            run(arguments)
        except EngineError as error:
            print(f"stowplan {arguments.command}: {error.message} [{error.code}]", file=sys.stderr)
            return service.REFUSED
        except BrokenPipeError:
            raise
        except (OSError, ValueError) as error:
            print(f"stowplan {arguments.command}: {error}", file=sys.stderr)
            return service.NOT_UNDERSTOOD
        return service.DONE

    return told


def add_values(parser: argparse.ArgumentParser) -> None:
    """A model, and which of its values."""
    parser.add_argument("model", type=Path, help="ONNX file")
    parser.add_argument("--role", choices=("input", "output", "weight", "internal"), help="only these")
    parser.add_argument("--json", action="store_true", help="print them as JSON, for programs")


@in_process
def values(arguments: argparse.Namespace) -> None:
    """Print the values of a model's main graph, one a line."""
    from app.engine.entry.derive import OPERATIONS

    rows = OPERATIONS["values"]([source(arguments.model)], {"role": arguments.role}).answer["values"]
    if arguments.json:
        service.print_json(rows)
        return

    def shape(row: dict[str, Any]) -> str:
        dims = row["shape"]
        return "?" if dims is None else "x".join("?" if d is None else str(d) for d in dims)

    table = [(r["name"], "+".join(r["roles"]), r["dtype"] or "?", shape(r), r["operator"]) for r in rows]
    service.print_table(("name", "role", "dtype", "shape", "operator"), table)


def add_extract(parser: argparse.ArgumentParser) -> None:
    """A model, names of values at both ends, and where the part goes."""
    parser.add_argument("model", type=Path, help="ONNX file")
    parser.add_argument(
        "--inputs",
        type=names,
        default=[],
        metavar="NAME,...",
        help="values that become inputs (default: the inputs of the model that the outputs need)",
    )
    parser.add_argument(
        "--outputs", type=names, required=True, metavar="NAME,...", help="values that become outputs"
    )
    add_out(parser)


@in_process
def extract(arguments: argparse.Namespace) -> None:
    """Write what computes the outputs from the inputs."""
    from app.engine.entry.derive import OPERATIONS

    request = {"inputs": arguments.inputs, "outputs": arguments.outputs}
    write(OPERATIONS["extract"]([source(arguments.model)], request).model, arguments)


def add_compose(parser: argparse.ArgumentParser) -> None:
    """Two models, what the second reads of the first, and where the whole goes."""
    parser.add_argument("first", type=Path, help="ONNX file")
    parser.add_argument("second", type=Path, help="ONNX file of the model that reads what the first computes")
    parser.add_argument(
        "--connect",
        action="append",
        default=[],
        metavar="INPUT=OUTPUT",
        help="input of the second and output of the first; repeatable (default: those of the same name)",
    )
    parser.add_argument(
        "--prefix", default="second.", help="of names that both have, in the second (default: second.)"
    )
    add_out(parser)


@in_process
def compose(arguments: argparse.Namespace) -> None:
    """Write both models as one."""
    from app.engine.entry.derive import OPERATIONS

    sources = [source(arguments.first), source(arguments.second)]
    request = {"connect": pairs(arguments.connect, "connect"), "prefix": arguments.prefix}
    write(OPERATIONS["compose"](sources, request).model, arguments)


def add_convert(parser: argparse.ArgumentParser) -> None:
    """A model, where it goes and how it is written there."""
    parser.add_argument(
        "model", type=Path, help="NAME-symbol.json of MXNet, its parameters beside it; or an ONNX file"
    )
    add_out(parser)
    parser.add_argument("--opset", type=int, help="version of the standard operators (default: as it is)")
    add_repeatable_arguments(parser, "--input", "--value")


@in_process
def convert(arguments: argparse.Namespace) -> None:
    """Write the model; as ONNX all stays as it is spelled, but for the opset.

    Raises:
        InputError: an option is of the other format.
    """
    from app.engine.report.opset import at_opset
    from app.engine.types.errors import InputError

    if arguments.out.name.endswith(SYMBOL):
        return _convert_to_symbol(arguments)
    if arguments.input or arguments.value:
        raise InputError(f"--input and --value are of symbols; expected a name that ends with {SYMBOL}")
    model = source(arguments.model).read()
    return write(model if arguments.opset is None else at_opset(model, arguments.opset), arguments)


def _convert_to_symbol(arguments: argparse.Namespace) -> None:
    """Write NAME-symbol.json and, beside it, NAME-0000.params."""
    from app.engine.entry.symbols import to_symbol
    from app.engine.types.errors import InputError

    if arguments.opset is not None or arguments.external_data:
        raise InputError("--opset and --external-data are of ONNX files; a symbol has neither")
    given = source(arguments.model)
    beside_it = arguments.out.with_name(f"{arguments.out.name.removesuffix(SYMBOL)}-0000.params")
    to_symbol(given.path, given.external, bindings(arguments)).save(arguments.out, beside_it)
    print(arguments.out, beside_it, sep="\n")


def add_out(parser: argparse.ArgumentParser) -> None:
    """The file that is written, and where its weights lie."""
    parser.add_argument("out", type=Path, help="ONNX file to write; of convert also NAME-symbol.json")
    parser.add_argument(
        "--external-data", action="store_true", help="large weights go to a file beside it, OUT.data"
    )


def source(path: Path) -> "Source":
    """A model file with the files that it names."""
    from app.engine.entry.derive import Source

    return Source(path, beside(path))


def write(model: "ir.Model | None", arguments: argparse.Namespace) -> None:
    """Write a model where the arguments say, and print where.

    Raises:
        InputError: the name is not that of an ONNX file.
    """
    from app.engine.report.onnx import export
    from app.engine.types.errors import InputError

    if arguments.out.suffix != ".onnx":
        raise InputError(f"{arguments.out}: expected a name that ends with .onnx")
    assert model is not None
    export(model, arguments.out, external=arguments.external_data, notes=True)
    print(arguments.out)


def add_join_wheels(parser: argparse.ArgumentParser) -> None:
    """Wheels, and where the joined one goes."""
    parser.add_argument("wheels", type=Path, nargs="+", help="wheels of one model, each for other processors")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the wheel (default: this one)")


@in_process
def join_wheels(arguments: argparse.Namespace) -> None:
    """Write the wheel, and print its path."""
    from app.engine.export.wheel import joined

    content = io.BytesIO()
    name = joined([io.BytesIO(path.read_bytes()) for path in arguments.wheels], content)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / name).write_bytes(content.getbuffer())
    print(arguments.out / name)
