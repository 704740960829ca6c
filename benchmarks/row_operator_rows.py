"""More rows of `make bench-operators`: operators along rows, vectors, 16-bit floats and bytes that move."""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.operator_rows import Make, OperatorRow, Rows, below, both, bytes_of, given, normal

_FIRST = {"a": given(0)}
_TWICE = {"r": given([2, 3])}


def _half(*shape: int) -> Make:
    """Standard normal float16."""
    return lambda random: random.standard_normal(shape).astype(np.float16)


def _whole(dtype: Any, *shape: int) -> Make:
    """Whole numbers from -100 to 99."""
    return lambda random: random.integers(-100, 100, shape).astype(dtype)


def _flags(n: int) -> Make:
    """True for three elements in ten."""
    return lambda random: random.uniform(size=n) < 0.3


def _softmax(width: int) -> Rows:
    return (
        *both(f"Softmax of {width}", "Softmax(x)", normal(80, width), normal(4000, width)),
        *both(f"LogSoftmax of {width}", "LogSoftmax(x)", normal(80, width), normal(4000, width)),
    )


def _top(kind: str, *arrays: Make) -> Rows:
    return tuple(
        OperatorRow(
            f"TopK of {kind}", size, "TopK(x, k)", {"x": x}, {"k": given([5])}, {"y": kind, "i": "int64"}
        )
        for size, x in zip(("small", "large"), arrays, strict=True)
    )


