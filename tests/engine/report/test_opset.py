"""Graphs in other versions of the operators: numbers in onnxruntime, the library's checker, the original spelling."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from app.engine.model import manipulation
from app.engine.model.load import load
from app.engine.report.onnx import export
from app.engine.report.opset import NEWEST, at_opset
from app.engine.types.errors import OpsetError
from tests.engine.canonical import drawn, runtime, saved

AXES = """g (float[2,3,4] x) => (float[2,4] s, float[2,3,4] c, float[2,4,1] m) {
    s = ReduceMean<axes = [1], keepdims = 0>(x)
    u = Unsqueeze<axes = [2]>(s)
    m = Identity(u)
    c = Clip<max = 1.0, min = -1.0>(x)
}"""


def model_of(text: str, folder: Path, opset: int) -> Path:
    return saved(f'<ir_version: 6, opset_import: ["": {opset}]> {text}', folder)


def written(model: ir.Model, path: Path) -> Path:
    export(model, path)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    return path


def spelled(path: Path) -> dict[str, bytes]:
    """Nodes by their first output, without the names that loading gives them."""
    found = {}
    for node in onnx.load(path).graph.node:
        node.ClearField("name")
        node.ClearField("domain")
        attributes = sorted(node.attribute, key=lambda a: a.name)
        del node.attribute[:]
        node.attribute.extend(attributes)
        found[node.output[0]] = node.SerializeToString(deterministic=True)
    return found


def test_a_node_that_was_raised_and_not_rewritten_has_its_original_spelling(tmp_path: Path) -> None:
    path = model_of(AXES, tmp_path, 10)
    raised = manipulation.typed(load(path).model)
    assert [len(n.inputs) for n in raised.graph if n.op_type in ("ReduceMean", "Clip")] == [2, 3]
    back = written(at_opset(raised, 10), tmp_path / "back.onnx")
    assert spelled(back) == spelled(path)
    assert onnx.load(back).ir_version == 5
    assert raised.opset_imports[""] == 21


@pytest.mark.parametrize("opset", [9, 11, 12, 13])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_a_softmax_along_any_axis_is_written_in_opsets_that_had_none(
    op: str, opset: int, tmp_path: Path
) -> None:
    text = (
        f"g (float[2,3,4,5] x) => (float[2,3,4,5] y, float[2,3,4,5] z) {{ y = {op}<axis=1>(x) z = {op}(y) }}"
    )
    path = model_of(text, tmp_path, 13)
    back = written(at_opset(manipulation.typed(load(path).model), opset), tmp_path / "back.onnx")
    count = [n.op_type for n in onnx.load(back).graph.node].count("Transpose")
    assert count == (0 if opset == 13 else 2)
    fed = drawn(path)
    expected = runtime(path, fed)
    for name, found in runtime(back, fed).items():
        np.testing.assert_allclose(found, expected[name], atol=1e-6)


@pytest.mark.parametrize("opset", [11, 12, 13, 18, 20, 23, NEWEST])
def test_another_opset_computes_the_same(opset: int, tmp_path: Path) -> None:
    path = model_of(AXES, tmp_path, 10)
    model = at_opset(manipulation.typed(load(path).model), opset)
    found = written(model, tmp_path / "other.onnx")
    assert onnx.load(found).opset_import[0].version == opset
    if opset > 26:  # onnxruntime knows no newer ones
        return
    inputs = drawn(path)
    expected, got = runtime(path, inputs), runtime(found, inputs)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)


def test_nodes_without_a_spelling_are_named_all_at_once(tmp_path: Path) -> None:
    text = """g (float[2,3] x) => (float[2,3] y) {
        a = Gelu(x)
        b = Mish(a)
        y = Relu(b)
    }"""
    model = manipulation.typed(load(model_of(text, tmp_path, 20)).model)
    with pytest.raises(OpsetError, match="2 nodes .* Gelu '.*', Mish '") as caught:
        at_opset(model, 13)
    assert "Relu" not in caught.value.message
    assert [n.op_type for n in model.graph] == ["Gelu", "Mish", "Relu"]


def test_a_spelling_that_would_mean_something_else_is_refused(tmp_path: Path) -> None:
    """Softmax of unknown rank: before 13 it coerced its operand to a matrix, by an axis counted from the front."""
    text = "g (float[2,3,4] x, int64[3] s) => (float[2,3,4] y) { r = Reshape(x, s) y = Softmax<axis = 1>(r) }"
    model = manipulation.typed(load(model_of(text, tmp_path, 13)).model)
    next(n for n in model.graph if n.op_type == "Reshape").outputs[0].shape = None
    with pytest.raises(OpsetError, match="Softmax"):
        at_opset(model, 12)
    last = "g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = -1>(x) }"
    path = model_of(last, tmp_path, 13)
    found = written(at_opset(manipulation.typed(load(path).model), 13), tmp_path / "last.onnx")
    inputs = drawn(path)
    np.testing.assert_array_equal(runtime(found, inputs)["y"], runtime(path, inputs)["y"])


def test_the_number_of_parts_goes_without_saying_where_they_are_even(tmp_path: Path) -> None:
    even = "g (float[2,6] x) => (float[2,3] y, float[2,3] z) { y, z = Split<axis = 1>(x) }"
    path = model_of(even, tmp_path, 15)
    back = written(at_opset(manipulation.typed(load(path).model), 15), tmp_path / "back.onnx")
    assert spelled(back) == spelled(path)
    for text in (
        "g (float[2,5] x) => (float[2,3] y, float[2,2] z) { y, z = Split<axis = 1, num_outputs = 2>(x) }",
        "g (float[2,n] x) => (float[2,m] y, float[2,k] z) { y, z = Split<axis = 1, num_outputs = 2>(x) }",
    ):
        uneven = manipulation.typed(load(model_of(text, tmp_path, 18)).model)
        with pytest.raises(OpsetError, match="Split"):
            at_opset(uneven, 15)


def test_a_type_that_the_older_operator_does_not_take_is_refused(tmp_path: Path) -> None:
    text = "g (bfloat16[2] x) => (bfloat16[2] y) { y = Relu(x) }"
    model = manipulation.typed(load(model_of(text, tmp_path, 21)).model)
    with pytest.raises(OpsetError, match="Relu"):
        at_opset(model, 12)
    written(at_opset(model, 13), tmp_path / "allowed.onnx")


def test_versions_that_there_are_not_are_refused(tmp_path: Path) -> None:
    model = load(model_of(AXES, tmp_path, 10)).model
    for version in (6, NEWEST + 1):
        with pytest.raises(OpsetError, match=f"opset 7 to {NEWEST}"):
            at_opset(model, version)


def test_large_weights_may_lie_beside_the_file(tmp_path: Path) -> None:
    weights = {"w": np.arange(3000, dtype=np.float32), "v": np.full(2000, 2, np.int64), "one": np.float32(1)}
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[3000] x) => (float[3000] y, int64[2000] u) {
        a = Add(x, w)
        y = Mul(a, one)
        u = Neg(v)
    }"""
    path = saved(text, tmp_path, {name: np.asarray(w) for name, w in weights.items()})
    files = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        found = tmp_path / name / "out.onnx"
        export(load(path).model, found, external=True)
        onnx.checker.check_model(str(found), full_check=True)
        files.append((found.read_bytes(), found.with_name("out.onnx.data").read_bytes()))
    assert files[0] == files[1]
    proto = onnx.load(found, load_external_data=False)
    assert [t.name for t in proto.graph.initializer if t.external_data] == ["w", "v"]
    assert len(files[0][0]) < 1000
    inputs = drawn(path)
    for name, array in runtime(path, inputs).items():
        np.testing.assert_array_equal(runtime(found, inputs)[name], array)
    again = load(found, external={"out.onnx.data": found.with_name("out.onnx.data")}).model
    np.testing.assert_array_equal(again.graph.initializers["w"].const_value.numpy(), weights["w"])  # type: ignore[union-attr]
