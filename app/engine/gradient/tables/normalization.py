"""Gradients of normalizations, and of softmax."""

import math

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.gradient.rule import Gradients, Rule, Site, allowed
from app.engine.gradient.tables.movement import along
from app.engine.gradient.terms import Term


def _standardized(x: Term, axes: tuple[int, ...], epsilon: float) -> tuple[Term, Term]:
    """(x - mean) / deviation over axes, and the reciprocal of the deviation."""
    centered = x - x.mean(axes)
    inverse = 1 / ((centered * centered).mean(axes) + epsilon).op("Sqrt")
    return centered * inverse, inverse


def _through(g: Term, normal: Term, inverse: Term, axes: tuple[int, ...]) -> Term:
    """Gradient by x from that by the standardized x: what shifts or scales all of x is taken out."""
    return (g - g.mean(axes) - normal * (g * normal).mean(axes)) * inverse


def _batch(s: Site) -> Gradients:
    shape, rank = s.x.shape, len(s.x.shape)
    axes, column = (0, *range(2, rank)), (1, shape[1], *(1,) * (rank - 2))
    epsilon = float(s.attribute("epsilon", 1e-5))
    scale = s[1].reshape(column)
    dbias = s.dy.sum(axes, keepdims=False)
    if s.attribute("training_mode", 0):
        normal, inverse = _standardized(s.x, axes, epsilon)
        dscale = (s.dy * normal).sum(axes, keepdims=False)
        return _through(s.dy * scale, normal, inverse, axes), dscale, dbias
    inverse = 1 / (s[4] + epsilon).op("Sqrt")
    slope = s[1] * inverse
    lean = (s.dy * (s.x - s[3].reshape(column))).sum(axes, keepdims=False)
    dvariance = lean * slope * inverse * inverse * -0.5
    return s.dy * slope.reshape(column), lean * inverse, dbias, -(dbias * slope), dvariance


def _layer(s: Site) -> Gradients:
    shape = s.x.shape
    axes = tuple(range(s.axis(-1), len(shape)))
    normal, inverse = _standardized(s.x, axes, float(s.attribute("epsilon", 1e-5)))
    dscale = (s.dy * normal).reduced_to(s[1].shape, shape)
    dbias = s.dy.reduced_to(s[2].shape, shape) if s.has(2) else None
    return _through(s.dy * s[1], normal, inverse, axes), dscale, dbias


def _rms(s: Site) -> Gradients:
    shape = s.x.shape
    axes = tuple(range(s.axis(-1), len(shape)))
    inverse = 1 / ((s.x * s.x).mean(axes) + float(s.attribute("epsilon", 1e-5))).op("Sqrt")
    normal, g = s.x * inverse, s.dy * s[1]
    dx = (g - normal * (g * normal).mean(axes)) * inverse
    return dx, (s.dy * normal).reduced_to(s[1].shape, shape)


def _by_channel(s: Site, normal: Term, inverse: Term, parts: tuple[int, ...]) -> Gradients:
    """Gradients of instance and group normalization, standardized along the last axis of shape `parts`."""
    shape = s.x.shape
    column = (shape[1], *(1,) * (len(shape) - 2))
    axes = (0, *range(2, len(shape)))
    scaled = (s.dy * s[1].reshape(column)).reshape(parts)
    dx = _through(scaled, normal, inverse, (len(parts) - 1,)).reshape(shape)
    dscale = (s.dy * normal.reshape(shape)).sum(axes, keepdims=False)
    return dx, dscale, s.dy.sum(axes, keepdims=False)


def _instance(s: Site) -> Gradients:
    return _grouped(s, s.x.shape[1])


def _group(s: Site) -> Gradients:
    return _grouped(s, s.attribute("num_groups", 1))


def _grouped(s: Site, groups: int) -> Gradients:
    shape = s.x.shape
    parts = (shape[0], groups, math.prod(shape[1:]) // groups)
    normal, inverse = _standardized(s.x.reshape(parts), (2,), float(s.attribute("epsilon", 1e-5)))
    return _by_channel(s, normal, inverse, parts)


def _lp(s: Site) -> Gradients:
    axis = (s.axis(-1),)
    norm = s.x.op("ReduceL2", s.maker.integers(axis), keepdims=1)
    return ((s.dy - s.y * (s.dy * s.y).sum(axis)) / norm,)


def _lrn(s: Site) -> Gradients:
    """Gradient of x (bias + alpha / size * sums of squares of near channels) ** -beta."""
    shape, size = s.x.shape, s.attribute("size", 1)
    scale = float(s.attribute("alpha", 1e-4)) / size
    beta = float(s.attribute("beta", 0.75))
    distance = np.arange(shape[1])[None, :] - np.arange(shape[1])[:, None]  # [output, input]
    near = ((distance >= -((size - 1) // 2)) & (distance <= size // 2)).astype(np.float64)
    rank = len(shape)
    base = along(s.x * s.x, 1, rank, near.T) * scale + float(s.attribute("bias", 1.0))
    spread = along(s.dy * s.y / base, 1, rank, near)
    return (s.dy * base.op("Pow", -beta) - s.x * spread * (2 * scale * beta),)


def _softmax(s: Site) -> Gradients:
    return (s.y * (s.dy - (s.dy * s.y).sum((s.axis(-1),))),)


def _log_softmax(s: Site) -> Gradients:
    return (s.dy - s.y.op("Exp") * s.dy.sum((s.axis(-1),)),)


def _one_type(node: ir.Node) -> str | None:
    kinds = {v.dtype.name for v in node.inputs if v is not None and v.dtype is not None}
    return None if len(kinds) == 1 else f"its operands are {', '.join(sorted(kinds))}, expected one type"


def _by_channels(node: ir.Node) -> str | None:
    """GroupNormalization before opset 21 scales groups."""
    channels, scale = graph.static_shape(graph.operand(node, 0))[1], graph.elements(graph.operand(node, 1))
    return _one_type(node) or (None if scale == channels else f"{scale} scales, expected {channels}")


ROWS = (
    Rule(("BatchNormalization",), _batch, rejection=_one_type, settings=(3, 4)),
    Rule(("LayerNormalization",), _layer, rejection=_one_type),
    Rule(("RMSNormalization",), _rms, rejection=_one_type),
    Rule(("InstanceNormalization",), _instance, rejection=_one_type),
    Rule(("GroupNormalization",), _group, rejection=_by_channels),
    Rule(("LpNormalization",), _lp, rejection=allowed("p", 2, 2)),
    Rule(("LRN",), _lrn),
    Rule(("Softmax",), _softmax),
    Rule(("LogSoftmax",), _log_softmax),
)
