"""Measured time of something that can be called again and again."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

WARMUP = 3  # calls before the first sample
FEWEST = 10  # samples, unless the time is up
MOST = 1000
LONG = 1.0  # seconds of a call that needs no other to warm up
PATIENCE = 20.0  # seconds of a measurement that is longer than it was meant to be
STABLE = 0.01  # relative difference of the medians of the two halves


@dataclass(frozen=True, slots=True)
class Samples:
    """All samples of one measurement, in seconds, in the order they were taken."""

    seconds: tuple[float, ...]
    warmup: int

    def quantile(self, q: float) -> float:
        """A quantile in [0, 1], interpolated."""
        return float(np.quantile(self.seconds, q))

    @property
    def p50(self) -> float:
        """The median."""
        return self.quantile(0.5)

    def to_json(self) -> dict[str, object]:
        """For timings.json."""
        return {
            "p10": self.quantile(0.1),
            "p50": self.p50,
            "p90": self.quantile(0.9),
            "samples": list(self.seconds),
            "warmup": self.warmup,
        }


def measure(
    work: Callable[[], object], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> Samples:
    """Call `work` until its median is stable, or for about `seconds`; every sample is kept.

    Stable means that after at least FEWEST samples the medians of the first and the second half
    differ by less than STABLE. One sample is taken however long it lasts, and a first call that lasts longer
    than LONG and `seconds` is that sample. Samples are read from `clock`.
    """
    began, first = time.perf_counter(), clock()
    deadline = began + seconds
    work()
    if time.perf_counter() - began > max(LONG, seconds):
        return Samples((clock() - first,), 0)
    warmup = 1
    while warmup < WARMUP and time.perf_counter() < deadline:
        work()
        warmup += 1
    taken: list[float] = []
    while len(taken) < MOST:
        started = clock()
        work()
        taken.append(clock() - started)
        if time.perf_counter() >= deadline or (
            len(taken) >= 4 * FEWEST and len(taken) % FEWEST == 0 and _is_stable(taken)
        ):
            break
    return Samples(tuple(taken), warmup)


def measure_in_turn(
    works: Sequence[Callable[[], object]],
    seconds: float,
    rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[], None] = lambda: None,
) -> list[Samples]:
    """Samples of several things, interleaved round by round so that drift meets all alike.

    `before` is called ahead of each turn, outside the clock. No round begins after twice the
    time that was meant, and PATIENCE.
    """
    began = time.perf_counter()
    parts: list[list[Samples]] = [[] for _ in works]
    for _ in range(rounds):
        for part, work in zip(parts, works, strict=True):
            before()
            part.append(measure(work, seconds / rounds, clock))
        if time.perf_counter() - began > max(PATIENCE, 2 * seconds * len(works)):
            break
    return [Samples(tuple(s for p in part for s in p.seconds), sum(p.warmup for p in part)) for part in parts]


def chosen_cores(count: int) -> tuple[int, ...]:
    """The cores that so many threads are measured on; none where the system cannot pin.

    The highest: the lowest serve interrupts on many systems.
    """
    if not hasattr(os, "sched_setaffinity"):
        return ()
    return tuple(sorted(os.sched_getaffinity(0), reverse=True)[:count])


@contextmanager
def pinned(cores: int) -> Iterator[tuple[int, ...]]:
    """Keep the calling thread, and threads it starts, on as many cores; yields their numbers.

    A peer's thread pool inherits the same cores, so both sides have equally many. Where the system
    cannot pin, yields no cores and changes nothing.
    """
    chosen = chosen_cores(cores)
    if not chosen:
        yield ()
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(chosen))
    try:
        yield chosen
    finally:
        os.sched_setaffinity(0, before)


def keep_to(cores: Sequence[int]) -> None:
    """Keep the calling thread to these cores; none leaves it be."""
    if cores:
        os.sched_setaffinity(0, cores)


def _is_stable(taken: Sequence[float]) -> bool:
    half = len(taken) // 2
    first, second = float(np.median(taken[:half])), float(np.median(taken[half:]))
    return abs(first - second) <= STABLE * first
