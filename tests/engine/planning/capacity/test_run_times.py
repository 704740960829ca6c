"""Estimated times of runs, against a model of a machine whose times are known."""

import numpy as np
import pytest

from app.engine.planning.capacity.configuration import Configuration
from app.engine.planning.capacity.load import Offered
from app.engine.planning.capacity.queueing import RunTimes
from app.engine.planning.capacity.run_times import MeasuredRuns, Run, runs_to_measure, under_load

THREADS = (1, 2, 4, 8)


def seconds(instances: int, threads: int, size: int) -> float:
    """A machine: 20 % of a run is serial, eight busy cores are half as slow again, batches save a quarter."""
    used = instances * threads if instances > 1 else 1
    slowed = 1.0 + 0.5 * (used - 1) / 7
    return 0.010 * (0.2 + 0.8 / threads) * slowed * (0.25 + 0.75 * size)


def measured(*runs: Run) -> MeasuredRuns:
    return MeasuredRuns({run: seconds(*run) * np.array([0.9, 1.0, 1.1]) for run in runs})


ENOUGH = measured((1, 1, 1), (1, 8, 1), (8, 1, 1), (1, 1, 8))


@pytest.mark.parametrize("run", [(1, 1, 1), (1, 2, 1), (1, 4, 1), (4, 1, 1), (2, 2, 1), (1, 1, 4), (2, 4, 8)])
def test_times_that_were_not_measured_follow_from_those_that_were(run: Run) -> None:
    instances, threads, size = run
    times = ENOUGH.of(Configuration(instances, threads, (1, size) if size > 1 else (1,)))
    assert times.samples[size].mean() == pytest.approx(seconds(*run), rel=1e-9)


def test_measured_samples_are_taken_as_they_are() -> None:
    assert (ENOUGH.of(Configuration(8, 1)).samples[1] == ENOUGH.samples[8, 1, 1]).all()
    assert ENOUGH.are_of(Configuration(8, 1))
    assert not ENOUGH.are_of(Configuration(8, 1, (1, 8)))


def test_the_estimate_keeps_the_spread_of_the_samples() -> None:
    found = ENOUGH.of(Configuration(1, 4)).samples[1]
    np.testing.assert_allclose(found / found.mean(), [0.9, 1.0, 1.1])


def test_one_measurement_is_enough_for_single_requests() -> None:
    only = measured((1, 1, 1))
    assert only.of(Configuration(4, 1)).samples[1].mean() == pytest.approx(seconds(1, 1, 1))


def test_the_ends_are_measured_first() -> None:
    most = {threads: 8 // threads for threads in THREADS}
    assert runs_to_measure(8, THREADS, most) == [
        (1, 1, 1), (1, 8, 1), (1, 2, 1), (1, 4, 1), (8, 1, 1), (4, 1, 1)
    ]  # fmt: skip
    assert runs_to_measure(1, (1,), {1: 1}) == [(1, 1, 1)]


def test_runs_under_load_take_the_place_of_those_back_to_back() -> None:
    times = RunTimes({1: np.full(9, 0.010), 2: np.full(9, 0.015), 4: np.full(9, 0.020)})
    load = Offered(
        times.outside, {1: np.full(30, 0.012), 2: np.full(60, 0.018), 4: np.full(3, 0.5)}, np.ones(3)
    )
    found = under_load(times, load)
    assert (len(found.samples[1]), found.samples[1].mean()) == (30, pytest.approx(0.012))
    assert found.samples[2].mean() == pytest.approx(0.018)
    assert found.samples[4].mean() == pytest.approx(0.024), "too few ran: a fifth more, as the others"
    assert (found.outside == 1.0).all()
    few = under_load(times, Offered(times.outside, {1: np.full(3, 0.012), 2: np.zeros(0), 4: np.zeros(0)}))
    assert few.samples is times.samples


def test_time_outside_is_that_of_the_nearest_configuration_that_was_measured() -> None:
    outside = {(1, 1): np.array([0.1]), (4, 1): np.array([0.4]), (1, 4): np.array([0.2])}
    known = MeasuredRuns(ENOUGH.samples, outside)
    found = [known.of(Configuration(*way)).outside.item() for way in ((1, 1), (3, 1), (1, 8), (8, 1))]
    assert found == [0.1, 0.4, 0.2, 0.4]
    assert ENOUGH.of(Configuration(1, 1)).outside.item() == 0.0
