"""The memory planning problem: buffers with lifespans and sizes, to be placed in one arena.

Vocabulary of the literature: Pisarchyk and Lee, 2020, arXiv:2001.03288; MiniMalloc, ASPLOS 2023.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes that must stay together while they live. The lifespan [lower, upper) is half-open in steps."""

    id: str
    lower: int
    upper: int
    size: int  # byte
    alignment: int = 64  # byte

    def __post_init__(self) -> None:
        if self.lower >= self.upper:
            raise ValueError(f"buffer {self.id!r}: lifespan [{self.lower}, {self.upper}) is empty")
        if self.size < 0:
            raise ValueError(f"buffer {self.id!r}: size must not be negative, found {self.size} byte")


@dataclass(frozen=True, slots=True)
class Problem:
    """Buffers for one arena; `capacity` in bytes, None for no limit."""

    buffers: tuple[Buffer, ...]
    capacity: int | None = None


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
