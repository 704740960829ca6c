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
def _neighbours(pieces: Array, owners: Array) -> tuple[Array, Array]:
    """Where the list of each piece begins, and all lists: the pieces of other buffers that are live with it."""
    begins, found = np.zeros(len(pieces) + 1, np.int64), np.zeros(0, np.int64)
    for _ in range(2):  # once to count
        total = 0
        for p in range(len(pieces)):
            for q in range(len(pieces)):
                if owners[p] != owners[q] and pieces[q, 2] < pieces[p, 3] and pieces[q, 3] > pieces[p, 2]:
                    if total < len(found):
                        found[total] = q
                    total += 1
            begins[p + 1] = total
        if len(found) < total:
            found = np.zeros(total, np.int64)
    return begins, found


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
    owners = np.zeros(len(pieces), np.int64)
    for b in range(n):
        owners[starts[b] : starts[b + 1]] = b
    beside, others = _neighbours(pieces, owners)
    trial = np.zeros(n, np.int64)
    placed = np.full(n, -1, np.int64)  # by buffer: the last attempt that did
    taken = np.zeros((8, 2), np.int64)  # what an offset must not be in
    for attempt in range(tries):
        top, failed = 0, -1
        for at in range(n):
            b = order[at]
            first, last = beside[starts[b]], beside[starts[b + 1]]
            if last - first > len(taken):
                taken = np.zeros((2 * (last - first), 2), np.int64)
            count = 0
            for p in range(starts[b], starts[b + 1]):
                for i in range(beside[p], beside[p + 1]):
                    q = others[i]
                    if placed[owners[q]] == attempt:
                        low = trial[owners[q]] + pieces[q, 0]
                        taken[count, 0] = low - pieces[p, 0] - pieces[p, 1]
                        taken[count, 1] = low + pieces[q, 1] - pieces[p, 0]
                        count += 1
            offset = moved = 0
            while moved >= 0:  # up, until it is in none
                moved = -1
                for k in range(count):
                    if taken[k, 0] < offset < taken[k, 1]:
                        moved = offset = -(-taken[k, 1] // alignments[b]) * alignments[b]
            if offset + extents[b] > limit and failed < 0:
                failed = at
            if offset + extents[b] >= peak:
                break
            top = max(top, offset + extents[b])
            trial[b], placed[b] = offset, attempt
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
