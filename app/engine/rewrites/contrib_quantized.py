"""Quantized operators of onnxruntime in those of ONNX: dequantize, compute, quantize; products of integers.

Source: docs/ContribOperators.md of onnxruntime.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.model.runtime_operators import MICROSOFT
from app.engine.rewrites.contrib import Build, Nodes, others, rows


def _real(n: Nodes, node: ir.Node, first: int) -> Any:
    """The dequantized operand at a position, before its scale and zero point."""
    return n("DequantizeLinear", *(graph.input_at(node, first + i) for i in range(3)))


def _quantized(n: Nodes, node: ir.Node, y: Any, first: int) -> list[ir.Value | None]:
    """The result on the scale at a position, before its zero point; uint8 where that is omitted."""
    return [n("QuantizeLinear", y, graph.input_at(node, first), graph.input_at(node, first + 1))]


def binary(op: str, n: Nodes, node: ir.Node) -> list[ir.Value | None]:
    """An operator of two operands."""
    return _quantized(n, node, n(op, _real(n, node, 0), _real(n, node, 3)), 6)


COERCED_UNTIL = 13  # opset whose Softmax has one axis

# Attributes that are not those of the operator that is computed.
_OWN = ("channels_last",)


def unary(op: str, n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """An operator of one operand; channels may be the last axis."""
    real, order = _real(n, node, 0), _channels_last(node)
    if order is None:
        return None
    y = n(op, _channels_second(n, real, order), **others(node, *_OWN))
    return _quantized(n, node, _channels_second(n, y, order, back=True), 3)


def conv(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """QLinearConv of ONNX; channels of images, not of weights, may be the last axis."""
    order = _channels_last(node)
    if order is None:
        return None
    image = _channels_second(n, graph.operand(node, 0), order)
    y = n("QLinearConv", image, *node.inputs[1:], **others(node, *_OWN))
    return [_channels_second(n, y, order, back=True)]


def _channels_last(node: ir.Node) -> tuple[int, ...] | None:
    """Axes of the first operand with channels second, () where they are; None for an unknown rank."""
    if not graph.attribute(node, "channels_last", 0):
        return ()
    shape = graph.shape(graph.operand(node, 0))
    return None if shape is None else (0, len(shape) - 1, *range(1, len(shape) - 1))


def _channels_second(n: Nodes, x: Any, order: tuple[int, ...], *, back: bool = False) -> Any:
    """A value whose axes are taken in this order, or, if `back`, brought back from it."""
    if not order:
        return x
    return n("Transpose", x, perm=[int(i) for i in np.argsort(order)] if back else order)


def softmax(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """Softmax along an axis, or, as below opset 13, of all elements from an axis on."""
    axis, real = graph.attribute(node, "axis", -1), _real(n, node, 0)
    shape = graph.shape(graph.operand(node, 0))
    if graph.attribute(node, "opset", 0) >= COERCED_UNTIL:
        return _quantized(n, node, n("Softmax", real, axis=axis), 3)
    if shape is None or 0 in shape:
        return None
    rows = math.prod(shape[: axis % len(shape)])
    flat = n("Reshape", real, n.constant([rows, math.prod(shape) // rows]))
    return _quantized(n, node, n("Reshape", n("Softmax", flat, axis=-1), n.constant(shape)), 3)


def global_average_pool(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """The mean of a plane; channels may be the last axis."""
    x = graph.input_at(node, 0)
    rank = None if x is None or graph.shape(x) is None else len(graph.static_shape(x))
    if rank is None:
        return None
    last = graph.attribute(node, "channels_last", 0)
    axes = list(range(1, rank - 1)) if last else list(range(2, rank))
    return _quantized(n, node, n("ReduceMean", _real(n, node, 0), n.constant(axes), keepdims=1), 3)


def concat(n: Nodes, node: ir.Node) -> list[ir.Value | None]:
    """Operands of scales of their own, on one scale."""
    parts = [_real(n, node, i) for i in range(2, len(node.inputs), 3)]
    return _quantized(n, node, n("Concat", *parts, axis=graph.attribute(node, "axis", 0)), 0)


def where(n: Nodes, node: ir.Node) -> list[ir.Value | None]:
    """A choice between two operands."""
    y = n("Where", graph.input_at(node, 0), _real(n, node, 1), _real(n, node, 4))
    return _quantized(n, node, y, 7)


def gemm(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """A product and a bias on the scale of the sums; float32 where no scale of the result is given."""
    b_scale, c, y_scale = (graph.input_at(node, i) for i in (4, 6, 7))
    scales = None if b_scale is None else graph.shape(b_scale)
    if scales is None:
        return None
    columns = {"axis": 0 if graph.attribute(node, "transB", 0) else 1} if scales else {}
    b = n("DequantizeLinear", *(graph.input_at(node, i) for i in (3, 4, 5)), **columns)
    if c is not None:
        scale = n("Mul", graph.input_at(node, 1), b_scale)
        scale = n("Mul", scale, n.constant(graph.attribute(node, "alpha", 1.0), np.float32))
        c = n("DequantizeLinear", c, scale, **({"axis": -1} if scales else {}))
    y = n("Gemm", _real(n, node, 0), b, c, **others(node))
    return [y] if y_scale is None else _quantized(n, node, y, 7)


def matmul_to_float(n: Nodes, node: ir.Node) -> list[ir.Value | None]:
    """A product of integers times both scales, plus a bias."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (graph.input_at(node, i) for i in range(7))
    return [_scaled(n, n("MatMulInteger", a, b, a_zero, b_zero), n("Mul", a_scale, b_scale), bias)]


