"""Streams that the plan of least latency takes: only those that win a race, and the same ones each time."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import onnx
import onnx.parser
import pytest

from app.engine.core import graph
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.core.streams.stream_group import StreamGroup
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.planning.backend_assignment import bench
from app.engine.planning.backend_assignment.bench import Bench
from app.engine.planning.streams import prospects, race
from app.engine.planning.streams.proposals import consecutive
from app.engine.planning.timing_cache import TimingCache
from app.engine.types.options import Bindings, Options, Streamed
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.passes.streams.chains import OPTIONS
from tests.engine.planning.streams.test_proposals import network, output, peak
from tests.harness import Array

__all__ = ["network"]  # a fixture

TUNED = replace(OPTIONS, autotune=True)
ROUNDS = 7


@pytest.fixture(autouse=True)
def _own_timings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a timings table for the test alone."""
    monkeypatch.setattr(bench, "TimingCache", lambda _folder: TimingCache(tmp_path))


@pytest.fixture
def compilation(network: Path) -> Compilation:
    return session.canonical(load(network), host(), TUNED, Bindings(), load_registry())


def timed(monkeypatch: pytest.MonkeyPatch, ratio: float, far: float = 1.0) -> None:
    """Make every step take as long, so that streams gain, and the plan with them take a given time.

    Copies of 128 KiB or more take `far` seconds for a byte, fewer bytes nothing.
    """

    def step_seconds(_self: Bench, _program: Program, steps: Sequence[object]) -> list[float]:
        return [1.0] * len(steps)

    def in_turn(_self: Bench, executors: Sequence[object], _inputs: object) -> list[list[float]]:
        assert len(executors) == 2
        return [[1.0] * ROUNDS, [ratio] * ROUNDS]

    def seconds_of_copy(source: Array, _to: Array) -> float:
        return far * 2 * source.nbytes if source.nbytes >= 2**17 else 0.0

    monkeypatch.setattr(prospects, "_seconds_of_copy", seconds_of_copy)
    monkeypatch.setattr(Bench, "step_seconds", step_seconds)
    monkeypatch.setattr(Bench, "in_turn", in_turn)


def streams_of(program: Program) -> list[StreamGroup]:
    return [s.group for s in program.steps if isinstance(s.group, StreamGroup)]


