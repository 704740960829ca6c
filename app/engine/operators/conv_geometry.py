"""The geometry of convolutions: one to three spatial axes, seen as three."""

import itertools
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group, of_group

Array = np.ndarray[Any, Any]
Triple = tuple[int, int, int]
Offsets = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Window:
    """A convolution: x[batch, groups * channels, *size] to y[batch, groups * outputs, *out].

    Along each axis, tap t of output pixel p reads x at p * stride + offsets[t], zero outside.
    """

    batch: int
    groups: int
    channels: int  # of the input, per group
    outputs: int  # channels of the output, per group
    size: Triple
    out: Triple
    stride: Triple
    offsets: Offsets

    @property
    def pixels(self) -> int:
        """Output positions of one channel."""
        return math.prod(self.out)

    @property
    def taps(self) -> int:
        """Elements of one channel's kernel."""
        return math.prod(len(o) for o in self.offsets)

    @property
    def depth(self) -> int:
        """Products that are summed up for one output element."""
        return self.channels * self.taps

    @property
    def is_same(self) -> bool:
        """True if a tap is a fixed distance in the flattened input, within one slice of depth."""
        return self.stride == (1, 1, 1) and self.size == self.out and self.offsets[0] == (0,)

    def flat(self) -> "Window":
        """A pointwise convolution as one along a single axis; any other as it is."""
        if self.stride != (1, 1, 1) or self.size != self.out or self.offsets != ((0,), (0,), (0,)):
            return self
        line = (1, 1, self.pixels)
        return replace(self, size=line, out=line)

    @lru_cache(maxsize=256)  # noqa: B019  # of a value, which networks repeat
    def tap_table(self) -> Array:
        """int64[taps, 5]: offsets along the axes, then the output columns [low, high) that read the input."""
        rows = [(*offsets, *self._valid(offsets[2])) for offsets in itertools.product(*self.offsets)]
        return np.array(rows, np.int64).reshape(-1, 5)

    @lru_cache(maxsize=32)  # noqa: B019  # as above
    def valid_pixels(self, row: int) -> Array:
        """uint8[taps, row]: 255 where a tap reads the input, 0 where padding or beyond the pixels."""
        table = np.zeros((self.taps, row), np.uint8)
        y, x = np.indices(self.out[1:])
        for i, (_, across, along, _, _) in enumerate(self.tap_table()):
            inside = (y + across >= 0) & (y + across < self.size[1])
            inside &= (x + along >= 0) & (x + along < self.size[2])
            table[i, : self.pixels] = np.tile(inside.ravel() * 255, self.out[0])
        return table

    def _valid(self, offset: int) -> tuple[int, int]:
        stride, width, columns = self.stride[2], self.size[2], self.out[2]
        low = min(max(-(offset // stride), 0), columns)
        high = min(max(-((offset - width) // stride), 0), columns)
        return low, max(low, high)


@dataclass(frozen=True, slots=True)
class Phase:
    """The output pixels of a transposed convolution that read the same taps.

    Pixel p of the window is pixel first + p * step of the output; `taps` are those of the weights,
    by axis.
    """

    window: Window
    first: Triple
    step: Triple
    taps: Offsets


def _three(values: tuple[int, ...], fill: int) -> Triple:
    first, second, third = (fill,) * (3 - len(values)) + tuple(values)
    return first, second, third


@dataclass(frozen=True, slots=True)
class _Axes:
    """Attributes of a convolution with the weights' shape and the static shapes around it."""

    x: tuple[int, ...]
    weights: tuple[int, ...]
    out: Triple
    size: Triple
    kernel: Triple
    strides: Triple
    dilations: Triple
    pads: Triple  # before; as given
    auto_pad: str

    @property
    def spans(self) -> list[int]:
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations)]


def _axes(node: ir.Node, weights: ir.Value | None) -> _Axes:
    x = graph.operand(node, 0)
    weights = graph.operand(node, 1) if weights is None else weights
    shape, kernel = graph.static_shape(x), graph.static_shape(weights)[2:]
    rank = len(shape) - 2
    return _Axes(
        shape,
        graph.static_shape(weights),
        _three(graph.static_shape(node.outputs[0])[2:], 1),
        _three(shape[2:], 1),
        _three(kernel, 1),
        _three(graph.attribute(node, "strides", (1,) * rank), 1),
        _three(graph.attribute(node, "dilations", (1,) * rank), 1),
        _three(graph.attribute(node, "pads", (0,) * rank)[:rank], 0),
        graph.attribute(node, "auto_pad", "NOTSET"),
    )


@of_group
def of_conv(group: Group, weights: ir.Value | None = None) -> Window:
    """The window of a group whose anchor is a Conv with static shapes.

    The padding of `auto_pad` follows from the output's shape. `weights` are the second input unless given.
    """
    node = group.anchor
    axes = _axes(node, weights)
    pads = axes.pads
    if axes.auto_pad.startswith("SAME"):
        needed = [
            max((o - 1) * s + span - i, 0)
            for o, s, span, i in zip(axes.out, axes.strides, axes.spans, axes.size)
        ]
        lower = axes.auto_pad == "SAME_LOWER"
        pads = _three(tuple((n + lower) // 2 for n in needed), 0)
    elif axes.auto_pad == "VALID":
        pads = (0, 0, 0)
    offsets = [tuple(t * d - pad for t in range(k)) for k, d, pad in zip(axes.kernel, axes.dilations, pads)]
    groups = graph.attribute(node, "group", 1)
    return Window(
        axes.x[0],
        groups,
        axes.x[1] // groups,
        axes.weights[0] // groups,
        axes.size,
        axes.out,
        axes.strides,
        (offsets[0], offsets[1], offsets[2]),
    )


def of_conv_transpose(node: ir.Node) -> tuple[Phase, ...]:
    """One stride-free convolution for every residue of the output position modulo the strides.

    Output position o takes x[i] * w[t] where o = i * stride + t * dilation - pad, hence i runs with
    o / stride and the taps depend on the residue alone.
    """
    axes = _axes(node, None)
    pads = axes.pads
    if "output_shape" in node.attributes or axes.auto_pad.startswith("SAME"):
        rank = len(axes.x) - 2
        extra = _three(graph.attribute(node, "output_padding", (0,) * rank), 0)
        total = [
            (i - 1) * s + e + span - o
            for i, s, e, span, o in zip(axes.size, axes.strides, extra, axes.spans, axes.out)
        ]
        upper = axes.auto_pad == "SAME_UPPER"
        pads = _three(tuple(max(t, 0) // 2 if upper else (max(t, 0) + 1) // 2 for t in total), 0)
    elif axes.auto_pad == "VALID":
        pads = (0, 0, 0)
    groups = graph.attribute(node, "group", 1)
    phases = []
    for first in itertools.product(*(range(min(s, o)) for s, o in zip(axes.strides, axes.out))):
        taps = [
            tuple(t for t in range(k) if (f + pad - t * d) % s == 0)
            for k, d, s, pad, f in zip(axes.kernel, axes.dilations, axes.strides, pads, first)
        ]
        offsets = [
            tuple((f + pad - t * d) // s for t in own)
            for own, d, s, pad, f in zip(taps, axes.dilations, axes.strides, pads, first)
        ]
        out = [-(-(o - f) // s) for o, f, s in zip(axes.out, first, axes.strides)]
        window = Window(
            axes.x[0],
            groups,
            axes.x[1] // groups,
            axes.weights[1],
            axes.size,
            (out[0], out[1], out[2]),
            (1, 1, 1),
            (offsets[0], offsets[1], offsets[2]),
        )
        phases.append(
            Phase(window, (first[0], first[1], first[2]), axes.strides, (taps[0], taps[1], taps[2]))
        )
    return tuple(phases)
