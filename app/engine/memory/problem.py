"""The memory planning problem: buffers with lifespans and sizes, to be placed in one arena.

Vocabulary of the literature: Pisarchyk and Lee, 2020, arXiv:2001.03288; MiniMalloc, ASPLOS 2023.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple


class Part(NamedTuple):
    """Bytes [offset, offset + size) of a buffer that live in the steps [lower, upper)."""

    offset: int
    size: int
    lower: int
    upper: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes that must stay together while they live. The lifespan [lower, upper) is half-open in steps.

    `parts` say more of a buffer whose bytes do not all live as long, such as a concatenation that is
    written slice by slice: where a part does not live, others may. Empty means all of it, always.

    Attributes:
        extent: bytes taken in the arena, the size rounded up to the alignment. Peak, lower bound and
            overlap all speak of extents, so that they can be compared.
        pieces: the parts; all of the buffer where there are none.
    """

    id: str
    lower: int
    upper: int
    size: int  # byte
    alignment: int = 64  # byte
    parts: tuple[Part, ...] = ()
    extent: int = field(init=False, repr=False, compare=False)
    pieces: tuple[Part, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.lower >= self.upper:
            raise ValueError(f"buffer {self.id!r}: lifespan [{self.lower}, {self.upper}) is empty")
        if self.size < 0:
            raise ValueError(f"buffer {self.id!r}: size must not be negative, found {self.size} byte")
        if self.alignment < 1:
            raise ValueError(f"buffer {self.id!r}: alignment must be positive, found {self.alignment} byte")
        extent = -(-self.size // self.alignment) * self.alignment
        object.__setattr__(self, "extent", extent)
        object.__setattr__(self, "pieces", self.parts or (Part(0, extent, self.lower, self.upper),))
        for part in self.parts:
            inside = part.offset >= 0 and part.offset + part.size <= self.extent
            if not (inside and self.lower <= part.lower < part.upper <= self.upper):
                raise ValueError(
                    f"buffer {self.id!r}: {part} is not within {self.extent} byte "
                    f"and the lifespan [{self.lower}, {self.upper})"
                )


@dataclass(frozen=True, slots=True)
class Problem:
    """Buffers for one arena; `capacity` in bytes, None for no limit."""

    buffers: tuple[Buffer, ...]
    capacity: int | None = None

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for buffer in self.buffers:
            if buffer.id in seen:
                raise ValueError(f"two buffers are called {buffer.id!r}; an id names one buffer")
            seen.add(buffer.id)


@dataclass(frozen=True, slots=True)
class Solution:
    """Offsets by buffer id, and how good they are.

    `gap` is peak / lower_bound - 1; `proved` says that no smaller peak exists.
    """

    offsets: Mapping[str, int]
    peak: int  # byte
    lower_bound: int  # byte
    proved: bool
    method: str
    nodes: int = 0  # of the search tree, 0 for a greedy method

    @property
    def gap(self) -> float:
        """Relative distance of the peak from the lower bound."""
        return self.peak / self.lower_bound - 1.0 if self.lower_bound else 0.0


def live_bytes(problem: Problem) -> tuple[tuple[int, int], ...]:
    """Live bytes over time as (step, bytes) pairs: from that step on, until the next pair."""
    change: defaultdict[int, int] = defaultdict(int)
    for buffer in problem.buffers:
        for _, size, lower, upper in buffer.pieces:
            change[lower] += size
            change[upper] -= size
    live = 0
    profile = []
    for step in sorted(change):
        live += change[step]
        profile.append((step, live))
    return tuple(profile)


def lower_bound(problem: Problem) -> int:
    """The largest number of bytes alive at one step: no placement has a smaller peak."""
    return max((live for _, live in live_bytes(problem)), default=0)


def validate(problem: Problem, solution: Solution) -> None:
    """Check a placement by a sweep over time that shares nothing with the solvers.

    Raises:
        ValueError: a buffer has no offset, lies outside the arena or off its alignment, overlaps
            another while both live, or the figures of the solution are not those of its offsets.
    """
    unknown = sorted(solution.offsets.keys() - {b.id for b in problem.buffers})
    if unknown:
        raise ValueError(f"offset for {unknown[0]!r}, which is no buffer of the problem")
    peak = 0
    for buffer in problem.buffers:
        offset = solution.offsets.get(buffer.id)
        if offset is None:
            raise ValueError(f"buffer {buffer.id!r} has no offset")
        if offset < 0:
            raise ValueError(f"buffer {buffer.id!r}: offset must not be negative, found {offset} byte")
        if offset % buffer.alignment:
            raise ValueError(
                f"buffer {buffer.id!r}: offset {offset} byte is no multiple of its alignment, "
                f"{buffer.alignment} byte"
            )
        peak = max(peak, offset + buffer.extent)
        if problem.capacity is not None and offset + buffer.extent > problem.capacity:
            raise ValueError(
                f"buffer {buffer.id!r} ends at byte {offset + buffer.extent}, "
                f"beyond the capacity of {problem.capacity} byte"
            )
    bound = _swept(problem, solution.offsets)
    if peak != solution.peak:
        raise ValueError(f"the solution claims a peak of {solution.peak} byte, its offsets give {peak} byte")
    if solution.lower_bound < bound or solution.lower_bound > peak:
        raise ValueError(
            f"the solution claims a lower bound of {solution.lower_bound} byte; "
            f"live bytes give {bound}, the peak is {peak}"
        )


def _swept(problem: Problem, offsets: Mapping[str, int]) -> int:
    """The most bytes that live at one step. What begins to live must not touch its neighbors by offset."""
    rows = [
        (offsets[b.id] + offset, offsets[b.id] + offset + size, lower, upper, b.id)
        for b in problem.buffers
        for offset, size, lower, upper in b.pieces
        if size
    ]
    # At one step ends come before starts: lifespans are half-open.
    events = [(row[2], 1, i) for i, row in enumerate(rows)]
    events += [(row[3], 0, i) for i, row in enumerate(rows)]
    events.sort()
    live: list[tuple[int, int, int]] = []  # (start, end, row), ordered, and disjoint
    total = most = 0
    for step, starts, i in events:
        start, end = rows[i][:2]
        at = bisect_left(live, (start, end, i))
        if not starts:
            del live[at]
            total -= end - start
            continue
        live.insert(at, (start, end, i))
        for (low, below, under), (high, above, over) in pairwise(live[max(at - 1, 0) : at + 2]):
            if below > high:
                raise ValueError(
                    f"at step {step} buffers {rows[under][4]!r} and {rows[over][4]!r} overlap: bytes "
                    f"[{low}, {below}) and [{high}, {above})"
                )
        total += end - start
        most = max(most, total)
    return most
