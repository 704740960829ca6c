"""Operators on tensors that the reference evaluator of onnx 1.23.2 lacks or computes wrongly.

Source: the operator specifications of ONNX, in the versions that each row covers.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from app.engine.backends.reference.correction import Correction

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


def rows_from(axis: int, x: Array) -> Array:
    """The tensor as rows (axes before `axis`) of columns (the others)."""
    return x.reshape(math.prod(x.shape[: axis % x.ndim]), -1)


def coerced(rowwise: Callable[[Array], Array]) -> Callable[..., list[Array]]:
    """An operator of opsets below 13 that sees its input as a matrix."""

    def compute(x: Array, *, axis: int = 1) -> list[Array]:
        return [rowwise(rows_from(axis, x)).astype(x.dtype).reshape(x.shape)]

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


CORRECTIONS = (
    Correction("GlobalMaxPool", global_max_pool, "reduces the wrong axes unless the rank is 4"),
    Correction("GlobalLpPool", global_lp_pool, "is absent"),
    Correction("BatchNormalization", batch_normalization, "mixes in the batch's statistics", 7, 14),
    Correction("Softmax", coerced(softmax), "does not see a matrix", until=13),
    Correction("LogSoftmax", coerced(log_softmax), "does not see a matrix", until=13),
    Correction("Hardmax", coerced(hardmax), "does not see a matrix", until=13),
    Correction("DequantizeLinear", dequantize_linear, "is absent below opset 19", until=19),
    Correction("Scatter", scatter, "is absent"),
)
