"""Measures of how far outputs lie from those in float32, each a share from 0."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from app.engine.types.options import ErrorMetric

Array = np.ndarray[Any, Any]
Outputs = Mapping[str, object]


def max_error(a: Array, b: Array) -> float:
    """Largest difference, as a share of the largest magnitude."""
    scale = float(np.abs(a).max(initial=0.0))
    moved = float(np.abs(b - a).max(initial=0.0))
    return moved / scale if scale else moved


def cosine_error(a: Array, b: Array) -> float:
    """1 less the cosine between both, as vectors; at least 0."""
    lengths = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    if not lengths:
        return float(np.any(a != b))
    return max(1.0 - float(np.vdot(a, b)) / lengths, 0.0)


def top1_error(a: Array, b: Array) -> float:
    """Share of rows along the last axis whose largest element is at another place."""
    if a.ndim == 0 or not a.size:
        return 0.0
    return float(np.mean(a.argmax(-1) != b.argmax(-1)))


METRICS: Mapping[ErrorMetric, Callable[[Array, Array], float]] = {
    "max": max_error,
    "cosine": cosine_error,
    "top1": top1_error,
}


def error(metric: ErrorMetric, expected: Outputs, found: Outputs) -> float:
    """Largest error of all outputs; infinite where one is finite and the other is not.

    Outputs that are not floats count by the share of elements that differ.
    """
    return max(
        (_error(metric, np.asarray(a), np.asarray(found[k])) for k, a in expected.items()), default=0.0
    )


def worst(metric: ErrorMetric, expected: Sequence[Outputs], found: Sequence[Outputs]) -> float:
    """Largest error of several samples; of `top1` the mean, as it is a count already."""
    errors = [error(metric, a, b) for a, b in zip(expected, found, strict=True)]
    return math.fsum(errors) / len(errors) if metric == "top1" else max(errors)


def _error(metric: ErrorMetric, a: Array, b: Array) -> float:
    if a.dtype.kind != "f":
        return float(np.mean(a != b)) if a.size else 0.0
    wide, moved = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(wide)
    if not np.array_equal(finite, np.isfinite(moved)):
        return math.inf
    return METRICS[metric](np.where(finite, wide, 0.0), np.where(finite, moved, 0.0))


def noise(expected: Outputs, found: Outputs) -> float:
    """Largest share, over outputs, of an output's power that the difference has.

    ||found - expected||^2 / ||expected||^2: of independent roundings it adds. Of outputs that are no floats
    it is the share of elements that differ.
    """
    return max((_noise(np.asarray(a), np.asarray(found[k])) for k, a in expected.items()), default=0.0)


def _noise(a: Array, b: Array) -> float:
    if a.dtype.kind != "f":
        return _error("top1", a, b)
    wide, moved = a.astype(np.float64), b.astype(np.float64)
    held = np.isfinite(wide)
    if not np.array_equal(held, np.isfinite(moved)):
        return math.inf
    power = float(np.square(wide[held]).sum())
    lost = float(np.square(moved[held] - wide[held]).sum())
    return lost / power if power else (math.inf if lost else 0.0)
