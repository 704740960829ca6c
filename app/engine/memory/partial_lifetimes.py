"""Placement of buffers whose parts live at different times, such as concatenations written by slices.

A buffer is a rigid set of rectangles: its parts keep their distances. Each goes to the lowest offset where
none of its parts meets what is placed; what does not fit under the bound is moved to the front of the
order, and all is placed again. Where the first order does not meet the bound of live bytes, a higher bound
is looked for before the others. Compiled by numba on first use.

Source: Pisarchyk and Lee, 2020, arXiv:2001.03288 (greedy placement in a given order); moving what fails
to the front is the squeaky wheel method of Joslin and Clements, 1999, JAIR 10.
"""

from dataclasses import replace
from typing import Any, TypeAlias

import numba
import numpy as np

from app.engine.memory import disjunctive_bound
from app.engine.memory.problem import Problem, Solution, lower_bound

Array: TypeAlias = np.ndarray[Any, Any]

TRIES = 400  # placements: bounds the search by work, never by the clock
ENTRIES = 1 << 24  # pieces that are live with others, summed; with more nothing is searched


def improve(problem: Problem, known: Solution, tries: int = TRIES) -> Solution:
    """A placement with a lower peak than a known one, at the lower bound if it can; else the known one.

    So too where more buffers are live at once than a search could place again and again (see ENTRIES).
    """
    bound = lower_bound(problem)
    if known.peak == bound or not any(b.parts for b in problem.buffers):
        return known
    pieces = np.array([p for b in problem.buffers for p in b.pieces], np.int64).reshape(-1, 4)
    starts = np.cumsum([0, *(len(b.pieces) for b in problem.buffers)])
    extents = np.array([b.extent for b in problem.buffers], np.int64)
    alignments = np.array([b.alignment for b in problem.buffers], np.int64)
    spans = np.array([b.upper - b.lower for b in problem.buffers], np.int64)
    owners = np.repeat(np.arange(len(extents)), np.diff(starts))
    beside, others = _neighbours(pieces, owners, ENTRIES)
    if not len(beside):
        return known
    peak, best = known.peak, None
    ranks, looked = [(extents,), (spans, extents), (extents * spans,)], False
    rows = (starts, pieces, owners, beside, others, extents)
    while ranks and peak > bound:
        keys = ranks.pop(0)
        offsets = np.zeros(len(extents), np.int64)
        order = np.lexsort([-key for key in reversed(keys)])
        found = _settle(order, rows, alignments, bound, peak, tries, offsets)
        if found < peak:
            peak, best = found, offsets
        if peak > bound and not looked:
            unit = int(np.gcd.reduce(alignments))
            higher = disjunctive_bound.raised(bound, peak, rows, unit, disjunctive_bound.NODES)
            if higher > bound:
                ranks.insert(0, keys)  # a bound that can be met tells better what fails
            bound, looked = higher, True
    if best is None:
        return replace(known, lower_bound=bound, proved=peak == bound)
    placed = {b.id: int(at) for b, at in zip(problem.buffers, best, strict=True)}
    return Solution(placed, peak, bound, peak == bound, "slices, moved to the front where they fail")


def _neighbours(pieces: Array, owners: Array, most: int) -> tuple[Array, Array]:
    """Pieces of other buffers that are live with each: where its list begins, and all lists in a row.

    With more than `most` entries in all there are no lists, and the first array is empty.
    """
    by_start = np.argsort(pieces[:, 2], kind="stable")
    live, counts, none = (np.zeros(n, np.int64) for n in (len(pieces), len(pieces), 0))
    entries = np.zeros(0, np.int32)
    total = _list(pieces, owners, by_start, most, live, counts, entries)
    if total > most:
        return none, entries
    begins = np.concatenate(([0], np.cumsum(counts)))
    entries = np.zeros(total, np.int32)
    _list(pieces, owners, by_start, most, live, begins[:-1].copy(), entries)
    return begins, entries


