"""`stowplan explain`: the plan of a model as text, after any pass. Needs no server."""

import argparse
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.submit import add_repeatable_arguments, beside, input_shapes, number, pairs
from app.settings import Settings

if TYPE_CHECKING:
    from app.engine.types.options import Bindings
    from app.engine.types.target import Target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, what is known of its inputs, the target, and which stages to print."""
    parser.add_argument("model", metavar="SAMPLE|PATH", help="sample, ONNX file or NAME-symbol.json")
    add_repeatable_arguments(parser, "--input", "--value")
    parser.add_argument(
        "--target",
        default="host",
        metavar="NAME|FILE",
        help="built-in target, or a file that ends with .json, as POST /v1/targets takes it (default: host)",
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of the executor (default: 1)")
    parser.add_argument(
        "--prefer", choices=("latency", "memory"), default="latency", help="(default: latency)"
    )
    parser.add_argument("--after", metavar="PASS", help="print the plan after this pass")
    parser.add_argument(
        "--diff", action="store_true", help="print what each pass, or that of --after, changed"
    )
    parser.add_argument(
        "--rows", action="store_true", help="print the bytes of the plan in strips of rows, predicted"
    )
    parser.add_argument(
        "--capacity",
        type=int,
        metavar="BYTES",
        help="with --rows: of the first memory, beside the largest, which holds weights and what has no room",
    )
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write one file a pass to this folder")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0, or 1 when the model is refused."""
    # What modules and plans are made of stays: collections would take a tenth of the time, and find nothing.
    gc.set_threshold(100_000)
    from app.engine.entry.explain import plan
    from app.engine.types.errors import EngineError
    from app.engine.types.options import Options
    from app.samples import file_of
    from app.telemetry.logs import show_topics

    settings = Settings.from_environment()
    show_topics(settings)
    options = Options(threads=arguments.threads, prefer=arguments.prefer)
    try:
        with file_of(arguments.model) as path:
            planned = plan(
                path,
                options=options,
                target=described(arguments.target),
                bindings=bindings(arguments),
                kernels=settings.data / "kernels",
                external=beside(path),
            )
        if arguments.dump is not None:
            for written in planned.dump(arguments.dump):
                print(written)
            if arguments.after is None and not arguments.diff:
                return 0
        if arguments.rows:
            from app.engine.planning.streams.forecast import forecast

            if arguments.capacity is None:
                print(forecast(planned.program), end="")
                return 0
            from app.engine.planning.streams.banked import banked

            store = planned.program.compilation.target.store
            print(banked(planned.program, arguments.capacity, store.bandwidth), end="")
            return 0
        print(planned.explain(arguments.after, diff=arguments.diff), end="")
    except (EngineError, OSError, ValueError) as error:
        print(f"stowplan explain: {error}", file=sys.stderr)
        return 1
    return 0


def described(name: str) -> "Target":
    """The built-in target of a name, or that of a file with its description."""
    from app.engine.types.target import find

    if not name.endswith(".json"):
        return find(name)
    from app.api.schemas.targets import TargetSpec

    return TargetSpec.model_validate_json(Path(name).read_bytes()).to_target()


def bindings(arguments: argparse.Namespace) -> "Bindings":
    """Shapes and values of inputs, from `--input` and `--value`."""
    from app.engine.types.options import Bindings
    from app.engine.types.regions.region import bound

    shapes, region = bound(input_shapes(arguments.input))
    values = {k: number(k, v) for k, v in pairs(arguments.value, "value").items()}
    return Bindings(shapes, values, region=region)
