"""Memory options over branching graphs: no crash, valid plans, and none larger than a choice of rows allows."""

import dataclasses
import itertools
import math
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from app.engine.buffers.placement import place
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.memory.problem import Problem, validate
from app.engine.model.load import load
from app.engine.passes.rematerialize import Rematerialize
from app.engine.planning import budget, session
from app.engine.planning.rematerialization import is_conversion
from app.engine.planning.row_memory import RowMemory
from app.engine.report.report import memory_json
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import CapacityError
from app.engine.types.options import Again, Bindings, MemoryConcessions, Options
from app.engine.types.target import Memory, Target, presets
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.branching import Net, fire, random_net
from tests.harness import model_of

REGISTRY = load_registry()
TARGETS = presets()
COMBINATIONS = 120  # of rows that the oracle tries at most


def canonical(net: Net, target: Target, folder: Path) -> Compilation:
    path = folder / "net.onnx"
    onnx.save(ir.to_proto(model_of(net.text, net.weights)), path)
    return session.canonical(load(path), target, Options(), Bindings(), REGISTRY)


def peak(program: Program) -> int:
    return program.placement.solution.peak


def is_valid(program: Program) -> bool:
    """Whether an independent check of the placement passes, and no step computes what nobody needs."""
    storage, solution = place(program.compilation)
    validate(Problem(storage.problem.buffers, max(solution.peak, peak(program))), solution)
    return all(step.group.outputs for step in program.steps)


@pytest.mark.parametrize(
    "last", ["MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (e)", "Relu (e)", "Softmax (e)"]
)
@pytest.mark.parametrize("target", [t for t in TARGETS if t != "host"])
def test_branches_that_meet_in_a_concatenation_are_planned_for_memory(
    target: str, last: str, tmp_path: Path
) -> None:
    compilation = canonical(fire(last), TARGETS[target], tmp_path)
    fast = session.planned(compilation, Options())
    small = session.planned(compilation, Options(prefer="memory"))
    assert is_valid(small)
    assert peak(small) <= peak(fast)
    assert session.pareto_front(compilation, Options())[0].peak_bytes <= peak(small)


