"""Streams that are faster than their groups one by one, by measurement.

A few of the plans in strips that may win are timed step by step. Of their streams those are kept that gain
most together, and the plan with all of these is raced with the plan without.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.streams.stream_group import StreamGroup
from app.engine.core.streams.strips import IMAGE
from app.engine.cost import roofline
from app.engine.planning.backend_assignment.bench import Bench, Planned
from app.engine.planning.backend_assignment.race_statistics import (
    TOLERATED_LOSS,
    WIN_SHARE,
    median_ratio,
    win_share,
)
from app.engine.planning.streams.proposals import Streams, proposals
from app.engine.planning.streams.prospects import Copies, Prospects
from app.engine.runtime.benchmark import pinned
from app.engine.runtime.inputs import samples
from app.engine.types.options import Options, Streamed
from app.kernels.cpu.runtime.compiler import Compiler

PLANS = 2  # of those that may win, evenly over their bytes, that are timed
GAIN = 0.02  # of the time of its groups that a stream gains at least
NONE = "none"


def with_fastest(
    compilation: Compilation,
    options: Options,
    compiler: Compiler,
    planned: Planned,
    inputs: Mapping[str, object] | None = None,
) -> Compilation:
    """The compilation with streams that make its plan faster; as it is where none do.

    What was found is kept in the timings table, so that it is measured once. Threads meet after every strip:
    with more than one, streams only save memory.
    """
    if options.threads > 1:
        return compilation
    registry = compilation.registry
    of_images = {name for name, strips in registry.strips.items() if strips.axis == IMAGE}
    in_strips = {r.op for rows in registry.implementations.values() for r in rows if r.name in of_images}
    if not any(node.op_type in in_strips for node in compilation.graph):
        return compilation
    plain = planned(replace(compilation, streams=()), options)
    if any(step.is_library for step in plain.steps) or plain.compilation.concessions.streams:
        return compilation
    bench = Bench(compilation, options, compiler, planned, ())
    kept = f"streams x{options.threads} {bench.digest(repr(_described(plain)))} "
    known = [key.removeprefix(kept) for key in bench.cache.table if key.startswith(kept)]
    if known:
        found = tuple(_read(text, plain) for text in sorted(known) if text != NONE)
        return replace(compilation, streams=found)
    with pinned(options.threads):
        found, ratio = _raced(
            bench, plain, inputs or samples(compilation.graph.inputs, compilation.bindings.storage)
        )
    bench.cache.table |= dict.fromkeys((kept + _written(s, plain) for s in found), ratio)
    bench.cache.table.setdefault(kept + NONE, ratio)
    bench.cache.save()
    return replace(compilation, streams=found, timings=bench.cache.table)


def _raced(bench: Bench, plain: Program, inputs: Mapping[str, object]) -> tuple[Streams, float]:
    """The streams that gain most, and the time of the plan with them in times of that without; or none.

    Where it is predicted that no streams can win, the time is the least that is predicted.
    """
    prospects = Prospects(plain, Copies.measured(bench.cache.table))
    if prospects.best() <= TOLERATED_LOSS:
        return (), 1.0 - prospects.best()
    proposed = {streams: prospects.of(streams) for streams in proposals(plain)}
    able = [streams for streams, share in proposed.items() if share > TOLERATED_LOSS]
    if not able:
        return (), 1.0 - max(proposed.values(), default=0.0)
    candidates = _streams(bench, plain, able)
    if not candidates:
        return (), 1.0
    compilation = replace(bench.compilation, streams=_best(candidates, plain))
    with (
        closing(bench.executor(plain)) as one,
        closing(bench.executor(bench.planned(compilation, bench.options))) as two,
    ):
        base, other = bench.in_turn([one, two], inputs)
    ratio = median_ratio(base, other)
    taken = ratio < 1.0 - TOLERATED_LOSS and win_share(base, other) >= WIN_SHARE
    return (compilation.streams if taken else ()), ratio


def _streams(bench: Bench, plain: Program, proposed: Sequence[Streams]) -> dict[Streamed, float]:
    """Seconds that streams of the plans proposed gain, of those that gain enough."""
    gains: dict[Streamed, float] = {}
    timed = dict.fromkeys(proposed[len(proposed) * i // (PLANS + 1)] for i in range(1, PLANS + 1))
    programs = [bench.planned(replace(bench.compilation, streams=s), bench.options) for s in timed]
    bench.compile_together([plain, *programs])
    steps = bench.step_seconds(plain, _described(plain))
    base = {step.group.name: seconds for step, seconds in zip(plain.steps, steps, strict=True)}
    for program in programs:
        taken = bench.step_seconds(program, _described(program))
        for step, seconds in zip(program.steps, taken, strict=True):
            if isinstance(step.group, StreamGroup):
                parts = step.group.parts
                one = Streamed(tuple(p.group.name for p in parts), tuple(p.rows for p in parts))
                before = sum(base[name] for name in one.groups)
                if before - seconds > GAIN * before:
                    gains[one] = before - seconds
    return gains


def _best(gains: Mapping[Streamed, float], plain: Program) -> Streams:
    """Streams without a common group that gain most together: the heaviest path over the steps."""
    at = {step.group.name: i for i, step in enumerate(plain.steps)}
    ending: dict[int, list[Streamed]] = {}
    for stream in gains:
        ending.setdefault(max(at[name] for name in stream.groups) + 1, []).append(stream)
    best: list[tuple[float, Streams]] = [(0.0, ())]
    for position in range(1, len(plain.steps) + 1):
        found = best[-1]
        for stream in ending.get(position, ()):
            gain, before = best[min(at[name] for name in stream.groups)]
            found = max(found, (gain + gains[stream], (*before, stream)), key=lambda f: f[0])
        best.append(found)
    return best[-1][1]


def _described(program: Program) -> tuple[tuple[str, ...], ...]:
    """Implementation, its tuning, nodes and rows of each step."""
    return tuple(
        (
            roofline.called(step.choice.implementation),
            step.choice.tuning,
            *(n.name or "" for n in step.group.nodes),
            *(str(p.rows) for p in (step.group.parts if isinstance(step.group, StreamGroup) else ())),
        )
        for step in program.steps
    )


def _written(stream: Streamed, plain: Program) -> str:
    """A stream as numbers of steps of the plan without, each with its rows."""
    at = {step.group.name: i for i, step in enumerate(plain.steps)}
    return " ".join(f"{at[name]}:{rows}" for name, rows in zip(stream.groups, stream.rows, strict=True))


def _read(text: str, plain: Program) -> Streamed:
    pairs: Sequence[list[str]] = [pair.split(":") for pair in text.split()]
    names = tuple(plain.steps[int(step)].group.name for step, _ in pairs)
    return Streamed(names, tuple(int(rows) for _, rows in pairs))
