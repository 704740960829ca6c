"""Factors, addends, normalizations and means beside convolutions, in their weights or before them.

Arithmetic on weights is done in double precision and rounded once.
"""

from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import Replacement, RewriteRule, constant, sole_reader, value_like
from app.engine.rewrites.algebraic import FLOATS, reaches_step

Array = np.ndarray[Any, Any]


def normalization_constants(node: ir.Node) -> tuple[Array, Array] | None:
    """Scale s and shift t of an inference BatchNormalization, y = s x + t per channel.

    s = scale / sqrt(variance + epsilon); t = bias - mean s; float64[c]. None in training mode,
    where mean and variance come from the batch.
    """
    if graph.attribute(node, "training_mode", 0) or len(node.inputs) < 5:
        return None
    if any(v.name for v in node.outputs[1:]):  # before opset 14 these told that it trains
        return None
    arrays = [graph.constant(v) for v in node.inputs[1:5]]
    if any(a is None or a.dtype.kind != "f" or a.ndim != 1 for a in arrays):
        return None
    scale, bias, mean, variance = (a.astype(np.float64) for a in arrays if a is not None)
    with np.errstate(all="ignore"):
        s = scale / np.sqrt(variance + graph.attribute(node, "epsilon", 1e-5))
        t = bias - mean * s
    return (s, t) if np.all(np.isfinite(s)) and np.all(np.isfinite(t)) else None


def normalize_in_convolution(node: ir.Node) -> Replacement | None:
    """S (W * x + b) + t = (s W) * x + (s b + t), with s and t per output channel."""
    constants = normalization_constants(node)
    source = node.inputs[0]
    if constants is None or source is None:
        return None
    return _into_convolution(source, *constants)


def affine_in_convolution(node: ir.Node) -> Replacement | None:
    """A scale or shift per channel after a convolution: s (W * x) = (s W) * x; W * x + t is a bias."""
    for index in (0, 1):
        if index == 1 and node.op_type in ("Sub", "Div"):
            return None
        source, operand = node.inputs[index], node.inputs[1 - index]
        if source is None or operand is None or not _is_convolution(source):
            continue
        vector = per_channel(operand, source)
        if vector is None or graph.shape(source) != graph.shape(node.outputs[0]):
            continue
        ones, zeros = np.ones_like(vector), np.zeros_like(vector)
        pairs = {"Mul": (vector, zeros), "Add": (ones, vector), "Sub": (ones, -vector)}
        return _into_convolution(source, *pairs[node.op_type])
    return None


