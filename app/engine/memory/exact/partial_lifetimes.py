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
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from app.engine.memory.exact.search import Outcome, Verdict
from app.engine.memory.exact.state import FEASIBLE, INFEASIBLE, UNDECIDED, addresses, compiled, inlined
from app.engine.memory.problem import Problem, Solution

Array: TypeAlias = np.ndarray[Any, Any]

MOST_PIECES = 1_000  # problems with more are not searched: all their pairs are listed
MOST_PAIRS = 20_000  # of pieces that live together; problems with more are not searched
MOST_WORK = (
    8_000_000  # failures times pairs of a problem: after each failure all pairs may change, 0.8 us each
)
FIRST_LIMIT = 500  # failures of the first run
GROWTH = 2.0  # of the limit, a run
VERDICTS: dict[int, Verdict] = {INFEASIBLE: "infeasible", FEASIBLE: "feasible", UNDECIDED: "undecided"}


class Instance(NamedTuple):
    """The arrays of a problem, which no search changes; compiled functions see their addresses."""

    alignment: Array  # by buffer, in units
    owner: Array  # buffer of each piece
    offset: Array  # of each piece in its buffer
    size: Array  # of each piece
    pairs: Array  # int64[., 2], pieces of different buffers that live together
    begins: Array  # of each buffer's pairs in `listed`
    listed: Array
    edges: Array  # of each section's pieces in `members`
    members: Array


class _State(NamedTuple):
    """Windows and decisions of a search, and the buffers whose pairs are to be looked at again."""

    low: Array  # by buffer
    high: Array
    queue: Array  # a ring of buffers
    queued: Array  # by buffer: 1 for those in it
    decided: Array  # by pair: 0 open, 1 the first piece lies below, 2 the second
    weight: Array  # float64 by pair: 1, and its failures
    counts: Array  # int64[COUNTS]
    starts: Array  # the rest by piece of one section: windows, sizes, an order, and raised starts
    ends: Array
    sizes: Array
    order: Array
    floors: Array


