"""Operators on tensors that the reference evaluator of onnx 1.23.2 lacks or computes wrongly.

Source: the operator specifications of ONNX, in the versions that each row covers.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from app.engine.reference.correction import Correction

Array = np.ndarray[Any, Any]


def global_max_pool(x: Array) -> list[Array]:
    """The maximum over all axes after the second."""
    return [x.max(axis=tuple(range(2, x.ndim)), keepdims=True)]


def global_lp_pool(x: Array, *, p: float = 2) -> list[Array]:
    """The p-norm over all axes after the second."""
    total = np.sum(np.abs(x) ** p, axis=tuple(range(2, x.ndim)), keepdims=True)
    return [(total ** (1 / p)).astype(x.dtype)]


def batch_normalization(
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: float = 1e-5,
    **_rest: object,
) -> list[Array]:
    """Opsets 7 to 13 for inference: the given mean and variance, whatever `momentum` says."""
    channels = (1, -1) + (1,) * (x.ndim - 2)
    scale, bias, mean, variance = (a.reshape(channels) for a in (scale, bias, mean, variance))
    return [(scale * (x - mean) / np.sqrt(variance + epsilon) + bias).astype(x.dtype)]


def dequantize_linear(
    x: Array, scale: Array, zero_point: Array | None = None, *, axis: int = 1
) -> list[Array]:
    """Below opset 19: a float32 scale for the whole tensor or per element of one axis."""
    across = (-1,) + (1,) * (x.ndim - 1 - axis % x.ndim) if scale.size > 1 else ()
    zero = np.int32(0) if zero_point is None else zero_point.astype(np.int32).reshape(across)
    return [((x.astype(np.int32) - zero).astype(np.float32) * scale.reshape(across)).astype(np.float32)]


def scatter(x: Array, indices: Array, updates: Array, *, axis: int = 0) -> list[Array]:
    """The predecessor of ScatterElements."""
    y = x.copy()
    np.put_along_axis(y, indices, updates, axis)
    return [y]


def gather_elements(x: Array, indices: Array, *, axis: int = 0) -> list[Array]:
    """Element [i, j, k] is x[i, indices[i, j, k], k]; indices may span less of the other axes."""
    box = tuple(slice(None) if a == axis % x.ndim else slice(n) for a, n in enumerate(indices.shape))
    return [np.take_along_axis(x[box], indices, axis)]


def lp_normalization(x: Array, *, axis: int = -1, p: int = 2) -> list[Array]:
    """Each row along the axis divided by its p-norm; a row of zeros stays."""
    norm = np.sum(np.abs(x) ** p, axis=axis, keepdims=True) ** (1 / p)
    return [np.where(norm == 0, 0, x / norm).astype(x.dtype)]


def lrn(x: Array, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> list[Array]:
    """Each element divided by a power of the sum of squares of `size` channels around its own."""
    squares = np.pad(
        x.astype(np.float64) ** 2, [(0, 0), ((size - 1) // 2, size // 2)] + [(0, 0)] * (x.ndim - 2)
    )
    total = sliding_window_view(squares, size, axis=1).sum(-1)
    return [(x / (bias + alpha / size * total) ** beta).astype(x.dtype)]


def pad(
    x: Array, pads: Array, value: Array | None = None, axes: Array | None = None, *, mode: str = "constant"
) -> list[Array]:
    """Since opset 11. A negative number of elements crops, before anything is added."""
    named = range(x.ndim) if axes is None else [int(a) % x.ndim for a in axes]
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(named):
        widths[axis] = (int(pads[i]), int(pads[len(pads) // 2 + i]))
    kept = x[tuple(slice(max(-a, 0), n - max(-z, 0)) for (a, z), n in zip(widths, x.shape))]
    added = [(max(a, 0), max(z, 0)) for a, z in widths]
    if mode != "constant":
        return [np.pad(kept, added, mode=mode)]  # type: ignore[call-overload]  # reflect, edge or wrap
    fill = np.zeros((), x.dtype) if value is None else value.reshape(())
    return [np.pad(kept, added, constant_values=fill)]


def unique(x: Array, *, axis: int | None = None, sorted: int = 1) -> list[Array]:
    """Values, first positions, the value of each position, counts."""
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        values = np.take(values, order, axis=0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    return [values, *(a.astype(np.int64) for a in (first, inverse, counts))]


def max_roi_pool(
    x: Array, rois: Array, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> list[Array]:
    """The maxima of the bins of each region, whose corners are rounded to elements, both included."""
    rows, columns = pooled_shape
    y = np.zeros((len(rois), x.shape[1], rows, columns), x.dtype)
    for r, (image, *corners) in enumerate(rois):
        left, top, right, bottom = (math.floor(c * spatial_scale + 0.5) for c in corners)
        height, width = max(bottom - top + 1, 1), max(right - left + 1, 1)
        for i, j in np.ndindex(rows, columns):
            vertical = _bin(i, height, rows, top, x.shape[2])
            horizontal = _bin(j, width, columns, left, x.shape[3])
            part = x[int(image), :, vertical, horizontal]
            if part.size:
                y[r, :, i, j] = part.max(axis=(1, 2))
    return [y]


def _bin(index: int, extent: int, bins: int, start: int, size: int) -> slice:
    step = extent / bins
    first, last = start + math.floor(index * step), start + math.ceil((index + 1) * step)
    return slice(min(max(first, 0), size), min(max(last, 0), size))


def non_max_suppression(
    boxes: Array,
    scores: Array,
    limit: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    *,
    center_point_box: int = 0,
) -> list[Array]:
    """Rows (batch, class, box), best first; a box goes if it overlaps a kept one too much."""
    most = 0 if limit is None else int(limit.item())
    overlap = 0.0 if iou_threshold is None else float(iou_threshold.item())
    corners = _corners(boxes.astype(np.float64), center_point_box)
    rows: list[tuple[int, int, int]] = []
    for batch, class_ in np.ndindex(scores.shape[:2]):
        kept: list[int] = []
        for box in np.argsort(-scores[batch, class_], kind="stable"):
            if len(kept) >= most:
                break
            if score_threshold is not None and not scores[batch, class_, box] > score_threshold.item():
                break
            if all(_iou(corners[batch, box], corners[batch, other]) <= overlap for other in kept):
                kept.append(int(box))
        rows.extend((batch, class_, box) for box in kept)
    return [np.array(rows, np.int64).reshape(-1, 3)]


def _corners(boxes: Array, center_point_box: int) -> Array:
    """Boxes as (low, low, high, high), whichever two diagonal corners were given."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if center_point_box:
        first, second = first - second / 2, first + second / 2
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=-1)


