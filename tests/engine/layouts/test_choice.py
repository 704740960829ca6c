"""The choice of layouts against every labelling of small random graphs, and in bounded time on large ones."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.core import pipeline
from app.engine.core.group import Group
from app.engine.core.plan import Compilation, Plan, Subgraph
from app.engine.core.registry import Backend, Implementation, PlanningContext, Registry
from app.engine.layouts import choice
from app.engine.layouts.choice import choose
from app.engine.layouts.conversions import conversion
from app.engine.passes.infer_layouts import InferLayouts
from app.engine.passes.infer_storage import InferStorage
from app.engine.types.layout import Layout, blocked
from tests.engine.plans import TARGET

LAYOUT, LAST = blocked(4, 8), Layout.parse("NHWC")
ONE_OF_EACH = (LAYOUT, LAST)
SEVERAL = (LAYOUT, blocked(4, 16), Layout.parse("NCHW2h"), LAST, Layout.parse("CHWN"))
Asked = Mapping[ir.Value, Layout]


def row(
    name: str, op: str, seconds: float, inputs: Sequence[int], reads: Layout, writes: Layout | None
) -> Implementation:
    """A row that reads these inputs in a layout."""

    def layouts(group: Group, _context: PlanningContext) -> Asked:
        values = [group.inputs[i] for i in inputs if i < len(group.inputs)]
        written = {} if writes is None else dict.fromkeys(group.outputs, writes)
        return {**dict.fromkeys(values, reads), **written}

    return Implementation(
        name, op, "test", lambda _group, _context: None, lambda _group, _context: (),
        lambda _group, _context: seconds, layouts=layouts,
    )  # fmt: skip


@st.composite
def compilations(
    draw: st.DrawFn, uniform: bool, rows: int = 5, layouts: Sequence[Layout] = ONE_OF_EACH, most: int = 8
) -> Compilation:
    """Up to eight groups of one node and up to three operands, each with rows of its own.

    Rows of a group read the same operands blocked when `uniform`, else any; up to `rows` beside one of
    row-major operands.
    """
    count = draw(st.integers(1, most))
    kind = ir.TensorType(ir.DataType.FLOAT)
    values = [ir.Value(name="x", type=kind, shape=ir.Shape([1, 8, 4, 4]))]
    nodes, table = [], {}
    for i in range(count):
        read = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))
        node = ir.node(f"Op{i}", read, name=f"n{i}")
        (output,) = node.outputs
        channels, height = draw(st.sampled_from([(8, 4), (16, 3), (5, 2), (8, 1)]))
        output.name, output.type, output.shape = f"v{i}", kind, ir.Shape([1, channels, height, 4])
        values.append(output)
        nodes.append(node)
        mixes = st.tuples(
            st.floats(0.1, 20), st.lists(st.integers(0, 2), unique=True),
            st.sampled_from(layouts), st.sampled_from([*layouts, None]),
        )  # fmt: skip
        drawn = draw(st.lists(mixes, max_size=rows))
        if uniform:
            same = draw(st.lists(st.integers(0, len(read) - 1), min_size=1, unique=True))
            drawn = [(s, same if inputs else [], reads, writes) for s, inputs, reads, writes in drawn]
        drawn.append((draw(st.floats(0.1, 20)), [], LAYOUT, None))
        table[f"Op{i}"] = tuple(
            row(f"r{i}.{j}", f"Op{i}", s * 1e-6, sorted(inputs), reads, writes)
            for j, (s, inputs, reads, writes) in enumerate(drawn)
        )
    outputs = [v for v in values[1:] if not v.uses() or draw(st.booleans())]
    model = ir.Model(
        ir.Graph(values[:1], outputs, nodes=nodes, opset_imports={"": 21}, name="random"), ir_version=10
    )
    groups = {n: Group((n,), n, tuple(n.inputs), tuple(n.outputs), n.op_type) for n in nodes}  # type: ignore[arg-type]  # none is omitted
    plan = Plan(partition=dict.fromkeys(nodes, Subgraph(0, "test")), fusion=groups)
    return Compilation(model, TARGET, Registry({}, table, {"test": Backend("test", ("cpu",))}), plan=plan)


def energy(compilation: Compilation, asked: Mapping[Group, Asked], seconds: Mapping[Group, float]) -> float:
    """By the definition: what groups take, and every (value, layout) that must be made from another."""
    context = PlanningContext.of(compilation)
    written = {v: asked[g].get(v) for g in compilation.plan.groups for v in g.outputs}
    wanted = {(v, asked[g].get(v)) for g in compilation.plan.groups for v in g.inputs}
    wanted |= {(v, None) for v in compilation.graph.outputs}
    made = {(v, layout) for v, layout in wanted if layout != written.get(v)}
    # All others are made from row-major, and that from what was written.
    made |= {(v, None) for v, layout in made if layout is not None and written.get(v) is not None}
    return sum(seconds.values()) + sum(
        conversion(v, layout or written[v] or LAYOUT, compilation, context) for v, layout in made
    )


def least(compilation: Compilation) -> float:
    """Of every choice of a row for every group."""
    context, groups = PlanningContext.of(compilation), compilation.plan.groups
    rows = []
    for group in groups:
        cheapest: dict[frozenset[tuple[ir.Value, Layout]], tuple[float, Asked]] = {}
        for r in compilation.registry.implementations[group.op]:
            asked = r.layouts(group, context)
            key = frozenset(asked.items())
            cheapest[key] = min(
                cheapest.get(key, (np.inf, asked)), (r.cost(group, context), asked), key=lambda t: t[0]
            )
        rows.append(list(cheapest.values()))
    return min(
        energy(
            compilation,
            {g: a for g, (_, a) in zip(groups, picked)},
            {g: s for g, (s, _) in zip(groups, picked)},
        )
        for picked in itertools.product(*rows)
    )


def found(compilation: Compilation) -> tuple[float, choice.Assignment]:
    """The chosen energy, by the definition, and the assignment."""
    context = PlanningContext.of(compilation)
    assignment = choose(compilation, context)
    seconds = {}
    for group, asked in assignment.required_layouts.items():
        rows = compilation.registry.implementations[group.op]
        seconds[group] = min(r.cost(group, context) for r in rows if r.layouts(group, context) == asked)
    return energy(compilation, assignment.required_layouts, seconds), assignment


def assert_best(compilation: Compilation) -> None:
    seconds, assignment = found(compilation)
    assert seconds == pytest.approx(least(compilation), rel=1e-6)
    if assignment.cuts:
        assert assignment.seconds == pytest.approx(seconds)
        assert assignment.gap < 1e-5


@settings(max_examples=40, deadline=None)
@given(compilations(uniform=True))
def test_the_choice_is_the_best_where_rows_differ_in_two_labels(compilation: Compilation) -> None:
    assert_best(compilation)


@settings(max_examples=40, deadline=None)
@given(compilations(uniform=False))
def test_the_choice_is_the_best_where_rows_block_any_operands(compilation: Compilation) -> None:
    assert_best(compilation)


@settings(max_examples=60, deadline=None)
@given(compilations(uniform=False, rows=4, layouts=SEVERAL, most=5))
def test_the_choice_is_the_best_where_a_value_has_several_blocked_layouts(compilation: Compilation) -> None:
    assert_best(compilation)


@settings(max_examples=20, deadline=None)
@given(compilations(uniform=False))
def test_without_branches_the_gap_is_told(compilation: Compilation) -> None:
    """One cut bounds what any labelling takes; the note says how far the choice may be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "WORK", 0)
        seconds, assignment = found(compilation)
        lowest = least(compilation)
        noted = pipeline.run(compilation, (InferStorage(), InferLayouts())).notes  # changes the graph
    if assignment.cuts:
        assert assignment.cuts == 1
        assert assignment.bound <= lowest * (1 + 1e-6)
        assert assignment.seconds == pytest.approx(seconds)
        (note,) = noted
        told = f"at most {assignment.gap:.3%} above the least" if assignment.gap > 5e-6 else "proved least"
        assert f"{told} by 1 minimum cut" in note


@settings(max_examples=20, deadline=None)
@given(compilations(uniform=False), st.sampled_from(["plain", "blocked", "last", "greedy"]))
def test_no_policy_is_better_than_the_joint_choice(compilation: Compilation, policy: choice.Policy) -> None:
    context = PlanningContext.of(compilation)
    joint, fixed = choose(compilation, context), choose(compilation, context, policy)
    assert joint.seconds <= fixed.seconds * (1 + 1e-6)
    if policy == "plain":
        assert not any(fixed.required_layouts.values())
