"""The geometry of convolutions: one to three spatial axes, seen as three."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine import graph

Array = np.ndarray[Any, Any]
Triple = tuple[int, int, int]


def _three(values: tuple[int, ...], fill: int) -> Triple:
    first, second, third = (fill,) * (3 - len(values)) + values
    return first, second, third


@dataclass(frozen=True, slots=True)
class Window:
    """A convolution: x[batch, groups * channels, *size] to y[batch, groups * outputs, *out].

    Output pixel p of an axis reads p * stride + tap * dilation - pad.
    """

    batch: int
    groups: int
    channels: int  # of the input, per group
    outputs: int  # channels of the output, per group
    size: Triple
    out: Triple
    kernel: Triple
    stride: Triple
    dilation: Triple
    pad: Triple  # before

    @property
    def pixels(self) -> int:
        """Output positions of one channel."""
        return math.prod(self.out)

    @property
    def taps(self) -> int:
        """Elements of one channel's kernel."""
        return math.prod(self.kernel)

    @property
    def is_pointwise(self) -> bool:
        """Whether every output pixel reads the input pixel of its own position."""
        return self.taps == 1 and self.stride == (1, 1, 1) and self.pad == (0, 0, 0) and self.size == self.out

    def flat(self) -> "Window":
        """A pointwise convolution as one along a single axis."""
        line = (1, 1, self.pixels)
        one = (1, 1, 1)
        return Window(
            self.batch, self.groups, self.channels, self.outputs, line, line, one, one, one, (0, 0, 0)
        )

    def tap_table(self) -> Array:
        """int64[taps, 5]: offsets from p * stride along the axes, then the valid output columns [low, high)."""
        steps = [
            [i * dilation - pad for i in range(kernel)]
            for kernel, dilation, pad in zip(self.kernel, self.dilation, self.pad)
        ]
        rows = [(*offsets, *self._valid(offsets[2])) for offsets in itertools.product(*steps)]
        return np.array(rows, np.int64).reshape(-1, 5)

    @property
    def is_same(self) -> bool:
        """Whether a tap is a fixed distance in the flattened input; depth is left out."""
        return self.stride == (1, 1, 1) and self.size == self.out and self.kernel[0] == self.size[0] == 1

    def valid_pixels(self, row: int) -> Array:
        """uint8[taps, row]: 255 where a tap reads the input, 0 where padding or beyond the pixels."""
        table = np.zeros((self.taps, row), np.uint8)
        y, x = np.indices(self.out[1:])
        for i, (_, across, along, _, _) in enumerate(self.tap_table()):
            inside = (y + across >= 0) & (y + across < self.size[1])
            inside &= (x + along >= 0) & (x + along < self.size[2])
            table[i, : self.pixels] = inside.ravel() * 255
        return table

    def _valid(self, offset: int) -> tuple[int, int]:
        stride, width, columns = self.stride[2], self.size[2], self.out[2]
        low = min(max(-(offset // stride), 0), columns)
        high = min(max(-((offset - width) // stride), 0), columns)
        return low, max(low, high)


def of_conv(node: ir.Node) -> Window:
    """The window of a Conv with static shapes.

    The padding of `auto_pad` follows from the output's shape.
    """
    x, weights = node.inputs[:2]
    assert x is not None
    assert weights is not None
    batch, channels, *size = graph.static_shape(x)
    filters, _, *kernel = graph.static_shape(weights)
    out = graph.static_shape(node.outputs[0])[2:]
    rank = len(size)
    strides = tuple(graph.attribute(node, "strides", (1,) * rank))
    dilations = tuple(graph.attribute(node, "dilations", (1,) * rank))
    pads = tuple(graph.attribute(node, "pads", (0,) * (2 * rank)))[:rank]
    auto = graph.attribute(node, "auto_pad", "NOTSET")
    if auto.startswith("SAME"):
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
        totals = [max((o - 1) * s + span - i, 0) for o, s, span, i in zip(out, strides, spans, size)]
        pads = tuple((t + (auto == "SAME_LOWER")) // 2 for t in totals)
    elif auto == "VALID":
        pads = (0,) * rank
    groups = graph.attribute(node, "group", 1)
    return Window(
        batch,
        groups,
        channels // groups,
        filters // groups,
        _three(tuple(size), 1),
        _three(tuple(out), 1),
        _three(tuple(kernel), 1),
        _three(strides, 1),
        _three(dilations, 1),
        _three(pads, 0),
    )
