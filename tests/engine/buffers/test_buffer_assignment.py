"""Alias classes, lifespans and workspace of plans made by hand; every placement is checked byte by byte."""

import itertools

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.buffers.buffer_assignment import build, view_classes
from app.engine.core.calls import View, Workspace
from app.engine.core.group import Group
from app.engine.core.placement import Placement
from app.engine.core.plan import Choice, Compilation
from app.engine.passes.plan_memory import PlanMemory
from app.engine.types.errors import CapacityError
from app.engine.types.options import Options
from tests.engine.plans import Row, compilation_of, groups_of, values_of, with_buffers
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
    placement = PlanMemory()(with_buffers(compilation)).plan.placement
    assert placement is not None
    run_symbolically(compilation, placement)
    return placement


def run_symbolically(compilation: Compilation, placement: Placement) -> None:
    """Run the steps on memory that knows what each byte holds: what a step reads must be there.

    A byte of a value has a number. A view has those of its source; a value that others are views of,
    and that the same step makes, has theirs. A step writes the bytes that are none of a view's.
    """
    memory: dict[tuple[str, str | None], np.ndarray] = {}
    numbers: dict[ir.Value, np.ndarray] = {}
    fresh = itertools.count(1)

    def made(nbytes: int) -> np.ndarray:
        return np.array([next(fresh) for _ in range(nbytes)], np.int64)

    def bytes_of(value: ir.Value) -> np.ndarray:
        at = placement.values[value]
        key = (at.space, at.root.name if at.root else None)
        memory.setdefault(key, np.zeros(1 << 13, np.int64))
        assert at.offset % 64 == 0
        assert at.root is None or at.offset + at.nbytes <= placement.values[at.root].nbytes
        return memory[key][at.offset : at.offset + at.nbytes]

    for value, at in placement.values.items():
        if at.root is value and at.space in ("input", "weights"):
            numbers[value] = made(at.nbytes)
            bytes_of(value)[:] = numbers[value]
    assert compilation.plan.order is not None
    assert compilation.plan.implementation is not None
    for group in compilation.plan.order:
        for value in group.inputs:
            if value in placement.values:
                assert (bytes_of(value) == numbers[value]).all(), f"{group.name} reads a dead {value.name}"
        for offset in placement.workspaces.get(group, ()):
            memory.setdefault(("arena", None), np.zeros(1 << 13, np.int64))[offset] = -1
        views = compilation.plan.implementation[group].views
        for value in group.outputs:
            if value not in placement.values:
                continue
            numbers[value] = made(placement.values[value].nbytes)
            written = np.ones(len(numbers[value]), bool)
            for source, view, offset in views:
                if view is value:
                    numbers[value] = numbers[source][offset : offset + len(numbers[value])]
                    written[:] = False
                elif source is value:
                    part = slice(offset, offset + len(numbers[view]))
                    numbers[value][part] = numbers[view]
                    written[part] = False
            bytes_of(value)[written] = numbers[value][written]
    for value in compilation.graph.outputs:
        if value in placement.values:
            assert (bytes_of(value) == numbers[value]).all(), f"output {value.name} is lost"


def chosen_in(compilation: Compilation) -> tuple[tuple[Group, Choice], ...]:
    assert compilation.plan.implementation is not None
    return tuple(compilation.plan.implementation.items())


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


