"""Laws of the canonical form: whole, named, in order, the same when done twice."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.engine.core import graph
from app.engine.types.errors import GraphError
from tests.engine.canonical import assert_same_outputs, canonical, exported, operators, saved

HEAD = '<ir_version: 10, opset_import: ["": 21]>'

# Templates of nodes over values of shape [2,3]: {o} is the output, {a} and {b} are operands.
TEMPLATES = (
    "{o} = Relu({a})",
    "{o} = Identity({a})",
    "{o} = Add({a}, {b})",
    "{o} = Sum({a}, {b}, {a})",
    "{o} = Mul({a}, one)",
    "{o} = Div({a}, three)",
    "{o} = Mul({a}, row)",
    "{o} = Add(zero, {a})",
    "{o}s = Shape({a}) {o} = Reshape({b}, {o}s)",
    "{o}t = Transpose({a}) {o} = Transpose({o}t)",
    "{o}q = Tanh({a}) {o} = Pow({o}q, two)",
    "{o}p, {o}r = Split<axis = 1, num_outputs = 2>({a}) {o} = Concat<axis = 1>({o}p, {o}r)",
    "{o} = Cast<to = 1>({a})",
    "{o} = Expand({a}, shape)",
    "{o}c = Less(zero, three) {o} = Where({o}c, {a}, {b})",
)
WEIGHTS = {
    "one": np.array(1, np.float32),
    "two": np.array(2, np.float32),
    "three": np.array(3, np.float32),
    "zero": np.zeros(3, np.float32),
    "row": np.array([0.5, 1, 2], np.float32),
    "shape": np.array([2, 3]),
}


def graph_text(choices: Sequence[int]) -> str:
    """A graph of one node template for three choices each; what nobody reads is an output."""
    values = ["x"]
    lines = []
    read = set()
    for index in range(len(choices) // 3):
        kind, first, second = choices[3 * index : 3 * index + 3]
        a, b = values[first % len(values)], values[second % len(values)]
        template = TEMPLATES[kind % len(TEMPLATES)]
        lines.append(template.format(o=f"v{index}", a=a, b=b))
        read |= {a} | ({b} if "{b}" in template else set())
        values.append(f"v{index}")
    outputs = ", ".join(f"float[2,3] {v}" for v in values[1:] if v not in read)
    return f"{HEAD} g (float[2,3] x) => ({outputs}) {{ {' '.join(lines)} }}"


def structure(main: ir.Graph) -> list[object]:
    return [
        (n.op_type, [None if v is None else v.name for v in n.inputs], [v.name for v in n.outputs])
        for n in main
    ]


CHOICES = st.lists(st.integers(min_value=0, max_value=10_000), min_size=3, max_size=36)
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(choices=CHOICES)
def test_any_graph_computes_what_it_did(choices: list[int], tmp_path: Path) -> None:
    path = saved(graph_text(choices), tmp_path, WEIGHTS)
    assert_same_outputs(path, canonical(path))


@QUICK
@given(choices=CHOICES)
def test_canonicalizing_twice_is_canonicalizing_once(choices: list[int], tmp_path: Path) -> None:
    once = canonical(saved(graph_text(choices), tmp_path, WEIGHTS))
    twice = canonical(exported(once.model, tmp_path))
    assert structure(twice.graph) == structure(once.graph)
    assert not [note for note in twice.notes if "known only" not in note]


@QUICK
@given(choices=CHOICES)
def test_the_canonical_graph_is_whole(choices: list[int], tmp_path: Path) -> None:
    """Static, typed, in order, no name twice, nothing unread, no constant node."""
    main = canonical(saved(graph_text(choices), tmp_path, WEIGHTS)).graph
    values = graph.values(main)
    assert all(v.name and graph.shape(v) is not None and graph.dtype(v) is not None for v in values)
    assert len({v.name for v in values}) == len(values)
    assert len({n.name for n in main}) == len(main)
    seen = {*main.inputs, *main.initializers.values()}
    for node in main:
        assert node.op_type not in ("Constant", "Shape", "Sum", "Pow")
        assert seen.issuperset(node.inputs)
        assert any(v.uses() or v.is_graph_output() for v in node.outputs)
        assert not any(graph.is_constant(v) for v in node.outputs)
        seen.update(node.outputs)
    assert all(v.uses() for v in main.initializers.values())


def test_equal_nodes_and_initializers_are_one(tmp_path: Path) -> None:
    body = "a = Mul(x, p) b = Mul(x, q) c = Exp(a) d = Exp(b) y = Add(c, d)"
    weights = {"p": np.array([2, 3], np.float32), "q": np.array([2, 3], np.float32)}
    path = saved(f"{HEAD} g (float[2] x) => (float[2] y) {{ {body} }}", tmp_path, weights)
    compilation = canonical(path)
    assert operators(compilation.graph) == ["Mul", "Exp", "Add"]
    assert len(compilation.graph.initializers) == 1
    assert_same_outputs(path, compilation)


def test_initializers_that_differ_in_sign_of_zero_type_or_shape_are_not_one(tmp_path: Path) -> None:
    weights = {
        "a": np.array([0.0], np.float32),
        "b": np.array([-0.0], np.float32),
        "c": np.array(0.0, np.float32),
        "d": np.array([0], np.int32),
    }
    body = """p = Add(x, a) q = Atan(b) r = Max(x, c) s = Cast<to = 6>(x) t = Max(s, d)
        e = Max(x, a) f = Max(x, b) y = Concat<axis = 0>(e, f, r)"""
    path = saved(f"{HEAD} g (float[1] x) => (float[3] y, int32[1] t) {{ {body} }}", tmp_path, weights)
    compilation = canonical(path)
    assert len(compilation.graph.initializers) == 4
    assert_same_outputs(path, compilation)


def test_equal_nodes_that_are_both_outputs_stay_two(tmp_path: Path) -> None:
    path = saved(f"{HEAD} g (float[2] x) => (float[2] y, float[2] z) {{ y = Exp(x) z = Exp(x) }}", tmp_path)
    compilation = canonical(path)
    assert [v.name for v in compilation.graph.outputs] == ["y", "z"]
    assert_same_outputs(path, compilation)


def test_names_are_unique_across_nested_graphs_and_empty_ones_are_filled(tmp_path: Path) -> None:
    text = (
        HEAD
        + """ g (bool c, float[2] x) => (float[2] y) {
            y = If (c) <then_branch = t () => (float[2] a) { h = Neg(x) a = Exp(h) },
                        else_branch = e () => (float[2] a) { h = Exp(x) a = Neg(h) }>
        }"""
    )
    path = saved(text, tmp_path)
    compilation = canonical(path)
    nodes = list(compilation.graph.all_nodes())
    names = [v.name for n in nodes for v in n.outputs]
    assert len(set(names)) == len(names)
    assert len({n.name for n in nodes}) == len(nodes) == 5
    for c in (True, False):
        assert_same_outputs(path, compilation, c=np.array(c))


def test_a_slice_of_an_unknown_extent_may_end_early(tmp_path: Path) -> None:
    text = f"""{HEAD} g (float[2,3] x) => (int64[2,n] y, int64[2,0] z) {{
        found = NonZero(x) y = Slice(found, zero, five, one) z = Slice(found, five, five, one)
    }}"""
    weights = {"zero": np.array([0]), "five": np.array([5]), "one": np.array([1])}
    compilation = canonical(saved(text, tmp_path, weights))
    y = next(v for v in compilation.graph.outputs if v.name == "y")
    assert y.shape is not None
    assert y.shape[0] == 2
    assert not isinstance(y.shape[1], int)
    x = np.array([[0, 1, 0], [0, 0, 2]], np.float32)
    assert_same_outputs(tmp_path / "model.onnx", compilation, x=x)


@pytest.mark.parametrize("op", ["Hardmax", "Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_softmax_of_an_old_opset_takes_all_axes_from_one_on(op: str, axis: int, tmp_path: Path) -> None:
    head = '<ir_version: 6, opset_import: ["": 11]>'
    path = saved(f"{head} g (float[2,3,4] x) => (float[2,3,4] y) {{ y = {op}<axis = {axis}>(x) }}", tmp_path)
    assert_same_outputs(path, canonical(path))


def test_a_constant_of_a_computed_shape_has_a_rank(tmp_path: Path) -> None:
    text = f"""{HEAD} g (float[2,3] x) => (float[m,n] y) {{
        found = NonZero(x) extents = Shape(found) y = ConstantOfShape(extents)
    }}"""
    compilation = canonical(saved(text, tmp_path))
    assert compilation.graph.outputs[0].shape is not None
    assert len(compilation.graph.outputs[0].shape) == 2
    assert_same_outputs(tmp_path / "model.onnx", compilation)


@pytest.mark.parametrize("body", [
    "y = Mul(x, z)", "y = Where(c, x, z)", "y = Sum(x, x, z)", "w = Less(x, z) y = Cast<to = 1>(w)",
])  # fmt: skip
def test_operands_whose_shapes_do_not_fit_are_named_when_the_model_is_planned(
    body: str, tmp_path: Path
) -> None:
    inputs = "float[2,3] x, float[2,4] z, bool[2,3] c"
    path = saved(f"{HEAD} g ({inputs}) => (float[a,b] y) {{ {body} }}", tmp_path, {})
    with pytest.raises(
        GraphError, match=r"expected operands whose shapes fit, found .*'z' \[2, 4\]; bind other"
    ):
        canonical(path)


def test_operands_in_a_branch_that_is_never_taken_need_not_fit(tmp_path: Path) -> None:
    text = f"""{HEAD} g (float[2,3] x, float[2,4] z) => (float[2,3] y) {{
        y = If (never) <then_branch = a () => (float[2,3] s) {{ s = Mul(x, z) }},
                        else_branch = b () => (float[2,3] t) {{ t = Relu(x) }}>
    }}"""
    path = saved(text, tmp_path, {"never": np.array(False)})
    assert [n.op_type for n in canonical(path).graph] == ["Relu"]
