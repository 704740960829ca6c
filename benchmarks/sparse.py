"""`make bench-sparse`: models with pruned weights, beside onnxruntime on the same dense graph.

For every model the storage type of each constant matrix is printed, with the measured times of the
best dense and the best sparse implementation: how much sparse won by, or lost. Models are those of
`make_models.py` (mlp_sparse90 ...); any path of an ONNX file will do.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from app.engine.core import graph
from app.engine.core.program import Program
from app.engine.core.registry import PlanningContext
from app.engine.core.registry import load as load_registry
from app.engine.cost import roofline
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.benchmark import measure_in_turn, pinned
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.verify import compare
from app.engine.types.options import Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from app.settings import Settings
from benchmarks import models
from benchmarks.peers import onnxruntime_peer

DEFAULT = ("mlp_sparse90", "mlp_sparse99", "mlp_2of4", "mlp_block16", "gcn", "dlrm")


def main(line: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.sparse", description=__doc__)
    parser.add_argument("names", nargs="*", default=DEFAULT, help="names, or paths of ONNX files")
    parser.add_argument("--models", type=Path, nargs="*", default=models.FOLDERS, help="folders to look in")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="per model and runtime")
    arguments = parser.parse_args(line)
    compiler = Compiler(Settings.from_environment().data.absolute() / "kernels")
    console = Console(width=150)
    latency, storage = Table(title="latency, ms"), Table(title="constant matrices, us")
    for heading in ("model", "stowplan", "onnxruntime", "ratio", "p10 ratio", "max rel. difference"):
        latency.add_column(heading)
    for heading in ("model", "node", "shape", "density", "stored", "dense", "best sparse", "sparse wins by"):
        storage.add_column(heading)
    for name in arguments.names:
        found = models.find(name, arguments.models, Path())
        if found.path is None:
            console.print(f"{name}: {found.reason}")
            continue
        program, figures = measured(found.path, arguments.threads, arguments.seconds, compiler)
        latency.add_row(found.name, *figures)
        for row in stored(program):
            storage.add_row(found.name, *row)
    console.print(storage)
    console.print(latency)


def measured(path: Path, threads: int, seconds: float, compiler: Compiler) -> tuple[Program, tuple[str, ...]]:
    """The program of a model, and a row of the table of latencies."""
    options = Options(threads=threads)
    case = models.recorded(path.parent, path.stem)[0][0]
    loaded = session.canonical(load(path), host(), options, models.bindings_of(case), load_registry())
    program = session.planned(session.tuned(loaded, options, compiler), options)
    fed = {k: v for k, v in case.items() if k in {v.name for v in loaded.graph.inputs}}
    with pinned(threads) as cores:
        peer = onnxruntime_peer(path, threads)
        executor = Executor(program, compiler, cores=cores)
        worst = max(d.max_rel for d in compare(peer.run(case), executor.run(fed), 0.0))
        ours, theirs = measure_in_turn([lambda: executor.run(fed), lambda: peer.run(case)], seconds)
        executor.close()
    ratios = theirs.p50 / ours.p50, theirs.quantile(0.1) / ours.quantile(0.1)
    times = (f"{ours.p50 * 1e3:.4f}", f"{theirs.p50 * 1e3:.4f}")
    return program, (*times, *(f"{r:.2f}" for r in ratios), f"{worst:.1e}")


def stored(program: Program) -> list[tuple[str, ...]]:
    """Storage of each product's constant, and the times that decided."""
    compilation = program.compilation
    context = PlanningContext.of(compilation)
    rows = []
    for step in program.steps:
        candidates = compilation.registry.candidates(step.group.op, ("numba-cpu",))
        times = {
            row: roofline.seconds(row, step.group, context)
            for row in candidates
            if row.rejection_reason(step.group, context) is None
        }
        sparse = {r: t for r, t in times.items() if r.storage(step.group, context)}
        if not sparse:
            continue
        dense = {r: t for r, t in times.items() if r not in sparse}
        best, plain = (min(side, key=lambda r: side[r][0]) for side in (sparse, dense))
        (value,) = best.storage(step.group, context)
        kinds = step.choice.implementation.storage(step.group, context)
        told = [_told(row.name, times[row]) for row in (plain, best)]
        gain = times[plain][0] / times[best][0]
        shape = "x".join(str(d) for d in graph.static_shape(value))
        density = (compilation.plan.storage or {})[value].density
        rows.append(
            (step.group.name, shape, f"{density:.3f}", kinds.get(value, "default"), *told, f"{gain:.2f}x")
        )
    return rows


def _told(name: str, seconds: tuple[float, str | None]) -> str:
    return f"{seconds[0] * 1e6:.1f} {name}{'' if seconds[1] is not None else ' (predicted)'}"


if __name__ == "__main__":
    main()
