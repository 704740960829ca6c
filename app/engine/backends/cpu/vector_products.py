"""Rows of products of a vector and a matrix that changes between runs: nothing is packed."""

import numpy as np

from app.engine.backends.cpu.calls import Operands, kernel_call, of_values
from app.engine.backends.cpu.matmul import product_of, rejection
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import flops

DOT_ROWS = 64  # rows of a unit that are multiplied with a vector
ROW_COLUMNS = 512  # columns of a product of one row: their sums stay in the first cache


@after(rejection)
def _plain_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why sums of floats that nothing follows are not what is asked."""
    if group.epilogue:
        return f"{[n.op_type for n in group.epilogue]} follow"
    kind = graph.element_type(group.outputs[0])
    return None if kind.kind == "f" else f"elements are {kind}; this one adds floats"


@after(_plain_rejection)
def _row_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why no product of single rows with matrices that change applies."""
    product = product_of(group)
    if product.m != 1:
        return f"the first operand has {product.m} rows; this one takes 1"
    if product.b_strides[1] != 1:
        return "the second operand is transposed"
    if graph.is_constant(product.b):
        return f"{product.b.name!r} is a constant, which is packed offline"
    return None


def _row_lower(group: Group, _context: PlanningContext) -> tuple[KernelCall, ...]:
    product = product_of(group)
    operands: Operands = (
        *of_values(product.a, product.b, group.outputs[0]),
        ("int64*", Constant(np.array(product.offsets, np.int64))),
        *(product.k, product.n, product.a_strides[1], product.b_strides[0], ROW_COLUMNS),
    )
    units = len(product.offsets) * -(-product.n // ROW_COLUMNS)
    return (kernel_call("app.kernels.cpu.gemm:row_products", operands, units),)


def _row_predicted(group: Group, context: PlanningContext) -> float:
    return group_roofline(group, context, flops(group), 0.2)


@after(_plain_rejection)
def _dot_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why no product of rows with a vector applies."""
    product = product_of(group)
    if product.n != 1:
        return f"the second operand has {product.n} columns; this one takes 1"
    if (product.k > 1 and product.a_strides[1] != 1) or product.b_strides[0] not in (1, product.n):
        return "an operand is transposed"
    return None


def _dot_lower(group: Group, _context: PlanningContext) -> tuple[KernelCall, ...]:
    product = product_of(group)
    offsets = Constant(np.array(product.offsets, np.int64))
    operands: Operands = (
        *of_values(product.a, product.b, group.outputs[0]),
        ("int64*", offsets),
        *(product.m, product.k, product.a_strides[0], DOT_ROWS),
    )
    units = len(product.offsets) * -(-product.m // DOT_ROWS)
    return (kernel_call("app.kernels.cpu.gemm:dot_products", operands, units),)


IMPLEMENTATIONS = (
    Implementation("matmul.rows", "MatMul", "numba-cpu", _row_rejection, _row_lower, _row_predicted),
    Implementation("matmul.dots", "MatMul", "numba-cpu", _dot_rejection, _dot_lower, _row_predicted),
)