def test_an_inplace_pair_is_refused_when_elements_have_other_sizes() -> None:
    """Threads write the bytes of the output's elements where others have yet to read the input's."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[32] x) => (float16[32] c) { a = Relu(x) b = Cast<to=10>(a) c = Relu(b) }"""
    placement = placement_of(compilation_of(text, {"b": Row(inplace=(("a", "b"),))}))
    a, b = (next(at for value, at in placement.values.items() if value.name == name) for name in "ab")
    assert b.offset >= a.offset + a.nbytes or b.offset + b.nbytes <= a.offset


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
    [(group, choice)] = [(g, c) for g, c in chosen_in(compilation) if c.views]
    assert view_classes(compilation).granted(choice.views, group.outputs)[1]
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
    first, second = View(values["a"], values["p"]), View(values["a"], values["q"])
    assert classes.granted([first], [values["p"]]) == ((first,), {})
    classes.share([first], [values["p"]])
    refused = classes.granted([second], [values["q"]])[1]
    assert "output 'p' and of output 'q'" in refused[second]
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
        PlanMemory()(with_buffers(compilation))
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
    """Unary and binary operators, Concat and Split whose rows offer any in-place pair and any view.

    Sizes are multiples of 8 floats: half of the offsets do not begin a cache line.
    """
    sizes, lines, constants = {"x": 32}, [], {}
    offered: dict[str, tuple[list[tuple[str, str]], list[tuple[str, str, int]]]] = {}
    for i in range(draw(st.integers(2, 10))):
        name, inputs = f"v{i}", draw(st.lists(st.sampled_from(list(sizes)), min_size=1, max_size=3))
        total = sum(sizes[s] for s in inputs)
        kind = draw(st.sampled_from(["map", "map", "join", "part"]))
        if kind == "join" and total <= 512:
            lines.append(f"{name} = Concat <axis = 0> ({', '.join(inputs)})")
            starts = [sum(sizes[s] for s in inputs[:k]) for k in range(len(inputs))]
            offered[name] = ([], [(name, s, 4 * at) for s, at in zip(inputs, starts, strict=True)])
            sizes[name] = total
        elif kind == "part" and sizes[inputs[0]] > 8:
            whole = inputs[0]
            cut = 8 * draw(st.integers(1, sizes[whole] // 8 - 1))
            constants[f"{name}s"] = np.array([cut, sizes[whole] - cut])
            lines.append(f"{name}, {name}r = Split <axis = 0> ({whole}, {name}s)")
            offered[name] = ([], [(whole, name, 0), (whole, f"{name}r", 4 * cut)])
            sizes[name], sizes[f"{name}r"] = cut, sizes[whole] - cut
        else:
            inputs = [s for s in inputs[:2] if sizes[s] == sizes[inputs[0]]]
            lines.append(f"{name} = {'Add' if len(inputs) == 2 else 'Relu'}({', '.join(inputs)})")
            offered[name] = ([(s, name) for s in inputs], [(inputs[0], name, 0)] * (len(inputs) == 1))
            sizes[name] = sizes[inputs[0]]
    outputs = draw(st.lists(st.sampled_from(list(sizes)[1:]), min_size=1, max_size=3, unique=True))
    listed = ", ".join(f"float[{sizes[o]}] {o}" for o in outputs)
    given_ = ", ".join(["float[32] x", *(f"int64[2] {name}" for name in constants)])
    head = '<ir_version: 10, opset_import: ["": 21]> agraph '
    model = model_of(f"{head}({given_}) => ({listed}) {{ {' '.join(lines)} }}", constants)
    values = values_of(model)
    classes = view_classes(compilation_of(model))
    rows = {}
    for group in groups_of(model):
        pairs, parts = offered[group.nodes[0].outputs[0].name or ""]
        views = [View(values[s], values[v], at) for s, v, at in parts if draw(st.booleans())]
        chosen, _ = classes.granted(views, group.nodes[0].outputs)
        classes.share(chosen, group.nodes[0].outputs)
        named_views = tuple((v.source.name or "", v.view.name or "", v.offset) for v in chosen)
        inplace = tuple(p for p in pairs if not chosen and draw(st.booleans()))
        workspace = (Workspace(100),) if draw(st.booleans()) else ()
        rows[group.nodes[0].outputs[0].name or ""] = Row("any", inplace, named_views, workspace)
    return compilation_of(model, rows)


@settings(deadline=None)
@given(random_plans())
def test_any_legal_plan_reads_what_it_wrote(compilation: Compilation) -> None:
    placement_of(compilation)
