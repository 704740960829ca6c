"""Sub-graphs assigned to the libraries that are fastest on them, by measurement on this machine.

The steps of the program that our own kernels make are in a topological order, so every interval of
them is a convex sub-graph. The interval of all steps is halved again and again where few bytes cross;
every interval is timed in every library, alone and on row-major values, and a tree of intervals tells
the least sum, conversions at the borders included. Sums are no more than a proposal: whole programs of
the best proposals then race with those of each single backend. The fastest of many is partly luck: a
mixed assignment that leads must be faster once more, in paired rounds with the fastest single backend. All
times are kept in the timings table, so that the same choice is made again without measuring.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import SUBGRAPH, Group
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.cost import roofline
from app.engine.layouts.conversions import conversion
from app.engine.planning.backend_assignment.bench import Bench, Planned, Told
from app.engine.planning.backend_assignment.intervals import (
    Assigned,
    Assignment,
    cheapest,
    described,
    halved,
    joined,
)
from app.engine.planning.backend_assignment.race_statistics import beats, median_ratio, win_share
from app.engine.runtime.benchmark import pinned
from app.engine.runtime.inputs import samples
from app.engine.runtime.verify import check, compare
from app.engine.types.errors import EngineError
from app.engine.types.options import Options
from app.kernels.cpu.runtime.compiler import Compiler

MIN_SHARE = 0.01  # share of the whole time below which an interval is not halved
HOPELESS = 1.5  # times our own seconds: if every library takes longer, halves are not timed
MIN_DEPTH = 2  # halvings after which HOPELESS applies
MIN_GAIN = 0.003  # share of the whole time that an interval must promise to save to race alone
RUNNERS = 4  # intervals that race alone beside our own steps
PAIRED_ROUNDS = 21  # rounds of a mixed assignment and the fastest single backend
LEADERS = 2  # mixed assignments that are given such rounds

Steps: TypeAlias = Sequence[tuple[str, ...]]  # names of nodes, by step
Raced: TypeAlias = Mapping[Assignment, float]  # seconds


def measured(
    compilation: Compilation,
    options: Options,
    compiler: Compiler,
    planned: Planned,
    progress: Told = lambda _done, _total: None,
) -> Compilation:
    """The compilation with sub-graphs assigned to the libraries that are fastest on them.

    Where none wins the assignment names no library. Notes tell the times of the whole program.
    """
    libraries = compilation.registry.libraries(compilation.target.backends)
    if not libraries:
        return replace(compilation, assignment=dict.fromkeys((n.name or "" for n in compilation.graph), ""))
    with pinned(options.threads):
        bench = Bench(compilation, options, compiler, planned, libraries)
        proposal = propose(bench, progress)
        raced = dict(race(bench, proposal.first, progress))
        raced |= race(bench, [(), proposal.together(raced)], progress)
        return fastest(bench, raced, proposal.singles)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Assignments that may be fast, by the sum of the times of their parts.

    Attributes:
        steps: of our own program.
        singles: no library, and each library on the whole model.
        mixed: the least sums, with all libraries and with each.
        runners: intervals that promise most alone.
    """

    steps: Steps
    singles: tuple[Assignment, ...]
    mixed: tuple[Assignment, ...]
    runners: tuple[Assigned, ...]

    @property
    def first(self) -> list[Assignment]:
        """The assignments of the first race."""
        alone = (joined((runner,), self.steps) for runner in self.runners)
        return list(dict.fromkeys((*self.singles, *self.mixed, *alone)))

    def together(self, raced: Raced) -> Assignment:
        """The intervals that won alone in one assignment, the fastest first; those taken do not overlap."""

        def seconds(runner: Assigned) -> float:
            return raced[joined((runner,), self.steps)]

        taken: list[Assigned] = []
        for runner in sorted(self.runners, key=seconds):
            if seconds(runner) < raced[()] and all(runner[0].is_apart(other) for other, _ in taken):
                taken.append(runner)
        return joined(taken, self.steps)


