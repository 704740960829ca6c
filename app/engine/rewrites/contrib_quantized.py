"""Quantized operators of onnxruntime in those of ONNX: dequantize, compute, quantize; products of integers.

Source: docs/ContribOperators.md of onnxruntime.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

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


# Attributes that are not those of the operator that is computed.
_OWN = ("channels_last", "opset")


def unary(op: str, n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """An operator of one operand."""
    if graph.attribute(node, "channels_last", 0):
        return None
    return _quantized(n, node, n(op, _real(n, node, 0), **others(node, *_OWN)), 3)


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


UNARY: Mapping[str, str] = {
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearSigmoid": "Sigmoid",
    "QLinearAveragePool": "AveragePool",
    "QLinearSoftmax": "Softmax",
}
BUILDS: tuple[tuple[str, Build, str], ...] = (
    ("QLinearAdd", partial(binary, "Add"), MICROSOFT),
    ("QLinearMul", partial(binary, "Mul"), MICROSOFT),
    *((op, partial(unary, core), MICROSOFT) for op, core in UNARY.items()),
    ("QLinearGlobalAveragePool", global_average_pool, MICROSOFT),
    ("QLinearConcat", concat, MICROSOFT),
    ("QLinearWhere", where, MICROSOFT),
    ("MatMulIntegerToFloat", matmul_to_float, MICROSOFT),
    ("DynamicQuantizeMatMul", dynamic_quantize_matmul, MICROSOFT),
    ("QuantizeLinear", partial(renamed, "QuantizeLinear"), MICROSOFT),
    ("DequantizeLinear", partial(renamed, "DequantizeLinear"), MICROSOFT),
)
ROWS = rows(BUILDS)