def _iou(a: Array, b: Array) -> float:
    """Area of the intersection over the area of the union; 0 where a box is empty."""
    common = float(np.prod(np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)))
    total = float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2])) - common
    return common / total if common > 0 else 0.0


def coerced(rowwise: Callable[[Array], Array]) -> Callable[..., list[Array]]:
    """An operator of opsets below 13 that sees its input as a matrix."""

    def compute(x: Array, *, axis: int = 1) -> list[Array]:
        rows = x.reshape(math.prod(x.shape[: axis % x.ndim]), -1)  # columns: axes from `axis` on
        return [rowwise(rows).astype(x.dtype).reshape(x.shape)]

    return compute


def softmax(rows: Array) -> Array:
    """Every row: exp(x) / sum(exp(x))."""
    y: Array = np.exp(rows - rows.max(axis=1, keepdims=True))
    y /= y.sum(axis=1, keepdims=True)
    return y


def log_softmax(rows: Array) -> Array:
    """Every row: x - log(sum(exp(x)))."""
    y: Array = rows - rows.max(axis=1, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=1, keepdims=True))
    return y


def hardmax(rows: Array) -> Array:
    """Every row: 1 at its first maximum, else 0."""
    hits: Array = np.arange(rows.shape[1]) == rows.argmax(axis=1)[:, None]
    return hits


def stft(
    signal: Array,
    frame_step: Array,
    window: Array | None = None,
    frame_length: Array | None = None,
    *,
    onesided: int = 1,
) -> list[Array]:
    """Spectra [batch, frames, bins, 2] of frames of a signal [batch, length] or [batch, length, 1 or 2].

    A last axis of two holds real and imaginary parts. Without one, as `torch.stft` exports it, it is
    onnxruntime's.
    """
    wide = signal.astype(np.float64)
    parts = wide if signal.ndim == 3 else wide[..., None]
    samples = parts[..., 0] + 1j * parts[..., 1] if parts.shape[2] == 2 else parts[..., 0]
    length = samples.shape[1] if window is None else window.shape[0]
    if frame_length is not None:
        length = int(frame_length.item())
    frames = sliding_window_view(samples, length, axis=1)[:, :: int(frame_step.item())]
    spectra = np.fft.fft(frames if window is None else frames * window.astype(np.float64))
    if onesided:
        spectra = spectra[..., : length // 2 + 1]
    return [np.stack([spectra.real, spectra.imag], axis=-1).astype(signal.dtype)]


def slice_(
    x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> list[Array]:
    """Python's slices, but of a start that is clamped to the first element for negative steps too."""
    where = [slice(None)] * x.ndim
    steps = np.ones_like(starts) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, range(len(starts)) if axes is None else axes, steps):
        first = max(int(start), -x.shape[axis]) if step < 0 else int(start)
        where[axis] = slice(first, int(end), int(step))
    return [x[tuple(where)].copy()]


CORRECTIONS = (
    Correction("GlobalMaxPool", global_max_pool, "reduces the wrong axes unless the rank is 4"),
    Correction("GlobalLpPool", global_lp_pool, "is absent"),
    Correction("BatchNormalization", batch_normalization, "mixes in the batch's statistics", 7, 14),
    Correction("Softmax", coerced(softmax), "does not see a matrix", until=13),
    Correction("LogSoftmax", coerced(log_softmax), "does not see a matrix", until=13),
    Correction("Hardmax", coerced(hardmax), "does not see a matrix", until=13),
    Correction("DequantizeLinear", dequantize_linear, "is absent below opset 19", until=19),
    Correction("Scatter", scatter, "is absent"),
    Correction("GatherElements", gather_elements, "counts wrongly where an axis has one element", since=11),
    Correction("LRN", lrn, "computes as many channels as there are images"),
    Correction("LpNormalization", lp_normalization, "takes no absolute values"),
    Correction("Pad", pad, "refuses negative numbers of elements", since=11),
    Correction("Unique", unique, "fails for unsorted values along an axis"),
    Correction("MaxRoiPool", max_roi_pool, "is absent"),
    Correction("STFT", stft, "refuses a signal [batch, length]", since=17),
    Correction("Slice", slice_, "takes nothing back from a start before the first element", since=10),
    Correction("NonMaxSuppression", non_max_suppression, "refuses thresholds of rank 0"),
)