def dynamic_quantize_matmul(n: Nodes, node: ir.Node) -> list[ir.Value | None]:
    """The same, activations quantized over their own range."""
    a, b, b_scale, b_zero, bias = (graph.input_at(node, i) for i in range(5))
    quantized, scale, zero = n("DynamicQuantizeLinear", a, outputs=3)
    return [_scaled(n, n("MatMulInteger", quantized, b, zero, b_zero), n("Mul", scale, b_scale), bias)]


def _scaled(n: Nodes, sums: Any, scale: Any, bias: ir.Value | None) -> Any:
    y = n("Mul", n("Cast", sums, to=int(ir.DataType.FLOAT)), scale)
    return y if bias is None else n("Add", y, bias)


def renamed(op: str, n: Nodes, node: ir.Node) -> list[ir.Value | None]:
    """An operator that ONNX has too."""
    return [n(op, *node.inputs, **others(node))]


_BYTES = {ir.DataType.INT4: ir.DataType.INT8, ir.DataType.UINT4: ir.DataType.UINT8}


def gather_blocks(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """Rows of a table whose blocks have scales, gathered and then dequantized."""
    data, indices, scales = (graph.operand(node, i) for i in range(3))
    zeros, size = graph.input_at(node, 3), graph.attribute(node, "block_size", 128)
    shape, at = graph.shape(data), graph.shape(indices)
    if shape is None or at is None or graph.shape(scales) is None or graph.dtype(data) is None:
        return None
    rank, bits = len(shape), graph.attribute(node, "bits", 4)
    along = graph.attribute(node, "quantize_axis", 1) % rank
    if graph.attribute(node, "gather_axis", 0) % rank or not along:
        return None
    blocks, wider = graph.static_shape(scales)[along], _BYTES.get(data.dtype or ir.DataType.UNDEFINED)
    if wider is not None:
        data = n("Cast", data, to=int(wider))
        zeros = None if zeros is None else n("Cast", zeros, to=int(wider))
    rows, row_scales, row_zeros = (
        None if v is None else n("Gather", v, indices, axis=0) for v in (data, scales, zeros)
    )
    if wider is None and graph.operand(node, 0).dtype == ir.DataType.UINT8:
        if along != rank - 1 or bits not in (4, 8):
            return None
        lead = (*at, *shape[1:-1])
        if bits == 4:
            rows = _halves(n, rows, (*lead, 2 * shape[-1]))
            wide = (*lead, 2 * -(-blocks // 2))
            row_zeros = None if zeros is None else _halves(n, row_zeros, wide)
            if row_zeros is not None and wide[-1] != blocks:
                row_zeros = n("Slice", row_zeros, n.constant([0]), n.constant([blocks]), n.constant([-1]))
        if row_zeros is None:
            row_zeros = n.constant(np.full((*lead, blocks), 2 ** (bits - 1)), np.uint8)
    axis = along + len(at) - 1
    return [n("DequantizeLinear", rows, row_scales, row_zeros, axis=axis, block_size=size)]


def _halves(n: Nodes, packed: Any, shape: tuple[int, ...]) -> Any:
    """Numbers of 4 bits, two of a byte, the lower one first."""
    low = n("BitwiseAnd", packed, n.constant(15, np.uint8))
    high = n("BitShift", packed, n.constant(4, np.uint8), direction="RIGHT")
    pairs = n("Concat", *(n("Unsqueeze", v, n.constant([-1])) for v in (low, high)), axis=-1)
    return n("Reshape", pairs, n.constant(shape))


UNARY: Mapping[str, str] = {
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearSigmoid": "Sigmoid",
    "QLinearAveragePool": "AveragePool",
}
BUILDS: tuple[tuple[str, Build, str], ...] = (
    ("QLinearConv", conv, MICROSOFT),
    ("QLinearAdd", partial(binary, "Add"), MICROSOFT),
    ("QLinearMul", partial(binary, "Mul"), MICROSOFT),
    *((op, partial(unary, core), MICROSOFT) for op, core in UNARY.items()),
    ("QLinearGlobalAveragePool", global_average_pool, MICROSOFT),
    ("QLinearConcat", concat, MICROSOFT),
    ("QGemm", gemm, MICROSOFT),
    ("QLinearSoftmax", softmax, MICROSOFT),
    ("QLinearWhere", where, MICROSOFT),
    ("GatherBlockQuantized", gather_blocks, MICROSOFT),
    ("MatMulIntegerToFloat", matmul_to_float, MICROSOFT),
    ("DynamicQuantizeMatMul", dynamic_quantize_matmul, MICROSOFT),
    ("QuantizeLinear", partial(renamed, "QuantizeLinear"), MICROSOFT),
    ("DequantizeLinear", partial(renamed, "DequantizeLinear"), MICROSOFT),
)
ROWS = rows(BUILDS)
