"""Pools and convolutions of any rank, over strided views of the padded input.

The pools of onnx 1.23.2 differ from the specification where ceil_mode meets dilations or
auto_pad, its ConvTranspose where there are groups; its pools and Conv loop over elements in Python.

Source: ONNX operator specifications of AveragePool-22, MaxPool-22, LpPool-22, Conv-22,
ConvTranspose-22.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from app.engine.reference.correction import Correction

Array = np.ndarray[Any, Any]
Ints = Sequence[int]


@dataclass(frozen=True, slots=True)
class _Axis:
    """How windows lie along one spatial axis."""

    size: int
    kernel: int
    stride: int
    dilation: int
    begin: int  # padding
    end: int
    outputs: int

    @property
    def extent(self) -> int:
        """Elements from the first to the last that one window touches."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def overhang(self) -> int:
        """Elements that windows reach beyond the input, which may be more or less than the padding."""
        return (self.outputs - 1) * self.stride + self.extent - self.begin - self.size


def _axis(
    size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int], auto_pad: str, ceil_mode: int
) -> _Axis:
    extent = (kernel - 1) * dilation + 1
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        outputs = math.ceil(size / stride)
        total = max((outputs - 1) * stride + extent - size, 0)
        begin = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
        return _Axis(size, kernel, stride, dilation, begin, total - begin, outputs)
    begin, end = (0, 0) if auto_pad == "VALID" else pads
    steps = (size + begin + end - extent) / stride
    outputs = (math.ceil(steps) if ceil_mode else math.floor(steps)) + 1
    if ceil_mode and (outputs - 1) * stride >= size + begin:
        outputs -= 1  # a window must not start in the padding at the end
    return _Axis(size, kernel, stride, dilation, begin, end, outputs)


@dataclass(frozen=True, slots=True)
class _Window:
    """Attributes that all these operators share, as a node states them."""

    kernel_shape: Ints = ()  # of pools; the weight of a convolution has it
    strides: Ints | None = None
    dilations: Ints | None = None
    pads: Ints | None = None
    auto_pad: str = "NOTSET"
    ceil_mode: int = 0

    def axes(self, x: Array, kernel: Ints | None = None) -> list[_Axis]:
        """Windows of this kernel, or of the one that is stated, along every spatial axis of x."""
        kernel = self.kernel_shape if kernel is None else kernel
        rank = len(kernel)
        strides, dilations = self.strides or [1] * rank, self.dilations or [1] * rank
        pads = self.pads or [0] * 2 * rank
        return [
            _axis(*sizes, self.auto_pad, self.ceil_mode)
            for sizes in zip(x.shape[2:], kernel, strides, dilations, zip(pads, pads[rank:]))
        ]


def _windows(x: Array, axes: Sequence[_Axis], fill: float) -> Array:
    """The elements [n, c, *outputs, kernel elements] of all windows of x, with `fill` around it."""
    view = _taps(x, axes, fill)
    return view.reshape(*view.shape[: 2 + len(axes)], -1)


def _taps(x: Array, axes: Sequence[_Axis], fill: float) -> Array:
    """A view [n, c, *outputs, *kernel] of x, with `fill` around it."""
    around = [(0, 0), (0, 0), *((a.begin, max(a.overhang, 0)) for a in axes)]
    padded = np.pad(x, around, constant_values=fill)
    spatial = tuple(range(2, 2 + len(axes)))
    view = sliding_window_view(padded, [a.extent for a in axes], axis=spatial)
    starts = [slice(0, (a.outputs - 1) * a.stride + 1, a.stride) for a in axes]
    taps = [slice(None, None, a.dilation) for a in axes]
    return view[(slice(None), slice(None), *starts, *taps)]


def max_pool(x: Array, *, storage_order: int = 0, **attributes: Any) -> list[Array]:
    """The maxima, and their indices in the flattened input (column-major planes with storage_order 1)."""
    axes = _Window(**attributes).axes(x)
    low = -np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min
    best = _windows(x, axes, low)
    planes = np.arange(math.prod(x.shape[:2])).reshape(x.shape[:2])
    plane = np.arange(math.prod(x.shape[2:])).reshape(x.shape[2:], order="F" if storage_order else "C")
    inside = _windows(plane[None, None], axes, -1)
    # A window never lies in the padding alone, and padding loses even to a minimal element.
    candidates = np.where(inside >= 0, best, low)
    first = np.argmax((candidates == candidates.max(-1, keepdims=True)) & (inside >= 0), -1)[..., None]
    index = np.take_along_axis(np.broadcast_to(inside, best.shape), first, -1)[..., 0]
    offset = planes.reshape(*planes.shape, *[1] * len(axes)) * plane.size
    return [best.max(-1), index + offset]


