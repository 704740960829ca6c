"""What is too much is refused from the wire format alone; what a parser takes passes."""

from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.types.errors import ModelTooLargeError
from app.jobs.worker.prescan import Bounds, scan, scan_file


def number(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def field(tag: int, content: bytes) -> bytes:
    return number(tag << 3 | 2) + number(len(content)) + content


def graph(content: bytes) -> bytes:
    return field(7, content)


def nested(depth: int) -> bytes:
    inner = b""
    for _ in range(depth):
        inner = field(1, field(5, field(6, inner)))
    return graph(inner)


MANY = 400_000
BOMBS = {
    "empty nodes": (graph(b"\x0a\x00" * MANY), "messages"),
    "small nodes": (graph(field(1, field(4, b"A")) * MANY), "fields in|nodes"),
    "empty attributes": (graph(field(1, b"\x2a\x00" * MANY)), "attributes"),
    "attributes of many nodes": (graph(field(1, b"\x2a\x00" * 4000) * 100), "messages"),
    "packed dimensions": (graph(field(5, field(1, b"\x01" * MANY))), "dimensions"),
    "dimensions one by one": (graph(field(5, b"\x08\x01" * 65)), "dimensions"),
    "empty names": (graph(field(1, b"\x0a\x00" * MANY)), "fields"),
    "unknown fields": (b"\x7a\x00" * MANY, "fields"),
    "deep graphs": (nested(200), "deep"),
    "deep groups": (b"\x0b" * 1000, "deep"),
    "a large tensor": (graph(field(5, b"\x08" + number(2**40) + b"\x08\x08\x10\x01")), "byte"),
    "nodes after a group": (b"\x0b\x0c" + graph(b"\x0a\x00" * MANY), "messages"),
}


@pytest.mark.parametrize(("content", "what"), BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused(content: bytes, what: str) -> None:
    with pytest.raises(ModelTooLargeError, match=what) as caught:
        scan(content)
    assert caught.value.pointer == "/model"


def test_a_model_is_counted_as_a_parser_does(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> '
        "g (float[2, 3] x, bool c) => (float[2, 3] y) "
        "{ y = If (c) <then_branch = a () => (float[2, 3] p) { p = Relu (x) }, "
        "else_branch = b () => (float[2, 3] q) { r = Neg (x) q = Relu (r) }> }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(onnx.numpy_helper.np.ones((4, 5)), "w"))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert scan_file(path).nodes == 4
    assert scan_file(path, Bounds(tensor_bytes=160)).nodes == 4
    with pytest.raises(ModelTooLargeError, match="160 byte"):
        scan_file(path, Bounds(tensor_bytes=159))
    with pytest.raises(ModelTooLargeError, match="more than 3 nodes"):
        scan_file(path, Bounds(nodes=3))
    (tmp_path / "empty").touch()
    assert scan_file(tmp_path / "empty").messages == 0


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(st.binary(max_size=200), st.integers(0, 400))
def test_bytes_that_are_no_model_end_the_walk(noise: bytes, cut: int) -> None:
    whole = nested(3) + noise
    try:
        counts = scan(whole[:cut])
    except ModelTooLargeError:
        return
    assert counts.messages <= counts.fields


def test_single_numbers_have_a_bound_of_their_own() -> None:
    """A forest of trees has hundreds of thousands of them, most of two bytes."""
    features = field(1, b"nodes_featureids") + b"\x40\x07" * 300_000 + b"\xa0\x01\x07"
    content = graph(
        field(1, field(4, b"TreeEnsembleRegressor") + field(7, b"ai.onnx.ml") + field(5, features))
    )
    (node,) = onnx.load_from_string(content).graph.node
    assert len(node.attribute[0].ints) == 300_000
    assert scan(content).nodes == 1
    with pytest.raises(ModelTooLargeError, match="more than 300000 numbers"):
        scan(content, Bounds(numbers=300_000))


def test_every_model_of_the_zoo_passes(shared: Path) -> None:
    paths = sorted((*(shared / "models").glob("*.onnx"), *(shared / "zoo" / "small").glob("*.onnx")))
    assert paths
    for path in paths:
        scan_file(path)
