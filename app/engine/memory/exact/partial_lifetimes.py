"""Complete search for placements of buffers whose parts live at different times: a proof, or a lower peak.

A buffer is rigid: its pieces keep their distances, and one offset places them all. Of two pieces of
different buffers that live at a common step one lies below the other. A node of the search decides one
such pair; offsets have windows [low, high] that decisions narrow:

* a decided pair moves the low end of what lies above and the high end of what lies below;
* a pair of which one order exceeds a window is decided the other way;
* pieces that live at one step need their sizes within every interval of bytes that their windows lie in
  (the interval condition of disjunctive scheduling), and a piece that cannot lie below (above) a set of
  them lies above (below) all of it (edge finding).

Buffers with equal pieces are interchangeable, so that their order is fixed. Budgets are numbers of failed
branches, never times: the same problem gives the same result everywhere.

Sources: Carlier and Pinson, 1989, Management Science 35 (disjunctive graph, immediate selection, edge
finding); Smith and Cheng, 1993, AAAI (the pair with the least relative slack first); Boussemart et al.,
2004, ECAI (weights of what failed); Gomes, Selman and Kautz, 1998, AAAI (restarts).
"""

import itertools
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numba
import numpy as np

from app.engine.memory.problem import Problem, Solution

Array: TypeAlias = np.ndarray[Any, Any]
Verdict: TypeAlias = Literal["feasible", "infeasible", "undecided"]

MOST_PIECES = 1_000  # problems with more are not searched: all their pairs are listed
MOST_PAIRS = 20_000  # of pieces that live together; problems with more are not searched
FIRST_LIMIT = 500  # failures of the first run
GROWTH = 2.0  # of the limit, a run
INFEASIBLE, FEASIBLE, UNDECIDED = 0, 1, -1
VERDICTS: dict[int, Verdict] = {INFEASIBLE: "infeasible", FEASIBLE: "feasible", UNDECIDED: "undecided"}

