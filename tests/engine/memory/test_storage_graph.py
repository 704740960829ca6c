"""Alias classes, lifespans and workspace of plans made by hand; every placement is checked byte by byte."""

import itertools

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.errors import CapacityError
from app.engine.memory.storage_graph import build, view_classes, view_refusal
from app.engine.options import Options
from app.engine.passes.plan_memory import PlanMemory
from app.engine.plan import Compilation, Placement, Workspace
from tests.engine.plans import Row, compilation_of, values_of
from tests.harness import model_of

# Two convolutions and a residual sum: 4 x 4 images of 16 channels, 1024 byte a value.
RESIDUAL = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[1,16,4,4] x) => (float[1,16,4,4] out) {
    a = Relu(x)
    b = Sigmoid(a)
    c = Tanh(b)
    y = Add(c, a)
    z = Exp(y)
    out = Log(z)
}"""


def placement_of(compilation: Compilation) -> Placement:
    placement = PlanMemory()(compilation).plan.placement
    assert placement is not None
    run_symbolically(compilation, placement)
    return placement


def run_symbolically(compilation: Compilation, placement: Placement) -> None:
    """Run the steps on memory that knows which value each byte holds: what a step reads must be there.

    A step that has written a value makes its bytes hold the value, and what it is a view of.
    """
    memory: dict[tuple[str, str | None], np.ndarray] = {}
    names: dict[ir.Value, int] = {}
    views = {v: s for c in (compilation.plan.implementation or {}).values() for s, v in c.views}

    def original(value: ir.Value) -> int:
        while value in views:
            value = views[value]
        return names.setdefault(value, len(names) + 1)

    def bytes_of(value: ir.Value) -> np.ndarray:
        at = placement.values[value]
        key = (at.space, at.root.name if at.root else None)
        memory.setdefault(key, np.zeros(1 << 16, np.int64))
        return memory[key][at.offset : at.offset + at.nbytes]

    for value, at in placement.values.items():
        if at.root is value and at.space in ("input", "weights"):
            bytes_of(value)[:] = original(value)
    assert compilation.plan.order is not None
    for group in compilation.plan.order:
        for value in group.inputs:
            if value in placement.values:
                assert (bytes_of(value) == original(value)).all(), f"{group.name} reads a dead {value.name}"
        for offset in placement.workspaces.get(group, ()):
            memory.setdefault(("arena", None), np.zeros(1 << 16, np.int64))[offset] = -1
        for value in group.outputs:
            if value in placement.values:
                bytes_of(value)[:] = original(value)
    for value in compilation.graph.outputs:
        if value in placement.values:
            assert (bytes_of(value) == original(value)).all(), f"output {value.name} is lost"


def named(compilation: Compilation, placement: Placement) -> dict[str, tuple[str, int]]:
    return {v.name or "": (at.space, at.offset) for v, at in placement.values.items()}


def test_two_implementations_with_different_inplace_options_give_two_plans() -> None:
    # apache/mxnet issue 13598: only one of two implementations of the sum works in place.
    separate = placement_of(compilation_of(RESIDUAL))
    accumulating = compilation_of(RESIDUAL, {"y": Row("add.accumulate", inplace=(("c", "y"),))})
    fused = placement_of(accumulating)
    assert separate.solution.peak == 3 * 1024
    assert fused.solution.peak == 3 * 1024  # a, b and c still live together
    both = {
        "b": Row("sigmoid.inplace", inplace=(("a", "b"),)),
        "c": Row("tanh.inplace", inplace=(("b", "c"),)),
        "y": Row("add.accumulate", inplace=(("c", "y"),)),
    }
    shared = placement_of(compilation_of(RESIDUAL, both))
    assert shared.solution.peak == 2 * 1024
    reasons = [b.reason for b in shared.buffers if "y" in b.values]
    assert "'y' in place of 'c' because add.accumulate allows it" in reasons[0]


def test_an_inplace_pair_is_refused_when_the_input_is_read_later() -> None:
    compilation = compilation_of(RESIDUAL, {"b": Row(inplace=(("a", "b"),))})
    at = named(compilation, placement_of(compilation))
    assert at["a"] != at["b"]


def test_an_inplace_pair_is_refused_on_graph_inputs_weights_and_graph_outputs() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[16] x, float[16] w) => (float[16] a, float[16] d) {
        a = Relu(x)  b = Add(x, w)  c = Relu(a)  d = Add(b, c)
    }"""
    model = model_of(text, {"w": np.ones(16, np.float32)})
    rows = {
        "a": Row(inplace=(("x", "a"),)),
        "b": Row(inplace=(("w", "b"), ("x", "b"))),
        "c": Row(inplace=(("a", "c"),)),
    }
    compilation = compilation_of(model, rows)
    at = named(compilation, placement_of(compilation))
    assert at["x"][0] == "input"
    assert at["w"][0] == "weights"
    assert at["a"][0] == "output"
    assert at["b"][0] == at["c"][0] == "arena"


