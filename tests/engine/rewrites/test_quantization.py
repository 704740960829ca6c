"""Each rule for quantized graphs on its smallest graph: what remains, and that it computes the same."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.report.onnx import export
from app.engine.runtime.oracle import evaluate
from tests.engine.canonical import Array, canonical, operators, saved

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
RANDOM = np.random.default_rng(11)
REWRITES = load_registry().rewrites
LEVELS: dict[str, Array] = {
    "xs": np.array(0.02, np.float32),
    "xz": np.array(120, np.uint8),
    "ys": np.array(0.05, np.float32),
    "yz": np.array(0, np.uint8),
    "zz": np.array(7, np.uint8),
}


def rewritten(signature: str, body: str, folder: Path, weights: dict[str, Array], x: Array) -> list[str]:
    """The operators that remain; quantized results may differ by one level where a tie is near."""
    path = saved(f"{HEAD} g {signature} {{ {body} }}", folder, {**LEVELS, **weights})
    compilation = canonical(path, rewrites=REWRITES)
    (expected,) = evaluate(load(path).model, {"x": x}).values()
    export(compilation.model, folder / "canonical.onnx")
    (found,) = evaluate(load(folder / "canonical.onnx").model, {"x": x}).values()
    expected, found = np.asarray(expected, np.float64), np.asarray(found, np.float64)
    if "uint8" in signature.split("=>")[1]:
        assert np.abs(found - expected).max() <= 1
        assert (found != expected).mean() < 0.02
    else:
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    return operators(compilation.graph)


@pytest.mark.parametrize("many", [False, True], ids=["one scale", "a scale per channel"])
def test_a_quantized_convolution_computes_in_integers(tmp_path: Path, many: bool) -> None:
    weights = {
        "q": RANDOM.integers(-128, 128, (4, 3, 3, 3)).astype(np.int8),
        "ws": (RANDOM.random(4 if many else ()) * 0.01 + 0.001).astype(np.float32),
        "b": RANDOM.integers(-999, 999, 4).astype(np.int32),
        "bs": np.full(4 if many else (), 2e-4, np.float32),
    }
    body = """d = DequantizeLinear(x, xs, xz) w = DequantizeLinear <axis = 0> (q, ws)
    c = DequantizeLinear <axis = 0> (b, bs) v = Conv <pads = [1, 1, 1, 1]> (d, w, c)
    r = Relu(v) y = QuantizeLinear(r, ys, yz)"""
    x = RANDOM.integers(0, 256, (1, 3, 6, 7)).astype(np.uint8)
    found = rewritten("(uint8[1,3,6,7] x) => (uint8[1,4,6,7] y)", body, tmp_path, weights, x)
    assert found == ["ConvInteger", "Cast", "Mul", "Add", "QuantizeLinear"]


def test_a_turned_product_computes_in_integers(tmp_path: Path) -> None:
    weights = {
        "q": RANDOM.integers(0, 256, (5, 9)).astype(np.uint8),
        "ws": np.array(0.01, np.float32),
        "wz": np.array(100, np.uint8),
        "b": RANDOM.standard_normal(5).astype(np.float32),
    }
    body = """d = DequantizeLinear(x, xs, xz) w = DequantizeLinear(q, ws, wz)
    y = Gemm <transB = 1> (d, w, b)"""
    x = RANDOM.integers(0, 256, (3, 9)).astype(np.uint8)
    found = rewritten("(uint8[3,9] x) => (float[3,5] y)", body, tmp_path, weights, x)
    assert found == ["MatMulInteger", "Cast", "Mul", "Add"]


@pytest.mark.parametrize("same", [True, False])
def test_equal_scales_along_an_axis_are_one(tmp_path: Path, same: bool) -> None:
    weights = {
        "q": RANDOM.integers(-128, 128, (4, 3, 3, 3)).astype(np.int8),
        "ws": np.array(0.01, np.float32),
        "s": np.full(3, 0.25, np.float32) * np.array([1, 1, 1 if same else 2], np.float32),
        "z": np.full(3, 9, np.uint8),
    }
    body = "d = DequantizeLinear(x, s, z) w = DequantizeLinear(q, ws) y = Conv(d, w)"
    x = RANDOM.integers(0, 256, (1, 3, 6, 7)).astype(np.uint8)
    found = rewritten("(uint8[1,3,6,7] x) => (float[1,4,4,5] y)", body, tmp_path, weights, x)
    assert ("ConvInteger" in found) is same


def test_quantization_commutes_with_moves(tmp_path: Path) -> None:
    body = """d = DequantizeLinear(x, xs, xz) m = MaxPool <kernel_shape = [2, 2]> (d)
    y = QuantizeLinear(m, xs, xz)"""
    x = RANDOM.integers(0, 256, (1, 3, 4, 4)).astype(np.uint8)
    assert rewritten("(uint8[1,3,4,4] x) => (uint8[1,3,3,3] y)", body, tmp_path, {}, x) == ["MaxPool"]


def test_a_limit_stays_where_zero_is_not_the_lowest_level(tmp_path: Path) -> None:
    body = "d = DequantizeLinear(x, xs, xz) r = Relu(d) y = QuantizeLinear(r, ys, zz)"
    x = RANDOM.integers(0, 256, (8,)).astype(np.uint8)
    found = rewritten("(uint8[8] x) => (uint8[8] y)", body, tmp_path, {}, x)
    assert found == ["DequantizeLinear", "Relu", "QuantizeLinear"]


# (limits, what remains): levels of y go from 0 to 12.75 in steps of 0.05.
CLIPS = {
    "the levels": (0.0, 12.75, ["DequantizeLinear", "QuantizeLinear"]),
    "half a step beyond them": (-0.02, 12.74, ["DequantizeLinear", "QuantizeLinear"]),
    "within them, above": (0.0, 2.0, ["DequantizeLinear", "Clip", "QuantizeLinear"]),
    "within them, below": (0.5, 20.0, ["DequantizeLinear", "Clip", "QuantizeLinear"]),
}


@pytest.mark.parametrize("case", CLIPS)
def test_a_clip_goes_where_its_limits_saturate_anyway(tmp_path: Path, case: str) -> None:
    low, high, remains = CLIPS[case]
    limits = {"low": np.array(low, np.float32), "high": np.array(high, np.float32)}
    limits["xs"] = np.array(0.2, np.float32)
    body = "d = DequantizeLinear(x, xs, xz) r = Clip(d, low, high) y = QuantizeLinear(r, ys, yz)"
    x = np.arange(256, dtype=np.uint8)
    assert rewritten("(uint8[256] x) => (uint8[256] y)", body, tmp_path, limits, x) == remains


NARROW = {"int4": (ml_dtypes.int4, -8, 8), "uint4": (ml_dtypes.uint4, 0, 16), "int8": (np.int8, -128, 128)}


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(
    ("block", "product"),
    [
        (32, "y = MatMul(x, d)"),
        (48, "y = MatMul(x, d)"),
        (0, "y = MatMul(x, d)"),
        (16, "y = Gemm<transB = 1>(x, d, c)"),
        (0, "y = Gemm<transB = 1>(x, d, c)"),
    ],
)
def test_a_product_with_weights_in_blocks_keeps_them_small(
    tmp_path: Path, kind: str, zero: bool, block: int, product: str
) -> None:
    if kind == "int8" and not block:
        pytest.skip("8 bits with a scale a column are multiplied as integers")
    dtype, low, high = NARROW[kind]
    turned = "transB" in product
    k, n = 96, 20
    axis = int(turned) if block else 1 - int(turned)
    shape = (n, k) if turned else (k, n)
    scales = ((n, k // block) if turned else (k // block, n)) if block else (n,)
    weights = {
        "q": RANDOM.integers(low, high, shape).astype(dtype),
        "s": (RANDOM.random(scales) * 0.1 + 0.01).astype(np.float32),
        "c": RANDOM.standard_normal(n).astype(np.float32),
    }
    if zero:
        weights["z"] = RANDOM.integers(low, high, scales).astype(dtype)
    body = (
        f"d = DequantizeLinear<axis = {axis}, block_size = {block}>(q, s{', z' if zero else ''})\n{product}"
    )
    x = RANDOM.standard_normal((3, k)).astype(np.float32)
    found = rewritten(f"(float[3,{k}] x) => (float[3,{n}] y)", body, tmp_path, weights, x)
    assert found == ["MatMulNBits", *(["Add"] if turned else [])]


def test_weights_in_blocks_that_something_else_reads_are_dequantized_once(tmp_path: Path) -> None:
    weights = {
        "q": RANDOM.integers(-8, 8, (32, 8)).astype(ml_dtypes.int4),
        "s": (RANDOM.random((2, 8)) + 0.1).astype(np.float32),
    }
    body = "d = DequantizeLinear<axis = 0, block_size = 16>(q, s) e = Relu(d) a = MatMul(x, d) b = MatMul(x, e) y = Add(a, b)"
    x = RANDOM.standard_normal((3, 32)).astype(np.float32)
    found = rewritten("(float[3,32] x) => (float[3,8] y)", body, tmp_path, weights, x)
    assert sorted(found) == ["Add", "MatMul", "MatMul"]
