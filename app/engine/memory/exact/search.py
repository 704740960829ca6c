"""Complete search for a placement below a capacity: restarts of the compiled core, within a node budget.

One run of a depth-first search either meets a good choice early or is lost in a hopeless part of the
tree, so that runs are short, and take turns with rules of choice and disturbed orders of buffers. What
they learn (weights of sections, buffers that found no place) helps the next ones but can mislead all of
them, so that it is forgotten now and then. Limits grow, so that some run in the end searches the whole
tree. Budgets are numbers of failed branches, never times: the same problem gives the same plan everywhere.

Source of restarts: Gomes, Selman and Kautz, 1998 (heavy tails); the order "width, area, total" is
MiniMalloc's (ASPLOS 2023); that what found no place comes earlier in the next run is squeaky wheel
optimization (Joslin and Clements, 1999).
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from app.engine.memory.greedy import Columns

Array: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Verdict: TypeAlias = Literal["feasible", "infeasible", "undecided"]

FIRST_LIMIT = 100  # failures of the first run
GROWTH = 1.01  # of the limit, a run
EPOCH = 6  # runs, times a term of Luby's sequence: after so many, what was learned is forgotten
SEED = 0
NOISE = 0.22  # half width of the disturbance of orders, in logarithms
LIFT = 0.25  # of all positions: how far a buffer that a run left unplaced moves to the front
# The state is quadratic in buffers that live together: beyond this number of pairs (twice) the search
# would hardly end anyway.
MOST_PAIRS = 4_000_000
MOST_BUFFERS = 4_000
MOST_TRAIL = 1 << 23


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a search; `offsets` in bytes, in the order of the columns, if feasible."""

    verdict: Verdict
    offsets: Array | None
    failures: int = 0  # of branches: what budgets count
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class Instance:
    """A problem as the compiled core reads it: sections for steps, sizes in units of `unit` bytes.

    `first` and `end` are half-open ranges of sections: sets of buffers that live together, those only
    that no neighbor contains.
    """

    unit: int
    buffers: int  # with those that take no room
    rows: Array  # of the columns: buffers that take room
    first: Array
    end: Array
    size: Array
    alignment: Array
    near: Array  # [buffer, word] bit sets of those that overlap each one in time
    members: Array  # [section, word] bit sets of the buffers of each section
    pairs: int  # elements of all these sets
    load: Array
    crossing: Array
    duration: Array


def instance(columns: Columns) -> Instance | None:
    """The instance of a problem; None if it is too large to search."""
    rows = np.flatnonzero(columns.extent)
    # By time: sets of those that live together have few words, and the order of the problem does not matter.
    rows = rows[
        np.lexsort([c[rows] for c in (columns.alignment, columns.extent, columns.upper, columns.lower)])
    ]
    lower, upper = columns.lower[rows], columns.upper[rows]
    first, end = sections(lower, upper)
    begun = np.searchsorted(np.sort(lower), upper, side="left")
    ended = np.searchsorted(np.sort(upper), lower, side="right")
    if len(rows) > MOST_BUFFERS or int(np.sum(begun - ended)) > MOST_PAIRS:
        return None
    overlap = (lower[:, None] < upper) & (lower < upper[:, None])
    np.fill_diagonal(overlap, False)
    count = int(end.max(initial=0))
    steps = np.arange(count)[:, None]
    inside = (first <= steps) & (steps < end)
    unit = int(np.gcd.reduce(np.concatenate((columns.extent[rows], columns.alignment[rows])))) or 1
    size = columns.extent[rows] // unit
    return Instance(
        unit=unit,
        buffers=len(columns.extent),
        rows=rows,
        first=first,
        end=end,
        size=size,
        alignment=columns.alignment[rows] // unit,
        near=_bits(overlap),
        members=_bits(inside),
        pairs=int(overlap.sum() + inside.sum()),
        load=inside @ size,
        crossing=(inside & (steps + 1 < end)).sum(axis=1),
        duration=upper - lower,
    )


