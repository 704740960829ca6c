"""Matrix products as batches of matrices."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """y[batch, m, n] = sum over k of a[.., m, k] b[.., k, n], as the kernel sees it.

    Strides are in elements. `offsets`: (a, b) of every batch.
    """

    a: ir.Value
    b: ir.Value
    m: int
    n: int
    k: int
    offsets: tuple[tuple[int, int], ...]
    a_strides: tuple[int, int]  # of m, k
    b_strides: tuple[int, int]  # of k, n
    b_shape: tuple[int, ...] = ()  # of b as it lies in memory, batches first


def _matmul_product(node: ir.Node) -> Product:
    a, b = graph.operand(node, 0), graph.operand(node, 1)
    return product_of(a, b)


def _gemm_product(node: ir.Node) -> Product:
    a, b = graph.operand(node, 0), graph.operand(node, 1)
    m, k = graph.static_shape(a)
    n = graph.static_shape(b)[1]
    a_strides, b_strides = (k, 1), (n, 1)
    if graph.attribute(node, "transA", 0):
        m, k, a_strides = k, m, (1, k)
    b_shape = graph.static_shape(b)
    if graph.attribute(node, "transB", 0):
        n = b_shape[0]
        b_strides = (1, k)
    return Product(a, b, m, n, k, ((0, 0),), a_strides, b_strides, b_shape)


def matrices(product: Product, b: Array) -> Array:
    """A constant second operand as [batch, k, n]."""
    if product.b_strides[0] == 1 and product.n > 1:
        b = b.T
    return b.reshape(*product.b_shape[:-2], product.k, product.n)


def _batch_offsets(batch: tuple[int, ...], own: tuple[int, ...], size: int) -> list[int]:
    """Where each matrix of a broadcast batch begins."""
    count = math.prod(own)
    index = np.arange(count, dtype=np.int64).reshape(own) * size
    return [int(i) for i in np.broadcast_to(index, batch).ravel()]


def product_of(a: ir.Value, b: ir.Value) -> Product:
    """The product of two operands of any rank, broadcast as MatMul does."""
    a_shape, b_shape = graph.static_shape(a), graph.static_shape(b)
    a_shape = (1, *a_shape) if len(a_shape) == 1 else a_shape
    b_shape = (*b_shape, 1) if len(b_shape) == 1 else b_shape
    (*a_batch, m, k), n = a_shape, b_shape[-1]
    b_batch = b_shape[:-2]
    if math.prod(b_batch) == 1:  # one matrix for all: its batches are rows
        m *= math.prod(a_batch)
        return Product(a, b, m, n, k, ((0, 0),), (k, 1), (n, 1), (k, n))
    batch = np.broadcast_shapes(tuple(a_batch), b_batch)
    pairs = zip(_batch_offsets(batch, tuple(a_batch), m * k), _batch_offsets(batch, b_batch, k * n))
    return Product(a, b, m, n, k, tuple(pairs), (k, 1), (n, 1), (*b_batch, k, n))


PRODUCTS = {"MatMul": _matmul_product, "Gemm": _gemm_product}
