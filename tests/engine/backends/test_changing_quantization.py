"""Quantized products whose weights, scales or zero points are inputs, against integers and float64."""

from pathlib import Path

import numpy as np
import pytest

from app.engine.types.target import find
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import Array
from tests.session import on_own_kernels

RANDOM = np.random.default_rng(7)
KINDS = {np.uint8: "uint8", np.int8: "int8"}


def some(kind: type, *shape: int) -> Array:
    limits = np.iinfo(kind)
    return RANDOM.integers(limits.min, limits.max + 1, shape).astype(kind)


def convolved(x: Array, w: Array, pads: int, groups: int) -> Array:
    """The definition, in int64; stride 1."""
    x = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (pads, pads), (pads, pads)))
    batch, _, height, width = x.shape
    outputs, inner, kh, kw = w.shape
    y = np.zeros((batch, outputs, height - kh + 1, width - kw + 1), np.int64)
    for o in range(outputs):
        first = o // (outputs // groups) * inner
        for i, j in np.ndindex(kh, kw):
            part = x[:, first : first + inner, i : i + y.shape[2], j : j + y.shape[3]]
            y[:, o] += np.einsum("nchw,c->nhw", part, w[o, :, i, j].astype(np.int64))
    return y


@pytest.mark.parametrize("machine", ["host", "cpu-avx2"])
@pytest.mark.parametrize(("channels", "groups"), [(3, 1), (4, 2), (300, 1)])
@pytest.mark.parametrize("kinds", [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)])
def test_convolution_of_integers_with_weights_that_change(
    compiler: Compiler, tmp_path: Path, kinds: tuple[type, type], channels: int, groups: int, machine: str
) -> None:
    a, b = kinds
    x, w = some(a, 2, channels, 6, 5), some(b, 4, channels // groups, 3, 3)
    zero, zeros = some(a, 1)[0], some(b, 4)
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g ({KINDS[a]}[2,{channels},6,5] x, {KINDS[b]}[4,{channels // groups},3,3] w, {KINDS[a]} z, {KINDS[b]}[4] v)
        => (int32 y) {{ y = ConvInteger <pads = [1, 1, 1, 1], group = {groups}> (x, w, z, v) }}"""
    session = on_own_kernels(compiler, tmp_path, text, None if machine == "host" else find(machine))
    found = session.run({"x": x, "w": w, "z": np.array(zero), "v": zeros})["y"]
    session.close()
    centered = w.astype(np.int64) - zeros.astype(np.int64).reshape(4, 1, 1, 1)
    np.testing.assert_array_equal(found, convolved(x.astype(np.int64) - int(zero), centered, 1, groups))


def quantized(sums: Array, factor: Array | float, zero: int, kind: type) -> Array:
    limits = np.iinfo(kind)
    return np.clip(np.rint(sums * factor) + zero, limits.min, limits.max)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_quantized_convolution_with_scales_that_change(
    compiler: Compiler, tmp_path: Path, kind: type, count: int, bias: bool
) -> None:
    x, w, b = some(kind, 1, 3, 6, 5), some(kind, 4, 3, 3, 3), RANDOM.integers(-9000, 9000, 4).astype(np.int32)
    zero, zeros, target = some(kind, 1)[0], some(kind, count), some(kind, 1)[0]
    scales = RANDOM.uniform(0.01, 0.02, count).astype(np.float32)
    k = KINDS[kind]
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g ({k}[1,3,6,5] x, float s, {k} z, {k}[4,3,3,3] w, float[{count}] t, {k}[{count}] v, float r, {k} q,
           int32[4] b) => ({k} y) {{ y = QLinearConv (x, s, z, w, t, v, r, q{", b" if bias else ""}) }}"""
    session = on_own_kernels(compiler, tmp_path, text)
    given = {
        "x": x,
        "s": np.float32(0.02),
        "z": zero,
        "w": w,
        "t": scales,
        "v": zeros,
        "r": np.float32(3),
        "q": target,
    }
    found = session.run({n: np.asarray(v) for n, v in {**given, "b": b}.items()})["y"]
    session.close()
    centered = w.astype(np.int64) - zeros.astype(np.int64).reshape(-1, 1, 1, 1)
    sums = convolved(x.astype(np.int64) - int(zero), centered, 0, 1) + (b.reshape(4, 1, 1) if bias else 0)
    factor = (0.02 * scales.astype(np.float64) / 3).reshape(-1, 1, 1)
    expected = quantized(sums, factor, int(target), kind)
    assert isinstance(found, np.ndarray)
    assert found.dtype == kind
    assert np.abs(found - expected).max() <= 1  # a tie may round either way
    assert (found != expected).mean() < 0.02


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_quantized_product_with_scales_that_change(
    compiler: Compiler, tmp_path: Path, kind: type, count: int
) -> None:
    a, b = some(kind, 2, 3, 7), some(kind, 7, 5)
    zero, zeros, target = some(kind, 1), some(kind, count), some(kind, 1)
    scales = RANDOM.uniform(0.01, 0.02, count).astype(np.float32)
    k = KINDS[kind]
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g ({k}[2,3,7] a, float[1] s, {k}[1] z, {k}[7,5] b, float[{count}] t, {k}[{count}] v, float[1] r, {k}[1] q)
        => ({k} y) {{ y = QLinearMatMul (a, s, z, b, t, v, r, q) }}"""
    session = on_own_kernels(compiler, tmp_path, text)
    given = {"a": a, "z": zero, "b": b, "t": scales, "v": zeros, "q": target}
    one = {"s": np.array([0.02], np.float32), "r": np.array([2], np.float32)}
    found = session.run({**given, **one})["y"]
    session.close()
    sums = (a.astype(np.int64) - int(zero[0])) @ (b.astype(np.int64) - zeros.astype(np.int64))
    expected = quantized(sums, 0.02 * scales.astype(np.float64) / 2, int(target[0]), kind)
    assert isinstance(found, np.ndarray)
    assert found.dtype == kind
    assert np.abs(found - expected).max() <= 1
    assert (found != expected).mean() < 0.05


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int16])
def test_quantization_by_blocks(compiler: Compiler, tmp_path: Path, kind: type, axis: int, size: int) -> None:
    x = (RANDOM.standard_normal((4, 6, 8)) * 40).astype(np.float32)
    shape = [-(-n // size) if i == axis % 3 else n for i, n in enumerate(x.shape)]
    scale = RANDOM.uniform(0.2, 0.4, shape).astype(np.float32)
    zero = RANDOM.integers(0, 9, shape).astype(kind)
    name = {np.int16: "int16", **KINDS}[kind]
    sizes = ",".join(map(str, shape))
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[4,6,8] x, float[{sizes}] s, {name}[{sizes}] z) => ({name} y) {{
        y = QuantizeLinear <axis = {axis}, block_size = {size}> (x, s, z) }}"""
    session = on_own_kernels(compiler, tmp_path, text)
    found = session.run({"x": x, "s": scale, "z": zero})["y"]
    session.close()
    every = np.arange(x.shape[axis]) // size
    wide, zeros = (v.take(every, axis) for v in (scale, zero.astype(np.int64)))
    expected = quantized(x / wide, 1.0, 0, np.int64) + zeros
    limits = np.iinfo(kind)
    np.testing.assert_array_equal(found, np.clip(expected, limits.min, limits.max).astype(kind))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("kind", [np.int16, np.uint16, np.int32])
def test_blocks_of_wide_integers_are_scaled(
    compiler: Compiler, tmp_path: Path, kind: type, axis: int, size: int
) -> None:
    x = RANDOM.integers(0, 30_000, (4, 6, 8)).astype(kind)
    shape = [-(-n // size) if i == axis % 3 else n for i, n in enumerate(x.shape)]
    scale = RANDOM.uniform(0.2, 0.4, shape).astype(np.float32)
    zero = RANDOM.integers(0, 9, shape).astype(kind)
    sizes, name = ",".join(map(str, shape)), np.dtype(kind).name
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g ({name}[4,6,8] x, float[{sizes}] s, {name}[{sizes}] z) => (float y) {{
        y = DequantizeLinear <axis = {axis}, block_size = {size}> (x, s, z) }}"""
    session = on_own_kernels(compiler, tmp_path, text)
    found = session.run({"x": x, "s": scale, "z": zero})["y"]
    session.close()
    every = np.arange(x.shape[axis]) // size
    wide, zeros = (v.astype(np.float64).take(every, axis) for v in (scale, zero))
    np.testing.assert_allclose(np.asarray(found), (x - zeros) * wide, rtol=1e-6)


@pytest.mark.parametrize("zeros", [(3,), (2, 3, 1)])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_each_row_has_its_zero_point(
    compiler: Compiler, tmp_path: Path, kind: type, zeros: tuple[int, ...]
) -> None:
    a, b, zero, column = some(kind, 2, 3, 7), some(kind, 7, 5), some(kind, *zeros), some(kind, 5)
    k, sizes = KINDS[kind], ",".join(map(str, zeros))
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g ({k}[2,3,7] a, {k}[7,5] b, {k}[{sizes}] z, {k}[5] v) => (int32 y) {{
        y = MatMulInteger (a, b, z, v) }}"""
    session = on_own_kernels(compiler, tmp_path, text)
    found = session.run({"a": a, "b": b, "z": zero, "v": column})["y"]
    session.close()
    rows = zero.reshape(-1, 1) if len(zeros) == 1 else zero
    expected = (a.astype(np.int64) - rows.astype(np.int64)) @ (b.astype(np.int64) - column.astype(np.int64))
    np.testing.assert_array_equal(found, expected)