def propose(bench: Bench, progress: Told) -> Proposal:
    """Assignments of intervals of our own program's steps, by their times in the libraries."""
    program = bench.program(())
    steps = [
        tuple(n.name or "" for n in s.group.nodes if (n.name or "") in bench.nodes) for s in program.steps
    ]
    seconds = bench.step_seconds(program, steps)
    whole = sum(seconds)
    readers = graph.readers(bench.compilation.graph)
    root = halved(0, len(steps), seconds, _crossing(bench, steps, readers), whole * MIN_SHARE)
    times: dict[Assigned, float] = {}
    count = len(list(root.walk()))
    waiting = [(root, 0)]
    while waiting:
        interval, depth = waiting.pop()
        progress(len(times) // len(bench.libraries), count)
        group = _group(bench, steps[interval.first : interval.last], readers)
        found = {} if group is None else _library_times(bench, group, program)
        times |= {(interval, name): spent for name, spent in found.items()}
        ratios = [spent / (interval.seconds(seconds) or 1.0) for spent in found.values()]
        if depth < MIN_DEPTH or not ratios or min(ratios) < HOPELESS:
            waiting += [(half, depth + 1) for half in reversed(interval.halves)]
    bench.cache.save()
    alone = [((root, name),) for name in bench.libraries if (root, name) in times]
    sums = [cheapest(root, seconds, times, n)[1] for n in (bench.libraries, *([n] for n in bench.libraries))]
    promised = {a: a[0].seconds(seconds) - spent for a, spent in times.items()}
    likely = [a for a in sorted(promised, key=lambda a: -promised[a]) if promised[a] > MIN_GAIN * whole]
    return Proposal(
        steps,
        ((), *(joined(c, steps) for c in alone)),
        tuple(joined(c, steps) for c in sums),
        tuple(likely[:RUNNERS]),
    )


def _crossing(bench: Bench, steps: Steps, readers: Mapping[ir.Value, Sequence[ir.Node]]) -> list[float]:
    """Bytes that live across the border before each step."""
    place = {name: i for i, nodes in enumerate(steps) for name in nodes}
    change = [0.0] * (len(steps) + 2)
    for i, nodes in enumerate(steps):
        for value in (v for name in nodes for v in bench.nodes[name].outputs):
            last = max((place[r.name or ""] for r in readers.get(value, ())), default=i)
            if last > i:
                moved = 1e9 if graph.is_dynamic(value) else float(graph.nbytes(value))
                change[i + 1] += moved
                change[last + 1] -= moved
    return list(np.cumsum(change))


def _group(
    bench: Bench, steps: Iterable[tuple[str, ...]], readers: Mapping[ir.Value, Sequence[ir.Node]]
) -> Group | None:
    """The sub-graph of some steps; None where these have no nodes of the model."""
    members = {name for step in steps for name in step}
    nodes = tuple(n for n in bench.compilation.graph if n.name in members)
    if not nodes:
        return None
    inside, ends = set(nodes), set(bench.compilation.graph.outputs)
    anchor = max(nodes, key=lambda n: (roofline.arithmetic(n), n.name or ""))

    def leaves(value: ir.Value) -> bool:
        return bool(value.name) and (value in ends or not inside.issuperset(readers.get(value, ())))

    return graph.group(nodes, anchor, SUBGRAPH, leaves)


def _library_times(bench: Bench, group: Group, program: Program) -> dict[str, float]:
    """Seconds of a sub-graph by library, with conversions where our program has a border value blocked."""
    layout = program.compilation.plan.require("layout")
    blocked = {v.name: at for v, at in layout.items() if not at.is_plain}
    border = [v for v in (*group.inputs, *group.outputs) if v.name in blocked]
    found = {name: bench.library_seconds(group, name) for name in bench.libraries}
    moved = sum(conversion(v, blocked[v.name], bench.compilation, bench.context) for v in border)
    return {name: spent + moved for name, spent in found.items() if spent is not None}


def race(bench: Bench, candidates: Sequence[Assignment], progress: Told) -> Raced:
    """Seconds of whole programs by their assignment; the first is our own alone."""
    keys = {
        c: f"program {bench.versions} x{bench.options.threads} {bench.digest(repr(c))}" for c in candidates
    }
    if not all(key in bench.cache.table for key in keys.values()):
        bench.cache.table.update(run_race(bench, keys, progress))
        bench.cache.save()
    return {c: bench.cache.table[key] for c, key in keys.items()}


def run_race(bench: Bench, keys: Mapping[Assignment, str], progress: Told) -> dict[str, float]:
    """Seconds of whole programs, infinite for what does not run; each in turn with our own program.

    Only two programs hold their weights at a time. What the machine does meanwhile meets both: a
    time is the median ratio of a round, times the median of our own.
    """
    inputs, table = samples(bench.compilation.graph.inputs), bench.cache.table
    found = dict.fromkeys(keys.values(), float("inf"))
    ours = [table[keys[()]]] if keys[()] in table else []
    ratios = {keys[()]: 1.0}
    with closing(bench.executor(bench.program(()))) as own:
        expected = own.run(inputs)
        for done, (assignment, key) in enumerate(keys.items()):
            progress(done, len(keys))
            if not assignment or key in table:
                found[key] = table.get(key, found[key])
                continue
            try:
                with closing(bench.executor(bench.program(assignment))) as executor:
                    check(compare(expected, executor.run(inputs), bench.options.tolerance))
                    taken = bench.in_turn([own, executor], inputs)
            except EngineError as cause:
                bench.rejections[f"{described(assignment)} is refused: {cause.message}"] = None
                continue
            ratios[key] = median_ratio(*taken)
            if keys[()] not in table:
                ours.append(float(np.median(taken[0])))
        own_seconds = float(np.median(ours or bench.in_turn([own], inputs)[0]))
    return {**found, **{key: ratio * own_seconds for key, ratio in ratios.items()}}


def fastest(bench: Bench, raced: Raced, singles: Sequence[Assignment]) -> Compilation:
    """The compilation of the fastest single backend, or of a mixed assignment that beats it."""
    ranked = sorted(raced, key=raced.__getitem__)
    single = next(c for c in ranked if c in singles)
    leaders = ranked[: ranked.index(single)][:LEADERS]
    pairs = {c: in_pairs(bench, c, single) for c in leaders}
    best = next((c for c, (ratio, wins) in pairs.items() if beats(ratio, wins)), single)
    told = ", ".join(f"{described(c)} {s * 1e6:.4g} us" for c, s in raced.items() if s != float("inf"))
    against = "".join(
        f"; {described(c)} in paired rounds with {described(single)}: {ratio:.3f} of its time, "
        f"{wins:.0%} of rounds won"
        for c, (ratio, wins) in pairs.items()
    )
    notes = (f"choose: {described(best)} is taken; measured: {told}{against}", *bench.rejections)
    found = bench.assigned(best)
    return replace(found, timings=bench.cache.table, notes=(*bench.compilation.notes, *notes))


def in_pairs(bench: Bench, assignment: Assignment, other: Assignment) -> tuple[float, float]:
    """Median ratio of two programs' times in paired rounds, and the share of rounds that the first wins."""
    pair = bench.digest(repr((assignment, other)))
    key = f"paired {bench.versions} x{bench.options.threads} {pair}"
    keys = (f"{key} ratio", f"{key} won")
    if not all(k in bench.cache.table for k in keys):
        programs = [bench.program(c) for c in (assignment, other)]
        inputs = samples(bench.compilation.graph.inputs)
        with closing(bench.executor(programs[0])) as one, closing(bench.executor(programs[1])) as two:
            taken, base = bench.in_turn([one, two], inputs, PAIRED_ROUNDS)
        bench.cache.table.update(zip(keys, (median_ratio(base, taken), win_share(base, taken))))
        bench.cache.save()
    return bench.cache.table[keys[0]], bench.cache.table[keys[1]]
