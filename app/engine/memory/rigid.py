"""Placement of buffers whose parts live at different times, such as concatenations written by slices.

A buffer is a rigid set of rectangles: its parts keep their distances. Each goes to the lowest offset where
none of its parts meets what is placed; what does not fit under the bound is moved to the front of the
order, and all is placed again. Compiled by numba on first use.

Source: Pisarchyk and Lee, 2020, arXiv:2001.03288 (greedy placement in a given order); moving what fails
to the front is the squeaky wheel method of Joslin and Clements, 1999, JAIR 10.
"""

from typing import Any, TypeAlias

import numba
import numpy as np

from app.engine.memory.problem import Problem, Solution, lower_bound

Array: TypeAlias = np.ndarray[Any, Any]

TRIES = 400  # placements: bounds the search by work, never by the clock


def improve(problem: Problem, known: Solution, tries: int = TRIES) -> Solution:
    """A placement with a lower peak than a known one, at the lower bound if it can; else the known one."""
    bound = lower_bound(problem)
    if known.peak == bound or not any(b.parts for b in problem.buffers):
        return known
    pieces = np.array([p for b in problem.buffers for p in b.pieces], np.int64).reshape(-1, 4)
    starts = np.cumsum([0, *(len(b.pieces) for b in problem.buffers)])
    extents = np.array([b.extent for b in problem.buffers], np.int64)
    alignments = np.array([b.alignment for b in problem.buffers], np.int64)
    spans = np.array([b.upper - b.lower for b in problem.buffers], np.int64)
    peak, best = known.peak, None
    for keys in ((extents,), (spans, extents), (extents * spans,)):
        order = np.lexsort([-k for k in reversed(keys)])
        offsets = np.zeros(len(order), np.int64)
        found = int(_settle(order, starts, pieces, extents, alignments, bound, peak, tries, offsets))
        if found < peak:
            peak, best = found, offsets
        if peak == bound:
            break
    if best is None:
        return known
    placed = {b.id: int(at) for b, at in zip(problem.buffers, best, strict=True)}
    return Solution(placed, peak, bound, peak == bound, "slices, moved to the front where they fail")


@numba.njit(cache=True)
def _settle(
    order: Array,
    starts: Array,
    pieces: Array,
    extents: Array,
    alignments: Array,
    bound: int,
    peak: int,
    tries: int,
    offsets: Array,
) -> int:
    """The least peak below `peak` of some tries, `offsets` filled; `peak` when there is none.

    Args:
        order: buffers; changed.
        starts: where the pieces of each buffer begin.
        pieces: [piece, 4] offset in the buffer, bytes, first step, step after the last.
        extents: bytes by buffer.
        alignments: by buffer.
        bound: bytes that are enough.
        peak: bytes to stay below.
        tries: placements.
        offsets: filled.
    """
    n = len(order)
    limit = bound
    trial = np.zeros(n, np.int64)
    # What is placed: start, end, first step, step after the last; and what an offset must not be in.
    rows = np.zeros((len(pieces), 4), np.int64)
    taken = np.zeros((len(pieces) * 8 + 8, 2), np.int64)
    for attempt in range(tries):
        placed, top, failed = 0, 0, -1
        for at in range(n):
            b = order[at]
            count = 0
            for p in range(starts[b], starts[b + 1]):
                for r in range(placed):
                    if rows[r, 2] < pieces[p, 3] and rows[r, 3] > pieces[p, 2]:
                        if count == len(taken):
                            taken = np.concatenate((taken, np.zeros_like(taken)))
                        taken[count, 0] = rows[r, 0] - pieces[p, 0] - pieces[p, 1]
                        taken[count, 1] = rows[r, 1] - pieces[p, 0]
                        count += 1
            ranked = np.argsort(taken[:count, 0])
            offset = 0
            for k in ranked:
                if offset <= taken[k, 0]:
                    break
                if taken[k, 1] > offset:
                    offset = -(-taken[k, 1] // alignments[b]) * alignments[b]
            if offset + extents[b] > limit and failed < 0:
                failed = at
            if offset + extents[b] >= peak:
                break
            top = max(top, offset + extents[b])
            trial[b] = offset
            for p in range(starts[b], starts[b + 1]):
                rows[placed, 0], rows[placed, 1] = offset + pieces[p, 0], offset + pieces[p, 0] + pieces[p, 1]
                rows[placed, 2], rows[placed, 3] = pieces[p, 2], pieces[p, 3]
                placed += 1
        else:
            peak = top
            offsets[:] = trial
        if failed < 0:
            break
        moved = order[failed]
        # The first time to the very front, then less far: an order that was there does not come back soon.
        front = failed * (attempt % 4) // 4
        for k in range(failed, front, -1):
            order[k] = order[k - 1]
        order[front] = moved
    return peak
