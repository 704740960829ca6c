"""Memory of the programs of a configuration; times of runs under load."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

from app.engine.planning.capacity import load
from app.engine.planning.capacity.configuration import Configuration
from app.engine.planning.capacity.http import HttpCosts
from app.engine.planning.capacity.study import Study

OTHERS = 100  # byte of inputs and outputs for each request


@dataclass
class Sized:
    """A program with an arena of so many bytes."""

    arena_bytes: int
    own_bytes: int


def study(arenas: dict[int, int]) -> Study:
    never = cast(Any, None)
    planned = {(1, size): [Sized(nbytes, nbytes + OTHERS * size)] for size, nbytes in arenas.items()}
    return Study(never, {}, never, {1: 2}, math.inf, planned=cast(Any, planned))


@pytest.mark.parametrize(
    ("sizes", "nbytes"),
    [
        ((1,), 1000 + OTHERS),
        ((1, 2), 1000 + 2000 + 3 * OTHERS),
        # Programs of four and two requests use the arena of eight.
        ((1, 2, 4, 8), 1000 + 8000 + 15 * OTHERS),
    ],
)
def test_programs_of_an_instance_share_the_largest_arena(sizes: tuple[int, ...], nbytes: int) -> None:
    known = study({1: 1000, 2: 2000, 8: 8000})
    assert known.own_bytes(Configuration(1, 1, sizes)) == nbytes
    assert known.own_bytes(Configuration(2, 1, sizes)) == 2 * nbytes
    assert known.own_bytes(Configuration(2, 4, sizes)) == 2 * nbytes, "threads share an arena"


def test_a_program_of_several_requests_may_need_no_more_than_that_of_one() -> None:
    assert study({1: 1000, 2: 800}).own_bytes(Configuration(1, 1, (1, 2))) == 1000 + 3 * OTHERS


class Model:
    """A model whose programs are not run."""

    def programs(self, shapes: object, cores: Sequence[Sequence[int]]) -> Sequence[Any]:
        return [Sized(0, 0) for _ in cores]

    def rows_of_outputs(self, shapes: object, count: int) -> frozenset[str]:
        return frozenset()


def test_runs_are_as_long_as_under_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    def offered(
        instances: Sequence[object], moments: load.Seconds, way: Configuration, costs: HttpCosts | None
    ) -> load.Offered:
        assert (len(instances), way, costs) == (way.instances, Configuration(2 if rates else 1, 1), None)
        rates.append(len(moments) / float(moments[-1]))
        return load.Offered(moments, {1: np.full(len(moments), 0.003)})

    monkeypatch.setattr(load, "back_to_back", lambda *_: np.full(9, 0.002))
    monkeypatch.setattr(load, "offered", offered)
    known = Study(lambda _: cast(Any, Model()), {"x": (1, 2)}, lambda _: {}, {1: 2}, math.inf)
    assert known.measure((1, 1, 1))
    assert known.measure((2, 1, 1))
    assert rates == [pytest.approx(375, rel=0.2), pytest.approx(750, rel=0.2)], "three quarters of saturation"
    assert set(known.samples[2, 1, 1]) == {0.003}
    assert known.measure((1, 1, 2))
    assert known.samples[1, 1, 2] == pytest.approx(0.003), "a batch loses as much as a single request"


def test_what_http_takes_counts_in_the_rate_of_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    cores, rates = len(os.sched_getaffinity(0)), []

    def offered(_: object, moments: load.Seconds, __: object, costs: HttpCosts | None) -> load.Offered:
        assert costs is not None
        rates.append(len(moments) / float(moments[-1]))
        return load.Offered(moments, {1: np.full(len(moments), 0.003)}, np.full(len(moments), 0.001))

    monkeypatch.setattr(load, "back_to_back", lambda *_: np.full(9, 0.002))
    monkeypatch.setattr(load, "offered", offered)
    known = Study(lambda _: cast(Any, Model()), {"x": (1, 2)}, lambda _: {}, {1: cores}, math.inf)
    known.costs = HttpCosts(*[0.0004] * 5)
    assert known.measure((cores, 1, 1))
    assert rates == [pytest.approx(0.75 * cores / 0.004, rel=0.2)], "half of the cores is for HTTP"
    assert known.outside[cores, 1].mean() == pytest.approx(0.001)
