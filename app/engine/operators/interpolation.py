"""Where the elements of a resized axis come from: coordinates, nearest indices, taps and weights.

Source: the ONNX operator Resize, version 19. Coordinates are computed in single precision, as
ONNX Runtime does: at ties the nearest element depends on it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.engine.operators.strides import Indices

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]


@dataclass(frozen=True, slots=True)
class ResizedAxis:
    """An axis of `size` elements that becomes one of `target`.

    `scale` is target / size before rounding; `start` and `end` are the region of interest as
    fractions, for `tf_crop_and_resize`.
    """

    size: int
    target: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    @property
    def is_same(self) -> bool:
        """True if every element stays where it is, in all modes that look at no region."""
        return self.size == self.target and self.scale == 1.0


def _half_pixel(axis: ResizedAxis, x: Floats) -> Floats:
    return (x + np.float32(0.5)) / np.float32(axis.scale) - np.float32(0.5)


def _half_pixel_symmetric(axis: ResizedAxis, x: Floats) -> Floats:
    adjustment = np.float32(axis.target) / (np.float32(axis.scale) * np.float32(axis.size))
    offset = np.float32(axis.size / 2) * (np.float32(1) - adjustment)
    return offset + _half_pixel(axis, x)


def _pytorch_half_pixel(axis: ResizedAxis, x: Floats) -> Floats:
    return _half_pixel(axis, x) if axis.target > 1 else np.zeros_like(x)


def _align_corners(axis: ResizedAxis, x: Floats) -> Floats:
    # Of a fractional scale only the rounded length counts, in the standard's formula and in ONNX
    # Runtime; the reference evaluator takes the fractional one.
    if axis.target == 1:
        return np.zeros_like(x)
    return x * np.float32(axis.size - 1) / np.float32(axis.target - 1)


def _asymmetric(axis: ResizedAxis, x: Floats) -> Floats:
    return x / np.float32(axis.scale)


def _crop(axis: ResizedAxis, x: Floats) -> Floats:
    start, end, last = (np.float32(v) for v in (axis.start, axis.end, axis.size - 1))
    if axis.target == 1:
        return np.full_like(x, np.float32(0.5) * (start + end) * last)
    return start * last + x * (end - start) * last / np.float32(axis.target - 1)


COORDINATES: dict[str, Callable[[ResizedAxis, Floats], Floats]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
    "tf_crop_and_resize": _crop,
}

ROUNDINGS: dict[str, Callable[[Floats], Floats]] = {
    "round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _linear(distance: Floats, _a: float) -> Floats:
    hat: Floats = np.maximum(0, 1 - np.abs(distance))
    return hat


def _cubic(distance: Floats, a: float) -> Floats:
    """Keys, 1981, "Cubic convolution interpolation for digital image processing", equation 4."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = a * (((d - 5) * d + 8) * d - 4)
    keys: Floats = np.where(d <= 1, near, np.where(d < 2, far, 0))
    return keys


# (kernel, elements that it reaches to each side)
_FILTERS: dict[str, tuple[Callable[[Floats, float], Floats], int]] = {
    "linear": (_linear, 1),
    "cubic": (_cubic, 2),
}


def coordinates(axis: ResizedAxis, transformation: str) -> Floats:
    """The place in the original of every element of the resized axis."""
    x: Floats = np.arange(axis.target, dtype=np.float32)
    return COORDINATES[transformation](axis, x)


def outside(axis: ResizedAxis, transformation: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which elements take the extrapolation value."""
    x = coordinates(axis, transformation)
    if transformation != "tf_crop_and_resize":
        return np.zeros(x.shape, np.bool_)
    return (x < 0) | (x > axis.size - 1)


def nearest(axis: ResizedAxis, transformation: str, rounding: str) -> Indices:
    """The index that each element is copied from; negative where it lies outside."""
    x = coordinates(axis, transformation)
    index = np.clip(ROUNDINGS[rounding](x), 0, axis.size - 1).astype(np.int64)
    return np.where(outside(axis, transformation), -1, index)


def neighbours(axis: ResizedAxis, transformation: str) -> tuple[Indices, Floats, Floats]:
    """Indices [2, target] of the two neighbours of each element, its place, and their weights in float32.

    At the end, where both are the last element, each has half the weight.
    """
    x = np.clip(coordinates(axis, transformation), 0, axis.size - 1)
    first = np.minimum(x.astype(np.int64), axis.size - 1)
    index = np.stack([first, np.minimum(first + 1, axis.size - 1)])
    weight = np.abs(x - index[::-1].astype(np.float32))
    return index, x, np.where(index[0] == index[1], np.float32(0.5), weight)


def taps(
    axis: ResizedAxis,
    transformation: str,
    mode: str,
    *,
    cubic_a: float = -0.75,
    exclude_outside: bool = False,
    antialias: bool = False,
) -> tuple[Indices, Floats]:
    """Indices and weights, [target, taps] each; the first index is negative where an element lies outside.

    Taps beyond the ends read the last element, or count nothing with `exclude_outside`. With
    `antialias` a shrinking axis stretches the filter by 1 / scale.
    """
    kernel, reach = _FILTERS[mode]
    x = coordinates(axis, transformation).astype(np.float64)
    stretch = min(axis.scale, 1.0) if antialias else 1.0
    span = int(np.ceil(reach / stretch))
    base = np.floor(x).astype(np.int64)
    place = base[:, None] + np.arange(1 - span, span + 1)
    weight = kernel((place - x[:, None]) * stretch, cubic_a)
    inside = (place >= 0) & (place < axis.size)
    if exclude_outside:
        weight = np.where(inside, weight, 0.0)
    if exclude_outside or antialias:
        weight = weight / weight.sum(axis=1, keepdims=True)
    place = np.clip(place, 0, axis.size - 1)
    place[outside(axis, transformation), 0] = -1
    return place, weight
