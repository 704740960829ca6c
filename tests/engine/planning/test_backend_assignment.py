"""Intervals of steps and the statistics of races, without any program."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.planning.backend_assignment import race_statistics as statistics
from app.engine.planning.backend_assignment.intervals import Interval, cheapest, halved, joined

TIMES = st.lists(st.floats(1e-4, 1e-2), min_size=1, max_size=9)


@given(TIMES, st.randoms(use_true_random=False))
def test_halves_divide_an_interval_and_no_cover_is_cheaper(seconds: list[float], random) -> None:
    root = halved(0, len(seconds), seconds, [random.random() for _ in seconds], 0.0)
    intervals = list(root.walk())
    for interval in intervals:
        if interval.halves:
            first, second = interval.halves
            assert (first.first, first.last, second.last) == (interval.first, second.first, interval.last)
            assert first.is_apart(second)
            assert not first.is_apart(interval)
    times = {
        (i, "a"): random.uniform(0, 2 * i.seconds(seconds))
        for i in random.sample(intervals, len(intervals) // 2)
    }
    least, chosen = cheapest(root, seconds, times, ["a"])
    saved = {i: i.seconds(seconds) - spent for (i, _), spent in times.items()}
    covers = (c for n in range(len(saved) + 1) for c in itertools.combinations(saved, n) if n < 4)
    for cover in covers:
        if all(a.is_apart(b) for a, b in itertools.combinations(cover, 2)):
            assert least <= sum(seconds) - sum(saved[i] for i in cover) + 1e-9
    assert least == pytest.approx(sum(seconds) - sum(saved[i] for i, _ in chosen))


def test_neighbours_of_one_library_become_one_subgraph() -> None:
    steps = [("a",), ("b", "c"), ("d",), ("e",)]
    chosen = [(Interval(2, 3), "y"), (Interval(1, 2), "x"), (Interval(0, 1), "x"), (Interval(3, 4), "x")]
    assert joined(chosen, steps) == (("x", "a", "b", "c"), ("y", "d"), ("x", "e"))


def test_a_ratio_near_the_tolerated_loss_takes_more_rounds_than_one_far_from_it() -> None:
    assert statistics.median_ratio([1.0, 2.0, 4.0], [2.0, 1.0, 4.0]) == 1.0
    assert statistics.win_share([1.0, 2.0, 4.0, 4.0], [2.0, 1.0, 4.0, 3.0]) == 0.5
    many = statistics.ROUNDS
    assert statistics.is_decided([1.0], [3.0])
    assert not statistics.is_decided([1.0], [1.3])
    assert statistics.is_decided([1.0, 1.0], [1.3, 1.2])
    assert statistics.is_decided([1.0, 1.0], [0.8, 0.7])
    assert not statistics.is_decided([1.0, 1.0], [1.3, 0.7])
    assert not statistics.is_decided([1.0, 1.0, 1.0], [1.3, 1.3, 1.0])
    assert statistics.is_decided([1.0] * many, [1.3] * (many - 1) + [1.0])
    assert not statistics.is_decided([1.0] * many, [0.95] * many)
