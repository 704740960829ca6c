"""Order of steps with the least peak, proved: the bottleneck shortest path over order ideals.

A state is the set of steps that have run, which alone says what lives. The graph is cut at steps that
are comparable with all others, and each segment is solved by itself. Within a segment, states are
reached in the order of the peak that leads to them: all that a budget allows, then the budget grows to
the least need that it refused. A ready step that fits the budget and leaves no more alive than before is
run at once: any schedule that delays it can be changed to run it now without a higher peak.

Source: the dynamic programme of SERENITY (Ahn et al., MLSys 2020, arXiv:2003.02369); the cut at single
points and the rule of free steps as in HMCOS (Wang et al., DAC 2022). Compiled by numba on first use.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numba
import numpy as np

from app.engine.memory.beam_order import Step, least_peak

Array: TypeAlias = np.ndarray[Any, Any]
# Arguments of compiled code, plain tuples: numba looks up the types of named ones in every call.
#   numbers: packed: users, storages and in-place pairs of the steps; of storages whether they begin before
#       or are read after the segment, and bytes; workspace of the steps.
#   needs: [step, word] bit set of the steps before.
#   touch: [storage, word] bit set of the steps that read or write.
Segment: TypeAlias = tuple[Array, Array, Array]
#   sets: [state, 2 * words] steps that have run, steps that may.
#   facts: [state, 4] bytes alive, state before, step between, stack.
#   table: states by hash, -1 where empty.
States: TypeAlias = tuple[Array, Array, Array]
# Bytes during and after a step, and the steps to take; dying and placed storages of one step; a set of steps;
# a heap of what was refused. Compiled code makes no array: what numba brings for one is slow to compile.
Scratch: TypeAlias = tuple[Array, Array, Array, Array, Array, Array, Array]

# Functions that only compiled ones call: without those that numba adds for Python and C.
_inner: Any = numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
_inlined: Any = numba.njit(
    forceinline=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
)

FIRST_ROOM = 1 << 12  # states of the first try; each other has eight times as many
NO_LIMIT = (1 << 62) - 1
STATES = 1 << 22  # of a segment: bounds the search by work, never by the clock


@dataclass(frozen=True, slots=True)
class Schedule:
    """An order, and what is known of the best.

    Attributes:
        order: steps; empty where every order takes more than the limit.
        peak: bytes of the order; of none, bytes above the limit that every order takes.
        lower_bound: bytes that no order stays below.
        states: that were reached.
    """

    order: tuple[int, ...]
    peak: int
    lower_bound: int
    states: int


def segments(needs: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Steps in topological order, cut after each that every earlier one leads to and every later one needs.

    `needs` are the steps before each, which come earlier in the sequence.
    """
    n = len(needs)
    first_user = [n] * n
    for i, before in enumerate(needs):
        for b in before:
            first_user[b] = min(first_user[b], i)
    # Of steps before k: the latest that must wait for its first user; of those after: the earliest need.
    led = [0] * (n + 1)
    for i in range(n):
        led[i + 1] = max(led[i], first_user[i])
    needed = [n] * (n + 1)
    for i in range(n - 1, -1, -1):
        needed[i] = min(needed[i + 1], max(needs[i], default=-1))
    cuts = [k for k in range(n) if led[k] <= k and needed[k + 1] >= k]
    starts = [0, *(k + 1 for k in cuts if k + 1 < n)]
    return [tuple(range(a, b)) for a, b in zip(starts, [*starts[1:], n], strict=True)]


def least_order(
    steps: Sequence[Step], sizes: Sequence[int], states: int = STATES, limit: int = NO_LIMIT
) -> Schedule | None:
    """The order with the least peak, where a segment has no more than `states` states; else None.

    The steps come in a topological order; `sizes` are bytes by storage, 0 for what is not in the arena.
    The lower bound of what is returned is its peak. Orders that take more than `limit` bytes are not
    looked at: that no other is there is often seen much sooner than which is the best.
    """
    if not steps:
        return Schedule((), 0, 0, 0)
    touchers: list[list[int]] = [[] for _ in sizes]
    for i, step in enumerate(steps):
        for storage in step.touches:
            touchers[storage].append(i)
    peak, order, live, total = least_peak(steps, sizes), [], 0, 0
    for part in segments([s.needs for s in steps]):
        if len(part) == 1:
            found: tuple[Array, int, int, int] = _alone(steps[part[0]], part[0], sizes, touchers, live)
        else:
            found = _search(_Segment(steps, sizes, touchers, part), live, peak, states, limit)
        local, needed, live, count = found
        total += count
        peak = max(peak, needed)
        if peak > limit:
            return Schedule((), peak, peak, total)
        if not len(local):
            return None
        order += [part[i] for i in local]
    return Schedule(tuple(order), peak, peak, total)


