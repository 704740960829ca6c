"""Streams that plans take for memory: executed, and no larger than they say."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import PlanningContext
from app.engine.core.registry import load as load_registry
from app.engine.core.streams.stream_group import StreamGroup
from app.engine.memory.problem import lower_bound
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.planning.streams.matrix_strips import denied_for_strips, in_matrix_strips
from app.engine.planning.streams.proposals import consecutive, proposals, with_fewer_rows
from app.engine.planning.streams.second_pass import second_passes
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.options import Bindings, MemoryConcessions
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.passes.streams.chains import OPTIONS, Network, inverted_residuals
from tests.harness import Array


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return inverted_residuals(2).save(tmp_path_factory.mktemp("streams"))


@pytest.fixture(scope="module")
def compilation(network: Path) -> Compilation:
    return session.canonical(load(network), host(), OPTIONS, Bindings(), load_registry())


def peak(program: Program) -> int:
    return program.placement.solution.peak


def output(program: Program, compiler: Compiler) -> Array:
    x = np.random.default_rng(0).standard_normal((1, 3, 40, 40)).astype(np.float32)
    with closing(Executor(program, compiler, poison=True)) as executor:
        (found,) = executor.run({"x": x}).values()
    return np.asarray(found)


def test_least_memory_is_in_strips_and_computes_the_same(
    compilation: Compilation, compiler: Compiler
) -> None:
    plain = session.planned(compilation, OPTIONS)
    small = session.planned(compilation, replace(OPTIONS, prefer="memory"))
    assert small.compilation.concessions.streams
    assert "groups in strips of rows" in "\n".join(small.compilation.notes)
    assert 2 * peak(small) < peak(plain)
    np.testing.assert_array_equal(output(small, compiler), output(plain, compiler))


def test_a_budget_is_met_by_the_fastest_strips(compilation: Compilation) -> None:
    plain = session.planned(compilation, OPTIONS)
    small = session.planned(compilation, replace(OPTIONS, prefer="memory"))
    budget = (peak(plain) + peak(small)) // 2
    found = session.planned(compilation, replace(OPTIONS, memory_budget=budget))
    assert peak(small) <= peak(found) <= budget
    assert found.seconds <= small.seconds


def test_points_of_the_front_are_in_strips(compilation: Compilation) -> None:
    points = session.pareto_front(compilation, OPTIONS)
    assert "strips of rows" in points[0].told
    assert points[-1].told == "nothing given up"


def test_proposals_are_the_same_each_time_and_take_fewer_bytes(compilation: Compilation) -> None:
    build = session.builder(compilation, OPTIONS)
    plain = build(MemoryConcessions())
    found = proposals(plain)
    assert found == proposals(plain)
    programs = [build(MemoryConcessions(streams=streams)) for streams in found]
    peaks = [peak(program) for program in programs]
    assert min(peaks) < peaks[0] <= peak(plain)
    for program in programs:
        (stream, *_) = (s.group for s in program.steps if isinstance(s.group, StreamGroup))
        assert lower_bound(program.compilation.plan.require("buffers").assignment.problem) <= peak(program)
        assert stream.memory.lower_bound <= stream.memory.nbytes


def test_a_goal_adds_the_largest_streams_within_it(compilation: Compilation) -> None:
    build = session.builder(compilation, OPTIONS)
    plain = build(MemoryConcessions())
    every = proposals(plain, (peak(plain),) * 2)
    assert set(proposals(plain)) <= set(every)
    peaks = [peak(build(MemoryConcessions(streams=streams))) for streams in every]
    goal = sorted(peaks)[len(peaks) // 2]
    within = [peak(build(MemoryConcessions(streams=s))) for s in proposals(plain, (goal,))]
    assert any(nbytes <= goal for nbytes in within)


def test_where_tiles_have_many_rows_other_implementations_are_proposed(tmp_path: Path) -> None:
    net = Network((32, 40, 40))
    for _ in range(4):
        net.conv(32, 3)
        net.apply("Relu({})")
    fast = replace(OPTIONS, fast_algorithms=True)
    compilation = session.canonical(load(net.save(tmp_path)), host(), fast, Bindings(), load_registry())
    build = session.builder(compilation, fast)
    plain = build(MemoryConcessions())
    used = {s.choice.implementation.name for s in plain.steps}
    assert any("winograd_f4" in name for name in used)
    found = with_fewer_rows(plain, proposals(plain)[-1])
    assert [{name for _, name in denied if name in used} != set() for denied in found] == [True, True]
    peaks = [peak(build(MemoryConcessions(streams=proposals(plain)[-1])))]
    for denied in found:
        other = build(MemoryConcessions(denied=denied))
        assert not denied & {(s.group.name, s.choice.implementation.name) for s in other.steps}
        peaks.append(peak(build(MemoryConcessions(denied=denied, streams=proposals(other)[-1]))))
    assert peaks[0] >= peaks[1] >= peaks[2]
    assert peaks[0] > peaks[2]
    small = session.planned(compilation, replace(fast, prefer="memory"))
    assert peak(small) <= min(peaks)


def test_plans_with_an_output_of_unknown_size_have_strips(network: Path, tmp_path: Path) -> None:
    model, path = ir.load(network), tmp_path / "found.onnx"
    found = ir.node("NonZero", [model.graph.outputs[0]])
    (at,) = found.outputs
    at.name, at.type, at.shape = "at", ir.TensorType(ir.DataType.INT64), ir.Shape((4, "n"))
    model.graph.append(found)
    model.graph.outputs.append(at)
    ir.save(model, path)
    compilation = session.canonical(load(path), host(), OPTIONS, Bindings(), load_registry())
    small = session.planned(compilation, replace(OPTIONS, prefer="memory"))
    assert any(isinstance(step.group, StreamGroup) for step in small.steps)


def test_two_threads_share_strips(network: Path) -> None:
    two = replace(OPTIONS, threads=2)
    compilation = session.canonical(load(network), host(), two, Bindings(), load_registry())
    plain = session.planned(compilation, two)
    small = session.planned(replace(compilation, streams=proposals(plain)[-1]), two)
    assert small.arena_bytes < plain.arena_bytes


def test_a_network_of_images_has_no_strips_of_matrices(compilation: Compilation) -> None:
    plain = session.planned(compilation, OPTIONS)
    assert not denied_for_strips(plain)
    assert not in_matrix_strips(plain)


def excited(folder: Path) -> Compilation:
    """Two blocks with squeeze-and-excite on an image of 3 x 40 x 40, the first of which is the largest."""
    net = Network((3, 40, 40), seed=11)
    net.conv(32, 3)
    net.apply("Relu({})")
    for _ in range(2):
        net.conv(0, 3, group=-1)
        net.apply("HardSwish({})")
        net.excited()
        net.conv(16)
        net.conv(64, 1, 2)
    net.conv(8)
    return session.canonical(load(net.save(folder)), host(), OPTIONS, Bindings(), load_registry())


def test_what_is_reduced_before_it_is_read_is_computed_twice(tmp_path: Path, compiler: Compiler) -> None:
    compilation = excited(tmp_path)
    build = session.builder(compilation, OPTIONS)
    plain = build(MemoryConcessions(unbounded=True))
    (first, *_) = second_passes(plain)
    base = MemoryConcessions(recompute=first, unbounded=True)
    again = build(base)
    program = build(replace(base, streams=proposals(again)[-1]))
    sums = [
        step.group.parts[-1].group.op
        for step in program.steps
        if isinstance(step.group, StreamGroup) and step.group.parts[-1].strips.sums
    ]
    assert sums
    assert peak(program) < peak(build(MemoryConcessions(streams=proposals(plain)[-1], unbounded=True)))
    np.testing.assert_array_equal(output(program, compiler), output(again, compiler))
    np.testing.assert_array_equal(output(program, compiler), output(plain, compiler))


def test_least_memory_takes_second_passes(tmp_path: Path) -> None:
    small = session.planned(excited(tmp_path), replace(OPTIONS, prefer="memory"))
    assert small.compilation.concessions.recompute
    assert small.compilation.concessions.streams


def test_images_without_a_sum_have_no_second_pass(compilation: Compilation) -> None:
    assert second_passes(session.planned(compilation, OPTIONS)) == ()


def test_what_reads_a_value_whole_begins_a_run(tmp_path: Path) -> None:
    program = session.planned(excited(tmp_path), OPTIONS)
    for run in consecutive(program):
        made = {v for part in run for v in part.group.outputs}
        context = PlanningContext.of(program.compilation, program.compilation.plan.require("storage"))
        for part in run:
            by_rows = {v for v, _ in part.strips.reads(part.group, context)}
            assert not (made & {*part.group.inputs}) - by_rows
