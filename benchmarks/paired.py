"""Times of programs that take turns, compared round by round: what the machine does meanwhile meets all."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

SAMPLE = 2e-3  # seconds of one sample, filled with as many runs as it takes
FEWEST = 5  # rounds
# Seconds after a run for which threads of onnxruntime look for more work, on the cores of who follows: 55 ms
# were seen on an AMD EPYC, in which a program of two threads took 17 ms a run, and 8.6 after that.
SETTLING = 0.1


def in_turn(
    works: Sequence[Callable[[], object]],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[], None] = lambda: None,
    settling: float = 0.0,
) -> Array:
    """float64[rounds, works]: seconds a run of each on `clock`, in turn, in another order each round.

    `before` is called ahead of each turn, outside the clock. Then the work runs for `settling` seconds;
    threads of the one before may still look for work on the same cores. All takes about `seconds` a work,
    and FEWEST rounds however long they last.
    """
    runs = []
    for work in works:
        work()
        started = time.perf_counter()
        work()
        runs.append(max(int(SAMPLE / (time.perf_counter() - started)), 1))
    deadline = time.perf_counter() + seconds * len(works)
    rounds: list[list[float]] = []
    drawn = np.random.default_rng(0)
    while len(rounds) < FEWEST or time.perf_counter() < deadline:
        taken = [0.0] * len(works)
        # No work follows the same one in each round, nor itself more often than others do.
        for i in drawn.permutation(len(works)):
            before()
            settled = time.perf_counter() + settling
            while time.perf_counter() < settled:
                works[i]()
            started = clock()
            for _ in range(runs[i]):
                works[i]()
            taken[i] = (clock() - started) / runs[i]
        rounds.append(taken)
    return np.array(rounds)


def ratios(samples: Array, reference: int) -> Array:
    """float64[works]: median over the rounds of each one's time over that of the reference."""
    return np.asarray(np.median(samples / samples[:, reference : reference + 1], axis=0))