def _alone(
    step: Step, index: int, sizes: Sequence[int], touchers: Sequence[Sequence[int]], live: int
) -> tuple[Array, int, int, int]:
    """A segment of one step."""
    new = sum(sizes[s] for s in step.touches if touchers[s][0] == index)
    dying = {s for s in step.touches if touchers[s][-1] == index}
    saved, dead, placed = 0, sum(sizes[s] for s in dying), set()
    for read, written in step.inplace:
        fits = sizes[read] >= sizes[written] and touchers[written][0] == index
        if fits and read in dying and written not in placed:
            saved += sizes[written]
            dying.discard(read)
            placed.add(written)
    return np.zeros(1, np.int64), live + new - saved + step.scratch, live + new - dead, 1


class _Segment:
    """Steps and storages of a segment as arrays, numbered within it."""

    def __init__(
        self,
        steps: Sequence[Step],
        sizes: Sequence[int],
        touchers: Sequence[Sequence[int]],
        part: Sequence[int],
    ) -> None:
        low, high = part[0], part[-1]
        self.n = len(part)
        self.words = (self.n + 63) // 64
        storages: dict[int, int] = {}
        items, pairs = [], []
        users: list[list[int]] = [[] for _ in part]
        self.needs = np.zeros((self.n, self.words), np.uint64)
        for i, index in enumerate(part):
            step = steps[index]
            items.append([storages.setdefault(s, len(storages)) for s in step.touches])
            pairs.append(
                [(storages[a], storages[b]) for a, b in step.inplace if a in storages and b in storages]
            )
            for before in step.needs:
                if before >= low:
                    self.needs[i, (before - low) // 64] |= np.uint64(1 << ((before - low) % 64))
                    users[before - low].append(i)
        self.touch = np.zeros((max(len(storages), 1), self.words), np.uint64)
        self.outside = np.zeros((max(len(storages), 1), 2), np.uint8)  # begun before, read after
        self.size = np.zeros(max(len(storages), 1), np.int64)
        for storage, row in storages.items():
            self.size[row] = sizes[storage]
            self.outside[row] = touchers[storage][0] < low, touchers[storage][-1] > high
            for index in touchers[storage]:
                if low <= index <= high:
                    self.touch[row, (index - low) // 64] |= np.uint64(1 << ((index - low) % 64))
        lists = (users, items, [[x for pair in row for x in pair] for row in pairs])
        self.numbers = _packed(
            *(part for rows in lists for part in _rows(rows)),
            self.outside.ravel(),
            self.size,
            np.array([steps[i].scratch for i in part], np.int64),
        )


def _rows(lists: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Lists as where each begins, and all numbers one after another."""
    starts = np.cumsum([0, *map(len, lists)])
    return starts, np.array([x for row in lists for x in row], np.int64)


def _packed(*arrays: Array) -> Array:
    """Arrays as one, behind where each begins: what numba compiles grows with the number of arrays."""
    starts = len(arrays) + 1 + np.cumsum([0, *map(len, arrays)])
    return np.concatenate((starts, *arrays)).astype(np.int64)


def _search(s: _Segment, live: int, budget: int, states: int, limit: int) -> tuple[Array, int, int, int]:
    """An order of the segment, its peak, the bytes alive after it, and the states reached.

    The order is empty when there are more than `states`, or all take more than `limit`; the peak is then
    what no order stays below.
    """
    room = FIRST_ROOM
    while True:
        room = min(room, states)
        order = np.full(s.n, -1, np.int64)
        results = np.array([live, budget, 0, limit], np.int64)
        sets, facts = np.zeros((room, 2 * s.words), np.uint64), np.zeros((room, 4), np.int64)
        table = np.full(1 << (2 * room).bit_length(), -1, np.int64)
        scratch = (
            *(np.zeros(s.n, np.int64) for _ in range(3)),
            *(np.zeros(len(s.touch), np.bool_) for _ in range(2)),
            np.zeros(s.words, np.uint64),
            np.zeros((4 * room, 3), np.int64),
        )
        fits = _explore((s.numbers, s.needs, s.touch), (sets, facts, table), scratch, order, results)
        left, peak, count = map(int, results[:3])
        if fits:
            return order, peak, left, count
        if room == states or peak > limit:
            return order[:0], peak, left, count
        room *= 8


@_inner
def _slot(table: Array, sets: Array, words: int, row: Array) -> Any:
    """Where a set of steps is in the table, or where it would be."""
    h = np.uint64(0x9E3779B97F4A7C15)
    for w in range(words):
        h = (h ^ row[w]) * np.uint64(0xBF58476D1CE4E5B9)
        h ^= h >> np.uint64(29)
    mask = len(table) - 1
    at = np.int64(h >> np.uint64(1)) & mask
    while table[at] >= 0:
        same = True
        for w in range(words):
            same &= sets[table[at], w] == row[w]
        if same:
            break
        at = (at + 1) & mask
    return at


@_inner
def _effect(
    i: int, before: Array, numbers: Array, touch: Array, dying: Array, placed: Array
) -> tuple[int, int]:
    """Bytes that step i adds while it runs after the steps in `before`, and once it has run."""
    words, word, bit = touch.shape[1], i // 64, np.uint64(1) << np.uint64(i % 64)
    item_at, items, pair_at, pairs = numbers[2], numbers[3], numbers[4], numbers[5]
    outside, size, scratch = numbers[6], numbers[7], numbers[8]
    new = dead = saved = 0
    for k in range(numbers[item_at + i], numbers[item_at + i + 1]):
        s = numbers[items + k]
        fresh, last = numbers[outside + 2 * s] == 0, numbers[outside + 2 * s + 1] == 0
        for w in range(words):
            rest = touch[s, w] & ~before[w]
            if w == word:
                rest &= ~bit
            fresh &= touch[s, w] & before[w] == 0
            last &= rest == 0
        dying[s], placed[s] = last, not fresh
        new += numbers[size + s] * fresh
        dead += numbers[size + s] * last
    for k in range(numbers[pair_at + i], numbers[pair_at + i + 1], 2):
        read, written = numbers[pairs + k], numbers[pairs + k + 1]
        if numbers[size + read] >= numbers[size + written] and not placed[written] and dying[read]:
            saved += numbers[size + written]
            dying[read] = False
            placed[written] = True
    return new - saved + numbers[scratch + i], new - dead


@_inlined
def _push(heap: Array, length: int, nbytes: int, state: int, step: int) -> None:
    """Add (bytes, state, step) to a heap of this length, the least bytes first.

    Not `heapq`: it takes other ones first of equal bytes, and plans would change.
    """
    at = length
    while at and heap[(at - 1) // 2, 0] > nbytes:
        for c in range(3):
            heap[at, c] = heap[(at - 1) // 2, c]
        at = (at - 1) // 2
    heap[at, 0], heap[at, 1], heap[at, 2] = nbytes, state, step


@_inlined
def _pop(heap: Array, length: int) -> tuple[int, int, int]:
    """Take the first off a heap of this length."""
    nbytes, state, step = heap[0, 0], heap[0, 1], heap[0, 2]
    last, at, child = length - 1, 0, 1
    while child < last:
        if child + 1 < last and heap[child + 1, 0] < heap[child, 0]:
            child += 1
        if heap[last, 0] <= heap[child, 0]:
            break
        for c in range(3):
            heap[at, c] = heap[child, c]
        at, child = child, 2 * child + 1
    for c in range(3):
        heap[at, c] = heap[last, c]
    return nbytes, state, step


@_inlined
def _ways(state: int, live: int, budget: int, given: Segment, states: States, scratch: Scratch) -> int:
    """Fill `ways` with the steps that may run next, the one that leaves least last; how many there are.

    A step that fits the budget and leaves no more alive than before is the only way. Bytes while each step
    runs and after it go to `during` and `after`.
    """
    numbers, needs, touch = given
    during, after, ways, dying, placed, _, _ = scratch
    n, words, one, number = needs.shape[0], needs.shape[1], np.uint64(1), 0
    sets = states[0]
    done = sets[state, :words]
    for i in range(n):
        if not sets[state, words + i // 64] >> np.uint64(i % 64) & one:
            continue
        more, left = _effect(i, done, numbers, touch, dying, placed)
        during[i], after[i] = live + more, live + left
        if during[i] <= budget and left <= 0:
            ways[0] = i
            return 1
        k = number
        while k and after[ways[k - 1]] <= left + live:
            ways[k] = ways[k - 1]
            k -= 1
        ways[k] = i
        number += 1
    return number


@_inlined
def _visit(i: int, state: int, live: int, given: Segment, states: States, count: int, row: Array) -> bool:
    """Write the state that step i leads to as number `count`; False if it was reached before."""
    numbers, needs, _ = given
    sets, facts, table = states
    words, one = needs.shape[1], np.uint64(1)
    for w in range(words):
        row[w] = sets[state, w]
    row[i // 64] |= one << np.uint64(i % 64)
    at = _slot(table, sets, words, row)
    if table[at] >= 0:
        return False
    if count == len(sets):
        return True
    table[at] = count
    for w in range(words):
        sets[count, w] = row[w]
        sets[count, words + w] = sets[state, words + w]
    sets[count, words + i // 64] &= ~(one << np.uint64(i % 64))
    for u in range(numbers[numbers[0] + i], numbers[numbers[0] + i + 1]):
        user, opened = numbers[numbers[1] + u], True
        for w in range(words):
            opened &= needs[user, w] & ~row[w] == 0
        if opened:
            sets[count, words + user // 64] |= one << np.uint64(user % 64)
    facts[count, 0], facts[count, 1], facts[count, 2] = live, state, i
    return True


@numba.njit(cache=True, error_model="numpy")
def _explore(given: Segment, states: States, scratch: Scratch, order: Array, results: Array) -> bool:
    """Fill `order`; False when there are more states than room, or the peak is above the limit.

    `results` are bytes alive before, budget, 0, limit; then bytes alive after, peak, states.
    """
    numbers, needs, touch = given
    sets, facts, table = states
    n, words, one = needs.shape[0], needs.shape[1], np.uint64(1)
    during, after, ways, dying, placed, row, refused = scratch
    budget, limit, least = results[1], results[3], np.int64(NO_LIMIT)  # of what is above the limit
    for i in range(n):
        free = True
        for w in range(words):
            free &= needs[i, w] == 0
        if free:
            sets[0, words + i // 64] |= one << np.uint64(i % 64)
    facts[0, 0] = results[0]
    table[_slot(table, sets, words, row)] = 0
    count, high = 1, 1
    waiting = 0  # in the heap
    while high or waiting:
        # The next ways on: of a state of the stack, else the cheapest that was refused.
        if high:
            high -= 1
            state = facts[high, 3]
            number = _ways(state, facts[state, 0], budget, given, states, scratch)
        else:
            budget, state, i = _pop(refused, waiting)
            waiting -= 1
            more, left = _effect(i, sets[state, :words], numbers, touch, dying, placed)
            during[i], after[i] = facts[state, 0] + more, facts[state, 0] + left
            ways[0], number = i, 1
        for k in range(number):
            i = ways[k]
            if during[i] > limit:
                least = min(least, during[i])
            elif during[i] > budget:
                if waiting == len(refused):
                    results[1], results[2] = budget, count
                    return False
                _push(refused, waiting, during[i], state, i)
                waiting += 1
            elif _visit(i, state, after[i], given, states, count, row):
                if count == len(sets):
                    results[1], results[2] = budget, count
                    return False
                ended = True
                for w in range(words):
                    ended &= sets[count, words + w] == 0
                if ended:
                    results[0], results[1], results[2] = after[i], budget, count + 1
                    for place in range(n - 1, -1, -1):
                        order[place], count = facts[count, 2], facts[count, 1]
                    return True
                facts[high, 3] = count
                high += 1
                count += 1
    results[1], results[2] = least, count
    return False
