"""Gradients of pooling over windows; global pools are reductions."""

import math

import numpy as np
import onnx_ir as ir

from app.engine.gradient.rule import Gradients, Rule, Site
from app.engine.gradient.tables.convolution import Geometry
from app.engine.operators.pool_geometry import windows


def _max_pool(s: Site) -> Gradients:
    """Elements of the gradient go to where the maxima were; the node's indices are computed for that."""
    indices = s.output(1, "indices", ir.DataType.INT64)
    return (s.dy.scattered(indices, math.prod(s.x.shape)).reshape(s.x.shape),)


def _row_major(node: ir.Node) -> str | None:
    if len(node.outputs) > 1 and node.outputs[1].name and node.attributes.get("storage_order"):
        order = node.attributes["storage_order"].value
        return None if order == 0 else f"storage_order is {order}, expected 0"
    return None


def _average_pool(s: Site) -> Gradients:
    """Every window hands its mean's gradient back in equal parts: a transposed convolution with ones."""
    shape, window = s.x.shape, windows(s.node)
    channels, rank = shape[1], len(shape) - 2
    own = range(3 - rank, 3)
    include = bool(s.attribute("count_include_pad", 0))
    counts = np.ones((1,) * rank)
    for i, axis in enumerate(own):
        row = np.maximum(window.counted(axis, include), 1)
        counts = counts * row.reshape([-1 if j == i else 1 for j in range(rank)])
    uniform = np.all(counts == counts.flat[0])
    divisor = s.maker.constant(counts.flat[0] if uniform else counts, s.dy.dtype)
    kernel, out, strides, dilations, before = (
        tuple(n[axis] for axis in own)
        for n in (window.kernel, window.out, window.strides, window.dilations, window.before)
    )
    geometry = Geometry(channels, shape[2:], out, kernel, strides, dilations, before)
    ones = s.maker.constant(np.ones((channels, 1, *kernel)), s.dy.dtype)
    return (geometry.up(s.dy / divisor, ones),)


ROWS = (
    Rule(("MaxPool",), _max_pool, rejection=_row_major),
    Rule(("AveragePool",), _average_pool),
)
