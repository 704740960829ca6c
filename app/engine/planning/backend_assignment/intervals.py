"""Intervals of the steps of a program: halved where few bytes cross, and given to libraries at least cost."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

MIN_SECONDS = 20e-6  # an interval below costs more to call a library for than it saves


@dataclass(frozen=True, slots=True)
class Interval:
    """Steps first..last (half-open) of our own program, and its halves."""

    first: int
    last: int
    halves: tuple["Interval", ...] = ()

    def walk(self) -> Iterator["Interval"]:
        """The interval, and all within it."""
        yield self
        for half in self.halves:
            yield from half.walk()

    def seconds(self, steps: Sequence[float]) -> float:
        """Time of the interval's steps."""
        return sum(steps[self.first : self.last])

    def is_apart(self, other: "Interval") -> bool:
        """True if the two have no step in common."""
        return self.last <= other.first or other.last <= self.first


Assigned: TypeAlias = tuple[Interval, str]  # an interval, and the library that runs it
Assignment: TypeAlias = tuple[tuple[str, ...], ...]  # (library, nodes ...) of every sub-graph of a library


def halved(
    first: int, last: int, seconds: Sequence[float], crossing: Sequence[float], least: float
) -> Interval:
    """An interval with its halves: cut after a quarter to three quarters of its time, where least crosses.

    Args:
        first: step.
        last: step, half-open.
        seconds: by step.
        crossing: bytes that live across the border before a step.
        least: seconds of a half.
    """
    spent = np.cumsum(seconds[first:last])
    whole = float(spent[-1]) if len(spent) else 0.0
    if last - first < 2 or whole < 2 * max(least, MIN_SECONDS):
        return Interval(first, last)
    at = range(first + 1, last)
    middle = [k for k in at if 0.25 * whole <= spent[k - first - 1] <= 0.75 * whole]
    middle = middle or [min(at, key=lambda k: abs(spent[k - first - 1] - whole / 2))]
    cut = min(middle, key=lambda k: (crossing[k], abs(spent[k - first - 1] - whole / 2)))
    parts = ((first, cut), (cut, last))
    return Interval(first, last, tuple(halved(*part, seconds, crossing, least) for part in parts))


def cheapest(
    interval: Interval,
    seconds: Sequence[float],
    times: Mapping[Assigned, float],
    libraries: Sequence[str],
) -> tuple[float, tuple[Assigned, ...]]:
    """The least seconds of an interval, and which intervals within it libraries run then.

    `seconds` are those of our own steps, `times` those of intervals in libraries.
    """
    best: tuple[float, tuple[Assigned, ...]] = interval.seconds(seconds), ()
    for name in libraries:
        spent = times.get((interval, name), float("inf"))
        if spent < best[0]:
            best = spent, ((interval, name),)
    if interval.halves:
        parts = [cheapest(half, seconds, times, libraries) for half in interval.halves]
        total = sum(t for t, _ in parts)
        if total < best[0]:
            best = total, tuple(c for _, chosen in parts for c in chosen)
    return best


def joined(chosen: Iterable[Assigned], steps: Sequence[tuple[str, ...]]) -> Assignment:
    """Sub-graphs by library; neighbours that one library runs become one. `steps` are names of nodes."""
    parts: list[list[str]] = []
    end, before = -1, ""
    for interval, name in sorted(chosen, key=lambda c: c[0].first):
        nodes = [n for step in steps[interval.first : interval.last] for n in step]
        if name == before and interval.first == end:
            parts[-1] += nodes
        else:
            parts.append([name, *nodes])
        end, before = interval.last, name
    return tuple(tuple(p) for p in parts)


def described(assignment: Assignment) -> str:
    """The assignment in words: `onnxruntime (34 nodes from 'conv1' on)`."""
    parts = [f"{name} ({len(nodes)} nodes from {nodes[0]!r} on)" for name, *nodes in assignment]
    return " + ".join(parts) or "no library"
