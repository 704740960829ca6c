"""Greedy placement: buffers in a fixed order, each into the smallest gap that holds it.

Source: Pisarchyk and Lee, 2020, arXiv:2001.03288 (greedy by size, offset calculation); the other
orders are those that planners of compilers try besides (area, duration, conflicts), the order of
execution, and what lives at the peak before what does not.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from app.engine.memory.problem import Problem, Solution, lower_bound

Array: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

SPAN = 64  # steps that are looked up together
LONG = 16 * SPAN  # steps of a lifespan that is compared with all others


@dataclass(frozen=True, slots=True)
class Columns:
    """The buffers of a problem as arrays: steps, and extents in bytes."""

    lower: Array
    upper: Array
    extent: Array
    alignment: Array


def _conflicts(c: Columns) -> Array:
    """How many buffers each one shares a step with, itself among them."""
    ended = np.searchsorted(np.sort(c.upper), c.lower, side="right")
    begun = np.searchsorted(np.sort(c.lower), c.upper, side="left")
    return begun - ended


def _pressure(c: Columns) -> Array:
    """The most bytes alive at a step of each buffer's lifespan."""
    steps, change = np.concatenate((c.lower, c.upper)), np.concatenate((c.extent, -c.extent))
    times, at = np.unique(steps, return_inverse=True)
    live = np.zeros(len(times), np.int64)
    np.add.at(live, at, change)
    spans = np.searchsorted(times, np.stack((c.lower, c.upper), axis=1))
    return np.maximum.reduceat(np.cumsum(live), spans.ravel())[::2]


# Pairs of buffers that live together, up to which plain Python is quick.
QUICK_PAIRS = 50_000

Rank: TypeAlias = Callable[[Columns], tuple[Array, ...]]

# Largest first, later numbers break ties of earlier ones. Then the larger buffer, the earlier one,
# and the order of the problem.
ORDERS: tuple[tuple[str, Rank], ...] = (
    ("size", lambda c: (c.extent,)),
    ("duration", lambda c: (c.upper - c.lower,)),
    ("conflicts", lambda c: (_conflicts(c),)),
    ("pressure", lambda c: (_pressure(c), c.upper - c.lower)),
    ("start", lambda c: (-c.lower,)),
    ("area", lambda c: (c.extent * (c.upper - c.lower),)),
)


def by_size(problem: Problem) -> Solution | None:
    """The placement by size; None where it would take long in plain Python."""
    if not problem.buffers:
        return Solution({}, 0, 0, True, "nothing to place")
    found = largest_first(problem, columns_of(problem))
    if found is None:
        return None
    offsets, peak = found
    bound = lower_bound(problem)
    placed = {b.id: at for b, at in zip(problem.buffers, offsets.tolist(), strict=True)}
    return Solution(placed, peak, bound, peak == bound, "greedy by size")


@lru_cache(maxsize=4)  # the order is judged by the very problem that is solved next
def solve(problem: Problem) -> Solution:
    """The best of the greedy placements; stops at the first that meets the lower bound.

    `proved` holds exactly when the peak meets the lower bound. A peak above the optimum is no
    error, nor is one above the capacity. A variant takes time in n times the buffers that live together.
    """
    first = by_size(problem)
    if first is not None and first.proved:
        return first
    bound = lower_bound(problem)
    columns = columns_of(problem)
    best: Array | None = None
    peak = method = None
    for name, rank in ORDERS:
        offsets = place(columns, order_by(columns, rank), peak)
        if offsets is None:
            continue
        best = offsets
        peak = int(np.max(offsets + columns.extent))
        method = f"greedy by {name}"
        if peak == bound:
            break
    assert best is not None
    assert peak is not None
    assert method is not None
    offsets_by_id = {b.id: int(at) for b, at in zip(problem.buffers, best, strict=True)}
    return Solution(offsets_by_id, peak, bound, peak == bound, method)


def order_by(columns: Columns, rank: Rank) -> Array:
    """Positions of the buffers in the order that a row of `ORDERS` gives."""
    keys = [-key for key in reversed(rank(columns))]
    return np.lexsort((columns.lower, -columns.extent, *keys))


def largest_first(problem: Problem, columns: Columns) -> tuple[Array, int] | None:
    """Offsets of greedy placement by size, and the peak; None where too many buffers live together.

    The compiled core finds them where it is loaded already, plain Python elsewhere: they are the same.
    """
    packing = sys.modules.get("app.engine.memory.greedy_core")
    if packing is None:
        return quick(problem)
    c, n = columns, len(columns.extent)
    if n * n > 2 * QUICK_PAIRS and int(_conflicts(c).sum()) - n > 2 * QUICK_PAIRS:
        return None
    order = order_by(c, dict(ORDERS)["size"])
    offsets, peak = packing.place(c.lower, c.upper, c.extent, c.alignment, order, 1 << 62)
    return offsets, int(peak)