def test_what_an_output_overwrites_in_place_moves_into_its_memory() -> None:
    rows = {"out": Row(inplace=(("z", "out"),)), "z": Row(inplace=(("y", "z"),))}
    compilation = compilation_of(RESIDUAL, rows)
    placement = placement_of(compilation)
    values = values_of(compilation.model)
    assert placement.values[values["y"]].root is values["out"]
    assert [b for b in placement.buffers if "y" in b.values] == []


def test_an_intermediate_larger_than_the_output_stays_in_the_arena() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[64] x) => (float16[64] out) { a = Relu(x)  out = Cast <to = 10> (a) }"""
    compilation = compilation_of(text, {"out": Row(inplace=(("a", "out"),))})
    assert named(compilation, placement_of(compilation))["a"] == ("arena", 0)


def test_an_inplace_pair_is_refused_when_the_output_is_larger() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float16[64] x) => (float[64] out) { a = Relu(x)  b = Cast <to = 1> (a)  out = Relu(b) }"""
    compilation = compilation_of(text, {"b": Row(inplace=(("a", "b"),))})
    at = named(compilation, placement_of(compilation))
    assert at["a"] != at["b"]


VIEWS = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[4,16] x) => (float[16,4] out) <int64[1] flat = {-1}, int64[2] wide = {16, 4}> {
    a = Relu(x)
    b = Reshape(a, flat)
    c = Reshape(b, wide)
    d = Relu(c)
    e = Reshape(a, wide)
    out = Add(d, e)
}"""
RESHAPES = {
    "b": Row("reshape.view", views=(("a", "b"),)),
    "c": Row("reshape.view", views=(("b", "c"),)),
    "e": Row("reshape.view", views=(("a", "e"),)),
}


def test_a_chain_of_views_is_one_buffer_that_lives_as_long_as_its_last_reader() -> None:
    compilation = compilation_of(VIEWS, RESHAPES)
    placement = placement_of(compilation)
    [row] = [b for b in placement.buffers if "a" in b.values]
    assert row.values == ("a", "b", "c", "e")
    assert (row.first, row.last) == (0, 5)
    assert "'c' is a view of 'b' (reshape.view)" in row.reason
    assert placement.solution.peak == 2 * 256


def test_an_inplace_pair_is_refused_while_a_view_of_the_input_is_read_later() -> None:
    compilation = compilation_of(VIEWS, {**RESHAPES, "d": Row(inplace=(("c", "d"),))})
    at = named(compilation, placement_of(compilation))
    assert at["c"] != at["d"]


def test_an_inplace_pair_is_refused_when_the_step_reads_the_same_bytes_twice() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[4,4] x) => (float[4,4] out) <int64[2] shape = {4, 4}> {
        a = Relu(x)  b = Reshape(a, shape)  c = MatMul(a, b)  out = Relu(c)
    }"""
    rows = {"b": Row(views=(("a", "b"),)), "c": Row(inplace=(("b", "c"),))}
    compilation = compilation_of(text, rows)
    at = named(compilation, placement_of(compilation))
    assert at["a"] == at["b"] != at["c"]


def test_a_residual_that_the_anchor_reads_too_is_not_overwritten() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[4,4] x, float[4,4] w) => (float[4,4] out) {
        a = Relu(x)  p = MatMul(a, w)  b = Add(p, a)  out = Relu(b)
    }"""
    fused = compilation_of(text, {"b": Row(inplace=(("a", "b"),))}, fused=[(1, 2)])
    at = named(fused, placement_of(fused))
    assert at["a"] != at["b"]
    apart = compilation_of(text, {"b": Row(inplace=(("a", "b"),))})
    at = named(apart, placement_of(apart))
    assert at["a"] == at["b"]


def test_one_input_is_not_overwritten_by_two_outputs() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[16] x) => (float[16] out) {
        a = Relu(x)  b = Sigmoid(a)  c = Tanh(a)  out = Add(b, c)
    }"""
    compilation = compilation_of(text, {"c": Row(inplace=(("a", "b"), ("a", "c")))}, fused=[(1, 2)])
    at = named(compilation, placement_of(compilation))
    assert at["a"] == at["b"] != at["c"]


