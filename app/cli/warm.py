"""`stowplan warm`: compile and measure beforehand what models need, so that no first job waits for it."""

import argparse
import dataclasses
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.submit import beside
from app.settings import Settings

if TYPE_CHECKING:
    from rich.progress import Progress

    from app.engine.core.plan import Compilation
    from app.engine.types.options import Options
    from app.kernels.cpu.runtime.compiler import Compiler


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Models, and the threads that jobs will ask for."""
    parser.add_argument(
        "models",
        nargs="*",
        metavar="SAMPLE|PATH",
        help="samples, ONNX files or symbols (default: all samples)",
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of the executor (default: 1)")
    parser.add_argument(
        "--target",
        choices=("host", "cuda-sm90"),
        default="host",
        help="what for; machine code of a GPU needs none (default: host)",
    )
    parser.add_argument(
        "--precision", choices=("f32", "tf32", "bf16", "fp16"), default="f32", help="on a GPU (default: f32)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when all is in the cache, 1 when a model is refused, 2 when there is no such model."""
    from rich.console import Console

    from app.cli.console import progress_bar
    from app.engine.memory import portfolio
    from app.engine.types.errors import EngineError
    from app.engine.types.options import Options
    from app.kernels.cpu.runtime.compiler import Compiler
    from app.samples import SAMPLES, file_of

    console = Console(highlight=False, soft_wrap=True, emoji=False)
    models = arguments.models or list(SAMPLES)
    unknown = [m for m in models if m not in SAMPLES and not Path(m).is_file()]
    if unknown:
        console.print(f"{unknown[0]!r} is neither a file nor a sample ({', '.join(SAMPLES)})")
        return 2
    if arguments.target == "host":
        portfolio.load_compiled()
        compiler = Compiler(Settings.from_environment().data / "kernels")
        warm = partial(_warm, compiler, Options(threads=arguments.threads))
    else:
        warm = partial(_warm_gpu, arguments.target, Options(precision=arguments.precision))
    refused = 0
    for model in models:
        with file_of(model) as path, progress_bar(console) as progress:
            try:
                told = warm(path, progress)
            except EngineError as error:
                told = error.message
                refused += 1
        console.print(f"{model}: {told}")
    return 1 if refused else 0


def canonical(path: Path, target: str, options: "Options") -> "Compilation":
    """The canonical graph of a model of which nothing is bound."""
    from app.engine.core.registry import load as load_registry
    from app.engine.model.load import load
    from app.engine.planning import session
    from app.engine.types.options import Bindings
    from app.engine.types.target import find

    return session.canonical(
        load(path, external=beside(path)), find(target), options, Bindings(), load_registry()
    )


def _warm_gpu(target: str, options: "Options", path: Path, progress: "Progress") -> str:
    """Compile the kernels of a program for a GPU, which needs the toolkit and no GPU; say how many.

    Raises:
        EngineError: the model, or a kernel, is refused; or the toolkit is not installed.
    """
    from app.engine.planning import session
    from app.engine.runtime.cuda.offline import compiled
    from app.engine.types.errors import KernelError

    folder = Settings.from_environment().data / "kernels"
    task = progress.add_task("compile")
    program = session.planned(canonical(path, target, options), options)
    told = compiled(program, folder, lambda done, total: progress.update(task, completed=done, total=total))
    if "uncompiled" in told:
        raise KernelError(told["uncompiled"])
    return f"{len(told['kernels'])} kernels for {told['sm']} in {folder}"


def _warm(compiler: "Compiler", options: "Options", path: Path, progress: "Progress") -> str:
    """Measure and compile for the programs that a job runs: the planned one and the unfused one.

    Raises:
        EngineError: the model is refused.
    """
    from app.engine.planning import session
    from app.kernels.cpu.runtime.parallel import helped

    before, started = compiler.count(), time.perf_counter()
    compilation = canonical(path, "host", options)
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
    return f"{time.perf_counter() - started:.1f} s, {compiler.count() - before} kernels compiled"
