"""Rows of products of few rows with constant weights in fixed point: three quarters of the bytes of float32.

A product of a few rows takes every weight once, from memory, and lasts as long as that. 24 bits in fixed
point with a scale for each column keep the precision that float32 has at the largest weight of the column, so
what is lost is about what a sum of float32 loses anyway. A row applies where that holds on the very weights.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from app.engine.backends.cpu import half_weights, matmul
from app.engine.backends.cpu.rows import after, group_roofline, total_bytes
from app.engine.core import graph
from app.engine.core.calls import KernelCall
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.operators import matmul_geometry
from app.kernels.cpu.codegen import tiles

Array = np.ndarray[Any, Any]

LEAST_BYTES = 1 << 18  # of weights: fewer stay in a cache near the core


@after(matmul.prepared_rejection)
def _rejection(group: Group, context: PlanningContext) -> str | None:
    """Reason why fixed point does not apply."""
    product = matmul.product_of(group)
    if half_weights.dtype_of(product.b, context):
        return "the weights are 16-bit floats, which are fewer bytes and exact"
    if graph.nbytes(product.b) < LEAST_BYTES:
        return f"{graph.nbytes(product.b)} bytes of weights stay in a cache; this one takes {LEAST_BYTES}"
    if product.k % tiles.FIXED_STEPS:
        return f"the reduction of {product.k} is no multiple of {tiles.FIXED_STEPS}"
    rows = tiles.FIXED[context.target.vector_lanes][0]
    if product.m > rows:
        return f"{product.m} rows, more than the {rows} of a tile: weights are not what takes the time"
    return matmul.error_rejection(error(product, context), context)


def error(product: matmul_geometry.Product, context: PlanningContext) -> float:
    """A bound on the relative rms error of the worst column, for standard normal input.

    Relative to what typical weights of the column make, so that a large one does not hide what others lose.
    """
    name = f"error of fixed point {product.b_strides} {product.k}x{product.n}"
    return graph.fact(
        product.b,
        name,
        lambda array: column_error(matmul_geometry.matrices(product, array)),
        context.cache,
    )


def column_error(b: Array) -> float:
    """The same of the columns of [..., k, n].

    Each weight is off by half a step of its column, and half as much once it is a float32 again.
    """
    b = np.abs(b.reshape(b.shape[-2:]))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scales = tiles.fixed_scales(b.max(0, initial=0)[None]).astype(np.float64)
        typical = np.mean(np.sqrt(b, out=b), axis=0).astype(np.float64) ** 2
        normal = scales / 256 >= np.finfo(np.float32).tiny
        found = np.where(typical == 0, 0, np.where(normal, 0.75 * scales / typical, np.inf))
    return float(np.max(found, initial=0))


def _lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    product = matmul.product_of(group)
    (y,) = group.outputs
    array = graph.array(product.b)
    weights = matmul_geometry.matrices(product, array)
    added, epilogue = matmul.additions(group, product)
    fours = replace(product, k=product.k // tiles.FIXED_STEPS, a_strides=(product.k, tiles.FIXED_STEPS))
    return (
        matmul.product_call(
            fours, product.a, y, context, added, epilogue, weights=lambda: weights, dtype=tiles.FIXED_POINT
        ),
    )


def _cost(group: Group, context: PlanningContext) -> float:
    product = matmul.product_of(group)
    moved = total_bytes(group) - graph.nbytes(product.b) / 4
    return group_roofline(group, context, 2.0 * max(product.m, 4) * product.n * product.k, 0.9, moved)


def _error(group: Group, context: PlanningContext) -> float:
    return error(matmul.product_of(group), context)


IMPLEMENTATIONS = matmul.rows("fixed_point", _rejection, _lower, _cost, _error)