def test_workspace_overlaps_nothing_that_lives_in_its_step() -> None:
    rows = {"c": Row("tanh.blocked", workspace=(Workspace(1000), Workspace(500, per_thread=True)))}
    compilation = compilation_of(RESIDUAL, rows, options=Options(threads=3))
    placement = placement_of(compilation)
    scratch = [b for b in placement.buffers if b.kind == "workspace"]
    assert sorted(b.nbytes for b in scratch) == [1000, 1500]
    assert "500 byte for each of 3 threads" in max(scratch, key=lambda b: b.nbytes).reason
    living = [b for b in placement.buffers if b.first <= 2 <= b.last]
    assert {b.name for b in living} >= {"a", "b", "c"}
    spans = sorted((b.offset, b.offset + b.nbytes) for b in living)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert placement.solution.lower_bound == 3 * 1024 + 1024 + 1536


def test_a_workspace_passed_to_two_calls_is_one_buffer_and_an_equal_one_is_another() -> None:
    shared, other = Workspace(256), Workspace(256)
    compilation = compilation_of(RESIDUAL, {"c": Row(workspace=(shared, shared, other))})
    placement = placement_of(compilation)
    [offsets] = placement.workspaces.values()
    assert offsets[0] == offsets[1] != offsets[2]
    assert sum(b.kind == "workspace" for b in placement.buffers) == 2


def test_a_value_that_only_the_calls_of_a_group_name_lives_one_step() -> None:
    compilation = compilation_of(
        RESIDUAL, {"c": Row(workspace=(Workspace(64),), touches=("b",))}, fused=[(1, 2)]
    )
    placement = placement_of(compilation)
    [row] = [b for b in placement.buffers if "b" in b.values]
    assert row.first == row.last == 1


def test_a_graph_output_has_memory_of_its_own_and_later_steps_read_it_there() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[16] x) => (float[16] a, float[16] c) { a = Relu(x)  b = Relu(a)  c = Relu(b) }"""
    compilation = compilation_of(text)
    placement = placement_of(compilation)
    values = values_of(compilation.model)
    assert placement.values[values["a"]].root is values["a"]
    assert [b.name for b in placement.buffers] == ["b"]


def test_what_an_output_is_a_view_of_lives_in_the_memory_of_the_output() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[4,4] x) => (float[16] out) <int64[1] flat = {-1}> { a = Relu(x)  out = Reshape(a, flat) }"""
    compilation = compilation_of(text, {"out": Row(views=(("a", "out"),))})
    placement = placement_of(compilation)
    values = values_of(compilation.model)
    assert placement.values[values["a"]].space == "output"
    assert placement.values[values["a"]].root is values["out"]
    assert placement.solution.peak == 0


def test_a_view_of_an_input_is_read_from_the_input() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[4,4] x) => (float[16] out) <int64[1] flat = {-1}> { a = Reshape(x, flat)  out = Relu(a) }"""
    compilation = compilation_of(text, {"a": Row(views=(("x", "a"),)), "out": Row(inplace=(("a", "out"),))})
    at = named(compilation, placement_of(compilation))
    assert at["a"] == ("input", 0)
    assert at["out"] == ("output", 0)


ILLEGAL = {
    "output that is a view of an input": """
        agraph (float[4,4] x) => (float[16] out) <int64[1] flat = {-1}> { out = Reshape(x, flat) }""",
    "two outputs of the same bytes": """
        agraph (float[4,4] x) => (float[16] out, float[4,4] a) <int64[1] flat = {-1}> {
            a = Relu(x)  out = Reshape(a, flat) }""",
    "view of a dynamic value": """
        agraph (float[N,4] x) => (float[16] out) <int64[1] flat = {16}> {
            a = Relu(x)  out = Reshape(a, flat) }""",
}


@pytest.mark.parametrize("text", ILLEGAL.values(), ids=ILLEGAL)
def test_a_view_that_is_not_legal_is_told_before_and_refused_after_it_is_chosen(text: str) -> None:
    model = model_of('<ir_version: 10, opset_import: ["": 21]>' + text)
    source = next(n for n in model.graph if n.op_type == "Reshape").inputs[0]
    assert source is not None
    compilation = compilation_of(model, {"out": Row("reshape.view", views=((source.name or "", "out"),))})
    assert view_refusal(source, values_of(model)["out"], view_classes(compilation))
    with pytest.raises(ValueError, match=r"reshape.view takes 'out' for a view of .* not legal"):
        build(compilation)


def test_of_two_outputs_that_are_views_of_one_value_the_first_may_share() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[4,4] x) => (float[16] p, float[2,8] q) <int64[1] flat = {-1}, int64[2] wide = {2, 8}> {
        a = Relu(x)  p = Reshape(a, flat)  q = Reshape(a, wide)
    }"""
    compilation = compilation_of(text, {"p": Row(views=(("a", "p"),))})
    values = values_of(compilation.model)
    classes = view_classes(compilation)
    assert view_refusal(values["a"], values["p"], classes) is None
    classes.merge(values["a"], values["p"])
    assert "output 'p' and of output 'q'" in (view_refusal(values["a"], values["q"], classes) or "")
    placement_of(compilation)