def _is_convolution(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type in ("Conv", "ConvTranspose") and not producer.domain


def per_channel(operand: ir.Value, like: ir.Value) -> Array | None:
    """A constant that broadcasts along axis 1 of `like` only, as float64[c]."""
    array, shape = graph.constant(operand), graph.shape(like)
    if array is None or shape is None or array.dtype.kind != "f" or array.ndim > len(shape):
        return None
    aligned = (1,) * (len(shape) - array.ndim) + array.shape
    if any(d != 1 for axis, d in enumerate(aligned) if axis != 1) or aligned[1] not in (1, shape[1]):
        return None
    vector = array.reshape(-1).astype(np.float64)
    return np.broadcast_to(vector, (shape[1],)) if np.all(np.isfinite(vector)) else None


def _into_convolution(value: ir.Value, s: Array, t: Array) -> Replacement | None:
    """The convolution that computes s y + t where y is what one computes now; s, t: float64[c]."""
    convolution = value.producer()
    if convolution is None or not _is_convolution(value) or sole_reader(value) is None:
        return None
    weight, bias = convolution.inputs[1], graph.input_at(convolution, 2)
    w = graph.constant(weight)
    b = graph.constant(bias) if bias is not None else np.zeros(1)
    if weight is None or w is None or b is None or weight.dtype not in FLOATS:
        return None
    scaled = None if np.all(s == 1) else scale_output_channels(w, s, convolution)
    shifted = (b.astype(np.float64) * s + t).astype(w.dtype)
    if (scaled is not None and not np.all(np.isfinite(scaled))) or not np.all(np.isfinite(shifted)):
        return None
    inputs = [
        convolution.inputs[0],
        weight if scaled is None else constant(scaled, f"{weight.name}.scaled"),
        constant(shifted, f"{weight.name}.shift"),
    ]
    attributes = list(convolution.attributes.values())
    new = ir.Node("", convolution.op_type, inputs, attributes, name=convolution.name)
    return Replacement(new.outputs, [new])


def scale_output_channels(w: Array, s: Array, convolution: ir.Node) -> Array:
    """Weights with each output channel multiplied by its factor.

    Conv: w[m, c / g, ...], m output channels; ConvTranspose: w[c, m / g, ...], where group i holds
    input channels i c/g onward and output channels i m/g onward.
    """
    wide = w.astype(np.float64)
    if convolution.op_type == "Conv":
        return (wide * s.reshape(-1, *[1] * (w.ndim - 1))).astype(w.dtype)
    groups = graph.attribute(convolution, "group", 1)
    grouped = wide.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    factors = s.reshape(groups, 1, w.shape[1], *[1] * (w.ndim - 2))
    return (grouped * factors).reshape(w.shape).astype(w.dtype)


def average_before_convolution(node: ir.Node) -> Replacement | None:
    """The mean over all pixels of W x + b is W times that of x, plus b, for a window of one pixel.

    As by squeeze-and-excite after a convolution: what scales its result does not wait for it. The mean is
    taken of as many channels or fewer, unless nothing else reads the result.
    """
    value = graph.operand(node, 0)
    convolution, shape = value.producer(), graph.shape(value)
    if convolution is None or convolution.op_type != "Conv" or not _is_convolution(value) or shape is None:
        return None
    x, weight = graph.operand(convolution, 0), graph.shape(graph.operand(convolution, 1))
    if x.dtype not in FLOATS or x.shape is None or weight is None or any(d != 1 for d in weight[2:]):
        return None
    moved = [
        graph.attribute(convolution, name, default) for name, default in (("strides", [1]), ("pads", [0]))
    ]
    if any(s != 1 for s in moved[0]) or any(p != 0 for p in moved[1]) or reaches_step(node.outputs[0]):
        return None
    channels = weight[1] * graph.attribute(convolution, "group", 1)
    if channels > weight[0] and sole_reader(value) is None:
        return None
    mean = value_like(x, f"{node.outputs[0].name}.before")
    mean.shape = ir.Shape([*x.shape[:2], *(1 for _ in x.shape[2:])])
    pooled = ir.Node("", node.op_type, [x], outputs=[mean])
    attributes = [a for name, a in convolution.attributes.items() if name != "auto_pad"]
    new = ir.Node("", "Conv", [mean, *convolution.inputs[1:]], attributes)
    return Replacement(new.outputs, [pooled, new])


def split_normalization(node: ir.Node) -> Replacement | None:
    """BatchNormalization(x) = x s + t where no convolution can take s and t."""
    constants = normalization_constants(node)
    x, y = node.inputs[0], node.outputs[0]
    shape = None if x is None else graph.shape(x)
    if constants is None or x is None or shape is None or len(shape) < 2 or x.dtype not in FLOATS:
        return None
    along = (1, -1) + (1,) * (len(shape) - 2)
    s, t = (
        constant(c.reshape(along).astype(x.dtype.numpy()), f"{node.name}.{label}")
        for c, label in zip(constants, ("scale", "shift"))
    )
    scaled = ir.Node("", "Mul", [x, s], outputs=[value_like(y, f"{y.name}.scaled")])
    new = ir.Node("", "Add", [scaled.outputs[0], t])
    return Replacement(new.outputs, [scaled, new])


ROWS = (
    RewriteRule(normalize_in_convolution, ("BatchNormalization",), nested=False),
    RewriteRule(affine_in_convolution, ("Mul", "Add", "Sub"), nested=False),
    RewriteRule(average_before_convolution, ("GlobalAveragePool",), nested=False),
    RewriteRule(split_normalization, ("BatchNormalization",), nested=False),
)
