"""The highest rate within a bound, and the choice among configurations."""

import numpy as np
import pytest

from app.engine.planning.capacity import choice
from app.engine.planning.capacity.choice import Bound, candidate, chosen, highest_rate
from app.engine.planning.capacity.configuration import Configuration, configurations
from app.engine.planning.capacity.http import HttpCosts
from app.engine.planning.capacity.queueing import RunTimes, arrivals
from tests.engine.planning.capacity.simulator import simulated

BOUND = Bound(99.0, 0.030)


def constant(**seconds: float) -> RunTimes:
    return RunTimes({int(size[1:]): np.array([value]) for size, value in seconds.items()})


def test_the_rate_meets_the_bound_on_a_slower_machine_and_a_higher_one_does_not() -> None:
    """By a simulator that shares no code with the prediction, and has other requests."""
    configuration = Configuration(2, 1)
    found = highest_rate(constant(n1=0.010), configuration, BOUND)
    assert found is not None

    def tail(rate: float, seconds: float) -> float:
        moments = (np.cumsum(np.random.default_rng(5).exponential(1.0, 50_000)) / rate).tolist()
        return float(np.percentile(simulated(moments, {1: seconds}, 2, (1,), 0.0), 99))

    assert tail(0.95 * found.rate, 0.0105) <= BOUND.seconds < tail(1.07 * found.rate, 0.0105)
    assert tail(found.rate, 0.010) == pytest.approx(found.percentiles[99.0], rel=0.1)


def test_without_a_bound_it_is_the_highest_load_that_is_planned() -> None:
    found = highest_rate(constant(n1=0.010), Configuration(2, 1), None)
    assert found is not None
    assert found.rate == pytest.approx(choice.MAX_LOAD * 200)


def test_a_run_longer_than_the_bound_has_no_rate() -> None:
    assert highest_rate(constant(n1=0.031), Configuration(4, 1), BOUND) is None
    row = candidate(Configuration(4, 1), constant(n1=0.031), 10, True, BOUND, None)
    assert row.rejection == "p99 exceeds 30 ms at every rate"
    assert chosen([row]) is None


def test_the_configuration_of_the_highest_rate_is_chosen_unless_memory_forbids() -> None:
    small = candidate(Configuration(1, 1), constant(n1=0.010), 100, True, BOUND, 250)
    large = candidate(Configuration(2, 1), constant(n1=0.010), 200, True, BOUND, 250)
    excessive = candidate(Configuration(4, 1), constant(n1=0.010), 300, True, BOUND, 250)
    assert chosen([small, large, excessive]) == (large, large.best)
    assert "it takes 300 byte of memory, 250 byte are allowed" in excessive.rejection


def test_of_configurations_that_are_as_good_the_one_that_takes_less_is_chosen() -> None:
    one = candidate(Configuration(1, 2), constant(n1=0.00505), 100, True, None, None)
    two = candidate(Configuration(2, 1), constant(n1=0.010), 200, True, None, None)
    assert chosen([two, one]) == (one, one.best)


@pytest.mark.parametrize(
    ("configuration", "cores", "shares"),
    [
        (Configuration(1, 2), 2, True),
        (Configuration(2, 2), 4, True),
        (Configuration(1, 2), 3, False),  # a core is left
        (Configuration(2, 1), 2, False),  # no thread waits for another
    ],
)
def test_runs_of_several_threads_leave_a_core_to_http_where_others_fit(
    configuration: Configuration, cores: int, shares: bool
) -> None:
    costs = HttpCosts(*[1e-5] * 5)
    quick = RunTimes({1: np.full(9, 0.001)}, costs=costs, cores=cores)
    slow = RunTimes({1: np.full(9, 0.010)}, costs=costs, cores=cores)
    row = candidate(configuration, quick, 100, True, BOUND, None)
    other = candidate(Configuration(1, 1), slow, 100, True, BOUND, None)
    assert row.shares_cores is shares
    assert row.leaves_no_core is (configuration.instances * configuration.threads >= cores)
    assert chosen([row, other]) == ((other, other.best) if shares else (row, row.best))
    assert chosen([row]) == (row, row.best)


def test_the_curve_rises_from_a_light_load() -> None:
    row = candidate(Configuration(1, 1), constant(n1=0.010), 100, True, BOUND, None)
    points = list(choice.curve(row, BOUND))
    assert [p.rate for p in points] == sorted(p.rate for p in points)
    assert points[0].percentiles[50.0] == pytest.approx(0.010, rel=1e-6)
    assert points[-1].percentiles[99.0] > BOUND.seconds


def test_configurations_use_the_cores_that_there_are() -> None:
    found = list(configurations(6, 3, (1, 2, 4), (0.0, 0.002)))
    assert len(set(found)) == len(found)
    assert all(c.instances * c.threads <= 6 and c.sizes[0] == 1 for c in found)
    assert {c.threads for c in found} == {1, 2, 3, 4, 6}
    assert {c.instances for c in found if c.threads == 1} == {1, 2, 4, 6}
    assert {(c.sizes, c.delay) for c in found} == {
        ((1,), 0.0), ((1, 2), 0.0), ((1, 2), 0.002), ((1, 2, 4), 0.0), ((1, 2, 4), 0.002)
    }  # fmt: skip


def test_arrivals_have_the_rate() -> None:
    moments = arrivals(250.0, 20_000)
    assert len(moments) / moments[-1] == pytest.approx(250.0, rel=0.03)
    assert (np.diff(moments) >= 0).all()