@numba.njit(cache=True, error_model="numpy")
def _list(
    pieces: Array, owners: Array, by_start: Array, most: int, live: Array, places: Array, entries: Array
) -> int:
    """Entries of all lists, or more than `most`; writes them where there are some.

    Args:
        pieces: [piece, 4], see `disjunctive_bound.Pieces`.
        owners: buffers by piece.
        by_start: pieces by their first step.
        most: entries that are counted.
        live: room for as many pieces.
        places: where the next entry of each piece goes; grows by its entries.
        entries: filled; empty to count.
    """
    total = count = 0
    for p in by_start:
        kept = 0
        for i in range(count):
            q = live[i]
            if pieces[q, 3] <= pieces[p, 2]:
                continue
            live[kept] = q
            kept += 1
            if owners[p] == owners[q]:
                continue
            total += 2
            if len(entries):
                entries[places[p]], entries[places[q]] = q, p
            places[p] += 1
            places[q] += 1
        live[kept] = p
        count = kept + 1
        if total > most:
            break
    return total


@numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
def _lowest_free(
    b: int, given: disjunctive_bound.Pieces, trial: Array, is_placed: Array, alignment: int, taken: Array
) -> int:
    """The lowest offset where no piece of buffer b meets one that is placed.

    `taken` is room for the intervals that the offset must not be in.
    """
    starts, pieces, owners, beside, others, _ = given
    count = 0
    for p in range(starts[b], starts[b + 1]):
        for i in range(beside[p], beside[p + 1]):
            q = others[i]
            if is_placed[owners[q]]:
                low = trial[owners[q]] + pieces[q, 0]
                taken[count, 0] = low - pieces[p, 0] - pieces[p, 1]
                taken[count, 1] = low + pieces[q, 1] - pieces[p, 0]
                count += 1
    offset = moved = 0
    while moved >= 0:  # up, until it is in none
        moved = -1
        for k in range(count):
            if taken[k, 0] < offset < taken[k, 1]:
                moved = offset = -(-taken[k, 1] // alignment) * alignment
    return offset


def _settle(
    order: Array,
    given: disjunctive_bound.Pieces,
    alignments: Array,
    bound: int,
    peak: int,
    tries: int,
    offsets: Array,
) -> int:
    """The least peak below `peak` of some tries, `offsets` filled; `peak` when there is none.

    Args:
        order: buffers; changed.
        given: all buffers, see `disjunctive_bound.Pieces`.
        alignments: by buffer.
        bound: bytes that are enough.
        peak: bytes to stay below.
        tries: placements.
        offsets: filled.
    """
    starts, beside, n = given[0], given[3], len(order)
    room = int(np.diff(beside[starts]).max(initial=0))
    scratch = np.zeros(n, np.int64), np.zeros(n, np.bool_), np.zeros((room, 2), np.int64)
    return int(_tried(order, given, alignments, bound, peak, tries, scratch, offsets))


@numba.njit(cache=True, error_model="numpy")
def _tried(
    order: Array,
    given: disjunctive_bound.Pieces,
    alignments: Array,
    bound: int,
    peak: int,
    tries: int,
    scratch: tuple[Array, Array, Array],
    offsets: Array,
) -> int:
    """Result of `_settle`. `scratch` is room for offsets, for what is placed, and for `_lowest_free`."""
    trial, is_placed, taken = scratch
    extents, n, limit = given[5], len(order), bound
    for attempt in range(tries):
        top, failed = 0, -1
        for b in range(n):
            is_placed[b] = False
        for at in range(n):
            b = order[at]
            offset = _lowest_free(b, given, trial, is_placed, alignments[b], taken)
            if offset + extents[b] > limit and failed < 0:
                failed = at
            if offset + extents[b] >= peak:
                break
            top = max(top, offset + extents[b])
            trial[b], is_placed[b] = offset, True
        else:
            peak = top
            for b in range(n):
                offsets[b] = trial[b]
        if failed < 0:
            break
        moved = order[failed]
        # The first time to the very front, then less far: an order that was there does not come back soon.
        front = failed * (attempt % 4) // 4
        for k in range(failed, front, -1):
            order[k] = order[k - 1]
        order[front] = moved
    return peak
