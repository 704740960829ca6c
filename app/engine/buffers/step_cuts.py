"""Fewest bytes alive while a step runs, over all orders: minimum cuts between the steps before and after it.

The steps that have run before step i are a set that holds all that i needs, none that needs i, and with each
member what that needs. The storages that steps on both sides of it touch are alive, so the set with fewest
bytes alive is a minimum cut; no order has a peak below these bytes and those that i needs itself. Sets of
steps are bits of integers.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from app.engine.memory.beam_order import Step, least_peak
from app.engine.partition.mincut import INFINITE, Network

LARGEST = 20_000  # steps of which sets are kept, two for each
WORK = 100_000  # steps in all networks of a bound: bounds the search by work, never by the clock
_BEFORE, _AFTER = -1, -2  # the ends of a network


@dataclass(frozen=True, slots=True)
class Cut:
    """Steps to run before one, so that fewest bytes live while it runs."""

    done: int
    nbytes: int  # alive while it runs


class StepCuts:
    """Cuts of the steps of one plan.

    Args:
        steps: in a topological order.
        sizes: bytes by storage; 0 for what is not in the arena.
    """

    def __init__(self, steps: Sequence[Step], sizes: Sequence[int]) -> None:
        self.steps = steps
        self.sizes = sizes
        self.work = 0  # steps in all networks so far
        count = len(steps)
        self._touched = [0] * len(sizes)
        self._touching: list[list[int]] = [[] for _ in sizes]  # the same as numbers
        for i, step in enumerate(steps):
            for storage in {*step.touches}:
                self._touched[storage] |= 1 << i
                self._touching[storage].append(i)
        self._before, self._after = [0] * count, [0] * count  # in every order, without the step itself
        for i, step in enumerate(steps):
            for other in step.needs:
                self._before[i] |= self._before[other] | 1 << other
        for i in range(count - 1, -1, -1):
            for other in steps[i].needs:
                self._after[other] |= self._after[i] | 1 << i

    def need(self, i: int) -> int:
        """Bytes of what a step reads and writes, and its workspace, with all in place that may be."""
        step, spared = self.steps[i], set()
        for read, written in step.inplace:
            dies = not self._touched[read] & self._after[i]
            born = not self._touched[written] & self._before[i]
            if dies and born and self.sizes[read] >= self.sizes[written]:
                spared.add(written)
        return sum(self.sizes[s] for s in {*step.touches} - spared) + step.scratch

    def always_live(self) -> list[int]:
        """By step, bytes that live while it runs in every order: a bound of its cut that costs little."""
        live = np.array([self.need(i) for i in range(len(self.steps))], np.int64)
        for storage, size in enumerate(self.sizes):
            if size:
                since = until = 0
                for i in _members(self._touched[storage]):
                    since |= self._after[i]
                    until |= self._before[i]
                live[_mask(since & until & ~self._touched[storage], len(live))] += size
        return [int(n) for n in live]

    def cut(self, i: int, first: int = 0, last: int = 0) -> Cut:
        """The set of steps to run before step i, as few as any has with fewest bytes alive.

        `first` are steps that are in it, with all that they need; `last` such as are not, with all that need
        them.
        """
        done, left = self._before[i] | first, self._after[i] | last | 1 << i
        count = len(self.steps)
        # By step: itself, or the end of the network that it belongs to.
        ends = np.where(
            _mask(done, count), _BEFORE, np.where(_mask(left, count), _AFTER, np.arange(count))
        ).tolist()
        own = {*self.steps[i].touches}
        network, alive, crossing = Network(), self.need(i), set[int]()
        for j in ends:
            if j >= 0:
                self.work += 1
                crossing.update(self.steps[j].touches)
                for other in self.steps[j].needs:
                    if ends[other] != _BEFORE:
                        network.add(j, other, INFINITE)
        for storage, size in enumerate(self.sizes):
            if not size or storage in own:
                continue
            if storage in crossing:
                writer, *readers = dict.fromkeys([ends[j] for j in self._touching[storage]])
                network.add_shared(writer, readers, ("storage", storage), size)
            elif (touched := self._touched[storage]) & done and touched & left:
                alive += size
        inside = network.source_side(_BEFORE, _AFTER)
        chosen = set_of(j for j in inside if isinstance(j, int) and j >= 0)
        return Cut(done | chosen, alive + network.flow)

    def bound(self, enough: int) -> int:
        """Bytes that no order stays below: the largest of the cuts looked at.

        Those of the steps with most bytes that always live come first; `enough` bytes end the search.
        """
        live = self.always_live()
        best = max(live, default=0)
        started = self.work
        for i in sorted(range(len(live)), key=lambda i: (-live[i], i)):
            if best >= enough or self.work - started > WORK:
                break
            best = max(best, self.cut(i).nbytes)
        return best


def least_live(steps: Sequence[Step], sizes: Sequence[int]) -> int:
    """The most bytes that live in every order while some step runs; no order has a lower peak."""
    if len(steps) > LARGEST:
        return least_peak(steps, sizes)
    return max(StepCuts(steps, sizes).always_live(), default=0)


def set_of(steps: Iterable[int]) -> int:
    """A set of steps as bits."""
    found = 0
    for i in steps:
        found |= 1 << i
    return found


def _members(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _mask(bits: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    raw = np.frombuffer(bits.to_bytes(-(-count // 8), "little"), np.uint8)
    return np.unpackbits(raw, count=count, bitorder="little").astype(bool)
