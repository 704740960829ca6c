"""Operators of onnxruntime (domain com.microsoft), which the reference evaluator lacks.

Source: docs/ContribOperators.md of onnxruntime.
"""

from typing import Any

import numpy as np

from app.engine.reference.correction import Correction

Array = np.ndarray[Any, Any]

_INT8_ACTIVATIONS = 4  # accuracy level
_LEVELS = 127  # of an activation's magnitude


def _numbers(packed: Array, bits: int, count: int) -> Array:
    """float64[n, count] of rows of packed numbers, the lowest first."""
    rows = packed.reshape(packed.shape[0], -1).astype(np.int64)
    parts = [rows >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(len(rows), -1)[:, :count].astype(np.float64)


def matmul_nbits(
    a: Array,
    b: Array,
    scales: Array,
    zeros: Array | None = None,
    order: Array | None = None,
    bias: Array | None = None,
    **sizes: int,
) -> list[Array]:
    """Rows times weights with a scale for each block; activations as int8 where the level permits it."""
    k, n, block_size, bits = sizes["K"], sizes["N"], sizes["block_size"], sizes.get("bits", 4)
    blocks = -(-k // block_size)
    q = _numbers(b.reshape(n, -1), bits, blocks * block_size)
    factors = scales.reshape(n, blocks).astype(np.float64)
    if zeros is None:
        origin: Any = np.full((n, blocks), float(1 << (bits - 1)))
    elif zeros.dtype == np.uint8:
        origin = _numbers(zeros.reshape(n, -1), bits, blocks)
    else:
        origin = zeros.reshape(n, blocks).astype(np.float64)
    own = np.arange(blocks * block_size) // block_size if order is None else order.astype(np.int64)
    weights = (q[:, :k] - origin[:, own[:k]]) * factors[:, own[:k]]
    wide = a.astype(np.float64)
    integral = zeros is None or zeros.dtype == np.uint8
    if sizes.get("accuracy_level", 0) == _INT8_ACTIVATIONS and integral and a.size:
        wide = _rounded(wide, block_size)
    y = wide @ weights.T
    return [(y if bias is None else y + bias).astype(a.dtype)]


def _rounded(a: Array, block: int) -> Array:
    """Rows rounded to 8 bits, block by block."""
    k = a.shape[-1]
    whole = np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, -k % block)]).reshape(*a.shape[:-1], -1, block)
    scale = np.abs(whole).max(-1, keepdims=True) / _LEVELS
    rounded = np.rint(whole / np.where(scale, scale, 1)) * scale
    found: Array = rounded.reshape(*a.shape[:-1], -1)[..., :k]
    return found


CORRECTIONS = (Correction("MatMulNBits", matmul_nbits, "is absent", domain="com.microsoft"),)