@pytest.mark.parametrize("seed", range(8))
def test_memory_options_run_clean_on_random_graphs(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    names = sorted(TARGETS)
    target = TARGETS[names[seed % len(names)]]
    compilation = canonical(random_net(rng, 4 + 2 * seed), target, tmp_path)
    fast = session.planned(compilation, Options())
    small = session.planned(compilation, Options(prefer="memory"))
    assert is_valid(small)
    assert peak(small) <= peak(fast)
    points = session.pareto_front(compilation, Options())
    assert points[0].peak_bytes == peak(small)
    assert points[-1].seconds <= fast.seconds
    budget = peak(small) + (peak(fast) - peak(small)) // 2
    fitting = session.planned(compilation, Options(memory_budget=max(budget, 1)))
    assert is_valid(fitting)
    assert peak(fitting) <= max(budget, 1)
    with pytest.raises(CapacityError) as error:
        session.planned(compilation, Options(memory_budget=1))
    assert error.value.needed >= peak(small)
    assert error.value.available == 1


def every_choice(build: budget.Build) -> list[tuple[int, float]] | None:
    """Bytes and seconds with each combination of rows, the least first; None where there are too many."""
    whole = build(MemoryConcessions(unbounded=True))
    rows = RowMemory(whole)
    free = [
        (s.group.name, [row.name for row in rows.rows(s.group)])
        for s in whole.steps
        if not is_conversion(s.group.anchor) and len(rows.rows(s.group)) > 1
    ]
    if math.prod(len(names) for _, names in free) > COMBINATIONS:
        return None
    found = []
    for picked in itertools.product(*(names for _, names in free)):
        denied = frozenset(
            (group, name) for (group, names), pick in zip(free, picked) for name in names if name != pick
        )
        program = build(MemoryConcessions(order=True, denied=denied, unbounded=True))
        found.append((peak(program), program.seconds))
    return sorted(found)


@pytest.mark.parametrize("seed", range(12))
def test_no_choice_of_rows_takes_less_than_memory_first_or_than_its_bound(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(100 + seed)
    target = TARGETS[("cpu-avx512", "cpu-avx2", "cuda-sm90")[seed % 3]]
    compilation = canonical(random_net(rng, 3 + seed % 4), target, tmp_path)
    build = session.builder(compilation, Options())
    choices = every_choice(build)
    if choices is None:
        pytest.skip("too many combinations of rows")
    least, seconds = choices[0]
    bound = RowMemory(build(MemoryConcessions(unbounded=True))).bound
    assert bound is not None
    assert bound <= least
    small = session.planned(compilation, Options(prefer="memory"))
    assert peak(small) <= least
    if peak(small) == least:
        assert small.seconds <= seconds * 1.05  # of equal ones the fastest, as far as they are looked at
    if least:
        assert peak(session.planned(compilation, Options(memory_budget=least))) <= least


def test_a_budget_between_two_plans_is_met_by_the_groups_at_the_peak_alone(tmp_path: Path) -> None:
    """Two convolutions like their workspaces; only the larger one must do without. Two images have no strips."""
    net = Net(
        """<ir_version: 10, opset_import: ["": 21]>
        agraph (float[2, 16, 24, 24] x, float[16, 16, 3, 3] w, float[16, 16, 3, 3] v)
            => (float[2, 16, 12, 12] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
            y = Conv <pads = [1, 1, 1, 1]> (b, v)
        }""",
        {k: np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(np.float32) for k in "wv"},
    )
    compilation = canonical(net, TARGETS["cpu-avx512"], tmp_path)
    fast = session.planned(compilation, Options())
    found = session.planned(compilation, Options(memory_budget=peak(fast) - 1))
    groups = {name for name, _ in found.compilation.concessions.denied}
    assert peak(found) < peak(fast)
    assert len(groups) == 1
    rows = {s.group.name: s.choice.implementation.name for s in fast.steps}
    changed = {
        s.group.name for s in found.steps if rows.get(s.group.name, "") != s.choice.implementation.name
    }
    assert {name for name in changed if not name.endswith(("plain", "c"))} == groups
    assert "no rows for these groups take less" in "\n".join(found.compilation.notes)


def test_what_is_planned_for_memory_computes_the_same(tmp_path: Path, compiler: Compiler) -> None:
    compilation = canonical(fire("Relu (e)"), TARGETS["host"], tmp_path)
    x = np.random.default_rng(1).standard_normal((1, 16, 24, 24)).astype(np.float32)
    results = []
    for options in (Options(), Options(prefer="memory")):
        with closing(Executor(session.planned(compilation, options), compiler, poison=True)) as executor:
            results.append(executor.run({"x": x})["y"])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-4)


def test_memory_first_uses_slower_memories_where_nothing_else_fits(tmp_path: Path) -> None:
    compilation = canonical(fire("Relu (e)"), TARGETS["cpu-avx2"], tmp_path)
    least = peak(session.planned(compilation, Options(prefer="memory")))
    memories = (Memory("sram", least - 4096, 64, 20e9), Memory("dram", 1 << 30, 64, 1e9))
    narrow = dataclasses.replace(compilation.target, name="narrow", memories=memories)
    there = dataclasses.replace(compilation, target=narrow)
    for options in (Options(prefer="memory"), Options()):
        program = session.planned(there, options)
        assert peak(program) <= least - 4096
        assert program.placement.banks
    points = session.pareto_front(there, Options())
    assert points
    assert all(p.peak_bytes <= least - 4096 for p in points)


def test_a_copy_stays_float32_and_off_a_failed_backend_as_its_node_does() -> None:
    model = model_of(fire("Relu (e)").text, fire("Relu (e)").weights)
    names = {n.outputs[0].name: n for n in model.graph}
    for out, node in names.items():
        node.name = f"make_{out}"
    compilation = Compilation(
        model,
        TARGETS["host"],
        REGISTRY,
        Options(exact={"make_a": "a reason"}),
        concessions=MemoryConcessions(recompute=(Again(("make_a", "make_b"), ("make_e",)),)),
        assignment={"make_a": "library#0"},
        failures={("make_b", "library"): "it failed"},
    )
    # b has another reader, so that the original stays.
    model.graph.outputs.append(names["b"].outputs[0])
    found = Rematerialize()(compilation)
    assert found.options.exact["make_a.again"] == "a reason"
    assert found.failures["make_b.again", "library"] == "it failed"
    assert found.assignment["make_a.again"].startswith("library#0")
    assert found.assignment["make_a.again"] != "library#0"


def test_what_nobody_reads_after_a_copy_is_removed() -> None:
    model = model_of(fire("Relu (e)").text, fire("Relu (e)").weights)
    for node in model.graph:
        node.name = f"make_{node.outputs[0].name}"
    concessions = MemoryConcessions(recompute=(Again(("make_a", "make_b"), ("make_e",)),))
    Rematerialize()(Compilation(model, TARGETS["host"], REGISTRY, concessions=concessions))
    assert {"make_a", "make_b"}.isdisjoint({n.name for n in model.graph})
    assert all(v.uses() or v.is_graph_output() for n in model.graph for v in n.outputs)


def test_notes_tell_times_that_are_times(tmp_path: Path) -> None:
    """What memory is worth in the search is no part of the microseconds that a note tells."""
    small = session.planned(
        canonical(fire("Relu (e)"), TARGETS["cpu-avx512"], tmp_path), Options(prefer="memory")
    )
    told = [n for n in small.compilation.notes if n.startswith("layouts: ")]
    assert told
    assert float(told[0].split()[1]) * 1e-6 < 2 * small.seconds


def test_the_memory_plan_tells_what_no_choice_of_rows_stays_below(tmp_path: Path) -> None:
    compilation = canonical(fire("Relu (e)"), TARGETS["cpu-avx512"], tmp_path)
    small = memory_json(session.planned(compilation, Options(prefer="memory")).compilation)
    assert 0 < small["rows"]["lower_bound"] <= small["peak_bytes"]
    assert small["rows"]["proved"] == (small["rows"]["lower_bound"] == small["peak_bytes"])
    assert memory_json(session.planned(compilation, Options()).compilation)["rows"]["lower_bound"] is None