# Entries of `counts`: the first of the queue, its length, the length of the trail; buffers, pairs, sections.
HEAD, WAITING, USED, BUFFERS, PAIRS, SECTIONS = range(6)
# Columns of the state, as entries of the trail name them: (column, index, value before).
LOW, HIGH, DECIDED = range(3)


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
        self._extent = extent // self._unit
        lower, upper = pieces[:, 2], pieces[:, 3]
        live = (lower[:, None] < upper) & (lower < upper[:, None]) & (owner[:, None] < owner)
        pairs = np.ascontiguousarray(np.argwhere(live))
        ends = owner[pairs]
        self._fixed = _interchangeable(pieces, owner, pairs, extent, alignment)
        self._instance = Instance(
            alignment // self._unit,
            owner,
            pieces[:, 0] // self._unit,
            pieces[:, 1] // self._unit,
            pairs,
            *_lists(np.concatenate((ends[:, 0], ends[:, 1])), np.tile(np.arange(len(ends)), 2), len(buffers)),
            *_sections(lower, upper),
        )

    @property
    def pairs(self) -> int:
        """Pairs of pieces that live together, of different buffers."""
        return len(self._instance.pairs)

    def below(self, capacity: int, budget: int) -> Outcome:
        """A placement within `capacity` bytes, the proof that there is none, or neither within the budget."""
        alignment = self._instance.alignment
        high = (capacity // self._unit - self._extent) // alignment * alignment
        if len(high) and high.min() < 0:
            return Outcome("infeasible", None)
        offsets = np.zeros(len(high), np.int64)
        state = _state(self._instance)
        verdict, failures = _search(self._instance, state, high, self._fixed, budget, offsets)
        if verdict != FEASIBLE:
            return Outcome(VERDICTS[int(verdict)], None, int(failures))
        found = np.zeros(self._count, np.int64)
        found[self._rows] = offsets * self._unit
        return Outcome("feasible", found, int(failures))


def prove(problem: Problem, known: Solution, failures: int) -> Solution:
    """A known placement with a better bound, or a better one, by searches at the bound and then by bisection.

    Args:
        problem: buffers with parts.
        known: a valid placement of them.
        failures: budget of all searches together; less where so many pairs would take minutes.
    """
    if sum(len(b.pieces) for b in problem.buffers) > MOST_PIECES:
        return known
    search = Search(problem)
    if search.pairs > MOST_PAIRS:
        return known
    failures = min(failures, MOST_WORK // max(search.pairs, 1))
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


def _interchangeable(pieces: Array, owner: Array, pairs: Array, extent: Array, alignment: Array) -> Array:
    """True for pairs that are decided from the start: the first pieces of buffers that differ in nothing."""
    starts = np.searchsorted(owner, np.arange(len(extent) + 1))
    shape = [
        (pieces[a:b].tobytes(), int(extent[i]), int(alignment[i]))
        for i, (a, b) in enumerate(itertools.pairwise(starts))
    ]
    first = set(starts[:-1].tolist())
    return np.array(
        [p in first and q in first and shape[owner[p]] == shape[owner[q]] for p, q in pairs.tolist()],
        np.bool_,
    )


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


def _state(given: Instance) -> _State:
    """Memory for searches of an instance."""
    n, pairs, last = len(given.alignment), len(given.pairs), len(given.edges) - 1
    by_buffer = np.empty((4, n), np.int64)
    by_piece = np.empty((5, int(np.diff(given.edges).max(initial=0))), np.int64)
    columns = (np.empty(pairs, np.int64), np.ones(pairs), np.array([0, 0, 0, n, pairs, last]))
    return _State._make((*by_buffer, *columns, *by_piece))


@compiled
def _search(given, state, top, fixed, budget, offsets):
    """The verdict and the number of failures; `offsets` are filled if it is feasible.

    given: Instance; state: _State; top: int64[buffers], the highest offsets; fixed: int64[pairs], 1 for pairs
        whose first piece lies below; offsets: int64[buffers].
    """
    total = 0
    limit = float(FIRST_LIMIT)
    while True:
        state.low[:] = 0
        state.high[:] = top
        state.decided[:] = fixed
        state.queue[:] = np.arange(len(top))
        state.queued[:] = 1
        state.counts[HEAD], state.counts[WAITING], state.counts[USED] = 0, len(top), 0
        verdict, failures = _descend(addresses(given), addresses(state), limit, budget - total)
        total += failures
        if verdict == FEASIBLE:
            offsets[:] = state.low
        if verdict != UNDECIDED or total > budget:
            return verdict, total
        limit *= GROWTH


@compiled
def _descend(given, state, limit, budget):
    """The verdict of one run, and its failures: no more than the least of `limit` and `budget`, and one."""
    trail = np.empty((1024, 3), np.int64)
    levels = np.empty((state.counts[PAIRS] + 1, 3), np.int64)  # trail length, pair, orders tried
    depth, failures = 0, 0
    while True:
        trail, possible = _propagate(given, state, trail)
        if possible:
            pair = _choice(given, state)
            if pair < 0:
                return FEASIBLE, failures
            levels[depth, 0], levels[depth, 1], levels[depth, 2] = state.counts[USED], pair, 0
            depth += 1
        else:
            failures += 1
            if failures > budget or failures > limit:
                return UNDECIDED, failures
        # Next order of the deepest pair that has one left.
        while depth > 0 and levels[depth - 1, 2] == 2:
            depth -= 1
        if depth == 0:
            return INFEASIBLE, failures
        _undo(state, trail, levels[depth - 1, 0])
        pair = levels[depth - 1, 1]
        first, second = _slacks(given, state, pair)
        order = 1 if (first >= second) == (levels[depth - 1, 2] == 0) else 2
        levels[depth - 1, 2] += 1
        trail = _roomy(state, trail, 1)
        _note(state, trail, DECIDED, pair, 0)
        state.decided[pair] = order
        state.counts[HEAD] = 0
        for end in range(2):
            _wake(state, given.owner[given.pairs[2 * pair + end]])


@compiled
def _roomy(state, trail, entries):
    """The trail with room for so many more entries."""
    while state.counts[USED] + entries > len(trail):
        larger = np.empty((2 * len(trail), 3), np.int64)
        larger[: len(trail)] = trail
        trail = larger
    return trail


@inlined
def _note(state, trail, column, index, before):
    used = state.counts[USED]
    trail[used, 0], trail[used, 1], trail[used, 2] = column, index, before
    state.counts[USED] = used + 1


@compiled
def _undo(state, trail, length):
    """Take back what was changed since the trail had this length."""
    for at in range(state.counts[USED] - 1, length - 1, -1):
        column, index, before = trail[at, 0], trail[at, 1], trail[at, 2]
        if column == LOW:
            state.low[index] = before
        elif column == HIGH:
            state.high[index] = before
        else:
            state.decided[index] = before
    state.counts[USED] = length


@inlined
def _wake(state, b):
    """Queue a buffer, unless it waits already."""
    if not state.queued[b]:
        state.queue[(state.counts[HEAD] + state.counts[WAITING]) % state.counts[BUFFERS]] = b
        state.queued[b] = 1
        state.counts[WAITING] += 1


@inlined
def _next(state):
    """Take the first buffer out of the queue."""
    b = state.queue[state.counts[HEAD] % state.counts[BUFFERS]]
    state.counts[HEAD] += 1
    state.counts[WAITING] -= 1
    state.queued[b] = 0
    return b


@inlined
def _raise_low(state, trail, b, value):
    """Raise the low end of a window; False if it is as high already."""
    if value <= state.low[b]:
        return False
    _note(state, trail, LOW, b, state.low[b])
    state.low[b] = value
    _wake(state, b)
    return True


@inlined
def _cut_high(state, trail, b, value):
    """Lower the high end of a window; False if it is as low already."""
    if value >= state.high[b]:
        return False
    _note(state, trail, HIGH, b, state.high[b])
    state.high[b] = value
    _wake(state, b)
    return True


@inlined
def _slacks(given, state, k):
    """Room that either order of a pair has in the windows: its first piece below, its second below."""
    p, q = given.pairs[2 * k], given.pairs[2 * k + 1]
    i, j = given.owner[p], given.owner[q]
    a, b = given.offset[p], given.offset[q]
    first = state.high[j] - state.low[i] - (a + given.size[p] - b)
    return first, state.high[i] - state.low[j] - (b + given.size[q] - a)


@compiled
def _choice(given, state):
    """The open pair with the least slack relative to its weight; -1 if no open pair overlaps.

    Pairs whose pieces are apart at the low ends are left for last: where no others are open, the low ends
    are a placement.
    """
    best, least = -1, np.inf
    for k in range(state.counts[PAIRS]):
        if state.decided[k]:
            continue
        p, q = given.pairs[2 * k], given.pairs[2 * k + 1]
        a = state.low[given.owner[p]] + given.offset[p]
        b = state.low[given.owner[q]] + given.offset[q]
        if a + given.size[p] <= b or b + given.size[q] <= a:  # apart at the low ends
            continue
        first, second = _slacks(given, state, k)
        small, large = float(min(first, second)), float(max(first, second))
        score = (small + 1.0) / np.sqrt((small + 1.0) / (large + 1.0)) / state.weight[k]
        if score < least:
            best, least = k, score
    return best


@compiled
def _propagate(given, state, trail):
    """Narrow windows until nothing changes: the trail, and whether no window is empty."""
    possible = changed = True
    while possible and changed:
        trail, possible = _order_pairs(given, state, trail)
        if possible:
            trail, possible, changed = _narrow_sections(given, state, trail)
    while state.counts[WAITING]:
        _next(state)
    return trail, possible


@compiled
def _order_pairs(given, state, trail):
    """Decide and apply the pairs of all buffers in the queue: the trail, and whether they can be ordered."""
    while state.counts[WAITING]:
        b = _next(state)
        for at in range(given.begins[b], given.begins[b + 1]):
            trail = _roomy(state, trail, 3)
            if not _order_pair(given, state, trail, given.listed[at]):
                state.weight[given.listed[at]] += 1.0
                return trail, False
    return trail, True


@inlined
def _order_pair(given, state, trail, k):
    """Decide a pair of which one order exceeds a window, and narrow by its order; False if none is left."""
    p, q = given.pairs[2 * k], given.pairs[2 * k + 1]
    if state.decided[k] == 0:
        first, second = _slacks(given, state, k)
        if first >= 0 and second >= 0:
            return True
        if first < 0 and second < 0:
            return False
        _note(state, trail, DECIDED, k, 0)
        state.decided[k] = 1 if first >= 0 else 2
    if state.decided[k] == 2:
        p, q = q, p
    under, over = given.owner[p], given.owner[q]
    distance = given.offset[p] + given.size[p] - given.offset[q]  # least of the two buffers' offsets
    unit, other = given.alignment[under], given.alignment[over]
    _raise_low(state, trail, over, -(-(state.low[under] + distance) // other) * other)
    _cut_high(state, trail, under, (state.high[over] - distance) // unit * unit)
    return state.low[over] <= state.high[over] and state.low[under] <= state.high[under]


@compiled
def _narrow_sections(given, state, trail):
    """Narrow the first section that can be: the trail, whether all have room, whether a window changed."""
    for s in range(state.counts[SECTIONS]):
        trail = _roomy(state, trail, given.edges[s + 1] - given.edges[s])
        for side in range(2):  # from below, then the same seen from above
            possible, changed = _narrow_section(given, state, trail, s, side)
            if changed or not possible:
                return trail, possible, changed
    return trail, True, False


@compiled
def _narrow_section(given, state, trail, s, side):
    """Narrow the windows of the pieces of a section by what they leave each other, from one side."""
    starts, ends, sizes, floors = state.starts, state.ends, state.sizes, state.floors
    begin = given.edges[s]
    m = given.edges[s + 1] - begin
    for a in range(m):
        p = given.members[begin + a]
        b = given.owner[p]
        first = state.low[b] + given.offset[p]
        last = state.high[b] + given.offset[p] + given.size[p]
        starts[a], ends[a], sizes[a] = first, last, given.size[p]
        if side == 1:
            starts[a], ends[a] = -last, -first
    if not _squeeze(starts, ends, sizes, state.order, floors, m):
        return False, False
    possible, changed = True, False
    for a in range(m):
        if floors[a] <= starts[a]:
            continue
        p = given.members[begin + a]
        b, at = given.owner[p], given.offset[p]
        unit = given.alignment[b]
        if side == 0:
            narrowed = _raise_low(state, trail, b, -(-(floors[a] - at) // unit) * unit)
        else:
            narrowed = _cut_high(state, trail, b, (-floors[a] - sizes[a] - at) // unit * unit)
        changed |= narrowed
        possible &= not narrowed or state.low[b] <= state.high[b]
    return possible, changed


@compiled
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
