"""Rows of products in which nothing is packed: of a vector and a matrix, and with few steps of reduction."""

import numpy as np

from app.engine.backends.cpu.calls import Operands, kernel_call, of_values
from app.engine.backends.cpu.matmul import product_of, rejection
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import flops
from app.engine.operators.matmul_geometry import Product

DOT_ROWS = 64  # rows of a unit that are multiplied with a vector
WIDE = 6  # columns from which a row of a result is made of vectors
MOST_HELD = 64  # elements of a small operand, which are held in registers or read from the first cache
MOST_WIDE = 256  # the same where they are rows of vectors
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


@after(_plain_rejection)
def _short_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why neither operand is small enough to be held, or the other one is transposed."""
    product = product_of(group)
    held, most = product.k * min(product.m, product.n), MOST_WIDE if _is_wide(product) else MOST_HELD
    if not 0 < held <= most:
        return f"the smaller operand has {held} elements; this one takes 1 to {most}"
    if _holds_columns(product) and product.a_strides != (product.k, 1):
        return "the first operand is transposed"
    if not _holds_columns(product) and product.b_strides[1] != 1:
        return "the second operand is transposed"
    return None


def _short_predicted(group: Group, context: PlanningContext) -> float:
    return group_roofline(group, context, flops(group), 0.6)


def _holds_columns(product: Product) -> bool:
    return product.n < product.m


def _is_wide(product: Product) -> bool:
    """True if a row of the result is made of vectors."""
    return _holds_columns(product) and product.n >= WIDE and product.b_strides[1] == 1


def _short_lower(group: Group, _context: PlanningContext) -> tuple[KernelCall, ...]:
    from app.kernels.cpu.short_products import BLOCK

    product = product_of(group)
    offsets = "int64*", Constant(np.array(product.offsets, np.int64))
    memory: Operands = (*of_values(product.a, product.b, group.outputs[0]), offsets)
    strides: tuple[int, ...]
    if _holds_columns(product):
        kernel, strides = "wide_rows" if _is_wide(product) else "rows", product.b_strides
        extent, few = product.m, product.n
    else:
        strides = (*product.a_strides, product.b_strides[0])
        kernel, extent, few = "columns", product.n, product.m
    units = len(product.offsets) * -(-extent // BLOCK)
    static = product.k, few
    address = f"app.kernels.cpu.short_products:{kernel}"
    return (kernel_call(address, (*memory, extent, *strides), units, static),)


IMPLEMENTATIONS = (
    Implementation("matmul.rows", "MatMul", "numba-cpu", _row_rejection, _row_lower, _row_predicted),
    Implementation("matmul.dots", "MatMul", "numba-cpu", _dot_rejection, _dot_lower, _row_predicted),
    Implementation("matmul.short", "MatMul", "numba-cpu", _short_rejection, _short_lower, _short_predicted),
)
