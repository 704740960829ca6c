"""`python -m benchmarks.scaling`: how much faster a model is on more threads than on one.

A program for each number of threads is tuned for it; both take turns in one process, run by run, on the
same pinned cores. Printed are the medians of both, and the median and the quartiles of the ratios of
neighboring runs. The third to take its turn are copies of the program for one thread, one a core, at once,
which have nothing in common but the machine: how much more they do than one alone is what cores give here.
Virtual ones may lie on one core of the host for a while, which both feel, or on cores that share no third
cache, which copies do not feel: a line that one core wrote reached the other in 285 ns then, else in 89.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from rich.table import Table

from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.benchmark import keep_to, pinned
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.inputs import tensors
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from app.settings import Settings
from benchmarks import models
from benchmarks.paired import Array, in_turn
from benchmarks.row import recorded_inputs


def main(line: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=("resnet50",), help="names, or paths of ONNX files")
    parser.add_argument("--models", type=Path, nargs="*", default=models.FOLDERS, help="folders to look in")
    parser.add_argument("--threads", type=int, default=2, help="beside one")
    parser.add_argument("--seconds", type=float, default=6.0, help="per model and number of threads")
    parser.add_argument("--repeats", type=int, default=1, help="measurements of every model")
    arguments = parser.parse_args(line)
    console = Console(width=150)
    table = Table(title=f"{arguments.threads} threads beside 1, ms")
    headings = "1 thread", f"{arguments.threads} threads", "ratio", "quartiles", "copies at once", "rounds"
    for heading in ("model", *headings):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    compiler = Compiler(Settings.from_environment().data.absolute() / "kernels")
    with TemporaryDirectory() as scratch:
        for name in arguments.names:
            found = models.find(name, arguments.models, Path(scratch))
            if found.path is None:
                console.print(f"{name}: {found.reason}", markup=False)
                continue
            for _ in range(arguments.repeats):
                samples = measured(found.path, arguments.threads, arguments.seconds, compiler)
                one, more, _ = np.median(samples, axis=0) * 1e3
                low, ratio, high = np.quantile(samples[:, 0] / samples[:, 1], (0.25, 0.5, 0.75))
                copies = arguments.threads * np.median(samples[:, 0] / samples[:, 2])
                row = f"{one:.3f}", f"{more:.3f}", f"{ratio:.3f}x", f"{low:.3f} to {high:.3f}"
                table.add_row(found.name, *row, f"{copies:.3f}x", str(len(samples)))
    console.print(table)


def measured(path: Path, threads: int, seconds: float, compiler: Compiler) -> Array:
    """float64[rounds, 3]: seconds of a run on one thread, on more, and of as many runs on one each."""
    case = recorded_inputs(path)
    bindings = models.bindings_of(case) if case else Bindings()
    with pinned(threads) as cores, ThreadPoolExecutor(threads) as pool:
        programs = []
        for count in (1, threads):
            options = Options(threads=count)
            compilation = session.canonical(load(path), host(), options, bindings, load_registry())
            programs.append(session.planned(session.tuned(compilation, options, compiler), options))
        inputs = case or {k: np.asarray(v) for k, v in tensors(compilation, bindings, seed=0).items()}
        fed = {v.name: inputs[v.name] for v in compilation.graph.inputs if v.name in inputs}
        one, more = (Executor(p, compiler, cores=cores[: p.compilation.options.threads]) for p in programs)
        copies = [Executor(programs[0], compiler, cores=(core,)) for core in cores]

        def alone(executor: Executor, core: int) -> None:
            keep_to((core,))
            executor.run(fed)

        def together() -> None:
            list(pool.map(alone, copies, cores))

        works = [partial(one.run, fed), partial(more.run, fed), together]
        samples = in_turn(works, seconds, before=partial(keep_to, cores[:1]))
        for executor in (one, more, *copies):
            executor.close()
    return samples


if __name__ == "__main__":
    main()