def test_dynamic_values_are_unplanned_and_static_ones_beside_them_are_not() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[16] x) => (float[16] out, int64[2] t) {
        a = Relu(x)  n = NonZero(a)  s = Shape(n)  t = Neg(s)  out = Log(a)
    }"""
    placement = placement_of(compilation_of(text))
    assert placement.unplanned == ("n",)
    assert {"a", "s"} <= {name for b in placement.buffers for name in b.values}


def test_a_body_keeps_what_it_captures_alive() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[16] x, bool c) => (float[16] out) {
        a = Relu(x)
        b = Sigmoid(x)
        d = If (c) <then_branch = yes () => (float[16] y) { y = Exp(a) },
                    else_branch = no () => (float[16] z) { z = Log(a) }>
        out = Add(d, b)
    }"""
    compilation = compilation_of(text)
    placement = placement_of(compilation)
    [row] = [b for b in placement.buffers if "a" in b.values]
    assert row.last == 2


def test_a_plan_above_the_budget_tells_the_largest_step_and_its_values() -> None:
    compilation = compilation_of(RESIDUAL, options=Options(memory_budget=2048))
    with pytest.raises(CapacityError) as caught:
        PlanMemory()(compilation)
    assert caught.value.needed == 3072
    assert caught.value.available == 2048
    assert "the budget is 2048 byte, the plan needs 3072 byte" in caught.value.message
    assert "largest step 2 'Tanh_2' alone needs 3072 byte" in caught.value.message
    assert "3 live: 'a' 1024 byte, 'b' 1024 byte, 'c' 1024 byte" in caught.value.message


def test_naive_bytes_count_every_value_alone() -> None:
    rows = {"z": Row(inplace=(("y", "z"),)), "out": Row(inplace=(("z", "out"),))}
    assert placement_of(compilation_of(RESIDUAL, rows)).naive == 5 * 1024


@st.composite
def random_plans(draw: st.DrawFn) -> Compilation:
    """Graphs of unary and binary operators whose rows offer any in-place pair and any view."""
    count = draw(st.integers(2, 12))
    names, lines, rows = ["x"], [], {}
    for i in range(count):
        name, inputs = f"v{i}", draw(st.lists(st.sampled_from(names), min_size=1, max_size=2))
        op = "Add" if len(inputs) == 2 else "Relu"
        lines.append(f"{name} = {op}({', '.join(inputs)})")
        pairs = tuple((s, name) for s in inputs if draw(st.booleans()))
        rows[name] = Row(inplace=pairs, workspace=(Workspace(100),) if draw(st.booleans()) else ())
        if op == "Relu" and draw(st.booleans()):
            rows[name] = Row(views=((inputs[0], name),))
        names.append(name)
    outputs = draw(st.lists(st.sampled_from(names[1:]), min_size=1, max_size=3, unique=True))
    listed = ", ".join(f"float[16] {o}" for o in outputs)
    head = '<ir_version: 10, opset_import: ["": 21]> agraph (float[16] x) => '
    model = model_of(f"{head} ({listed}) {{ {' '.join(lines)} }}")
    values = values_of(model)
    classes = view_classes(compilation_of(model))
    for name, row in rows.items():
        for source, view in row.views:
            if view_refusal(values[source], values[view], classes) is None:
                classes.merge(values[source], values[view])
            else:
                rows[name] = Row()
    return compilation_of(model, rows)


@settings(deadline=None)
@given(random_plans())
def test_any_legal_plan_reads_what_it_wrote(compilation: Compilation) -> None:
    placement_of(compilation)
