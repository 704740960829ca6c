"""The exported file: plain ONNX, the original signature, the same bytes every time."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from app.engine.report import onnx as exchange
from app.engine.types.errors import ModelTooLargeError
from tests.engine.canonical import canonical, exported, saved

TEXT = """<ir_version: 8, opset_import: ["": 13]>
    g (float[n,3] b, int64 k, float[n,3] a) => (float[n,3] z, int64 j) {
        s = Add(b, a)
        f = Cast<to = 1>(k)
        z = Mul(s, f)
        j = Identity(k)
    }"""


def test_names_order_and_types_of_the_signature_are_the_original_ones(tmp_path: Path) -> None:
    compilation = canonical(saved(TEXT, tmp_path), {"a": (2, 3)}, {"k": 4})
    proto = onnx.load(exported(compilation.model, tmp_path))
    onnx.checker.check_model(proto, full_check=True)
    assert [v.name for v in proto.graph.input] == ["b", "k", "a"]
    assert [v.type.tensor_type.elem_type for v in proto.graph.input] == [1, 7, 1]
    assert [v.name for v in proto.graph.output] == ["z", "j"]


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    files = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        compilation = canonical(saved(TEXT, tmp_path / name), {"a": (2, 3)})
        files.append(exported(compilation.model, tmp_path / name).read_bytes())
    assert files[0] == files[1]


def test_what_exporters_noted_is_left_out(tmp_path: Path) -> None:
    path = saved(TEXT, tmp_path)
    proto = onnx.load(path)
    proto.doc_string = proto.graph.doc_string = proto.graph.node[0].doc_string = "/home/somebody"
    for owner in (proto, proto.graph.node[0], proto.graph.input[0]):
        owner.metadata_props.add(key="path", value="/home/somebody")
    path.write_bytes(proto.SerializeToString())
    compilation = canonical(path, {"a": (2, 3)})
    assert b"/home/somebody" not in exported(compilation.model, tmp_path).read_bytes()


def test_more_weights_than_one_file_holds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[9] x) => (float[9] y) { y = Add(x, w) }'
    compilation = canonical(saved(text, tmp_path, {"w": np.arange(9, dtype=np.float32)}))
    monkeypatch.setattr(exchange, "LARGEST", 35)
    with pytest.raises(ModelTooLargeError, match="36 byte"):
        exported(compilation.model, tmp_path)


def test_an_output_of_unknown_rank_keeps_the_shape_that_the_file_declares(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[6] x, int64[k] shape) => (float[a,3] y) { y = Reshape(x, shape) }"""
    compilation = canonical(saved(text, tmp_path), {"shape": (2,)})
    compilation.graph.outputs[0].shape = None  # as of an operator that no rule infers
    proto = onnx.load(exported(compilation.model, tmp_path))
    onnx.checker.check_model(proto, full_check=True)
    dims = proto.graph.output[0].type.tensor_type.shape.dim
    assert [(d.dim_param, d.dim_value) for d in dims] == [("a", 0), ("", 3)]
