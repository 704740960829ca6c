"""Tokens that convolutions read as images: where transposes lie, and that the outputs stay the same."""

from pathlib import Path

import numpy as np
import pytest

from app.engine.backends.cpu.token_images import REWRITES
from app.engine.core import graph
from tests.engine.canonical import Array, assert_same_outputs, canonical, saved

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
RANDOM = np.random.default_rng(6)
TO_IMAGE = "t = Transpose<perm = [0, 2, 1]>(x) i = Reshape(t, image)"
TO_TOKENS = "f = Reshape(c, flat) s = Transpose<perm = [0, 2, 1]>(f)"
DEPTHWISE = "c = Conv<group = 8, pads = [1, 1, 1, 1]>(i, w, b)"
GELU = "d = Mul(s, r) e = Erf(d) a = Add(e, one) g = Mul(s, a) z = Mul(g, half) y = MatMul(z, m)"
SIGNATURE = "(float[2,12,8] x) => (float[2,12,8] y)"


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def rewritten(signature: str, body: str, folder: Path, **constants: Array) -> list[str]:
    """Operators of the rewritten graph, which computes the same as before; transposes with their axes."""
    numbers = {"r": 0.7071, "one": 1.0, "half": 0.5}
    given = {k: np.array(v, np.float32) for k, v in numbers.items()} | {
        "image": np.array([2, 8, 3, 4]),
        "flat": np.array([2, 8, 12]),
        "w": normal(8, 1, 3, 3),
        "b": normal(8),
        "m": normal(8, 8),
    }
    path = saved(f"{HEAD} g {signature} {{ {body} }}", folder, {**given, **constants})
    compilation = canonical(path, rewrites=REWRITES)
    assert_same_outputs(path, compilation)
    return [
        n.op_type if n.op_type != "Transpose" else f"Transpose{tuple(graph.attribute(n, 'perm', ()))}"
        for n in compilation.graph
    ]


def test_transposes_lie_beside_the_convolution(tmp_path: Path) -> None:
    found = rewritten(SIGNATURE, f"{TO_IMAGE} {DEPTHWISE} {TO_TOKENS} {GELU}", tmp_path)
    conv = found.index("Conv")
    assert found[conv - 2 : conv] == ["Reshape", "Transpose(0, 3, 1, 2)"]
    assert found[conv + 1 : conv + 3] == ["Transpose(0, 2, 3, 1)", "Reshape"]
    assert len(found) == 11


def test_tokens_with_other_readers_are_not_made_twice(tmp_path: Path) -> None:
    body = f"{TO_IMAGE} {DEPTHWISE} {TO_TOKENS} h = Relu(s) p = MatMul(s, m) q = MatMul(h, m) y = Add(p, q)"
    found = rewritten(SIGNATURE, body, tmp_path)
    assert [op for op in found if op.startswith("Transpose")] == [
        "Transpose(0, 3, 1, 2)",
        "Transpose(0, 2, 3, 1)",
    ]


@pytest.mark.parametrize(
    "body",
    [
        "t = Transpose<perm = [0, 2, 1]>(x) i = Reshape(t, image) y = Softmax<axis = 2>(i)",
        "t = Transpose<perm = [0, 2, 1]>(x) i = Reshape(t, parts) y = MaxPool<kernel_shape = [1, 1]>(i)",
        "t = Transpose<perm = [1, 2, 0]>(x) i = Reshape(t, image) y = MaxPool<kernel_shape = [1, 1]>(i)",
    ],
    ids=["no convolution", "channels are cut", "another permutation"],
)
def test_other_reshapes_stay(body: str, tmp_path: Path) -> None:
    signature = "(float[2,12,8] x) => (float[2,8,3,4] y)"
    if "parts" in body:
        signature = "(float[2,12,8] x) => (float[2,4,6,4] y)"
    found = rewritten(signature, body, tmp_path, parts=np.array([2, 4, 6, 4]))
    assert found[:2] == [op for op in found if op.startswith("Transpose")] + ["Reshape"]


def test_what_has_no_image_before_it_stays(tmp_path: Path) -> None:
    signature = "(float[2,8,3,4] x) => (float[2,12,8] y)"
    body = "f = Reshape(x, flat) y = Transpose<perm = [0, 2, 1]>(f)"
    assert rewritten(signature, body, tmp_path) == ["Reshape", "Transpose(0, 2, 1)"]
