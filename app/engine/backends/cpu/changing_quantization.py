"""Quantized products whose weights, scales or zero points change between runs, or differ from row to row.

Rows for constants fold them into packed weights. Sums are computed exactly here too: of matrices by
MatMulInteger, of images by a convolution in a float type that holds them.
"""

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.integer import Inputs
from app.engine.core import graph
from app.engine.core.rewriter import Replacement, RewriteRule
from app.engine.rewrites.contrib import Nodes, others

PRODUCT = 255 * 255  # largest magnitude of a product of two bytes
EXACT = 2**24  # below which float32 holds all integers


def convolution(node: ir.Node) -> Replacement | None:
    """ConvInteger or QLinearConv with an operand that changes, beside the image and its zero point."""
    of = Inputs(node)
    prepared = (of.b, of.b_zero, of.a_scale, of.b_scale, of.y_scale, of.y_zero, of.bias)
    weights = graph.shape(of.b)
    if weights is None or not _change(*prepared) or not _single(of):
        return None
    n, depth = Nodes(node), math.prod(weights[1:])
    if depth * PRODUCT > np.iinfo(np.int32).max:
        return None
    real = ir.DataType.FLOAT if of.bias is None and depth * PRODUCT < EXACT else ir.DataType.DOUBLE
    channels = [-1, *[1] * (len(weights) - 1)]
    x, w = _centered(n, of.a, of.a_zero, real, None), _centered(n, of.b, of.b_zero, real, channels)
    bias = [] if of.bias is None else [n("Cast", of.bias, to=int(real))]
    sums = n("Conv", x, w, *bias, **others(node))
    if not of.linear:
        return Replacement([n("Cast", sums, to=int(ir.DataType.INT32))], n.made)
    return Replacement([_requantized(n, of, sums, channels[:-1])], n.made)


def matrix_product(node: ir.Node) -> Replacement | None:
    """QLinearMatMul with scales or a zero point of the result that change."""
    of = Inputs(node)
    if not _change(of.a_scale, of.b_scale, of.y_scale, of.y_zero) or not _single(of):
        return None
    n = Nodes(node)
    return Replacement(
        [_requantized(n, of, n("MatMulInteger", of.a, of.b, of.a_zero, of.b_zero), [-1])], n.made
    )


def zeros_of_rows(node: ir.Node) -> Replacement | None:
    """MatMulInteger with a zero point for each row: sums, less those of columns times the zero points."""
    of = Inputs(node)
    shape, zeros = graph.shape(of.a), graph.shape(of.a_zero) if of.a_zero is not None else None
    if of.a_zero is None or shape is None or zeros is None or len(shape) < 2 or math.prod(zeros) == 1:
        return None
    n = Nodes(node)
    ones = n.constant(np.ones((1, shape[-1])), np.uint8)
    sums, columns = (n("MatMulInteger", left, of.b, None, of.b_zero) for left in (of.a, ones))
    rows = n("Cast", of.a_zero, to=int(ir.DataType.INT32))
    if len(zeros) == 1:
        rows = n("Reshape", rows, n.constant([-1, 1]))
    return Replacement([n("Sub", sums, n("Mul", rows, columns))], n.made)


def _change(*values: ir.Value | None) -> bool:
    return any(v is not None and not graph.is_constant(v) for v in values)


def _single(of: Inputs) -> bool:
    """True if the second operand has one axis of scales and zero points at most, and all else has one."""
    alone = (of.a_scale, of.a_zero, of.y_scale, of.y_zero)
    several = (of.b_scale, of.b_zero)
    return all(v is None or (graph.shape(v) is not None and graph.elements(v) == 1) for v in alone) and all(
        v is None or (graph.shape(v) is not None and len(graph.static_shape(v)) <= 1) for v in several
    )


def _centered(n: Nodes, value: ir.Value, zero: ir.Value | None, real: ir.DataType, shape: Any) -> Any:
    """The operand minus its zero point."""
    wide = n("Cast", value, to=int(real))
    if zero is None:
        return wide
    return n("Sub", wide, n("Cast", n("Reshape", zero, n.constant(shape or np.zeros(0))), to=int(real)))


def _requantized(n: Nodes, of: Inputs, sums: Any, along: list[int]) -> ir.Value:
    """Sums on the scale of the result; the scales of the second operand lie `along` its channels."""
    scales = [n("Cast", v, to=int(ir.DataType.FLOAT)) for v in (of.a_scale, of.b_scale, of.y_scale)]
    flat = n.constant(np.zeros(0))
    a, y = (n("Reshape", scales[i], flat) for i in (0, 2))
    factor = n("Div", n("Mul", a, n("Reshape", scales[1], n.constant(along))), y)
    found = n("Mul", n("Cast", sums, to=int(ir.DataType.FLOAT)), factor)
    zero = n("Reshape", of.y_zero, flat)
    made: ir.Value = n("QuantizeLinear", found, n.constant(1, np.float32), zero)
    return made


REWRITES = (
    RewriteRule(convolution, ("ConvInteger", "QLinearConv"), backends=("numba-cpu",)),
    RewriteRule(matrix_product, ("QLinearMatMul",), backends=("numba-cpu",)),
    RewriteRule(zeros_of_rows, ("MatMulInteger",), backends=("numba-cpu",)),
)