def quick(problem: Problem) -> tuple[Array, int] | None:
    """Offsets and peak of greedy placement by size, in plain Python; None where too many live together.

    A few microseconds a buffer that has few neighbors.
    """
    buffers = problem.buffers
    events = sorted(
        [(b.lower, 1, i) for i, b in enumerate(buffers)] + [(b.upper, 0, i) for i, b in enumerate(buffers)]
    )
    near: list[list[int]] = [[] for _ in buffers]
    alive: dict[int, None] = {}
    pairs = 0
    for _, starts, i in events:
        if not starts:
            del alive[i]
            continue
        pairs += len(alive)
        if pairs > QUICK_PAIRS:
            return None
        near[i].extend(alive)
        for k in alive:
            near[k].append(i)
        alive[i] = None
    extents = [b.extent for b in buffers]
    spans: list[tuple[int, int] | None] = [None] * len(buffers)
    for i in sorted(range(len(buffers)), key=lambda i: (-extents[i], buffers[i].lower)):
        extent, alignment = extents[i], buffers[i].alignment
        if not extent:
            continue
        floor, best, least = 0, -1, 1 << 62
        for low, high in sorted([span for k in near[i] if (span := spans[k])]):
            room = low - floor
            if extent <= room < least:
                least, best = room, floor
            if high > floor:
                floor = -(-high // alignment) * alignment
        start = floor if best < 0 else best
        spans[i] = (start, start + extent)
    peak = max((span[1] for span in spans if span), default=0)
    return np.array([span[0] if span else 0 for span in spans], np.int64), peak


def place(columns: Columns, order: Array, limit: int | None = None) -> Array | None:
    """Offsets of the buffers, placed in this order; None as soon as the peak reaches `limit`.

    Each goes into the smallest gap, among the buffers alive with it, that holds it, at the
    lowest such offset; above them all if there is none.
    """
    offsets = np.zeros(len(order), np.int64)
    placed = _Placed(columns, len(order))
    for i in order.tolist():
        extent = int(columns.extent[i])
        if extent == 0:
            continue
        starts, ends = placed.alive(i)
        offset = _gap(starts, ends, extent, int(columns.alignment[i]))
        if limit is not None and offset + extent >= limit:
            return None
        placed.add(i, offset, extent)
        offsets[i] = offset
    return offsets


class _Placed:
    """Buffers at their offsets, found by their lifespans.

    Time is cut into spans of steps. A buffer is listed in every span that it lives in, or, if these are
    many, with all others that live long.
    """

    def __init__(self, columns: Columns, count: int) -> None:
        self._columns = columns
        self._start, self._end = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._spans: dict[int, list[int]] = {}
        self._long: list[int] = []
        self._all: list[int] = []

    def add(self, buffer: int, offset: int, extent: int) -> None:
        """Place a buffer."""
        self._start[buffer], self._end[buffer] = offset, offset + extent
        self._all.append(buffer)
        spans = self._spans_of(buffer)
        if spans is None:
            self._long.append(buffer)
        else:
            for span in spans:
                self._spans.setdefault(span, []).append(buffer)

    def alive(self, buffer: int) -> tuple[Array, Array]:
        """Where those that live together with a buffer start and end, the lowest first."""
        spans = self._spans_of(buffer)
        if spans is None:
            near = self._all
        else:
            near = [*self._long, *(other for span in spans for other in self._spans.get(span, ()))]
            if len(spans) > 1:
                near = list(dict.fromkeys(near))
        others = np.array(near, np.int64)
        lower, upper = self._columns.lower, self._columns.upper
        others = others[(lower[others] < upper[buffer]) & (upper[others] > lower[buffer])]
        starts = self._start[others]
        order = np.argsort(starts, kind="stable")
        return starts[order], self._end[others[order]]

    def _spans_of(self, buffer: int) -> range | None:
        lower, upper = int(self._columns.lower[buffer]), int(self._columns.upper[buffer])
        return None if upper - lower > LONG else range(lower // SPAN, (upper - 1) // SPAN + 1)


def _gap(starts: Array, ends: Array, extent: int, alignment: int) -> int:
    """The offset of the smallest gap between live buffers, ordered by start, that holds `extent` bytes."""
    if not len(starts):
        return 0
    top = np.maximum.accumulate(ends)
    floors = np.concatenate(([0], top))
    floors += -floors % alignment
    room = starts - floors[:-1]
    fits = np.flatnonzero(room >= extent)
    if len(fits):
        return int(floors[fits[np.argmin(room[fits])]])
    return int(floors[-1])


def columns_of(problem: Problem) -> Columns:
    """The buffers of a problem as arrays, in its order."""
    rows = np.array([(b.lower, b.upper, b.extent, b.alignment) for b in problem.buffers], np.int64).reshape(
        -1, 4
    )
    return Columns(*(np.ascontiguousarray(c) for c in rows.T))
