"""Rows of matrix products of integers of 16 bits in pairs, which an error budget chooses.

Rows of the first operand are rounded in a call of their own, with a scale for each chunk of the reduction;
weights offline, with a scale for each column and chunk. Sums of a chunk are exact in int32, then float32.
"""

from dataclasses import replace

import numpy as np

from app.engine.backends.cpu import bfloat, blocking, matmul
from app.engine.backends.cpu.calls import Operands, kernel_call, of_type
from app.engine.backends.cpu.nchwc_conv import PEAK, scaled_rate
from app.engine.backends.cpu.rows import after
from app.engine.core import graph
from app.engine.core.calls import KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.operators.matmul_geometry import matrices
from app.kernels.cpu.codegen import tiles


@after(matmul.rejection)
def _rejection(group: Group, _context: PlanningContext) -> str | None:
    kind, product = graph.dtype(group.outputs[0]), matmul.product_of(group)
    if kind != np.float32:
        return f"elements are {kind}; this one rounds float32"
    if not graph.is_constant(product.b):
        return f"{product.b.name!r} changes between runs; this one rounds it offline"
    if len(product.offsets) > 1 or 0 in (product.m, product.n, product.k):
        return f"{len(product.offsets)} products of {product.m} x {product.k} x {product.n}; this one takes 1"
    if product.a_strides != (product.k, 1):
        return f"{product.a.name!r} is transposed; this one rounds rows"
    return None


def _lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    product, lanes = matmul.product_of(group), context.target.vector_lanes
    (y,) = group.outputs
    pairs = -(-product.k // 2)
    steps = blocking.balanced(pairs, tiles.SCALED_STEPS, 1)
    row = pairs + -(-pairs // steps) + lanes // 2
    rounded = Workspace(product.m * row * 4)
    operands: Operands = (*of_type("float32*", product.a, rounded), product.k, steps, row)
    first = kernel_call("app.kernels.cpu.scaled_pairs:emit_rows", operands, product.m, (lanes,))
    matrix = matrices(product, graph.array(product.b))
    own = replace(
        product,
        k=pairs,
        a_strides=(row, 1),
        b_strides=(product.n, 1),
        b_shape=(*product.b_shape[:-2], pairs, product.n),
    )
    added, epilogue = matmul.additions(group, product)
    second = matmul.product_call(
        own, rounded, y, context, added, epilogue, weights=lambda: matrix, dtype=tiles.SCALED_PAIRS
    )
    return first, second


def _cost(group: Group, context: PlanningContext) -> float:
    return matmul.paired_seconds(group, context, scaled_rate(context), bfloat.ROUNDING + PEAK)


IMPLEMENTATIONS = matmul.rows("blocked_int16", _rejection, _lower, _cost, precision="int16")