_compiled: Any = numba.njit(cache=True, error_model="numpy", boundscheck=False, nogil=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a search below a capacity; `offsets` in bytes, in the order of the problem, if feasible."""

    verdict: Verdict
    offsets: Array | None
    failures: int


class Search:
    """The pairs and sections of a problem, for searches at several capacities.

    Sizes inside are in units: the largest number of bytes that divides all of them.

    Attributes:
        step: bytes that divide the difference of any two peaks.
    """

    def __init__(self, problem: Problem) -> None:
        buffers = [b for b in problem.buffers if b.extent]
        self._count = len(problem.buffers)
        self._rows = np.array([i for i, b in enumerate(problem.buffers) if b.extent], np.int64)
        pieces = np.array([p for b in buffers for p in b.pieces if p.size], np.int64).reshape(-1, 4)
        owner = np.array([i for i, b in enumerate(buffers) for p in b.pieces if p.size], np.int64)
        extent = np.array([b.extent for b in buffers], np.int64)
        alignment = np.array([b.alignment for b in buffers], np.int64)
        self._unit = int(np.gcd.reduce(np.concatenate((alignment, extent, pieces[:, 0], pieces[:, 1]))))
        self.step = int(np.gcd.reduce(alignment))  # byte: no two peaks differ by less
        self._extent, self._alignment = extent // self._unit, alignment // self._unit
        self._offset, self._size = pieces[:, 0] // self._unit, pieces[:, 1] // self._unit
        self._owner = owner
        lower, upper = pieces[:, 2], pieces[:, 3]
        live = (lower[:, None] < upper) & (lower < upper[:, None]) & (owner[:, None] < owner)
        self._pairs = np.ascontiguousarray(np.argwhere(live))
        self._fixed = self._interchangeable(pieces)
        ends = owner[self._pairs]
        self._of_buffer = _lists(
            np.concatenate((ends[:, 0], ends[:, 1])), np.tile(np.arange(len(ends)), 2), len(buffers)
        )
        self._sections = _sections(lower, upper)

    @property
    def is_small(self) -> bool:
        """True if the problem has few enough pairs to search."""
        return len(self._pairs) <= MOST_PAIRS

    def below(self, capacity: int, budget: int) -> Outcome:
        """A placement within `capacity` bytes, the proof that there is none, or neither within the budget."""
        high = (capacity // self._unit - self._extent) // self._alignment * self._alignment
        if len(high) and high.min() < 0:
            return Outcome("infeasible", None, 0)
        offsets = np.zeros(len(high), np.int64)
        verdict, failures = _search(
            high,
            self._alignment,
            self._owner,
            self._offset,
            self._size,
            self._pairs,
            self._fixed,
            *self._of_buffer,
            *self._sections,
            budget,
            offsets,
        )
        if verdict != FEASIBLE:
            return Outcome(VERDICTS[int(verdict)], None, int(failures))
        found = np.zeros(self._count, np.int64)
        found[self._rows] = offsets * self._unit
        return Outcome("feasible", found, int(failures))

    def _interchangeable(self, pieces: Array) -> Array:
        """Pairs that are decided from the start: the first pieces of buffers that differ in nothing."""
        starts = np.searchsorted(self._owner, np.arange(len(self._extent) + 1))
        shape = [
            (pieces[a:b].tobytes(), int(self._extent[i]), int(self._alignment[i]))
            for i, (a, b) in enumerate(itertools.pairwise(starts))
        ]
        first = set(starts[:-1].tolist())
        return np.array(
            [
                p in first and q in first and shape[self._owner[p]] == shape[self._owner[q]]
                for p, q in self._pairs.tolist()
            ],
            np.bool_,
        )


def prove(problem: Problem, known: Solution, failures: int) -> Solution:
    """A known placement with a better bound, or a better one, by searches at the bound and then by bisection.

    Args:
        problem: buffers with parts.
        known: a valid placement of them.
        failures: budget of all searches together.
    """
    if sum(len(b.pieces) for b in problem.buffers) > MOST_PIECES:
        return known
    search = Search(problem)
    if not search.is_small:
        return known
    step = search.step
    low, best = -(-known.lower_bound // step) * step, known  # no smaller peak than `low` exists
    at = floor = low  # below `floor` the budget does not suffice
    while floor < best.peak and failures > 0:
        outcome = search.below(at, failures if low == best.peak - step else failures // 2 + 1)
        failures -= outcome.failures
        if outcome.verdict == "infeasible":
            low = floor = max(floor, at + step)
        elif outcome.offsets is not None:
            placed = {b.id: int(x) for b, x in zip(problem.buffers, outcome.offsets, strict=True)}
            peak = max(placed[b.id] + b.extent for b in problem.buffers)
            best = Solution(placed, peak, low, False, "complete search over pieces")
        else:
            floor = at + step
        at = floor + (best.peak - step - floor) // 2 // step * step
    return replace(best, lower_bound=min(low, best.peak), proved=low >= best.peak)


def _lists(keys: Array, items: Array, count: int) -> tuple[Array, Array]:
    """Items by key: where the list of each key begins, and all lists in a row."""
    order = np.argsort(keys, kind="stable")
    return np.searchsorted(keys[order], np.arange(count + 1)), items[order]


def _sections(lower: Array, upper: Array) -> tuple[Array, Array]:
    """Maximal sets of pieces that live together, as lists in a row."""
    found: list[frozenset[int]] = []
    for step in np.unique(lower):
        live = frozenset(np.flatnonzero((lower <= step) & (upper > step)).tolist())
        if not any(live <= other for other in found):
            found = [other for other in found if not other <= live]
            found.append(live)
    sizes = [len(s) for s in found]
    return np.cumsum([0, *sizes]), np.array([p for s in found for p in sorted(s)], np.int64)


@_compiled
def _search(
    top, alignment, owner, offset, size, pairs, fixed, begins, listed, edges, members, budget, offsets
):
    """The verdict and the number of failures; `offsets` are filled if it is feasible.

    Windows and decisions are undone from a trail of (what, where, value before): 0 the low end, 1 the
    high end, 2 the decision of a pair (0 none, 1 the first piece lies below, 2 the second).
    """
    n, count = len(top), len(pairs)
    weight = np.ones(count)
    total = 0
    limit = float(FIRST_LIMIT)
    low, high = np.zeros(n, np.int64), top.copy()
    decided = np.zeros(count, np.int64)
    trail = np.empty((1024, 3), np.int64)
    queue, queued = np.empty(n, np.int64), np.zeros(n, np.bool_)
    levels = np.empty((count + 1, 3), np.int64)  # trail length, pair, orders tried
    while True:
        low[:] = 0
        high[:] = top
        decided[:] = np.where(fixed, 1, 0)
        used, depth, failures = 0, 0, 0
        waiting = n
        for i in range(n):
            queue[i], queued[i] = i, True
        while True:
            used, trail, failed = _propagate(
                low,
                high,
                decided,
                alignment,
                owner,
                offset,
                size,
                pairs,
                begins,
                listed,
                edges,
                members,
                queue,
                queued,
                waiting,
                trail,
                used,
                weight,
            )
            waiting = 0
            if not failed:
                pair = _choice(low, high, decided, owner, offset, size, pairs, weight)
                if pair < 0:
                    offsets[:] = low
                    return FEASIBLE, total
                levels[depth, 0], levels[depth, 1], levels[depth, 2] = used, pair, 0
                depth += 1
            else:
                failures += 1
                total += 1
                if total > budget:
                    return UNDECIDED, total
                if failures > limit:
                    break
            # Next order of the deepest pair that has one left.
            while depth > 0 and levels[depth - 1, 2] == 2:
                depth -= 1
            if depth == 0:
                return INFEASIBLE, total
            mark, pair = levels[depth - 1, 0], levels[depth - 1, 1]
            while used > mark:
                used -= 1
                what, where, before = trail[used, 0], trail[used, 1], trail[used, 2]
                if what == 0:
                    low[where] = before
                elif what == 1:
                    high[where] = before
                else:
                    decided[where] = before
            p, q = pairs[pair, 0], pairs[pair, 1]
            i, j = owner[p], owner[q]
            first = high[j] - low[i] - (offset[p] + size[p] - offset[q])
            second = high[i] - low[j] - (offset[q] + size[q] - offset[p])
            way = 1 if (first >= second) == (levels[depth - 1, 2] == 0) else 2
            levels[depth - 1, 2] += 1
            if used + 1 > len(trail):
                trail = _grown(trail)
            trail[used, 0], trail[used, 1], trail[used, 2] = 2, pair, 0
            used += 1
            decided[pair] = way
            waiting = 2
            queue[0], queue[1] = i, j
            queued[i] = queued[j] = True
        limit *= GROWTH


@_compiled
def _grown(trail):
    larger = np.empty((2 * len(trail), 3), np.int64)
    larger[: len(trail)] = trail
    return larger


@_compiled
def _choice(low, high, decided, owner, offset, size, pairs, weight):
    """The open pair with the least slack relative to its weight; -1 if no open pair overlaps.

    Pairs whose pieces are apart at the low ends are left for last: where no others are open, the low ends
    are a placement.
    """
    best, least = -1, np.inf
    for k in range(len(pairs)):
        if decided[k]:
            continue
        p, q = pairs[k, 0], pairs[k, 1]
        i, j = owner[p], owner[q]
        a, b = low[i] + offset[p], low[j] + offset[q]
        if a + size[p] <= b or b + size[q] <= a:  # apart at the low ends
            continue
        first = float(high[j] - low[i] - (offset[p] + size[p] - offset[q]))
        second = float(high[i] - low[j] - (offset[q] + size[q] - offset[p]))
        small, large = min(first, second), max(first, second)
        score = (small + 1.0) / np.sqrt((small + 1.0) / (large + 1.0)) / weight[k]
        if score < least:
            best, least = k, score
    return best


@_compiled
def _propagate(
    low,
    high,
    decided,
    alignment,
    owner,
    offset,
    size,
    pairs,
    begins,
    listed,
    edges,
    members,
    queue,
    queued,
    waiting,
    trail,
    used,
    weight,
):
    """Narrow windows until nothing changes: length of the trail, the trail, and whether a window is empty."""
    n = len(low)
    head = 0
    widest = 0
    for s in range(len(edges) - 1):
        widest = max(widest, edges[s + 1] - edges[s])
    starts, ends, sizes = np.empty(widest, np.int64), np.empty(widest, np.int64), np.empty(widest, np.int64)
    order, floors = np.empty(widest, np.int64), np.empty(widest, np.int64)
    failed = False
    while True:
        while waiting > 0 and not failed:
            b = queue[head % n]
            head += 1
            waiting -= 1
            queued[b] = False
            for at in range(begins[b], begins[b + 1]):
                k = listed[at]
                p, q = pairs[k, 0], pairs[k, 1]
                i, j = owner[p], owner[q]
                above_i = offset[p] + size[p] - offset[q]  # j at least so far above i if p lies below q
                above_j = offset[q] + size[q] - offset[p]
                state = decided[k]
                if state == 0:
                    can_first, can_second = low[i] + above_i <= high[j], low[j] + above_j <= high[i]
                    if can_first and can_second:
                        continue
                    if not can_first and not can_second:
                        weight[k] += 1.0
                        failed = True
                        break
                    state = 1 if can_first else 2
                    if used + 3 > len(trail):
                        trail = _grown(trail)
                    trail[used, 0], trail[used, 1], trail[used, 2] = 2, k, 0
                    used += 1
                    decided[k] = state
                if state == 1:
                    under, over, distance = i, j, above_i
                else:
                    under, over, distance = j, i, above_j
                lowest = -(-(low[under] + distance) // alignment[over]) * alignment[over]
                highest = (high[over] - distance) // alignment[under] * alignment[under]
                if used + 2 > len(trail):
                    trail = _grown(trail)
                if lowest > low[over]:
                    trail[used, 0], trail[used, 1], trail[used, 2] = 0, over, low[over]
                    used += 1
                    low[over] = lowest
                    if not queued[over]:
                        queue[(head + waiting) % n] = over
                        queued[over] = True
                        waiting += 1
                if highest < high[under]:
                    trail[used, 0], trail[used, 1], trail[used, 2] = 1, under, high[under]
                    used += 1
                    high[under] = highest
                    if not queued[under]:
                        queue[(head + waiting) % n] = under
                        queued[under] = True
                        waiting += 1
                if low[over] > high[over] or low[under] > high[under]:
                    weight[k] += 1.0
                    failed = True
                    break
        if failed:
            break
        changed = False
        for s in range(len(edges) - 1):
            part = members[edges[s] : edges[s + 1]]
            m = len(part)
            for side in range(2):  # from below, then the same seen from above
                for a in range(m):
                    b = owner[part[a]]
                    first = low[b] + offset[part[a]]
                    last = high[b] + offset[part[a]] + size[part[a]]
                    starts[a], ends[a], sizes[a] = (first, last, size[part[a]])
                    if side == 1:
                        starts[a], ends[a] = -last, -first
                if not _squeeze(starts, ends, sizes, order, floors, m):
                    failed = True
                    break
                for a in range(m):
                    if floors[a] <= starts[a]:
                        continue
                    b = owner[part[a]]
                    if used + 1 > len(trail):
                        trail = _grown(trail)
                    if side == 0:
                        lowest = -(-(floors[a] - offset[part[a]]) // alignment[b]) * alignment[b]
                        if lowest <= low[b]:
                            continue
                        trail[used, 0], trail[used, 1], trail[used, 2] = 0, b, low[b]
                        low[b] = lowest
                    else:
                        highest = -floors[a] - size[part[a]] - offset[part[a]]
                        highest = highest // alignment[b] * alignment[b]
                        if highest >= high[b]:
                            continue
                        trail[used, 0], trail[used, 1], trail[used, 2] = 1, b, high[b]
                        high[b] = highest
                    used += 1
                    changed = True
                    if not queued[b]:
                        queue[(head + waiting) % n] = b
                        queued[b] = True
                        waiting += 1
                    failed |= low[b] > high[b]
                if failed or changed:
                    break
            if failed or changed:
                break
        if failed or not changed:
            break
    while waiting > 0:
        queued[queue[head % n]] = False
        head += 1
        waiting -= 1
    return used, trail, failed


@_compiled
def _squeeze(starts, ends, sizes, order, floors, m):
    """True if pieces that live together have room in their windows; `floors` are raised lowest starts.

    For every end E the pieces that end by E, latest start first: together they must fit between the least
    of their starts and E. Where they do not with one more that may end later, that one comes after all of
    them, at or above the end of every stack of them.
    """
    for a in range(m):
        floors[a] = starts[a]
        v = a
        while v > 0 and starts[order[v - 1]] < starts[a]:
            order[v] = order[v - 1]
            v -= 1
        order[v] = a
    for e in range(m):
        end = ends[e]
        load = top = np.int64(0)
        first = True
        for v in range(m):
            a = order[v]
            if ends[a] > end:
                continue
            load += sizes[a]
            top = starts[a] + load if first else max(top, starts[a] + load)
            first = False
            if starts[a] + load > end:
                return False
            for x in range(m):
                if ends[x] > end and floors[x] < top and min(starts[a], starts[x]) + load + sizes[x] > end:
                    floors[x] = top
    return True
