"""Bindings of shapes and values, and what inference makes of them."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from app.engine.core import graph
from app.engine.passes.infer_types import bound_inputs
from app.engine.types.errors import GraphError, InputError
from tests.engine.canonical import assert_same_outputs, canonical, exported, operators, runtime, saved

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
FREE = HEAD + " g (float[n,3] x, float[n,3] z) => (float[n,3] y) { y = Add(x, z) }"
LOOP = (
    HEAD
    + """ g (int64 trips, float[N,3] start) => (float[M,3] last, float[T,N,3] all) {
        yes = Constant<value = bool {1}>()
        last, all = Loop (trips, yes, start) <body = b (int64 i, bool c, float[P,3] v) =>
            (bool c2, float[Q,3] w, float[Q,3] s) {
                c2 = Identity(c)
                BODY
                s = Identity(w)
            }>
    }"""
)


def test_a_constant_that_has_the_name_of_a_bound_input_stays(tmp_path: Path) -> None:
    text = HEAD + " g (float[2] x, float s) => (float[2] y) { a = Mul(x, s.bound) y = Mul(a, s) }"
    path = saved(text.replace("s.bound", "t"), tmp_path, {"t": np.array(3, np.float32)})
    model = onnx.load(path)
    model.graph.initializer[0].name = model.graph.node[0].input[1] = "s.bound"
    onnx.save(model, path)
    compilation = canonical(path, values={"s": 5.0})
    x = np.array([1, 2], np.float32)
    given = {"x": x, "s": np.array(5, np.float32)}
    (found,) = runtime(exported(compilation.model, tmp_path), given).values()
    assert found.tolist() == [15, 30]


@pytest.mark.parametrize(
    ("shapes", "message", "pointer"),
    [
        (
            {},
            r"'x': dimension 0 \('n'\) is free; bind its shape, \[\?, 3\] \(`--input x=\?x3`\)",
            "/input_shapes/x",
        ),
        ({"x": (2, 4)}, "dimension 1 is 3 in the model, found 4", "/input_shapes/x"),
        ({"x": (2,)}, "expects 2 dimensions, found 1", "/input_shapes/x"),
        ({"x": (-1, 3)}, "negative", "/input_shapes/x"),
        ({"q": (1,)}, "no input is called 'q'; the model has 'x', 'z'", "/input_shapes/q"),
        ({"x": (2, 3), "z": (4, 3)}, r"'z': dimension 0 \('n'\) is 2 in 'x', found 4", "/input_shapes/z"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_by_name(
    shapes: dict[str, tuple[int, ...]], message: str, pointer: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        canonical(saved(FREE, tmp_path), shapes)
    assert caught.value.pointer == pointer


def test_a_dimension_bound_by_one_input_is_bound_for_all_of_its_name(tmp_path: Path) -> None:
    compilation = canonical(saved(FREE, tmp_path), {"z": (5, 3)})
    assert [graph.shape(v) for v in graph.values(compilation.graph)] == [(5, 3)] * 3


def test_question_marks_and_negative_numbers_are_names_of_nothing(tmp_path: Path) -> None:
    path = saved(HEAD + " g (float[a,b,c] x) => (float[a,b,c] y) { y = Relu(x) }", tmp_path)
    proto = onnx.load(path)
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    dims[0].dim_param = dims[1].dim_param = "?"
    dims[2].dim_value = -1
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InputError, match=r"dimension 0 is free; bind its shape, \[\?, \?, \?\]"):
        canonical(path)
    assert graph.shape(canonical(path, {"x": (2, 3, 4)}).graph.outputs[0]) == (2, 3, 4)


def test_an_input_of_unknown_rank_must_be_bound(tmp_path: Path) -> None:
    path = saved(HEAD + " g (float x) => (float y) { y = Relu(x) }", tmp_path)
    proto = onnx.load(path)
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(InputError, match="rank is unknown"):
        canonical(path)
    assert graph.shape(canonical(path, {"x": (7,)}).graph.outputs[0]) == (7,)


BRANCH = (
    HEAD
    + """ g (float[2] x, int64 rate) => (float[2] y) {
        limit = Constant<value = int64 {8000}>()
        c = Equal(rate, limit)
        y = If (c) <then_branch = t () => (float[2] a) { a = Neg(x) },
                    else_branch = e () => (float[2] b) { b = Exp(x) }>
    }"""
)


@pytest.mark.parametrize(("rate", "operator"), [(8000, "Neg"), (16000, "Exp")])
def test_a_bound_value_decides_branches_and_stays_in_the_signature(
    rate: int, operator: str, tmp_path: Path
) -> None:
    path = saved(BRANCH, tmp_path)
    compilation = canonical(path, values={"rate": rate})
    assert operators(compilation.graph) == [operator]
    assert [v.name for v in compilation.graph.inputs] == ["x"]
    (bound,) = bound_inputs(compilation.model)
    assert (bound.position, bound.value.name, bound.array) == (1, "rate", np.array(rate))
    assert_same_outputs(path, compilation, rate=np.array(rate))


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("int64", 2.5, "int64, which cannot hold 2.5"),
        ("uint8", 300, "uint8, which cannot hold 300"),
        ("bool", 2, "bool, which cannot hold 2"),
        ("string", 1, "no tensor of numbers"),
    ],
)
def test_a_value_that_the_type_cannot_hold_is_refused(
    kind: str, value: float, message: str, tmp_path: Path
) -> None:
    path = saved(HEAD + f" g ({kind} v) => ({kind} y) {{ y = Identity(v) }}", tmp_path)
    with pytest.raises(InputError, match=message):
        canonical(path, values={"v": value})


def test_a_value_fills_an_input_of_any_rank(tmp_path: Path) -> None:
    path = saved(HEAD + " g (float[2] x, float[1,k] v) => (float[1,2] y) { y = Mul(x, v) }", tmp_path)
    compilation = canonical(path, values={"v": 3})
    assert bound_inputs(compilation.model)[0].array.shape == (1, 1)
    x = np.array([1, 2], np.float32)
    found = runtime(exported(compilation.model, tmp_path), {"x": x, "v": np.zeros((1, 1), np.float32)})
    np.testing.assert_array_equal(found["y"], [[3, 6]])


def test_operands_that_do_not_fit_are_refused_by_the_name_of_the_node(tmp_path: Path) -> None:
    path = saved(
        HEAD + " g (float[2,3] x, float[4,5] z) => (float[2,5] y) { [odd] y = MatMul(x, z) }", tmp_path
    )
    with pytest.raises(GraphError, match="odd") as caught:
        canonical(path)
    assert caught.value.pointer == "node:odd"


def test_a_branch_that_does_not_fit_and_is_not_taken_is_no_error(tmp_path: Path) -> None:
    text = (
        HEAD
        + """ g (float[2,3] x, bool c) => (float[2,4] y) {
            y = If (c) <then_branch = t () => (float[2,4] a) { a = MatMul(x, w) },
                        else_branch = e () => (float[2,4] b) { b = MatMul(x, v) }>
        }"""
    )
    weights = {"w": np.ones((3, 4), np.float32), "v": np.ones((5, 4), np.float32)}
    path = saved(text, tmp_path, weights)
    taken = canonical(path, values={"c": True})
    assert operators(taken.graph) == ["MatMul"]
    assert graph.shape(taken.graph.outputs[0]) == (2, 4)
    with pytest.raises(GraphError, match="MatMul"):
        canonical(path, values={"c": False})
    undecided = canonical(path)
    assert operators(undecided.graph) == ["If"]


def test_a_loop_body_sees_the_shapes_of_what_it_is_given(tmp_path: Path) -> None:
    path = saved(LOOP.replace("BODY", "w = Relu(v)"), tmp_path)
    compilation = canonical(path, {"start": (2, 3)}, {"trips": 4})
    (loop,) = compilation.graph
    (body,) = graph.bodies(loop)
    assert graph.shape(body.inputs[2]) == (2, 3)
    assert [graph.shape(v) for v in loop.outputs] == [(2, 3), (4, 2, 3)]


def test_a_dimension_that_grows_in_a_loop_is_unknown(tmp_path: Path) -> None:
    path = saved(LOOP.replace("BODY", "w = Concat<axis = 0>(v, v)"), tmp_path)
    compilation = canonical(path, {"start": (2, 3)})
    (loop,) = compilation.graph
    (body,) = graph.bodies(loop)
    assert [graph.shape(v) for v in (body.inputs[2], *loop.outputs)] == [None, None, None]
    assert body.inputs[2].shape[1] == 3
    assert any("known only when the graph runs" in note and "last" in note for note in compilation.notes)


def test_a_loop_may_not_change_the_rank_of_a_value(tmp_path: Path) -> None:
    text = LOOP.replace("BODY", "axes = Constant<value_ints = [0]>() w = Unsqueeze(v, axes)")
    with pytest.raises(GraphError, match="changes the rank"):
        canonical(saved(text, tmp_path), {"start": (2, 3)})


@pytest.mark.parametrize(
    ("output", "body", "known"),
    [
        ("float[2,p]", "a, y = Split<axis = 1>(x, k)", [2, None]),
        ("float[p]", "y = Squeeze(x, k)", [None]),
        ("int64[2,p]", "j = Identity(k) y = NonZero(x)", [2, None]),
    ],
)
def test_shapes_that_depend_on_data_are_dynamic_and_told(
    output: str, body: str, known: list[int | None], tmp_path: Path
) -> None:
    extent = 2 if "Split" in body else 1
    text = f"{HEAD} g (float[2,1] x, int64[{extent}] k) => ({output} y) {{ {body} }}"
    compilation = canonical(saved(text, tmp_path))
    shape = compilation.graph.outputs[0].shape
    assert shape is not None
    assert [d if isinstance(d, int) else None for d in shape] == known
    assert any("known only when the graph runs: " in note and "y" in note for note in compilation.notes)


def test_an_output_of_another_type_than_declared_is_refused(tmp_path: Path) -> None:
    path = saved(HEAD + " g (float[2] x) => (double[2] y) { y = Relu(x) }", tmp_path)
    with pytest.raises(GraphError, match="declared as DOUBLE, but the graph computes FLOAT"):
        canonical(path)
