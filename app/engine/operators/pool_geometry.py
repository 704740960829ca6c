"""Windows of pooling operators."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from app.engine.core import graph


@dataclass(frozen=True, slots=True)
class Windows:
    """Geometry of a pooling node, as (depth, height, width); absent axes have extent 1."""

    planes: int
    size: tuple[int, int, int]
    out: tuple[int, int, int]
    kernel: tuple[int, int, int]
    strides: tuple[int, int, int]
    before: tuple[int, int, int]  # padding
    after: tuple[int, int, int]
    dilations: tuple[int, int, int]

    @property
    def numbers(self) -> tuple[int, ...]:
        """Kernel arguments."""
        return (*self.size, *self.out, *self.kernel, *self.strides, *self.before, *self.dilations)

    def counted(self, axis: int, include_pad: bool) -> npt.NDArray[np.int64]:
        """Elements along an axis that the average of each window counts.

        Padding counts with `include_pad`; what ceil_mode adds beyond it never does.
        """
        low = -self.before[axis] if include_pad else 0
        high = self.size[axis] + (self.after[axis] if include_pad else 0)
        taps = self._taps(axis)
        counts: npt.NDArray[np.int64] = np.count_nonzero((taps >= low) & (taps < high), axis=1)
        return counts

    def inside(self, axis: int) -> npt.NDArray[np.int64]:
        """int64[out, 2]: of each window the first index inside the input, and how many are."""
        taps = self._taps(axis)
        valid = (taps >= 0) & (taps < self.size[axis])
        first = np.where(valid.any(axis=1), np.where(valid, taps, self.size[axis]).min(axis=1), 0)
        return np.stack([first, np.count_nonzero(valid, axis=1)], axis=1)

    def _taps(self, axis: int) -> npt.NDArray[np.int64]:
        starts = np.arange(self.out[axis]) * self.strides[axis] - self.before[axis]
        taps: npt.NDArray[np.int64] = starts[:, None] + np.arange(self.kernel[axis]) * self.dilations[axis]
        return taps


def _three(numbers: tuple[int, ...], fill: int) -> tuple[int, int, int]:
    padded = (fill,) * (3 - len(numbers)) + tuple(int(n) for n in numbers)
    return padded[0], padded[1], padded[2]


def windows(node: ir.Node) -> Windows:
    """The geometry of a pooling node; output extents are those of shape inference."""
    source = graph.operand(node, 0)
    shape, out = graph.static_shape(source), graph.static_shape(node.outputs[0])
    size, out = shape[2:], out[2:]
    rank = len(size)
    kernel: tuple[int, ...] = tuple(graph.attribute(node, "kernel_shape", ()))
    strides: tuple[int, ...] = tuple(graph.attribute(node, "strides", ())) or (1,) * rank
    dilations: tuple[int, ...] = tuple(graph.attribute(node, "dilations", ())) or (1,) * rank
    pads: tuple[int, ...] = tuple(graph.attribute(node, "pads", ())) or (0,) * (2 * rank)
    automatic = graph.attribute(node, "auto_pad", "NOTSET")
    if automatic == "VALID":
        pads = (0,) * (2 * rank)
    elif automatic != "NOTSET":
        total = [
            max(0, (o - 1) * s + (k - 1) * d + 1 - n)
            for n, o, k, s, d in zip(size, out, kernel, strides, dilations)
        ]
        small, large = tuple(p // 2 for p in total), tuple(p - p // 2 for p in total)
        pads = small + large if automatic == "SAME_UPPER" else large + small
    return Windows(
        math.prod(shape[:2]),
        _three(size, 1),
        _three(out, 1),
        _three(kernel, 1),
        _three(strides, 1),
        _three(pads[:rank], 0),
        _three(pads[rank:], 0),
        _three(dilations, 1),
    )
