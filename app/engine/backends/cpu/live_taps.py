"""Convolutions without the taps of their windows that read padding only, band by band of the output.

A dilated window may be larger than the image: of 3 x 3 taps at a distance of 24 on 32 x 32 pixels, a quarter
read pixels, all others zeros. Along an axis the taps that read pixels change at few places of the output;
between two of these a convolution with these taps alone, without padding, computes a band.
"""

import math
from dataclasses import dataclass

import onnx_ir as ir

from app.engine.backends.cpu.resized_conv import ELEMENT
from app.engine.core import graph
from app.engine.core.rewriter import Replacement, RewriteRule
from app.engine.operators.operands import data
from app.engine.rewrites.algebraic import FLOATS
from app.engine.rewrites.contrib import Nodes, others

MOST = 0.8  # of the products that may remain


@dataclass(frozen=True, slots=True)
class Band:
    """Outputs from `start` on along an axis, made of the inputs from `first` on by the taps from `low` on."""

    start: int
    end: int
    low: int
    high: int
    first: int
    last: int

    @property
    def taps(self) -> int:
        """Number of taps that read pixels."""
        return self.high - self.low


def without_padding(node: ir.Node) -> Replacement | None:
    """Conv(x) = Concat of Convs of parts of x by parts of the window, where that saves more than it adds."""
    weights, shape = graph.constant(node.inputs[1]), graph.shape(node.outputs[0])
    image = graph.shape(data(node))
    if weights is None or shape is None or image is None or data(node).dtype not in FLOATS:
        return None
    if graph.attribute(node, "auto_pad", "NOTSET") != "NOTSET" or 0 in (*image, *shape):
        return None
    products = 2 * math.prod(shape) * math.prod(weights.shape[1:])
    for axis in range(2, len(shape)):
        bands = bands_of(node, axis)
        taps = weights.shape[axis]
        kept = sum((band.end - band.start) * band.taps for band in bands) / (shape[axis] * taps)
        read = sum(band.last - band.first for band in bands if band.last - band.first < image[axis])
        copied = math.prod(image) * read / image[axis] + math.prod(shape) * (len(bands) > 1)
        copied += weights.size * (sum(band.taps for band in bands) / taps - 1)
        if kept <= MOST and all(band.taps for band in bands) and (1 - kept) * products > ELEMENT * copied:
            return _in_bands(node, axis, bands)
    return None


def bands_of(node: ir.Node, axis: int) -> list[Band]:
    """Bands of the output along an axis, in order."""
    size, results = graph.static_shape(data(node))[axis], graph.static_shape(node.outputs[0])[axis]
    taps, rank, at = (
        graph.static_shape(graph.operand(node, 1))[axis],
        len(node.outputs[0].shape or ()),
        axis - 2,
    )
    stride = graph.attribute(node, "strides", (1,) * (rank - 2))[at]
    dilation = graph.attribute(node, "dilations", (1,) * (rank - 2))[at]
    begin = graph.attribute(node, "pads", (0,) * (2 * rank - 4))[at]
    live: list[tuple[int, int]] = []
    for y in range(results):
        found = [i for i in range(taps) if 0 <= y * stride + i * dilation - begin < size]
        live.append((found[0], found[-1] + 1) if found else (0, 0))
    ends = [y for y in range(1, results) if live[y] != live[y - 1]]
    bands = []
    for start, end in zip((0, *ends), (*ends, results), strict=True):
        low, high = live[start]
        first = start * stride + low * dilation - begin
        last = (end - 1) * stride + (high - 1) * dilation - begin + 1
        bands.append(Band(start, end, low, high, first, last))
    return bands


def _in_bands(node: ir.Node, axis: int, bands: list[Band]) -> Replacement:
    n, x, at = Nodes(node), data(node), axis - 2
    weights, size = graph.array(graph.operand(node, 1)), graph.static_shape(x)[axis]
    pads = list(graph.attribute(node, "pads", (0,) * (2 * weights.ndim - 4)))
    pads[at] = pads[at + weights.ndim - 2] = 0
    kept = others(node, "pads", "kernel_shape", "auto_pad")
    parts = []
    for band in bands:
        part = x
        if (band.first, band.last) != (0, size):
            part = n("Slice", x, n.constant([band.first]), n.constant([band.last]), n.constant([axis]))
        window = weights.take(range(band.low, band.high), axis)
        own = n.constant(window, window.dtype)
        parts.append(n("Conv", part, own, graph.input_at(node, 2), pads=pads, **kept))
    return Replacement([parts[0] if len(parts) == 1 else n("Concat", *parts, axis=axis)], n.made)


REWRITES = (RewriteRule(without_padding, ("Conv",), nested=False, backends=("numba-cpu",), by_extents=True),)
