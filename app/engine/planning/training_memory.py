"""Memory of a training graph: forward and backward part, values kept for backward, gain of computing again.

A step is of the forward part where an output that is no gradient needs it, an output that is computed from a
gradient, such as an updated weight, aside; every other step is of the backward part.
"""

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from app.engine.core.placement import Slice
from app.engine.core.program import Program
from app.engine.gradient import marks
from app.engine.planning import budget, rematerialization
from app.engine.planning.budget import Build
from app.engine.report.report import order_json
from app.engine.types.errors import CapacityError
from app.engine.types.options import MemoryConcessions

LISTED = 50  # values kept for backward that a summary lists
TRIED = 3  # values of one round that are tried computed again
WORK, LEAST, MOST = 1500, 6, 30  # plans looked at, by the number of steps

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """Steps of one direction, and the most bytes that are in use at one of them."""

    steps: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A value that forward steps make and backward steps read; `bytes` as it is stored."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A plan with values computed again.

    Attributes:
        peak_bytes: of its arena.
        saved_bytes: against the plan that keeps all values.
        extra_seconds: against that plan, predicted or measured as its steps are.
        nodes: how many are computed a second time.
        values: what they make.
    """

    peak_bytes: int
    saved_bytes: int
    extra_seconds: float
    nodes: int
    values: tuple[str, ...]


def described(program: Program, gradients: Collection[str], build: Build) -> Json | None:
    """The memory of a planned training graph; None where no output is a gradient.

    Args:
        program: the plan.
        gradients: names of outputs.
        build: plans the same graph with other concessions.
    """
    if not gradients:
        return None
    backward = backward_steps(program, gradients)
    live = budget.live_bytes(program)
    parts = {
        name: Part(len(steps), max((live[i] for i in steps), default=0))
        for name, steps in (
            ("forward", [s.index for s in program.steps if s.index not in backward]),
            ("backward", sorted(backward)),
        )
    }
    values, total = kept(program, backward)
    return {
        "gradients": len(gradients),
        **{name: asdict(part) for name, part in parts.items()},
        "order": order_json(program.compilation),
        "kept_bytes": total,
        "kept_values": len(values),
        "kept": [asdict(k) for k in values[:LISTED]],
        "rematerialization": [asdict(p) for p in recomputed(program, build)],
    }


def backward_steps(program: Program, gradients: Collection[str]) -> frozenset[int]:
    """Indices of the steps of the backward part."""
    forward = marks.forward_nodes(program.compilation.graph, gradients)
    return frozenset(s.index for s in program.steps if not any(n in forward for n in s.group.nodes))


def kept(program: Program, backward: Collection[int]) -> tuple[list[Kept], int]:
    """Values in the arena that backward steps read of forward steps, the largest first, and their bytes.

    A part of the bytes of another such value, as a view is, counts with that one.
    """
    made = {v for s in program.steps if s.index not in backward for n in s.group.nodes for v in n.outputs}
    read = {v.name for s in program.steps if s.index in backward for v in s.group.inputs if v in made}
    found: list[Kept] = []
    for buffer in program.placement.buffers:
        whole: list[Slice] = []
        for part in sorted(buffer.slices, key=lambda p: (-p.nbytes, p.first)):
            if part.value in read and not any(_holds(other, part) for other in whole):
                whole.append(part)
        found += [Kept(part.value, part.nbytes) for part in whole]
    return sorted(found, key=lambda k: (-k.bytes, k.name)), sum(k.bytes for k in found)


def _holds(whole: Slice, part: Slice) -> bool:
    """True if a value lies in the bytes of another while both live; what takes its place does not."""
    inside = whole.offset <= part.offset and part.offset + part.nbytes <= whole.offset + whole.nbytes
    return inside and part.first < whole.last and whole.first < part.last


def recomputed(program: Program, build: Build) -> list[Recomputed]:
    """Plans with more and more values computed again, each smaller than the one before.

    Round by round, of the values that wait through the fullest step those with most bytes are tried; the
    number of plans is bounded by the number of steps.
    """
    best, found = program, []
    left = min(max(WORK // max(len(program.steps), 1), LEAST), MOST)
    while left > 0:
        tried = rematerialization.candidates(best, budget.fullest(best))[: min(TRIED, left)]
        left -= len(tried)
        concessions = best.compilation.concessions
        plans = _built(
            build,
            (
                replace(
                    concessions, recompute=(*concessions.recompute, more), unbounded=True, peak_limit=None
                )
                for more in tried
            ),
        )
        smaller = [p for p in plans if p.arena_bytes < best.arena_bytes]
        if not smaller:
            break
        best = min(smaller, key=lambda p: (p.arena_bytes, p.seconds))
        again = best.compilation.concessions.recompute
        names = {n for a in again for n in a.nodes}
        values = [v.name or "" for n in program.compilation.graph if n.name in names for v in n.outputs]
        found.append(
            Recomputed(
                best.arena_bytes,
                program.arena_bytes - best.arena_bytes,
                best.seconds - program.seconds,
                sum(len(a.nodes) for a in again),
                tuple(filter(None, values))[:LISTED],
            )
        )
    return found


def _built(build: Build, concessions: Iterable[MemoryConcessions]) -> Iterable[Program]:
    for given in concessions:
        try:
            yield build(given)
        except CapacityError:
            continue
