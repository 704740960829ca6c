"""What is known before the graph runs is computed before, by the right arithmetic, within a budget."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.core import graph
from app.engine.passes.canonicalize import Canonicalize
from tests.engine.canonical import assert_same_outputs, canonical, exported, operators, runtime, saved

HEAD = '<ir_version: 10, opset_import: ["": 21]>'


def output_constant(model: ir.Model) -> np.ndarray:
    """The constant that the only output is a copy of."""
    (copy,) = model.graph
    assert copy.op_type == "Identity"
    array = graph.constant(copy.inputs[0])
    assert array is not None
    return array


def test_shape_arithmetic_folds_in_rounds_with_inference(tmp_path: Path) -> None:
    """The second Shape is known only once the first Reshape is."""
    body = """one = Constant<value_ints = [1]>()
        s = Shape(x) n = Gather<axis = 0>(s, first) m = Div(n, two) rest = Constant<value_ints = [-1]>()
        to = Concat<axis = 0>(m, rest) r = Reshape(x, to)
        t = Shape<start = 1>(r) u = Concat<axis = 0>(one, t, m) y = Reshape(r, u)"""
    weights = {"first": np.array([0]), "two": np.array([2])}
    path = saved(f"{HEAD} g (float[n,3] x) => (float[a,b,c] y) {{ {body} }}", tmp_path, weights)
    compilation = canonical(path, {"x": (8, 3)})
    assert graph.shape(compilation.graph.outputs[0]) == (1, 6, 4)
    assert set(operators(compilation.graph)) == {"Reshape"}
    assert_same_outputs(path, compilation)


@pytest.mark.parametrize("axis", [0, 1])
def test_an_old_softmax_of_constants_folds_over_the_flattened_axes(axis: int, tmp_path: Path) -> None:
    """Below opset 13 softmax runs over all axes from `axis` on; evaluating the old node gets it wrong."""
    text = (
        f'<ir_version: 4, opset_import: ["": 9]> g () => (float[2,3,4] y) {{ y = Softmax<axis = {axis}>(w) }}'
    )
    path = saved(
        text, tmp_path, {"w": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)}
    )
    expected = runtime(path, {})["y"]
    np.testing.assert_allclose(output_constant(canonical(path).model), expected, rtol=1e-6)


def test_an_old_normalization_of_constants_folds_without_momentum(tmp_path: Path) -> None:
    """Opset 9: momentum is for training only; evaluating the old node mixes the batch statistics in."""
    text = (
        '<ir_version: 4, opset_import: ["": 9]> g () => (float[2,3,4,4] y) '
        "{ y = BatchNormalization<momentum = 0.9>(w, s, t, m, v) }"
    )
    random = np.random.default_rng(0)
    weights = {k: random.uniform(0.5, 2, 3).astype(np.float32) for k in "stmv"}
    weights["w"] = random.standard_normal((2, 3, 4, 4)).astype(np.float32)
    path = saved(text, tmp_path, weights)
    expected = runtime(path, {})["y"]
    np.testing.assert_allclose(output_constant(canonical(path).model), expected, rtol=1e-5, atol=1e-6)


def test_integer_division_of_constants_truncates(tmp_path: Path) -> None:
    weights = {"a": np.array([-7, 7]), "b": np.array([2, -2])}
    path = saved(f"{HEAD} g () => (int64[2] y) {{ y = Div(a, b) }}", tmp_path, weights)
    np.testing.assert_array_equal(output_constant(canonical(path).model), [-3, -3])


def test_constants_are_divided_not_multiplied_by_a_reciprocal(tmp_path: Path) -> None:
    """49 * (1 / 49) is less than 1; here the quotient itself is folded."""
    weights = {"a": np.array([49], np.float32), "b": np.array([49], np.float32)}
    path = saved(f"{HEAD} g () => (float[1] y) {{ y = Div(a, b) }}", tmp_path, weights)
    assert output_constant(canonical(path).model) == 1


def test_a_range_too_long_to_store_stays_in_the_graph(tmp_path: Path) -> None:
    weights = {"a": np.array(0), "b": np.array(10**13), "c": np.array(1)}
    path = saved(f"{HEAD} g () => (int64[n] y) {{ y = Range(a, b, c) }}", tmp_path, weights)
    assert operators(canonical(path).graph) == ["Range"]


def test_a_size_that_depends_on_constant_data_folds(tmp_path: Path) -> None:
    path = saved(
        f"{HEAD} g () => (int64[1,n] y) {{ y = NonZero(w) }}", tmp_path, {"w": np.array([0, 3, 0, 5])}
    )
    np.testing.assert_array_equal(output_constant(canonical(path).model), [[1, 3]])


def test_scalars_stay_scalars(tmp_path: Path) -> None:
    path = saved(f"{HEAD} g () => (int64 y) {{ y = Squeeze(w) }}", tmp_path, {"w": np.array([[5]])})
    assert output_constant(canonical(path).model).shape == ()


def test_all_outputs_of_a_node_fold(tmp_path: Path) -> None:
    body = "a, b = Split<num_outputs = 2>(w) c = Mul(a, x) y = Add(c, b)"
    path = saved(
        f"{HEAD} g (float[2] x) => (float[2] y) {{ {body} }}", tmp_path, {"w": np.arange(4, dtype="f4")}
    )
    compilation = canonical(path)
    assert operators(compilation.graph) == ["Mul", "Add"]
    assert_same_outputs(path, compilation)


def test_strings_fold(tmp_path: Path) -> None:
    body = 'a = Constant<value_strings = ["p", "q"]>() y = Concat<axis = 0>(a, a)'
    path = saved(f"{HEAD} g () => (string[4] y) {{ {body} }}", tmp_path)
    assert list(output_constant(canonical(path).model)) == ["p", "q", "p", "q"]


@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_what_is_random_is_not_folded(op: str, tmp_path: Path) -> None:
    path = saved(
        f"{HEAD} g () => (float[2] y) {{ y = {op}(w) }}", tmp_path, {"w": np.full(2, 0.5, np.float32)}
    )
    assert operators(canonical(path).graph) == [op]


def test_two_random_nodes_are_not_one(tmp_path: Path) -> None:
    body = "a = RandomNormalLike(x) b = RandomNormalLike(x) y = Sub(a, b)"
    path = saved(f"{HEAD} g (float[4] x) => (float[4] y) {{ {body} }}", tmp_path)
    assert operators(canonical(path).graph).count("RandomNormalLike") == 2


def test_quantized_weights_keep_their_parameters(tmp_path: Path) -> None:
    weights = {
        "q": np.arange(6, dtype=np.int8).reshape(2, 3),
        "scale": np.array(0.5, np.float32),
        "zero": np.array(1, np.int8),
    }
    body = "w = DequantizeLinear(q, scale, zero) y = MatMul(x, w)"
    path = saved(f"{HEAD} g (float[4,2] x) => (float[4,3] y) {{ {body} }}", tmp_path, weights)
    assert operators(canonical(path).graph) == ["DequantizeLinear", "MatMul"]


def test_the_graph_does_not_grow_beyond_the_budget(tmp_path: Path) -> None:
    body = "w = ConstantOfShape<value = float[1] {2.0}>(s) y = Add(x, w)"
    path = saved(
        f"{HEAD} g (float[1000] x) => (float[1000] y) {{ {body} }}", tmp_path, {"s": np.array([1000])}
    )
    assert operators(canonical(path).graph) == ["Add"]
    small = canonical(path, growth=3000)
    assert operators(small.graph) == ["ConstantOfShape", "Add"]
    assert_same_outputs(path, small)
    assert Canonicalize().growth > 2**28


def test_a_constant_that_cannot_be_computed_is_left_for_the_run(tmp_path: Path) -> None:
    weights = {"w": np.arange(3, dtype=np.float32), "i": np.array([7])}
    path = saved(f"{HEAD} g () => (float[1] y) {{ y = Gather(w, i) }}", tmp_path, weights)
    assert operators(canonical(path).graph) == ["Gather"]


LOOP = (
    HEAD
    + """ g (float[2] x) => (float[2] y) {
        n = Constant<value = int64 {3}>()
        yes = Constant<value = bool {1}>()
        k = Exp(x)
        y = Loop (n, yes, x) <body = b (int64 i, bool c, float[2] v) => (bool c2, float[2] w) {
            two = Constant<value = float {2.0}>()
            four = Mul(two, two)
            c2 = Identity(c)
            p = Mul(v, four)
            w = Add(p, k)
        }>
    }"""
)


def test_the_body_of_a_loop_keeps_what_it_captures(tmp_path: Path) -> None:
    path = saved(LOOP, tmp_path)
    compilation = canonical(path)
    assert operators(compilation.graph) == ["Exp", "Loop"]
    (exp, loop) = compilation.graph
    assert set(graph.captures(loop)) == {exp.outputs[0], compilation.graph.initializers["four"]}
    (body,) = graph.bodies(loop)
    assert not body.initializers
    assert operators(body) == ["Identity", "Mul", "Add"]
    assert_same_outputs(path, compilation)


def test_a_constant_that_a_body_returns_stays_an_output_of_the_body(tmp_path: Path) -> None:
    text = (
        HEAD
        + """ g (bool c) => (float[2] y) {
            y = If (c) <then_branch = t () => (float[2] a) { a = Constant<value = float[2] {1.0, 2.0}>() },
                        else_branch = e () => (float[2] b) <float[2] b = {3.0, 4.0}> { }>
        }"""
    )
    path = saved(text, tmp_path)
    compilation = canonical(path)
    (node,) = compilation.graph
    assert [operators(b) for b in graph.bodies(node)] == [["Identity"], ["Identity"]]
    for c in (True, False):
        assert_same_outputs(path, compilation, c=np.array(c))


def test_a_branch_that_returns_an_outer_value_is_inlined(tmp_path: Path) -> None:
    """The outer value keeps its name: it is an input."""
    text = (
        HEAD
        + """ g (float[2] x) => (float[2] y, float[2] z) {
            c = Constant<value = bool {1}>()
            y = If (c) <then_branch = t () => (float[2] a) { a = Identity(x) },
                        else_branch = e () => (float[2] b) { b = Neg(x) }>
            z = Relu(y)
        }"""
    )
    path = saved(text, tmp_path)
    compilation = canonical(path)
    assert sorted(operators(compilation.graph)) == ["Identity", "Relu"]
    assert [v.name for v in compilation.graph.inputs] == ["x"]
    assert_same_outputs(path, compilation)


def test_names_in_inlined_branches_do_not_clash(tmp_path: Path) -> None:
    branch = """<then_branch = t () => (float[2] a) { h = Neg(x) a = Exp(h) },
        else_branch = e () => (float[2] b) { b = Neg(x) }>"""
    other = branch.replace("Exp", "Abs")
    body = f"c = Constant<value = bool {{1}}>() p = If (c) {branch} q = If (c) {other} y = Add(p, q)"
    path = saved(f"{HEAD} g (float[2] x) => (float[2] y) {{ {body} }}", tmp_path)
    compilation = canonical(path)
    assert sorted(operators(compilation.graph)) == ["Abs", "Add", "Exp", "Neg"]
    assert_same_outputs(path, compilation)


def test_a_folded_output_keeps_its_name_and_type(tmp_path: Path) -> None:
    path = saved(f"{HEAD} g (float[2,3] x) => (int64[2] y) {{ y = Shape(x) }}", tmp_path)
    compilation = canonical(path)
    found = runtime(exported(compilation.model, tmp_path), {"x": np.zeros((2, 3), np.float32)})
    np.testing.assert_array_equal(found["y"], [2, 3])
