"""Every way in which a model file can be wrong has an error that names it."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.model.load import FLOOR, inspect, load
from app.engine.types.errors import (
    CyclicGraphError,
    DtypeError,
    ExternalDataError,
    GraphError,
    ModelTooLargeError,
    NotOnnxError,
    OpsetError,
    UnknownOperatorError,
)
from app.engine.types.limits import Limits
from tests.engine.canonical import drawn, exported, runtime, saved

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
RELU = HEAD + " g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"
NESTED = (
    HEAD
    + """ g (bool c, float[2] x) => (float[2] y) {
        y = If (c) <then_branch = t () => (float[2] a) { a = Relu(x) },
                    else_branch = e () => (float[2] b) { b = Neg(x) }>
    }"""
)


def write(folder: Path, proto: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"PK\x03\x04 an archive", b"hello, world\n"])
def test_a_file_that_is_no_model_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(NotOnnxError):
        load(path)


@settings(max_examples=40, deadline=None)
@given(st.integers(min_value=0, max_value=400))
def test_a_file_cut_short_is_refused_and_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    proto = parsed(HEAD + " g (float[40] x) => (float[40] y) { y = Mul(x, w) }")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(40, np.float32), "w"))
    whole = proto.SerializeToString()
    path = tmp_path_factory.mktemp("cut") / "model.onnx"
    path.write_bytes(whole[: min(cut, len(whole) - 1)])
    with pytest.raises(GraphError):
        load(path)


def test_limits_on_bytes_nodes_depth_and_elements_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path, parsed(NESTED))
    assert load(path).original_nodes == 3
    with pytest.raises(ModelTooLargeError, match="byte"):
        load(path, limits=Limits(nbytes=10))
    with pytest.raises(ModelTooLargeError, match="2 nodes"):
        load(path, limits=Limits(nodes=2))
    with pytest.raises(ModelTooLargeError, match="nested"):
        load(path, limits=Limits(depth=0))
    weights = saved(
        HEAD + " g (float[9] x) => (float[9] y) { y = Add(x, w) }", tmp_path, {"w": np.ones(9, "f4")}
    )
    with pytest.raises(ModelTooLargeError, match=r"'w'.*9 elements"):
        load(weights, limits=Limits(elements=8))


@pytest.mark.parametrize("name", ["a name", "an output", "weights", "a dim", "a body", "a key"])
def test_text_that_is_not_utf8_is_refused(name: str, tmp_path: Path) -> None:
    proto = parsed(NESTED)
    node = proto.graph.node[0]
    node.name, node.attribute[0].g.node[0].name = "a name", "a body"
    proto.graph.value_info.add(name="an output").type.tensor_type.elem_type = 1
    proto.graph.value_info[0].type.tensor_type.shape.dim.add(dim_param="a dim")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "weights"))
    proto.metadata_props.add(key="a key", value="")
    content = proto.SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    load(path)
    assert content.count(name.encode()) == 1
    path.write_bytes(content.replace(name.encode(), name.encode()[:-1] + b"\xff"))
    with pytest.raises(GraphError, match="expected UTF-8 text"):
        load(path)


def test_a_cycle_is_refused_by_the_name_of_a_node_in_it(tmp_path: Path) -> None:
    proto = parsed(RELU)
    del proto.graph.node[:]
    for name, source, result in (("first", "b", "a"), ("second", "a", "b"), ("last", "b", "y")):
        proto.graph.node.add(op_type="Relu", name=name, input=[source], output=[result])
    with pytest.raises(CyclicGraphError, match="'first'") as caught:
        load(write(tmp_path, proto))
    assert caught.value.pointer == "node:first"


def test_a_cycle_through_the_body_of_an_if_is_found(tmp_path: Path) -> None:
    proto = parsed(NESTED)
    (node,) = proto.graph.node
    node.attribute[0].g.node[0].input[0] = "y"  # the branch reads what the If itself computes
    with pytest.raises(CyclicGraphError):
        load(write(tmp_path, proto))


def test_nodes_out_of_order_are_sorted(tmp_path: Path) -> None:
    proto = parsed(HEAD + " g (float[2] x) => (float[2] y) { a = Relu(x) b = Neg(a) y = Exp(b) }")
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in reversed(proto.graph.node)]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    model = load(write(tmp_path, proto)).model
    assert [n.op_type for n in model.graph] == ["Relu", "Neg", "Exp"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y = Mystery(x)", "ai.onnx::Mystery"),
        ("y = Gelu(x)", "not in operator set"),  # came with opset 20
        ("y = Upsample<scales = [1.0, 1.0]>(x)", "no longer has"),
        ("y = some.where.Relu(x)", "does not import"),
    ],
)
def test_an_operator_that_the_opset_lacks_is_named(body: str, message: str, tmp_path: Path) -> None:
    text = HEAD + " g (float[2,3] x) => (float[2,3] y) { " + body + " }"
    with pytest.raises(UnknownOperatorError, match=message) as caught:
        load(write(tmp_path, parsed(text)))
    assert caught.value.pointer.endswith(" y")  # the operator and the output of a node without a name


def test_operators_of_other_domains_are_known_by_their_shape_rules(tmp_path: Path) -> None:
    head = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
    known = head + " g (float[2] x) => (float[2] y) { y = com.microsoft.FastGelu(x) }"
    assert load(write(tmp_path, parsed(known))).model.graph.num_nodes() == 1
    with pytest.raises(UnknownOperatorError, match=r"com\.microsoft::Nothing"):
        load(write(tmp_path, parsed(known.replace("FastGelu", "Nothing"))))


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
        g (float[2] x) => (float[2] y) { y = own.twice(x) }
        <opset_import: ["": 17], domain: "own"> twice (a) => (b) { b = Add(a, a) }"""
    path = write(tmp_path, parsed(text))
    assert [n.op_type for n in load(path).model.graph] == ["Add"]
    assert inspect(path).functions == ("twice",)


