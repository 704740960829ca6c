"""A memory-aware order of steps: beam search over sets of finished steps.

The state of a search is the set of steps that have run: it alone says what lives. A ready step
that fits under the peak so far and leaves no more alive than before is run at once, since any
schedule that delays it can be changed to run it now without a higher peak; only other choices branch.

Source: the dynamic programme of SERENITY (Ahn et al., MLSys 2020, arXiv:2003.02369), cut to a beam.
"""

from collections.abc import Sequence
from dataclasses import dataclass

EVALUATIONS = 1_000_000  # of a step in a small state: bounds the search by work, never by the clock
WIDTH = 64  # states kept at a depth
FAN = 32  # ready steps looked at in a state


@dataclass(frozen=True, slots=True)
class Step:
    """Effect of running a step on memory.

    Attributes:
        needs: steps that must run before.
        touches: storages read or written; one lives from the first step that touches it to the last.
        inplace: (read, written) storages that may share bytes if the read one dies here.
        scratch: bytes of workspace.
        name: breaks ties, so that the result does not depend on the order the steps came in.
    """

    needs: tuple[int, ...]
    touches: tuple[int, ...]
    inplace: tuple[tuple[int, int], ...] = ()
    scratch: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class _State:
    done: int  # bit set of steps
    peak: int
    live: int
    ready: tuple[int, ...]
    step: int  # that led here; -1 at the start
    parent: "_State | None"


class _Search:
    def __init__(self, steps: Sequence[Step], sizes: Sequence[int]) -> None:
        self.steps = steps
        self.sizes = sizes
        self.bit = [1 << i for i in range(len(steps))]
        self.touchers = [0] * len(sizes)
        self.needs = [0] * len(steps)
        self.users: list[list[int]] = [[] for _ in steps]
        for i, step in enumerate(steps):
            for storage in step.touches:
                self.touchers[storage] |= self.bit[i]
            for before in step.needs:
                self.needs[i] |= self.bit[before]
                self.users[before].append(i)
        self.rank = _ranks(steps, self.users)

    def effect(self, i: int, done: int, live: int) -> tuple[int, int]:
        """Bytes alive while step i runs after the steps in `done`, and once it has run."""
        step, bit, touchers = self.steps[i], self.bit[i], self.touchers
        with_it = done | bit
        new = dead = saved = 0
        dying: set[int] = set()
        placed: set[int] = set()
        for storage in step.touches:
            if not touchers[storage] & done:
                new += self.sizes[storage]
            if touchers[storage] | with_it == with_it:
                dead += self.sizes[storage]
                dying.add(storage)
        for read, written in step.inplace:
            fits = self.sizes[read] >= self.sizes[written] and not self.touchers[written] & done
            if fits and read in dying and written not in placed:
                saved += self.sizes[written]
                dying.discard(read)
                placed.add(written)
        return live + new - saved + step.scratch, live + new - dead

    def after(self, state: _State, i: int, peak: int, live: int) -> _State:
        done = state.done | self.bit[i]
        opened = {u for u in self.users[i] if not self.needs[u] & ~done}
        # What has just become ready comes first: only FAN of them are looked at.
        first = sorted(opened, key=self.rank.__getitem__)
        return _State(done, peak, live, (*first, *(r for r in state.ready if r != i)), i, state)


def least_peak(steps: Sequence[Step], sizes: Sequence[int]) -> int:
    """The largest need of a single step, everything else dead: no order has a lower peak."""
    return max((_need(step, sizes) for step in steps), default=0)


def _need(step: Step, sizes: Sequence[int]) -> int:
    spared = {written for read, written in step.inplace if sizes[read] >= sizes[written]}
    return sum(sizes[s] for s in step.touches) - sum(sizes[s] for s in spared) + step.scratch


def schedule(steps: Sequence[Step], sizes: Sequence[int], limit: int) -> tuple[int, ...] | None:
    """An order of the steps whose peak is below `limit` bytes, the lowest that the beam finds; else None.

    `sizes` are bytes by storage; 0 for what is not in the arena.
    """
    search = _Search(steps, sizes)
    start = tuple(sorted((i for i in range(len(steps)) if not search.needs[i]), key=search.rank.__getitem__))
    beam = [_State(0, least_peak(steps, sizes), 0, start, -1, None)]
    # A state is a set of len(steps) bits, so in large graphs an evaluation costs more.
    per_depth = EVALUATIONS // (max(1, len(steps)) * (1 + len(steps) // 2048))
    for _ in steps:
        reached: dict[int, tuple[int, int, int, int, _State]] = {}
        left = per_depth
        for place, state in enumerate(beam):
            moves = _moves(search, state)
            left -= len(moves)
            for i, peak, live in moves:
                key = state.done | search.bit[i]
                entry = (peak, live, place, i, state)
                if peak < limit and (key not in reached or entry[:3] < reached[key][:3]):
                    reached[key] = entry
            if left <= 0:
                break
        best = sorted(reached.values(), key=lambda e: (e[0], e[1], e[2], search.rank[e[3]]))[:WIDTH]
        beam = [search.after(state, i, peak, live) for peak, live, _, i, state in best]
    return _path(beam[0]) if beam else None


def _moves(search: _Search, state: _State) -> list[tuple[int, int, int]]:
    """(step, peak, live) of each ready step; of the first alone that costs nothing."""
    moves = []
    for i in state.ready[:FAN]:
        during, live = search.effect(i, state.done, state.live)
        if during <= state.peak and live <= state.live:
            return [(i, state.peak, live)]  # no need to look at the others
        moves.append((i, max(state.peak, during), live))
    return moves


def _ranks(steps: Sequence[Step], users: Sequence[Sequence[int]]) -> list[int]:
    """Position of each step when ties must be broken: longest way to the end first, then by name."""
    height = [0] * len(steps)
    waiting = [len(u) for u in users]
    ends = [i for i, n in enumerate(waiting) if not n]
    while ends:
        i = ends.pop()
        for before in set(steps[i].needs):
            height[before] = max(height[before], height[i] + 1)
            waiting[before] -= 1
            if not waiting[before]:
                ends.append(before)
    ranked = sorted(range(len(steps)), key=lambda i: (-height[i], steps[i].name, i))
    position = [0] * len(steps)
    for at, i in enumerate(ranked):
        position[i] = at
    return position


def _path(state: _State) -> tuple[int, ...]:
    found = []
    at: _State | None = state
    while at is not None and at.step >= 0:
        found.append(at.step)
        at = at.parent
    return tuple(reversed(found))