def _bits(rows: np.ndarray[Any, np.dtype[np.bool_]]) -> Array:
    """Rows of truths as bit sets, in words of 64."""
    packed = np.zeros((len(rows), -(-rows.shape[1] // 64) * 8), np.uint8)
    found = np.packbits(rows, axis=1, bitorder="little")
    packed[:, : found.shape[1]] = found
    return packed.view("<i8").astype(np.int64)


def _range(sets: Array) -> tuple[Array, Array]:
    """Range of words of each bit set: the first that is not 0, and the one after the last."""
    used = sets != 0
    last = used.shape[1] - np.argmax(used[:, ::-1], axis=1)
    return np.argmax(used, axis=1), np.where(used.any(axis=1), last, 0)


def sections(lower: Array, upper: Array) -> tuple[Array, Array]:
    """Half-open ranges of the maximal sets of buffers alive together, for each buffer.

    Such a set is whole where a start is the last event before an end.
    """
    times = np.unique(np.concatenate((lower, upper)))
    starts, ends = np.isin(times, lower), np.isin(times, upper)
    whole = times[:-1][starts[:-1] & ends[1:]]
    return np.searchsorted(whole, lower), np.searchsorted(whole, upper)


class Search:
    """Searches of one instance for placements below capacities."""

    def __init__(self, given: Instance) -> None:
        from app.engine.memory.exact import core
        from app.engine.memory.exact import state as columns

        self._core, self._columns = core, columns
        self._given = given
        n, count = len(given.rows), len(given.load)
        most = max(n, count)
        table = np.zeros((most + 1, columns.STRIDE), np.int64)
        near, near_end = _range(given.near)
        members, members_end = _range(given.members)
        for column, values in (
            (columns.FIRST, given.first),
            (columns.END, given.end),
            (columns.SIZE, given.size),
            (columns.ALIGN, given.alignment),
            (columns.NEAR, near),
            (columns.NEAR_END, near_end),
            (columns.LEFT, _bits(np.ones((1, n), np.bool_))[0]),
            (columns.MEMBERS, members),
            (columns.MEMBERS_END, members_end),
            (columns.LOAD, given.load),
            (columns.CROSSING, given.crossing),
        ):
            table[: len(values), column] = values
        reach = 16 * given.pairs + (1 << 16)
        self._tables = columns.Tables(
            m=table,
            near=given.near,
            members=given.members,
            weight=np.ones(count),
            queues=np.empty((most, 3), np.int64),
            trail=np.empty((min(reach, MOST_TRAIL), 2), np.int64),
            frames=np.empty((n, 7), np.int64),
            parts=np.empty((n, 4), np.int64),
            counts=np.zeros(columns.COUNTS, np.int64),
        )

    def below(self, capacity: int, budget: int) -> Outcome:
        """True if all buffers fit into `capacity` bytes, by at most `budget` failed branches."""
        core, columns, given, tables = self._core, self._columns, self._given, self._tables
        n = len(given.rows)
        room = capacity // given.unit
        if n == 0:
            return Outcome("feasible", np.zeros(given.buffers, np.int64))
        if int(given.size.max()) > room:
            return Outcome("infeasible", None)
        sections, settled, count = len(given.load), tables.m.copy(), tables.counts
        settled[:n, columns.UPPER] = room - given.size
        self._restart()
        if not core.settle(tables._replace(m=settled), n, sections):
            return Outcome("infeasible", None)
        nodes = spent = 0
        rules = (columns.BY_LOAD, columns.BY_FLOOR, columns.BY_CANDIDATES)
        left: dict[int, Array] = {}
        epochs, forget = itertools.count(1), 0
        for run in itertools.count():
            if run == forget:
                left = dict.fromkeys(rules, np.zeros(n, np.int64))
                tables.weight[:] = 1.0
                forget += EPOCH * _luby(next(epochs))
            limit = min(int(FIRST_LIMIT * GROWTH**run), budget - spent)
            rule = rules[run % len(rules)]
            state = settled.copy()
            state[:n, columns.RANK] = self._ranks(run, left[rule])
            self._restart()
            found = core.search(tables._replace(m=state), sections, rule, limit)
            nodes += int(count[columns.NODES])
            spent += int(count[columns.FAILURES])
            if found == columns.FEASIBLE:
                offsets = np.zeros(given.buffers, np.int64)
                offsets[given.rows] = state[:n, columns.OFFSET] * given.unit
                return Outcome("feasible", offsets, spent, nodes)
            if found == columns.INFEASIBLE:
                return Outcome("infeasible", None, spent, nodes)
            if spent >= budget or count[columns.FAILURES] < limit:  # or the trail is full
                break
            left[rule] = 1 - state[:n, columns.PLACED]
        return Outcome("undecided", None, spent, nodes)

    def _restart(self) -> None:
        """Empty the queues and the trail."""
        columns, count = self._columns, self._tables.counts
        count[:] = 0
        count[columns.ENTRIES], count[columns.WORDS] = len(self._tables.trail), self._given.near.shape[1]

    def _ranks(self, run: int, left: Array) -> Array:
        """Positions of the buffers, widest first, then by area, then by the load they live under.

        Those `left` unplaced by the last run of the same rule come earlier.
        """
        given = self._given
        random = np.random.default_rng((SEED, run))
        spread: Callable[[], Floats] = lambda: (  # noqa: E731
            np.exp(random.uniform(-NOISE, NOISE, len(given.rows))) if run else np.ones(len(given.rows))
        )
        width = given.duration * spread()
        area = given.duration * given.size * spread()
        total = np.maximum.reduceat(
            np.append(given.load, 0), np.stack((given.first, given.end), axis=1).ravel()
        )[::2]
        order = np.lexsort((-total, -area, -width))
        ranks = _positions(order)
        return _positions(np.lexsort((ranks, ranks - LIFT * len(ranks) * left))) if left.any() else ranks


def _luby(i: int) -> int:
    """The i-th term, from 1 on, of 1, 1, 2, 1, 1, 2, 4, ...

    Source: Luby, Sinclair and Zuckerman, 1993 (optimal speedup of Las Vegas algorithms).
    """
    bits = i.bit_length()
    return 1 << (bits - 1) if i == (1 << bits) - 1 else _luby(i - (1 << (bits - 1)) + 1)


def _positions(order: Array) -> Array:
    """Where each is in an order."""
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order))
    return positions
