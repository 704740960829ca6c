"""Predicted latencies, against a simulator of events and against formulas of queueing theory."""

import math

import numpy as np
import pytest

from app.engine.planning.capacity.configuration import Configuration
from app.engine.planning.capacity.http import HttpCosts
from app.engine.planning.capacity.queueing import RunTimes, arrivals, latencies, predicted
from tests.engine.planning.capacity.simulator import simulated

SECONDS = {1: 0.010, 2: 0.014, 4: 0.022}


def run_times(*sizes: int) -> RunTimes:
    return RunTimes({size: np.array([SECONDS[size]]) for size in sizes})


@pytest.mark.parametrize("instances", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(1,), (1, 2), (1, 2, 4)])
@pytest.mark.parametrize("delay", [0.0, 0.004])
@pytest.mark.parametrize("share", [0.3, 0.8, 1.3])
def test_latencies_are_those_of_a_discrete_simulator(
    instances: int, sizes: tuple[int, ...], delay: float, share: float
) -> None:
    configuration = Configuration(instances, 1, sizes, delay)
    times = run_times(*sizes)
    moments = arrivals(share * times.saturation(configuration), 3000)
    found, last = latencies(moments, times, configuration)
    wanted = simulated(moments.tolist(), SECONDS, instances, sizes, delay)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
    assert last == pytest.approx(max(moments + found))


def test_requests_that_come_at_once_are_taken_in_their_order() -> None:
    found, _ = latencies(np.zeros(5), run_times(1, 2), Configuration(2, 1, (1, 2)))
    np.testing.assert_allclose(found, [0.014, 0.014, 0.014, 0.014, 0.024])


def test_time_outside_of_the_process_is_part_of_latencies_and_takes_no_instance() -> None:
    times = RunTimes({1: np.array([0.010])}, np.array([0.002, 0.004]))
    moments = arrivals(80.0, 4000)
    alone, last = latencies(moments, run_times(1), Configuration(1, 1))
    found, same = latencies(moments, times, Configuration(1, 1))
    assert same == last
    assert set(np.round(found - alone, 9)) == {0.002, 0.004}
    assert (found - alone).mean() == pytest.approx(0.003, rel=0.05)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_the_mean_of_one_instance_is_that_of_pollaczek_and_khinchine(load: float) -> None:
    """M/D/1: the mean wait is load * s / (2 (1 - load))."""
    moments = arrivals(load / 0.010, 200_000)
    found, _ = latencies(moments, run_times(1), Configuration(1, 1))
    assert found.mean() == pytest.approx(0.010 * (1 + load / (2 * (1 - load))), rel=0.05)


@pytest.mark.parametrize("servers", [1, 3])
def test_waits_of_exponential_runs_are_those_of_erlang(servers: int) -> None:
    """M/M/c: P(wait > t) = C exp(-(c mu - lambda) t), with C the formula of Erlang for waiting."""
    mu, load, count = 100.0, 0.7, 200_000
    times = RunTimes({1: np.random.default_rng(1).exponential(1 / mu, 50_000)})
    rate = load * servers * mu
    found, _ = latencies(arrivals(rate, count), times, Configuration(servers, 1))
    offered = load * servers
    full = offered**servers / math.factorial(servers) / (1 - load)
    waits = full / (sum(offered**k / math.factorial(k) for k in range(servers)) + full)
    mean = 1 / mu + waits / (servers * mu - rate)
    assert found.mean() == pytest.approx(mean, rel=0.04)


@pytest.mark.parametrize(
    ("costs", "instances", "threads", "most"),
    [
        ((0.0, 0.0, 0.0, 0.0, 0.0), 2, 1, 200.0),  # two instances of 10 ms
        ((0.001, 0.002, 0.001, 0.001, 0.001), 4, 1, 2 / 0.015),  # two cores for 10 + 5 ms
        ((0.001, 0.002, 0.001, 0.001, 0.001), 1, 1, 100.0),  # one instance of 10 ms
        ((0.001, 0.002, 0.001, 0.001, 0.001), 1, 2, 2 / 0.025),  # a run of two threads takes both cores
        ((0.001, 0.011, 0.001, 0.009, 0.001), 9, 0, 50.0),  # the API, one request after the other
        ((0.001, 0.001, 0.001, 0.001, 0.025), 9, 0, 40.0),  # the client
    ],
)
def test_what_http_takes_bounds_the_requests_that_cores_have_time_for(
    costs: tuple[float, ...], instances: int, threads: int, most: float
) -> None:
    times = RunTimes({1: np.array([0.010])}, costs=HttpCosts(*costs), cores=2)
    assert times.saturation(Configuration(instances, threads)) == pytest.approx(most)


def test_a_prediction_beyond_saturation_has_the_throughput_of_saturation() -> None:
    configuration = Configuration(2, 1, (1, 2))
    times = run_times(1, 2)
    most = times.saturation(configuration)
    assert most == pytest.approx(2 * 2 / 0.014)
    assert predicted(2 * most, times, configuration, (50.0,)).throughput == pytest.approx(most, rel=0.01)
    calm = predicted(0.5 * most, times, configuration, (50.0, 99.0))
    assert calm.throughput == pytest.approx(0.5 * most, rel=0.03)
    assert calm.percentiles[50.0] <= calm.percentiles[99.0]
