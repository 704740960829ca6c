"""Weights of MatMulNBits: 4 or 8 bits with a scale for each block along the reduction.

Source: operator specification of com.microsoft.MatMulNBits (onnxruntime, docs/ContribOperators.md).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph

Array = np.ndarray[Any, Any]

A, B, SCALES, ZEROS, GROUPS, BIAS = range(6)  # places of inputs
INT8_ACTIVATIONS = 4  # accuracy level that permits them
BITS = (4, 8)
BLOCKS = (16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Form:
    """Sizes of a node: y[.., n] = sum over k of a[.., k] w[n, k], in blocks of k."""

    k: int
    n: int
    bits: int
    block: int
    rounds: bool  # whether activations may be rounded to int8

    @property
    def blocks(self) -> int:
        """Blocks of the reduction; the last may be cut short."""
        return -(-self.k // self.block)

    @property
    def default_zero(self) -> int:
        """Zero point where the node has none."""
        return 1 << (self.bits - 1)


def form_of(node: ir.Node) -> Form:
    """The sizes of a MatMulNBits."""
    k, n = (graph.attribute(node, name, 0) for name in ("K", "N"))
    bits, block = graph.attribute(node, "bits", 4), graph.attribute(node, "block_size", 0)
    return Form(k, n, bits, block, graph.attribute(node, "accuracy_level", 0) == INT8_ACTIVATIONS)


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Arrays of constant weights.

    Attributes:
        q: uint8[n, blocks, block].
        scales: float32[n, blocks].
        zeros: uint8 or float32 [n, blocks]; None where all are `Form.default_zero`.
    """

    q: Array
    scales: Array
    zeros: Array | None

    def dequantized(self, form: Form) -> Array:
        """The weights as float32[n, k]."""
        zeros: Any = form.default_zero if self.zeros is None else self.zeros[..., None]
        whole = (self.q.astype(np.float32) - np.float32(1) * zeros) * self.scales[..., None]
        found: Array = whole.reshape(form.n, -1)[:, : form.k].astype(np.float32)
        return found


def weights_of(form: Form, b: Array, scales: Array, zeros: Array | None) -> Weights:
    """The inputs of a node, unpacked."""
    q = unpacked(b.reshape(form.n, form.blocks, -1), form.bits)[..., : form.block]
    if zeros is not None and zeros.dtype == np.uint8:
        zeros = unpacked(zeros.reshape(form.n, -1), form.bits)[:, : form.blocks]
    elif zeros is not None:
        zeros = zeros.reshape(form.n, form.blocks).astype(np.float32)
    return Weights(q, scales.reshape(form.n, form.blocks).astype(np.float32), zeros)


def unpacked(array: Array, bits: int) -> Array:
    """uint8[..., m] of packed numbers, the lowest first, as uint8[..., m * 8 / bits]."""
    if bits == 8:
        return array
    return np.stack((array & 15, array >> 4), -1).reshape(*array.shape[:-1], -1)


def packed(array: Array, bits: int) -> Array:
    """Inverse of `unpacked`; an odd number has a zero after it."""
    if bits == 8:
        return array
    whole = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, array.shape[-1] % 2)])
    found: Array = whole[..., ::2] | whole[..., 1::2] << np.uint8(4)
    return found
