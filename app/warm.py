"""`stowplan warm`: compile and measure beforehand what models need, so that no first job waits for it."""

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from app.settings import Settings

if TYPE_CHECKING:
    from rich.progress import Progress

    from app.engine.options import Options
    from app.kernels.cpu.compiler import Compiler


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Models, and the threads that jobs will ask for."""
    parser.add_argument(
        "models", nargs="*", metavar="SAMPLE|PATH", help="samples or ONNX files (default: all samples)"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of the executor (default: 1)")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when all is in the cache, 1 when a model is refused, 2 when there is no such model."""
    from rich.console import Console

    from app.console import progress_bar
    from app.engine.errors import EngineError
    from app.engine.options import Options
    from app.kernels.cpu.compiler import Compiler
    from app.samples import SAMPLES

    console = Console(highlight=False, soft_wrap=True)
    models = arguments.models or list(SAMPLES)
    unknown = [m for m in models if m not in SAMPLES and not Path(m).is_file()]
    if unknown:
        console.print(f"{unknown[0]!r} is neither a file nor a sample ({', '.join(SAMPLES)})")
        return 2
    _warm_memory_search()
    compiler = Compiler(Settings.from_environment().data / "kernels")
    refused = 0
    for model in models:
        before, started = compiler.count(), time.perf_counter()
        with _file(model) as path, progress_bar(console) as progress:
            try:
                _warm(path, compiler, Options(threads=arguments.threads), progress)
            except EngineError as error:
                console.print(f"{model}: {error}")
                refused += 1
                continue
        seconds = time.perf_counter() - started
        console.print(f"{model}: {seconds:.1f} s, {compiler.count() - before} kernels compiled")
    return 1 if refused else 0


def _warm_memory_search() -> None:
    """Compile the planner of memory: a problem that its first method does not solve."""
    from app.engine.memory import ladder
    from app.engine.memory.problem import Buffer, Problem

    rows = ((0, 3, 4), (3, 9, 4), (0, 9, 4), (9, 21, 4), (0, 21, 4), (2, 4, 3), (8, 10, 3), (1, 9, 2))
    problem = Problem(tuple(Buffer(str(i), *row, alignment=1) for i, row in enumerate(rows)))
    ladder.compiled(problem)


@contextmanager
def _file(model: str) -> Iterator[Path]:
    """A model as a file; a sample is built."""
    from app.samples import SAMPLES

    if model not in SAMPLES:
        yield Path(model)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{model}.onnx"
        path.write_bytes(SAMPLES[model]())
        yield path


def _warm(path: Path, compiler: "Compiler", options: "Options", progress: "Progress") -> None:
    """Measure and compile for the programs that a job runs: the planned one and the unfused one."""
    from app.engine import session
    from app.engine.load import load
    from app.engine.options import Bindings
    from app.engine.registry import load as load_registry
    from app.engine.target import host
    from app.kernels.cpu.parallel import helped

    compilation = session.canonical(load(path), host(), options, Bindings(), load_registry())
    task = progress.add_task("tune")
    compilation = session.tuned(
        compilation,
        options,
        compiler,
        lambda done, total: progress.update(task, completed=done, total=total),
    )
    programs = [
        session.planned(compilation, dataclasses.replace(options, fuse=fuse)) for fuse in (True, False)
    ]
    requests = dict.fromkeys(request for program in programs for request in program.kernels)
    with helped(compiler, requests):
        for kernel, types, static, takes_thread in progress.track(requests, description="compile"):
            compiler.compile(kernel, types, static, takes_thread=takes_thread)
