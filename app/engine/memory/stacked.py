"""Offsets for every size of a problem's buffers: which lies above which is fixed, the rest is arithmetic.

A placement at one shape says of every two buffers that live at one time which lies above the other. Kept for
all sizes, an offset is the largest end of the buffers below it: the longest path in a graph without cycles.
So the peak is the largest of sums of sizes, and does not fall where sizes grow.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from app.engine.memory.problem import Buffer, Problem, Solution, lower_bound


@dataclass(frozen=True, slots=True)
class Stacking:
    """An order of buffers, each with those that it lies above, which come before it.

    Attributes:
        below: by id of a buffer, for the id of each that lies under it: whether only parts that live at one
            time are kept apart, and not the whole buffers.
    """

    order: tuple[str, ...]
    below: Mapping[str, Mapping[str, bool]]

    def solution(self, problem: Problem) -> Solution:
        """The placement of the same buffers with other sizes.

        Buffers that were stacked and are not in the problem take nothing.

        Raises:
            ValueError: a buffer was not stacked.
        """
        buffers = {b.id: b for b in problem.buffers}
        if not buffers.keys() <= self.below.keys():
            named = ", ".join(sorted(buffers.keys() - self.below.keys())[:5])
            raise ValueError(f"the buffers are not those that were stacked: {named}")
        offsets: dict[str, int] = {}
        for name in self.order:
            if name not in buffers:
                continue
            buffer = buffers[name]
            start = 0
            for under, parts in self.below[name].items():
                if under not in buffers:
                    continue
                start = max(start, offsets[under] + distance(buffers[under], buffer, parts=parts))
            offsets[name] = -(-start // buffer.alignment) * buffer.alignment
        peak = max((offsets[b.id] + b.extent for b in problem.buffers), default=0)
        bound = lower_bound(problem)
        return Solution(offsets, peak, bound, peak == bound, "stacked")

    def extended(self, problem: Problem) -> "Stacking":
        """The stacking with the other buffers of a problem above all that live with them, in their order."""
        fresh = [b for b in problem.buffers if b.id not in self.below]
        if not fresh:
            return self
        below = dict(self.below)
        for buffer in fresh:
            alive = (b for b in problem.buffers if b.lower < buffer.upper and buffer.lower < b.upper)
            below[buffer.id] = {b.id: False for b in alive if b.id in below}
        return Stacking((*self.order, *(b.id for b in fresh)), below)


def distance(under: Buffer, over: Buffer, *, parts: bool) -> int:
    """Bytes from the start of a buffer to that of one above it, at least; with `parts` it may be negative."""
    if not parts:
        return under.extent
    return max(
        (
            a.offset + a.size - b.offset
            for a in under.pieces
            for b in over.pieces
            if a.lower < b.upper and b.lower < a.upper and a.size and b.size
        ),
        default=-over.extent,
    )


def stacked(problem: Problem, solution: Solution) -> Stacking:
    """The stacking of a valid placement.

    Of two buffers with parts, those parts that live at one time are kept apart where all of one buffer lie
    above those of the other; where they interlock, the whole buffers are.
    """
    places = {b.id: i for i, b in enumerate(problem.buffers)}
    ordered = sorted(problem.buffers, key=lambda b: (solution.offsets[b.id], b.extent, places[b.id]))
    below: dict[str, dict[str, bool]] = {}
    for i, buffer in enumerate(ordered):
        found = below[buffer.id] = {}
        for other in ordered[:i]:
            if other.lower < buffer.upper and buffer.lower < other.upper:
                parts = bool(other.parts or buffer.parts)
                above = solution.offsets[buffer.id] - solution.offsets[other.id]
                found[other.id] = parts and distance(other, buffer, parts=True) <= above
    return Stacking(tuple(b.id for b in ordered), below)
