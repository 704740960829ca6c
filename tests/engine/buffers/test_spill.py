"""Plans over several memories: what fits, what it costs, and that it still computes the same."""

import dataclasses
from contextlib import closing

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.buffers.spill import leaving, solved
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.memory.problem import Buffer, Problem
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.report import memory_map
from app.engine.report.report import memory_json
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import CapacityError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Memory, host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import model_of

CHAIN = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[64, 64] x, float[64, 64] w) => (float[64, 64] y) {
    a = MatMul (x, w)
    b = MatMul (a, w)
    c = MatMul (b, w)
    d = MatMul (c, w)
    e = MatMul (d, b)
    y = MatMul (e, a)
}"""
ONE = 64 * 64 * 4
LITTLE = ONE + ONE // 2  # a step reads one value and writes another


@pytest.fixture
def compilation(tmp_path_factory: pytest.TempPathFactory) -> Compilation:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((64, 64), np.float32) / 8}
    path = tmp_path_factory.mktemp("chain") / "net.onnx"
    onnx.save(ir.to_proto(model_of(CHAIN, weights)), path)
    target = dataclasses.replace(
        host(), name="two", memories=(Memory("sram", 1 << 20, 64, 100e9), Memory("dram", 1 << 30, 64, 10e9))
    )
    return session.canonical(load(path), target, Options(), Bindings(), load_registry())


def planned(compilation: Compilation, budget: int) -> Program:
    return session.planned(compilation, Options(memory_budget=budget, fuse=False))


def test_what_does_not_fit_moves_to_the_slower_memory_and_computes_the_same(
    compilation: Compilation, compiler: Compiler
) -> None:
    whole = planned(compilation, 1 << 20)
    split = planned(compilation, LITTLE)
    assert not whole.placement.banks
    (bank,) = split.placement.banks
    assert split.placement.solution.peak <= LITTLE
    assert bank.start >= split.placement.solution.peak
    assert split.arena_bytes == bank.start + bank.solution.peak
    assert split.placement.delay > 0
    assert "values in slower memories" in "\n".join(split.compilation.notes)
    x = np.random.default_rng(1).standard_normal((64, 64), np.float32)
    results = []
    for program in (whole, split):
        with closing(Executor(program, compiler, poison=True)) as executor:
            results.append(executor.run({"x": x})["y"])
    assert np.array_equal(*results)


def test_the_report_says_what_lies_where(compilation: Compilation) -> None:
    program = planned(compilation, LITTLE)
    report = memory_json(program.compilation)
    assert [m["name"] for m in report["memories"]] == ["sram", "dram"]
    first, second = report["memories"]
    for buffer in report["buffers"]:
        held = first if buffer["memory"] == "sram" else second
        assert held["start"] <= buffer["offset"]
        assert buffer["offset"] + buffer["bytes"] <= held["start"] + held["peak_bytes"]
    assert max(step["live_bytes"] for step in report["steps"]) == first["lower_bound"]
    assert [name for _, name in memory_map.draw(report).further] == ["dram"]


def test_one_memory_that_is_too_small_stays_too_small(compilation: Compilation) -> None:
    single = dataclasses.replace(compilation.target, memories=compilation.target.memories[:1])
    with pytest.raises(CapacityError):
        planned(dataclasses.replace(compilation, target=single), ONE)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, dict[str, int]]:
    count = draw(st.integers(1, 6))
    spans = [(draw(st.integers(0, 5)), draw(st.integers(1, 4))) for _ in range(count)]
    buffers = tuple(Buffer(str(i), a, a + n, draw(st.integers(1, 8)), 1) for i, (a, n) in enumerate(spans))
    return Problem(buffers), {b.id: draw(st.integers(1, 9)) for b in buffers}


@settings(deadline=None, max_examples=150)
@given(problems(), st.integers(0, 30))
def test_what_leaves_is_enough_and_none_of_it_could_stay(
    drawn: tuple[Problem, dict[str, int]], capacity: int
) -> None:
    problem, traffic = drawn
    moved = leaving(problem, set(traffic), capacity, traffic)
    assert solved(problem, moved).peak <= capacity
    assert all(solved(problem, moved - {i}).peak > capacity for i in moved)
