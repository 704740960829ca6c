"""`make bench-stream`: plans with groups in strips of rows beside the fastest plan without.

One thread, or as many as asked for. Bytes are those of everything but weights and the network's input: the
arena, the outputs, and the rows of the driver with the tables of their kernels. Programs take turns in one
process; a ratio is the median over the rounds of the time of one over that of the fastest plan without strips
in the same round. Seconds of one thread are those that it has run, so other load on the machine counts as far
as it takes caches and memory.
Plans are taken evenly over their bytes, and those predicted to be the fastest within the network's goals; the
smallest is that of `prefer: memory`.
Outputs must be equal bit by bit to those of the plan without strips of the same implementations. Tables of
equal numbers count once: a program has one of them (`app.engine.runtime.cpu.memory.Weights`).
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from app.engine.core.calls import Constant, KernelCall
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.planning.streams.proposals import proposals, with_fewer_rows
from app.engine.planning.streams.second_pass import second_passes
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.cpu.memory import Weights
from app.engine.runtime.inputs import samples
from app.engine.types.options import Bindings, MemoryConcessions, Options
from app.engine.types.target import PRESETS, Target, host
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.driver import ROW
from benchmarks import models
from benchmarks.stream_networks import GOALS, build

COLUMNS = ("network", "plan", "arena", "tables", "bytes", "calls", "ms", "ratio", "least ratio", "equal")
KERNELS = models.ROOT / "build" / "kernels"


def main(line: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.stream", description=__doc__)
    parser.add_argument("networks", nargs="*", default=[*GOALS], help=f"of {', '.join(GOALS)}")
    parser.add_argument("--target", default="host", help="host, or a preset that runs here (default: host)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--plans", type=int, default=4, help="plans with strips, evenly over their bytes")
    parser.add_argument("--threads", type=int, default=1, help="then seconds are those of the clock")
    parser.add_argument("--predicted", action="store_true", help="choose implementations by predicted times")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args(line)
    target = host() if arguments.target == "host" else next(t for t in PRESETS if t.name == arguments.target)
    console, found = Console(width=150), []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.networks:
            path = build(name, Path(folder))
            own = arguments.rounds, arguments.plans, not arguments.predicted, arguments.threads
            rows = measure(path, target, *own)
            console.print(printed(rows))
            found += rows
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


def measure(
    path: Path, target: Target, rounds: int, plans: int, tune: bool, threads: int = 1
) -> list[dict[str, Any]]:
    """A row for the plan without strips, and one for each with."""
    compiler, weights = Compiler(KERNELS), Weights()
    options = Options(autotune=tune, threads=threads, backends=("numba-cpu", "reference"))
    compilation = session.canonical(load(path), target, options, Bindings(), load_registry())
    compilation = session.tuned(compilation, options, compiler)
    plan = session.builder(compilation, options)
    plain = plan(MemoryConcessions(unbounded=True))
    started = time.thread_time()
    proposals(plain)
    took = time.thread_time() - started
    inputs = samples(plain.compilation.graph.inputs)
    programs, equal = [plain], [True]
    executors = [Executor(plain, compiler, weights=weights)]
    smallest = session.planned(compilation, replace(options, prefer="memory")).compilation.concessions
    chosen = [*_proposed(plain, plan, GOALS[path.stem], plans), replace(smallest, unbounded=True)]
    for concessions in dict.fromkeys(chosen):
        base = plan(replace(concessions, streams=()))
        with closing(Executor(base, compiler, weights=weights)) as executor:
            expected = executor.run(inputs)
        programs.append(plan(concessions))
        executors.append(Executor(programs[-1], compiler, weights=weights))
        found = executors[-1].run(inputs)
        equal.append(all(np.array_equal(np.asarray(found[k]), np.asarray(expected[k])) for k in expected))
    seconds = alternating(executors, rounds, time.thread_time if threads == 1 else time.perf_counter)
    ratios = seconds / seconds[:, :1]
    rows = [
        {
            "network": path.stem,
            "plan": _told(program) if i else "fastest without",
            **bytes_of(program),
            "ms": float(np.median(seconds[:, i])) * 1e3,
            "ratio": float(np.median(ratios[:, i])),
            "least ratio": float(seconds[:, i].min() / seconds[:, 0].min()),
            "equal": equal[i],
            "planning seconds": took,
        }
        for i, program in enumerate(programs)
    ]
    for executor in executors:
        with closing(executor):
            pass
    return rows


def _proposed(
    plain: Program, plan: Callable[[MemoryConcessions], Program], goals: Sequence[int], plans: int
) -> Iterator[MemoryConcessions]:
    """Plans with strips of images, evenly over their bytes, and those for the goals."""
    proposed = proposals(plain)
    if not proposed:
        return
    nothing = MemoryConcessions(unbounded=True)
    for concessions in (
        nothing,
        *(replace(nothing, denied=denied) for denied in with_fewer_rows(plain, proposed[-1])),
        *(replace(nothing, recompute=again) for again in second_passes(plain)),
    ):
        base = plain if concessions == nothing else plan(concessions)
        own = proposals(base)
        chosen = [own[round(i * (len(own) - 1) / max(plans - 1, 1))] for i in range(plans)]
        for streams in dict.fromkeys([*chosen, *(s for s in proposals(base, goals) if s not in own)]):
            yield replace(concessions, streams=streams)


def alternating(
    executors: Sequence[Executor], rounds: int, clock: Callable[[], float] = time.thread_time
) -> np.ndarray[Any, Any]:
    """float64[rounds, executors]: seconds of a run, the executors one after the other; each is warm."""
    seconds = np.zeros((rounds, len(executors)))
    for turn in range(rounds):
        for i in range(len(executors))[:: -1 if turn % 2 else 1]:
            executors[i].step()
            started = clock()
            for _ in range(3):
                executors[i].step()
            seconds[turn, i] = (clock() - started) / 3
    return seconds


def bytes_of(program: Program) -> dict[str, int]:
    """Bytes of the arena with the outputs; of tables: rows of the driver, sizes and offsets of kernels."""
    outputs = sum(
        program.placement.values[v].nbytes
        for v in program.compilation.graph.outputs
        if program.placement.values[v].space == "output"
    )
    calls = [call for step in program.steps for call in step.calls]
    tables = sum(8 * (ROW + len(call.arguments)) for call in calls if hasattr(call, "arguments"))
    constants = {
        a.array.tobytes(): a.nbytes
        for call in calls
        if isinstance(call, KernelCall)
        for kind, a in zip(call.types, call.arguments, strict=True)
        if isinstance(a, Constant) and kind == "int64*"
    }
    tables += sum(constants.values())
    arena = program.arena_bytes + outputs
    return {"arena": arena, "tables": tables, "bytes": arena + tables, "calls": len(calls)}


def _told(program: Program) -> str:
    concessions = program.compilation.concessions
    other = f", {len({name for name, _ in concessions.denied})} by other rows" * bool(concessions.denied)
    other += f", {sum(len(a.nodes) for a in concessions.recompute)} nodes again" * bool(concessions.recompute)
    return f"{sum(len(s.groups) for s in concessions.streams)} groups in strips{other}"


def printed(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*(f"{row[c]:.3f}" if isinstance(row[c], float) else str(row[c]) for c in COLUMNS))
    return table


if __name__ == "__main__":
    main()