def _pairs(name: str, node: str, domain: str, *shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> Rows:
    return tuple(
        OperatorRow(name, size, node, {"x": normal(*a), "z": normal(*b)}, domain=domain)
        for size, (a, b) in zip(("small", "large"), shapes, strict=True)
    )


def _rotary(name: str, attributes: str, kind: str, make: Callable[..., Make]) -> Rows:
    """Heads of 64 elements turned at the positions that a table of ids tells."""

    def row(size: str, heads: int, length: int) -> OperatorRow:
        node = f"RotaryEmbedding <{attributes}> (x, cos, sin, ids)"
        tables = {"cos": make(128, 32), "sin": make(128, 32)}
        inputs = {"x": make(1, heads, length, 64), "ids": given([list(range(length))])}
        return OperatorRow(name, size, node, inputs, tables, {"y": kind}, 23)

    return row("small", 2, 4), row("large", 4, 64)


def _attention(name: str, attributes: str) -> Rows:
    def row(size: str, length: int) -> OperatorRow:
        inputs = {n: normal(1, 4, length, 64) for n in "qkv"}
        return OperatorRow(name, size, f"Attention {attributes} (q, k, v)", inputs, opset=23)

    return row("small", 10), row("large", 64), row("long", 512)


def _transposed_conv(name: str, attributes: str, window: int, grouped: bool = False) -> Rows:
    def row(size: str, channels: int, extent: int) -> OperatorRow:
        group = f", group = {channels}" if grouped else ""
        weights = normal(channels, 1 if grouped else channels, window, window)
        node = f"ConvTranspose <strides = [2, 2]{attributes}{group}> (x, w)"
        return OperatorRow(name, size, node, {"x": normal(1, channels, extent, extent)}, {"w": weights})

    return row("small", 8, 5), row("large", 64, 32)


ROW_OPERATORS: Rows = (
    *(row for width in (10, 49, 64, 128, 196) for row in _softmax(width)),
    *both("AffineGrid", "AffineGrid(x, s)", normal(4, 2, 3), normal(4, 2, 3),
          constants={"s": given([4, 3, 192, 192])}),
    *both("Tile of bytes", "Tile(x, r)", bytes_of(np.uint8, 10, 6), bytes_of(np.uint8, 500, 200), "uint8",
          constants=_TWICE),
    *both("Floor of float16", "Floor(x)", _half(10, 30), _half(500, 1000), "float16"),
    *both("Ceil of float16", "Ceil(x)", _half(10, 30), _half(500, 1000), "float16"),
    *both("CumSum of columns of float16", "CumSum(x, a)", _half(10, 30), _half(500, 1000), "float16",
          constants=_FIRST),
    *both("Hardmax of float16", "Hardmax(x)", _half(10, 30), _half(500, 1000), "float16"),
    *both("ArgMax of float16", "ArgMax <axis = -1> (x)", _half(10, 30), _half(500, 1000), "int64"),
    *both("NhwcMaxPool of int8", "com.microsoft.NhwcMaxPool <kernel_shape = [3, 3], strides = [2, 2]> (x)",
          bytes_of(np.int8, 1, 20, 20, 3), bytes_of(np.int8, 1, 96, 96, 64), "int8",
          domain="com.microsoft"),
    *both("MaxPool across rows", "MaxPool <kernel_shape = [3, 1], strides = [2, 1]> (x)",
          normal(1, 4, 20, 20), normal(1, 64, 56, 56)),
    *_top("float", normal(10, 30), normal(500, 1000)),
    *_top("float16", _half(10, 30), _half(500, 1000)),
    *_top("int64", _whole(np.int64, 10, 30), _whole(np.int64, 500, 1000)),
    *_pairs("Einsum bkd,bd->bk", 'Einsum <equation = "bkd,bd->bk"> (x, z)', "",
            ((4, 10, 64), (4, 64)), ((4, 500, 64), (4, 64))),
    *_pairs("MatMul with a vector", "MatMul(x, z)", "", ((40, 48), (48,)), ((1280, 384), (384,))),
    *_pairs("FusedMatMul of a row, transposed", "com.microsoft.FusedMatMul <transB = 1> (x, z)",
            "com.microsoft", ((4, 1, 48), (4, 16, 48)), ((4, 1, 384), (4, 128, 384))),
    *both("QuantizeLinear to int8", "QuantizeLinear(x, s, z)", normal(1, 8, 10, 10), normal(2, 64, 64, 64),
          "int8", constants={"s": given(0.03, np.float32), "z": given(3, np.int8)}),
    *_rotary("RotaryEmbedding", "interleaved = 0", "float", normal),
    *_rotary("RotaryEmbedding of pairs", "interleaved = 1", "float", normal),
    *_rotary("RotaryEmbedding of float16", "interleaved = 0", "float16", _half),
    *_pairs("MatMul of points", "MatMul(x, z)", "", ((1, 100, 3), (1, 3, 3)), ((1, 36864, 3), (1, 3, 3))),
    *_pairs("MatMul of columns of points", "MatMul(z, x)", "", ((1, 3, 100), (1, 2, 3)),
            ((1, 3, 36864), (1, 2, 3))),
    *both("ReduceLogSumExp of float16", "ReduceLogSumExp <keepdims = 0> (x, a)", _half(2, 10, 6, 6),
          _half(2, 500, 200, 6), "float16", constants={"a": given([1, 2])}),
    *both("Transpose of 85 rows of float16", "Transpose <perm = [0, 1, 3, 4, 2]> (x)", _half(1, 3, 85, 4, 4),
          _half(1, 3, 85, 80, 80), "float16"),
    *both("Gather of few columns", "Gather <axis = 1> (x, i)", normal(64, 8), normal(640, 64),
          constants={"i": given([1, 3, 5])}),
    *(OperatorRow("DynamicQuantizeLinear", size, "DynamicQuantizeLinear(x)", {"x": x},
                  outputs={"y": "uint8", "scale": "float", "zero": "uint8"})
      for size, x in (("small", normal(800)), ("large", normal(128, 64, 64)))),
    *(OperatorRow("ScatterElements along rows", size, "ScatterElements <axis = 1> (x, i, u)",
                  {"x": normal(n, c), "i": below(c, n, c // 5), "u": normal(n, c // 5)})
      for size, n, c in (("small", 10, 30), ("large", 500, 1000))),
    *_attention("Attention", ""),
    *_attention("Attention, causal", "<is_causal = 1>"),
    *_transposed_conv("ConvTranspose 2x2", "", 2),
    *_transposed_conv("ConvTranspose 4x4", ", pads = [1, 1, 1, 1]", 4),
    *_transposed_conv("ConvTranspose 4x4, depthwise", ", pads = [1, 1, 1, 1]", 4, grouped=True),
    *_pairs("Gemm, transposed B", "Gemm <transB = 1> (x, z)", "", ((16, 48), (16, 48)),
            ((128, 384), (128, 384))),
    *_pairs("Gemm, transposed A", "Gemm <transA = 1> (x, z)", "", ((48, 16), (48, 16)),
            ((384, 128), (384, 128))),
    *both("Exp", "Exp(x)", normal(10, 30), normal(500, 1000)),
    *both("Hardmax of rows", "Hardmax(x)", normal(10, 30), normal(500, 1000)),
    *both("ArgMax of rows", "ArgMax <axis = -1> (x)", normal(10, 30), normal(500, 1000), "int64"),
    *both("CumSum of columns", "CumSum(x, a)", normal(10, 30), normal(500, 1000), constants=_FIRST),
    *both("Unique of int64", "Unique(x)", _whole(np.int64, 300), _whole(np.int64, 100000), "int64"),
    *(OperatorRow("Compress of bytes", size, "Compress <axis = 0> (x, c)",
                  {"x": bytes_of(np.uint8, n, c), "c": _flags(n)}, outputs={"y": "uint8"})
      for size, n, c in (("small", 20, 30), ("large", 1000, 1000))),
    *(OperatorRow("ConstantOfShape", size, "ConstantOfShape(s)", {"s": given(shape)})
      for size, shape in (("small", [10, 30]), ("large", [500, 1000]))),
    *(OperatorRow("MatMulInteger of bytes", size, "MatMulInteger(x, z)",
                  {"x": bytes_of(np.uint8, n, k), "z": bytes_of(np.uint8, k, n)}, outputs={"y": "int32"})
      for size, n, k in (("small", 16, 48), ("large", 128, 384))),
    *both("ReduceSumSquare of float16", "ReduceSumSquare <keepdims = 0> (x, a)", _half(2, 10, 6, 6),
          _half(2, 500, 200, 6), "float16", constants={"a": given([1, 2])}),
)  # fmt: skip