def test_operators_without_rows_are_written_out(tmp_path: Path) -> None:
    head = '<ir_version: 13, opset_import: ["": 27]>'
    body = "y, s = CausalConvWithState (x, w)"
    path = saved(
        f"{head} g (float[1,3,7] x, float[3,1,2] w) => (float[1,3,7] y, float[1,3,1] s) {{ {body} }}",
        tmp_path,
    )
    loaded = load(path)
    assert "Conv" in {n.op_type for n in loaded.model.graph}
    assert not loaded.notes


def test_an_operator_whose_body_cannot_be_written_out_stays_with_a_note(tmp_path: Path) -> None:
    head = '<ir_version: 13, opset_import: ["": 27]>'
    body = "y, s = CausalConvWithState (x, w, , p)"
    inputs = "float[1,3,7] x, float[3,1,2] w, float[1,3,1] p"
    path = saved(f"{head} g ({inputs}) => (float[1,3,7] y, float[1,3,1] s) {{ {body} }}", tmp_path)
    loaded = load(path)
    assert [n.op_type for n in loaded.model.graph] == ["CausalConvWithState"]
    assert any("CausalConvWithState stays one operator" in note for note in loaded.notes)


def test_a_function_that_calls_itself_is_refused(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
        g (float[2] x) => (float[2] y) { y = own.ping(x) }
        <opset_import: ["own": 1], domain: "own"> ping (a) => (b) { b = own.pong(a) }
        <opset_import: ["own": 1], domain: "own"> pong (a) => (b) { b = own.ping(a) }"""
    with pytest.raises(CyclicGraphError, match="ping"):
        load(write(tmp_path, parsed(text)))


def nested_functions(deep: int, calls: int, constant: int = 0) -> str:
    """Functions of which each calls the next a few times; the innermost has a constant of so many elements."""
    body = (
        "b = Relu(a)"
        if not constant
        else f"c = Constant <value_floats = {[1.0] * constant}> () b = Add(a, c)"
    )
    functions = [f"""<opset_import: ["": 17], domain: "own"> f0 (a) => (b) {{ {body} }}"""]
    for level in range(1, deep):
        names = ["a", *(f"v{i}" for i in range(calls - 1)), "b"]
        steps = " ".join(f"{y} = own.f{level - 1}({x})" for x, y in pairwise(names))
        functions.append(f"""<opset_import: ["own": 1], domain: "own"> f{level} (a) => (b) {{ {steps} }}""")
    return f"""<ir_version: 8, opset_import: ["": 17, "own": 1]>
        g (float[2] x) => (float[2] y) {{ y = own.f{deep - 1}(x) }} {" ".join(functions)}"""


@pytest.mark.parametrize("read", [load, inspect])
def test_functions_are_counted_as_often_as_they_are_called(tmp_path: Path, read: Callable[..., Any]) -> None:
    path = write(tmp_path, parsed(nested_functions(20, 10)))
    assert path.stat().st_size < 16_000
    with pytest.raises(ModelTooLargeError, match="nodes or more once its local functions are inlined"):
        read(path)
    assert len(load(write(tmp_path, parsed(nested_functions(4, 3)))).model.graph) == 27


def test_bytes_of_functions_are_counted_as_often_as_they_are_called(tmp_path: Path) -> None:
    text = nested_functions(5, 10, constant=2)  # 10,000 copies
    with pytest.raises(ModelTooLargeError, match="byte of nodes or more once"):
        load(write(tmp_path, parsed(text)), limits=Limits(nbytes=100_000))


def test_versions_newer_than_known_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OpsetError, match="version 999"):
        load(write(tmp_path, parsed(RELU.replace("17", "999"))))
    with pytest.raises(OpsetError, match="IR version 99"):
        load(write(tmp_path, parsed(RELU.replace("ir_version: 8", "ir_version: 99"))))


def test_numbers_that_are_no_element_types_are_refused_wherever_they_are(tmp_path: Path) -> None:
    def sequence(type_: onnx.TypeProto) -> None:
        type_.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type = 77

    def key(type_: onnx.TypeProto) -> None:
        type_.map_type.key_type = 77

    def tensor(type_: onnx.TypeProto) -> None:
        type_.tensor_type.elem_type = 77

    for spoil in (sequence, key, tensor):
        for place in ("output", "value_info"):
            proto = parsed(RELU)
            if place == "value_info":
                proto.graph.value_info.add(name="inner")
            value = getattr(proto.graph, place)[0]
            value.ClearField("type")
            spoil(value.type)
            path = write(tmp_path, proto)
            for read in (load, inspect):
                with pytest.raises(DtypeError, match="unknown element type 77"):
                    read(path)


def test_element_types_without_arithmetic_are_refused(tmp_path: Path) -> None:
    for code, message in ((99, "99"), (0, "element type 0"), (onnx.TensorProto.COMPLEX64, "COMPLEX64")):
        proto = parsed(RELU)
        proto.graph.input[0].type.tensor_type.elem_type = code
        with pytest.raises(DtypeError, match=message):
            load(write(tmp_path, proto))
    proto = parsed(RELU)
    proto.graph.input[0].type.map_type.key_type = onnx.TensorProto.INT64
    with pytest.raises(DtypeError, match="found no type"):
        load(write(tmp_path, proto))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y = Relu(nothing)", "'nothing', which nothing defines"),
        ("y = Relu(x) y = Neg(x)", "'y' is defined twice"),
        ("x = Relu(x) y = Neg(x)", "'x' is defined twice"),
        ("z = Relu(x)", "output 'y' is not computed"),
        ("y = Relu(x, x)", "expected 1 inputs, found 2"),
        ("y = Relu<slope = 1.0>(x)", "unknown attribute 'slope'"),
        ("y = Cast(x)", "attribute 'to' is required"),
        ('y = Softmax<axis = "last">(x)', "'axis' must be of type INT, found STRING"),
        ('y = Add("", x)', "must not be left out"),
    ],
)
def test_a_graph_that_does_not_fit_its_operators_is_refused(body: str, message: str, tmp_path: Path) -> None:
    text = HEAD + " g (float[2,3] x) => (float[2,3] y) { " + body + " }"
    with pytest.raises(GraphError, match=message):
        load(write(tmp_path, parsed(text)))


def test_a_weight_with_missing_bytes_is_refused(tmp_path: Path) -> None:
    proto = parsed(HEAD + " g (float[4] x) => (float[4] y) { y = Add(x, w) }")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), "w"))
    proto.graph.initializer[0].raw_data = b"\x00" * 15
    with pytest.raises(GraphError, match=r"'w'.*needs 16 byte, found 15"):
        load(write(tmp_path, proto))


def external_model(folder: Path, location: str, **entries: int) -> Path:
    proto = parsed(HEAD + " g (float[4] x) => (float[4] y) { y = Add(x, w) }")
    tensor = proto.graph.initializer.add(name="w", data_type=1, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return write(folder, proto)


def test_external_data_come_from_the_file_given_for_their_name(tmp_path: Path) -> None:
    given_file = tmp_path / "stored-under-another-name"
    given_file.write_bytes(b"\xff" * 8 + np.arange(4, dtype=np.float32).tobytes())
    path = external_model(tmp_path, "weights/w.bin", offset=8, length=16)
    model = load(path, external={"weights/w.bin": given_file}).model
    np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), np.arange(4))


@pytest.mark.parametrize(
    "location", ["../secret", "a/../../secret", "/etc/hostname", "C:\\x", "\\\\host\\x", "..\\x", ""]
)
def test_external_data_outside_of_the_folder_are_refused_though_given(location: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(b"\x00" * 16)
    with pytest.raises(ExternalDataError, match="relative path"):
        load(external_model(tmp_path, location), external={location: data})


def test_external_data_that_are_absent_short_or_linked_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\x00" * 16)
    path = external_model(tmp_path, "w.bin")
    # The file lies beside the model, where its name points; only what is given counts.
    with pytest.raises(ExternalDataError, match="was not given"):
        load(path)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "w.bin")
    for target in (link, tmp_path / "absent"):
        with pytest.raises(ExternalDataError, match="regular file"):
            load(path, external={"w.bin": target})
    for entries in ({"offset": 1}, {"offset": -4}, {"length": 12}):
        with pytest.raises(ExternalDataError):
            load(external_model(tmp_path, "w.bin", **entries), external={"w.bin": tmp_path / "w.bin"})
    path = external_model(tmp_path, "w.bin")
    with pytest.raises(ModelTooLargeError):
        load(path, external={"w.bin": tmp_path / "w.bin"}, limits=Limits(nbytes=path.stat().st_size + 15))


def test_an_old_model_is_raised_to_the_floor_and_a_newer_one_left_alone(tmp_path: Path) -> None:
    assert load(write(tmp_path, parsed(RELU))).model.opset_imports[""] == FLOOR
    assert load(write(tmp_path, parsed(RELU.replace("17", "23")))).model.opset_imports[""] == 23


def test_what_the_converter_refuses_keeps_its_opset_with_a_note(tmp_path: Path) -> None:
    # Converting Scan of opset 8 drops the batch axis from the model's own inputs.
    text = """<ir_version: 3, opset_import: ["": 8]>
        g (float[1,2] s, float[1,3,2] x) => (float[1,2] y, float[1,3,2] z) {
            y, z = Scan <num_scan_inputs = 1, body = b (float[2] i, float[2] n) => (float[2] o, float[2] p) {
                o = Add(i, n)
                p = Identity(o)
            }> ("", s, x)
        }"""
    loaded = load(write(tmp_path, parsed(text)))
    assert loaded.model.opset_imports[""] == 8
    assert any("opset stays 8" in note for note in loaded.notes)


def test_a_model_whose_output_declares_no_shape_is_raised(tmp_path: Path) -> None:
    text = (
        '<ir_version: 6, opset_import: ["": 11]> g (float[2,3,4] x) => (float[] y) { y = Softmax<axis=1>(x) }'
    )
    loaded = load(write(tmp_path, parsed(text)))
    assert not loaded.notes
    assert [n.op_type for n in loaded.model.graph].count("Flatten") == 1


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_all_axes_count_for_one_where_the_opset_stays(op: str, tmp_path: Path) -> None:
    text = f"""<ir_version: 3, opset_import: ["": 8]>
        g (float[1,2] s, float[1,3,2] x) => (float[1,2] y, float[1,3,2] z) {{
            y, w = Scan <num_scan_inputs = 1, body = b (float[2] i, float[2] n) => (float[2] o, float[2] p) {{
                o = Add(i, n)
                p = Identity(o)
            }}> ("", s, x)
            z = {op} (w)
        }}"""
    model = load(write(tmp_path, parsed(text))).model
    assert model.opset_imports[""] == 8
    assert [n.op_type for n in model.graph] == ["Scan", "Shape", "Flatten", op, "Reshape"]


def test_weights_listed_as_inputs_are_no_inputs(tmp_path: Path) -> None:
    text = (
        '<ir_version: 3, opset_import: ["": 9]> g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }'
    )
    path = saved(text, tmp_path, {"w": np.ones(2, np.float32)})
    loaded = load(path)
    assert [v.name for v in loaded.model.graph.inputs] == ["x"]
    assert [p.name for p in inspect(path).inputs] == ["x"]
    assert not loaded.notes
    defaults = saved(text.replace("ir_version: 3", "ir_version: 8"), tmp_path, {"w": np.ones(2, np.float32)})
    assert any("default values" in note for note in load(defaults).notes)


@pytest.mark.parametrize("flat", [True, False])
def test_sparse_initializers_are_written_out(flat: bool, tmp_path: Path) -> None:
    dense = np.zeros((3, 4), np.float32)
    dense[0, 1], dense[2, 3] = 5, 7
    indices = np.array([1, 11] if flat else [[0, 1], [2, 3]], np.int64)
    proto = parsed(HEAD + " g (float[3,4] x) => (float[3,4] y) { y = Add(x, w) }")
    sparse = proto.graph.sparse_initializer.add(dims=[3, 4])
    sparse.values.CopyFrom(onnx.numpy_helper.from_array(np.array([5, 7], np.float32), "w"))
    sparse.indices.CopyFrom(onnx.numpy_helper.from_array(indices, "w.indices"))
    model = load(write(tmp_path, proto)).model
    np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), dense)


def test_an_inspection_tells_signature_operators_and_weights(tmp_path: Path) -> None:
    text = (
        HEAD
        + """ g (float[batch,3,-1] x, bool c) => (float[batch,3] y) {
            s = ReduceSum(x, axes)
            y = If (c) <then_branch = t () => (float[batch,3] a) { a = Mul(s, w) },
                        else_branch = e () => (float[batch,3] b) { b = Identity(s) }>
        }"""
    )
    weights = {"w": np.ones((1, 3), np.float32), "axes": np.array([2])}
    found = inspect(saved(text.replace("-1", "length"), tmp_path, weights))
    assert [(p.name, p.dtype, p.shape) for p in found.inputs] == [
        ("x", "float32", ("batch", 3, "length")),
        ("c", "bool", ()),
    ]
    assert found.operators == {"If": 1, "Identity": 1, "Mul": 1, "ReduceSum": 1}
    assert (found.nodes, found.parameters, found.parameter_bytes) == (4, 4, 20)
    assert found.control_flow == ("If",)
    assert found.opsets == {"ai.onnx": 17}


def test_the_loaded_file_still_computes_the_same(tmp_path: Path) -> None:
    """Opset 9 to 21: softmax over the flattened trailing axes, as it was."""
    head = '<ir_version: 4, opset_import: ["": 9]>'
    text = head + " g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis=1>(x) }"
    path = saved(text, tmp_path)
    inputs = drawn(path)
    expected = runtime(path, inputs)["y"]
    found = runtime(exported(load(path).model, tmp_path), inputs)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