def test_streams_that_are_faster_are_taken_and_remembered(
    compilation: Compilation, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = session.planned(compilation, TUNED)
    timed(monkeypatch, 0.9)
    found = session.raced(compilation, TUNED, compiler)
    assert found.streams
    program = session.planned(found, TUNED)
    assert len(streams_of(program)) == len(found.streams)
    np.testing.assert_array_equal(output(program, compiler), output(plain, compiler))
    timed(monkeypatch, 2.0)
    assert session.raced(compilation, TUNED, compiler).streams == found.streams


def test_streams_that_lose_the_race_are_not_taken(
    compilation: Compilation, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, 1.0)
    assert session.raced(compilation, TUNED, compiler).streams == ()
    timed(monkeypatch, 0.5)
    assert session.raced(compilation, TUNED, compiler).streams == ()


def test_streams_that_cannot_win_are_neither_planned_nor_timed(
    compilation: Compilation, compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, 0.5, far=0.0)  # what a stream keeps near costs nothing anywhere
    plans: list[Compilation] = []

    def planned(compilation: Compilation, options: Options) -> Program:
        plans.append(compilation)
        return session.planned(compilation, options)

    for _ in range(2):
        assert race.with_fastest(compilation, TUNED, compiler, planned).streams == ()
    assert [plan.streams for plan in plans] == [(), ()]
    found = {key: told for key, told in TimingCache(tmp_path).table.items() if key.startswith("streams ")}
    assert [key.rpartition(" ")[2] for key in found] == ["none"]
    assert list(found.values()) == [1.0]


def test_what_streams_may_save_is_the_time_of_images_that_only_they_read(compilation: Compilation) -> None:
    program = session.planned(compilation, TUNED)
    copies = prospects.Copies({2**10: 0.0, 2**11: 1e-9, 2**30: 1e-9})
    found = prospects.Prospects(program, copies)
    every = [part for run in consecutive(program) for part in run]
    whole = sum(2e-9 * graph.nbytes(v) for part in every[:-1] for v in part.group.outputs)
    assert found.best() == pytest.approx(prospects.OF_COPY * whole / program.seconds, rel=0.2)
    first, second = next(
        (a, b)
        for a, b in itertools.pairwise(every)
        if {use.node for use in a.group.outputs[0].uses()} <= set(b.group.nodes)
    )
    stream = (Streamed((first.group.name, second.group.name), (1, 1)),)
    one = prospects.OF_COPY * 2e-9 * graph.nbytes(first.group.outputs[0]) / program.seconds
    assert found.of(stream) < one  # strips of one row take longer
    assert found.of(stream) > one / 2
    assert prospects.Prospects(program, prospects.Copies({2**10: 1e-9, 2**30: 1e-9})).of(stream) < 0.0


def test_copies_of_fewer_bytes_take_no_longer_for_each() -> None:
    disturbed = prospects.Copies({2**10: 3e-9, 2**12: 1e-9, 2**20: 2e-9})
    assert disturbed.far(2**10) == disturbed.far(2**12) == 0.0
    assert disturbed.far(2**20) == pytest.approx(2 * 2**20 * 1e-9)


def test_copies_are_measured_once() -> None:
    table: dict[str, float] = {}
    first = prospects.Copies.measured(table)
    assert all(seconds > 0.0 for seconds in table.values())
    assert prospects.Copies.measured(table) == first


@pytest.mark.parametrize("options", [replace(TUNED, prefer="memory"), replace(TUNED, autotune=False)])
def test_without_measurement_or_for_memory_nothing_is_raced(
    options: Options, compilation: Compilation, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, 0.5)
    assert session.raced(compilation, options, compiler).streams == ()


def test_a_model_without_images_is_not_planned_for_a_race(tmp_path: Path, compiler: Compiler) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[4, 6] x) => (float[4, 6] y) { a = Sigmoid(x) y = Mul(a, x) }"""
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    compilation = session.canonical(load(path), host(), TUNED, Bindings(), load_registry())

    def planned(_compilation: Compilation, _options: Options) -> Program:
        raise AssertionError("a plan was made")

    assert race.with_fastest(compilation, TUNED, compiler, planned) is compilation


def test_a_front_has_the_plan_with_faster_streams(
    compilation: Compilation, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, 0.9)
    found = session.raced(compilation, TUNED, compiler)
    program = session.planned(found, TUNED)
    points = session.pareto_front(found, TUNED)
    assert any(p.peak_bytes <= peak(program) and p.seconds <= program.seconds for p in points)


@pytest.mark.parametrize("seed", range(20))
def test_the_streams_taken_gain_most_of_all_without_a_common_group(
    seed: int, compilation: Compilation
) -> None:
    plain = session.planned(compilation, TUNED)
    names, random = [s.group.name for s in plain.steps], Random(seed)
    gains: dict[Streamed, float] = {}
    for _ in range(6):
        begin, end = sorted(random.sample(range(len(names) + 1), 2))
        groups = tuple(names[begin:end])
        gains[Streamed(groups, (random.choice((1, 2)),) * len(groups))] = random.uniform(0.1, 1.0)
    found = race._best(gains, plain)
    assert len({n for s in found for n in s.groups}) == sum(len(s.groups) for s in found)
    least = max(
        sum(gains[s] for s in some)
        for count in range(len(gains) + 1)
        for some in itertools.combinations(gains, count)
        if len({n for s in some for n in s.groups}) == sum(len(s.groups) for s in some)
    )
    assert sum(gains[s] for s in found) == pytest.approx(least)
