"""Load on programs whose times are known: every request is computed once, in batches that there are."""

import os
import threading
import time
from collections.abc import Mapping

import numpy as np
import pytest

from app.engine.planning.capacity.configuration import Configuration
from app.engine.planning.capacity.http import HttpCosts
from app.engine.planning.capacity.load import Instance, back_to_back, offered

SECONDS = 0.004


class Sleeper:
    """A program that takes a known time, and notes rows and cores of its runs."""

    def __init__(self, *, fails: bool = False) -> None:
        self.rows: list[int] = []
        self.cores: set[int] = set()
        self._fails = fails

    def lend(self, inputs: Mapping[str, object]) -> None:
        self.rows.append(len(np.asarray(inputs["x"])))

    def step(self) -> None:
        self.cores |= {len(os.sched_getaffinity(0))}
        if self._fails and threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a defect")
        time.sleep(SECONDS)

    def peek(self) -> dict[str, object]:
        return {"y": np.zeros(3)}


def instance(sizes: tuple[int, ...] = (1,), *, fails: bool = False) -> tuple[Instance, dict[int, Sleeper]]:
    programs = {size: Sleeper(fails=fails) for size in sizes}
    core = min(os.sched_getaffinity(0))
    return Instance(programs, {"x": np.ones((1, 2))}, (core,)), programs


def test_runs_back_to_back_take_the_time_of_the_program() -> None:
    (one, programs), (other, _) = instance(), instance()
    found = back_to_back([one, other], 1, 0.05)
    assert len(found) >= 16
    assert found.min() >= SECONDS
    assert 1 in programs[1].cores, "the thread keeps to its core"


def test_every_request_is_computed_once() -> None:
    sizes = (1, 2, 4)
    pairs = [instance(sizes) for _ in range(2)]
    moments = np.concatenate([np.zeros(20), np.linspace(0.0, 0.05, 20)])
    moments.sort()
    found = offered([found for found, _ in pairs], moments, Configuration(2, 1, sizes))
    assert found.seconds.shape == (40,)
    assert found.seconds.min() >= SECONDS
    counts = {
        size: sum(len(programs[size].rows) - 1 for _, programs in pairs) for size in sizes
    }  # one warms up
    assert sum(size * count for size, count in counts.items()) == 40
    assert {size: len(runs) for size, runs in found.runs.items()} == counts
    assert min(runs.min() for runs in found.runs.values() if len(runs)) >= SECONDS
    assert counts[4] >= 1, "twenty came at once"
    for _, programs in pairs:
        assert all(set(programs[size].rows) == {size} for size in sizes)


def test_a_lone_request_waits_for_others_as_long_as_it_may() -> None:
    found, programs = instance((1, 2))
    load = offered([found], np.zeros(1), Configuration(1, 1, (1, 2), 0.02))
    assert load.seconds[0] >= 0.02 + SECONDS
    assert load.runs[1][0] < 0.02 + SECONDS, "to wait for others is no part of the run"
    assert len(programs[1].rows) == 2


def test_over_http_every_request_is_answered_once_and_its_costs_are_part_of_it() -> None:
    costs = HttpCosts(0.0002, 0.0004, 0.0003, 0.0002, 0.0001)
    found, programs = instance((1, 2))
    load = offered([found], np.linspace(0.0, 0.1, 12), Configuration(1, 1, (1, 2)), costs)
    assert sum(programs[1].rows[1:]) + sum(programs[2].rows[1:]) == 12
    assert load.outside.min() >= costs.request + costs.answer + costs.received
    assert load.runs[1].min() >= SECONDS + costs.executor
    assert (load.seconds - load.outside).min() >= SECONDS + costs.executor


def test_the_error_of_an_instance_ends_the_threads_of_http() -> None:
    found, _ = instance(fails=True)
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="a defect"):
        offered([found], np.zeros(2), Configuration(1, 1), HttpCosts(*[0.0001] * 5))
    assert threading.active_count() == before


def test_the_error_of_an_instance_is_raised() -> None:
    found, _ = instance(fails=True)
    with pytest.raises(RuntimeError, match="a defect"):
        offered([found], np.zeros(2), Configuration(1, 1))
