"""Rows of products whose constant weights are 16-bit floats: half the bytes of float32, and the same result.

Weights of a model in float16 or bfloat16 are so once its nodes compute in float32, and those of many a
float32 model that was trained in 16 bits. They are converted as they are loaded, so nothing is rounded.
"""

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import matmul
from app.engine.backends.cpu.rows import after, group_roofline, total_bytes
from app.engine.core import graph
from app.engine.core.calls import KernelCall
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.cost.roofline import flops
from app.engine.operators import matmul_geometry
from app.kernels.cpu.codegen import tiles

LEAST_BYTES = 1 << 14  # of weights as float32: fewer are not what takes the time
CONVERSION = 1.05  # time of a product whose weights are converted for each tile


def dtype_of(value: ir.Value, context: PlanningContext) -> str | None:
    """The type of tiles for a constant second operand, see `tiles.HALF_RIGHTS`; None if it takes float32."""
    kind = graph.fact(value, "exact halves", tiles.exact_halves, context.cache)
    return None if kind is None else f"float32 * {kind}"


def rejection_of(weights: ir.Value | None, context: PlanningContext) -> str | None:
    """Reason why weights are not 16-bit floats that are worth converting."""
    if weights is None or not graph.is_constant(weights):
        return "the weights change between runs; this one packs them offline"
    if graph.dtype(weights) != np.float32:
        return f"weights are {graph.dtype(weights)}; this one computes float32"
    if graph.nbytes(weights) < LEAST_BYTES:
        return f"{graph.nbytes(weights)} bytes of weights; this one takes {LEAST_BYTES}"
    return None if dtype_of(weights, context) else "the weights are no 16-bit floats"


@after(matmul.rejection)
def _rejection(group: Group, context: PlanningContext) -> str | None:
    return rejection_of(matmul.product_of(group).b, context)


def _lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    product = matmul.product_of(group)
    (y,) = group.outputs
    if graph.elements(y) == 0:
        return ()
    array, dtype = graph.array(product.b), dtype_of(product.b, context) or "float32"
    added, epilogue = matmul.additions(group, product)
    return (
        matmul.product_call(
            product,
            product.a,
            y,
            context,
            added,
            epilogue,
            weights=lambda: matmul_geometry.matrices(product, array),
            dtype=dtype,
        ),
    )


def _cost(group: Group, context: PlanningContext) -> float:
    product = matmul.product_of(group)
    moved = total_bytes(group) - graph.nbytes(product.b) / 2
    few = max(product.m, 4) / max(product.m, 1)
    return group_roofline(group, context, CONVERSION * few * flops(group), 0.9, moved)


IMPLEMENTATIONS = matmul.rows("half_weights", _rejection, _lower, _cost)