def average_pool(x: Array, *, count_include_pad: int = 0, **attributes: Any) -> list[Array]:
    """The means; what ceil_mode adds beyond the padding never counts."""
    axes = _Window(**attributes).axes(x)
    ones = np.ones((1, 1, *x.shape[2:]))
    counted = _windows(ones, axes, 0)
    if count_include_pad:
        around = [(0, 0), (0, 0), *((a.begin, a.end) for a in axes)]
        covered = [
            _Axis(a.size + a.begin + a.end, a.kernel, a.stride, a.dilation, 0, 0, a.outputs) for a in axes
        ]
        counted = _windows(np.pad(ones, around, constant_values=1), covered, 0)
    wide = x.astype(np.result_type(x.dtype, np.float32))
    return [(_windows(wide, axes, 0).sum(-1) / counted.sum(-1)).astype(x.dtype)]


def lp_pool(x: Array, *, p: float = 2, **attributes: Any) -> list[Array]:
    """The p-norms."""
    axes = _Window(**attributes).axes(x)
    total = (np.abs(_windows(x, axes, 0)) ** p).sum(-1)
    return [(total ** (1 / p)).astype(x.dtype)]


def conv(x: Array, w: Array, b: Array | None = None, *, group: int = 1, **attributes: Any) -> list[Array]:
    """A sum over the kernel's elements of one matrix product each, in double precision.

    w: [k, c / group, *kernel].
    """
    axes = _Window(**attributes).axes(x, w.shape[2:])
    taps = _taps(x.astype(np.float64), axes, 0)
    outputs = [a.outputs for a in axes]
    weights = w.reshape(group, w.shape[0] // group, *w.shape[1:]).astype(np.float64)
    y = np.zeros((len(x), group, weights.shape[1], math.prod(outputs)))
    for tap in np.ndindex(*w.shape[2:]):
        columns = taps[_last_axes(tap)].reshape(len(x), group, w.shape[1], -1)
        y += weights[_last_axes(tap)] @ columns
    if b is not None:
        y += b.reshape(group, -1, 1)
    return [y.reshape(len(x), -1, *outputs).astype(x.dtype)]


def conv_transpose(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    group: int = 1,
    **attributes: Any,
) -> list[Array]:
    """Every input element adds its multiple of the kernel to the output, which is then cropped.

    w: [c, k / group, *kernel].
    """
    n, c = x.shape[:2]
    spatial, kernel = x.shape[2:], w.shape[2:]
    rank = len(spatial)
    window = _Window(**attributes)
    stride, dilation = window.strides or [1] * rank, window.dilations or [1] * rank
    extra = output_padding or [0] * rank
    span = [s * (i - 1) + 1 for s, i in zip(stride, spatial)]
    full = [a + (k - 1) * d for a, k, d in zip(span, kernel, dilation)]
    wide = np.result_type(x.dtype, np.float32)
    grouped = x.reshape(n, group, c // group, *spatial).astype(wide)
    weights = w.reshape(group, c // group, w.shape[1], *kernel).astype(wide)
    y = np.zeros((n, group, w.shape[1], *(f + e for f, e in zip(full, extra))), wide)
    for tap in np.ndindex(*kernel):
        where = [slice(t * d, t * d + a, s) for t, d, a, s in zip(tap, dilation, span, stride)]
        y[_last_axes(where)] += np.einsum("ngc...,gck->ngk...", grouped, weights[_last_axes(tap)])
    begin, sizes = _crop(full, extra, spatial, window, output_shape)
    missing = [max(a + s - f, 0) for a, s, f in zip(begin, sizes, y.shape[3:])]
    y = np.pad(y, [(0, 0)] * 3 + [(0, m) for m in missing])
    y = y[_last_axes(slice(a, a + s) for a, s in zip(begin, sizes))].reshape(n, -1, *sizes)
    if b is not None:
        y = y + b.reshape(-1, *[1] * rank)
    return [y.astype(x.dtype)]


def _last_axes(then: Iterable[Any]) -> Any:
    """An index of the last axes, all of the others."""
    return (..., *then)


def _crop(
    full: Ints, extra: Ints, spatial: Ints, window: _Window, output_shape: Ints | None
) -> tuple[list[int], list[int]]:
    """The part of the full result that is kept: first element and size of each spatial axis."""
    rank, pads, auto_pad = len(spatial), window.pads, window.auto_pad
    if output_shape is None and auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        padding = [0] * 2 * rank if pads is None or auto_pad == "VALID" else list(pads)
        sizes = [f + e - a - z for f, e, a, z in zip(full, extra, padding[:rank], padding[rank:])]
        return padding[:rank], sizes
    strides = window.strides or [1] * rank
    reached = (min(i * s, f + e) for i, s, f, e in zip(spatial, strides, full, extra))
    sizes = list(output_shape or reached)[-rank:]
    total = [max(f + e - s, 0) for f, e, s in zip(full, extra, sizes)]
    return [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total], sizes


_POOL = "differs where ceil_mode meets dilations or auto_pad"

CORRECTIONS = (
    Correction("MaxPool", max_pool, _POOL),
    Correction("AveragePool", average_pool, _POOL),
    Correction("LpPool", lp_pool, _POOL, since=2),
    Correction("Conv", conv, "takes seconds for what takes milliseconds"),
    Correction("ConvTranspose", conv_transpose, "mixes up groups of several channels"),
)
