"""`stowplan bench`: seconds of models on this machine's processor or on the GPU in it."""

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from app.cli.submit import add_backend_arguments
from app.settings import Settings

if TYPE_CHECKING:
    from rich.table import Table

    from app.engine.core.program import Program
    from app.engine.planning.session import Running

TARGETS = {"host": "host", "cuda": "cuda-sm90"}
SHOWN = 10  # steps of each model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Models, where they run and how exactly."""
    parser.add_argument(
        "models", nargs="*", metavar="SAMPLE|PATH", help="samples or ONNX files (default: resnet50)"
    )
    parser.add_argument("--target", choices=tuple(TARGETS), default="host", help="where (default: host)")
    parser.add_argument(
        "--precision", choices=("f32", "tf32", "bf16", "fp16", "auto"), default="f32", help="(default: f32)"
    )
    parser.add_argument("--threads", type=int, default=1, help="of the host (default: 1)")
    add_backend_arguments(parser)
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring each model (default: 3)")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when all were measured, 1 when a model is refused, 2 when the target is not here."""
    from rich.console import Console

    from app.engine.runtime.capabilities import absence
    from app.engine.types.errors import EngineError
    from app.engine.types.target import find
    from app.kernels.cpu.runtime.compiler import Compiler
    from app.samples import file_of

    console = Console(highlight=False, soft_wrap=True, emoji=False)
    target = find(TARGETS[arguments.target])
    reason = absence(target)
    if reason is not None:
        console.print(f"target {target.name!r}: {reason}")
        return 2
    compiler = Compiler(Settings.from_environment().data / "kernels")
    refused = 0
    for model in arguments.models or ["resnet50"]:
        try:
            with file_of(model) as path:
                console.print(_measured(model, path, target.name, compiler, arguments))
        except EngineError as error:
            console.print(f"{model}: {error}")
            refused += 1
    return 1 if refused else 0


def _measured(model: str, path: Path, target: str, compiler: Any, arguments: argparse.Namespace) -> "Table":
    """The table of one model."""
    from app.cli.warm import canonical
    from app.engine.planning import session
    from app.engine.runtime.inputs import tensors
    from app.engine.types.options import Bindings, Options

    options = Options(
        threads=arguments.threads,
        precision=arguments.precision,
        backends=tuple(arguments.backends),
        choose=arguments.choose or Options().choose,
    )
    compilation = session.tuned(canonical(path, target, options), options, compiler)
    program = session.planned(compilation, options)
    inputs = tensors(compilation, Bindings(), options.seed)
    running = session.bound(program, compiler)
    try:
        running.feed({v.name or "": inputs[v.name or ""] for v in program.compilation.graph.inputs})
        samples = _samples(running, arguments.seconds)
        steps = np.median([running.step_seconds() for _ in range(5)], axis=0)
    finally:
        running.close()
    return _table(model, program, samples, {i: float(s) for i, s in enumerate(steps)})


def _samples(running: "Running", seconds: float) -> list[float]:
    """Seconds of inferences on inputs that stay where they are, after two that warm up."""
    for _ in range(2):
        running.infer()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        started = time.perf_counter()
        running.infer()
        found.append(time.perf_counter() - started)
    return found


def _table(model: str, program: "Program", samples: Sequence[float], steps: Mapping[int, float]) -> "Table":
    from rich.table import Table

    low, middle, high = (float(np.quantile(samples, q)) * 1e6 for q in (0.1, 0.5, 0.9))
    total = sum(steps.values()) or 1.0
    table = Table("step", "implementation", "us", "%")
    table.title = (
        f"{model} on {program.compilation.target.name}: {middle:.1f} us ({low:.1f} to {high:.1f}, "
        f"{len(samples)} runs), {len(program.steps)} steps, arena {program.arena_bytes} byte"
    )
    for index in sorted(steps, key=lambda i: -steps[i])[:SHOWN]:
        step, seconds = program.steps[index], steps[index]
        name = step.choice.implementation.name
        table.add_row(step.group.name, name, f"{seconds * 1e6:.1f}", f"{100 * seconds / total:.1f}")
    return table
