"""Rows of matrix products with weights in panels of 16 columns: blocks, whole rows, or two of every four."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from app.engine.backends.cpu.calls import Operands, kernel_call, of_type
from app.engine.backends.cpu.matmul import product_of
from app.engine.backends.cpu.rows import after
from app.engine.backends.cpu.sparse import (
    FLOAT,
    POINTER,
    bias_of,
    followed,
    parts,
    right_of,
    right_rejection,
    seconds,
    sums_of,
    weights_of,
    weights_row,
)
from app.engine.core import graph
from app.engine.core.calls import Call, Constant
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.kernels.cpu import block_sparse
from app.kernels.cpu.codegen.tiles import CLAMP, COLUMN_BIAS

Array = np.ndarray[Any, Any]
T = TypeVar("T")


def _of_weights(group: Group, name: str, measure: Callable[[Array], T], context: PlanningContext) -> T:
    """Result of `measure` for the second operand as [k, n], once for each way to turn it."""
    turned = "turned " if product_of(group).b_strides[0] == 1 else ""
    return graph.fact(
        right_of(group), turned + name, lambda _array: measure(weights_of(group)), context.cache
    )


def _stored_rows(group: Group, context: PlanningContext) -> int:
    """Rows of all panels of the second operand that have any element."""
    return _of_weights(group, "stored rows", block_sparse.stored_rows, context)


def _whole_rows(group: Group, context: PlanningContext) -> int:
    """Rows of the second operand that have any element."""
    return _of_weights(group, "whole rows", lambda w: int(np.count_nonzero(w.any(axis=1))), context)


def _panels(group: Group) -> int:
    return -(-product_of(group).n // block_sparse.WIDTH)


@after(right_rejection)
def _block_rejection(group: Group, context: PlanningContext) -> str | None:
    if _stored_rows(group, context) == _panels(group) * product_of(group).k:
        return f"no 16 neighbours in a row of {right_of(group).name!r} are all zeros"
    return None


@after(right_rejection)
def _rows_rejection(group: Group, context: PlanningContext) -> str | None:
    if _whole_rows(group, context) == product_of(group).k:
        return f"no row of {right_of(group).name!r} is all zeros"
    if _stored_rows(group, context) < _panels(group) * _whole_rows(group, context):
        return "rows are not all that is zero: blocks hold less"
    return None


@after(right_rejection)
def _half_rejection(group: Group, context: PlanningContext) -> str | None:
    if "avx2" not in context.target.isa:
        return f"target {context.target.name!r} lacks AVX2"
    if not _of_weights(group, "2:4", block_sparse.is_two_of_four, context):
        return f"more than two of four neighbours of {right_of(group).name!r} are not zero"
    return None


def _tile(group: Group, lanes: int) -> tuple[int, int, int, int]:
    """(lanes, rows, tail, flags) of the tiles."""
    product, sums = product_of(group), sums_of(group)
    tail = (product.n - 1) % block_sparse.WIDTH + 1
    flags = COLUMN_BIAS * (sums.bias is not None) | CLAMP * sums.clamps
    return min(lanes, block_sparse.WIDTH), block_sparse.rows_of(product.m), tail, flags


def _units(group: Group) -> int:
    product = product_of(group)
    return _panels(group) * -(-product.m // block_sparse.rows_of(product.m))


def _scaled(group: Group) -> Array:
    return weights_of(group) * FLOAT.type(sums_of(group).alpha)


def _lower_blocks(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    product, sums = product_of(group), sums_of(group)
    (y,) = group.outputs
    part = parts(lambda: block_sparse.panels(_scaled(group)))
    values = Constant(part("values"), product.b.name or "")
    operands: Operands = (
        (POINTER, product.a),
        *(("int64*", Constant(part("starts"))), ("int32*", Constant(part("places")))),
        *of_type(POINTER, values, y, bias_of(group, product.n), sums.scalars),
        *(product.m, product.n, product.a_strides[0]),
    )
    static = ("float32", *_tile(group, context.target.vector_lanes))
    call = kernel_call("app.kernels.cpu.block_sparse:emit_blocks", operands, _units(group), static)
    return (call, *followed(group, sums.rest))


def _blocks_cost(group: Group, context: PlanningContext) -> float:
    product = product_of(group)
    rows, vectors = block_sparse.rows_of(product.m), block_sparse.WIDTH / context.target.vector_lanes
    steps = _stored_rows(group, context) * -(-product.m // rows)
    return seconds(steps * (0.5 + 0.6 * rows * vectors) + 12 * _units(group), 0.0, group, context)


def _half_lanes(context: PlanningContext) -> int:
    """Permutations of 16 lanes take AVX-512."""
    wide = context.target.vector_lanes
    return wide if wide < 16 or "avx512f" in context.target.isa else 8


def _lower_halves(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    product, sums = product_of(group), sums_of(group)
    (y,) = group.outputs
    places = Constant(lambda: block_sparse.two_of_four(_scaled(group))[1])
    values = Constant(lambda: block_sparse.two_of_four(_scaled(group))[0], product.b.name or "")
    operands: Operands = (
        *((POINTER, product.a), ("int8*", places)),
        *of_type(POINTER, values, y, bias_of(group, product.n), sums.scalars),
        *(product.m, product.n, product.k // block_sparse.GROUP, product.a_strides[0]),
    )
    static = _tile(group, _half_lanes(context))
    call = kernel_call("app.kernels.cpu.block_sparse:emit_halves", operands, _units(group), static)
    return (call, *followed(group, sums.rest))


def _halves_cost(group: Group, context: PlanningContext) -> float:
    product = product_of(group)
    rows, vectors = block_sparse.rows_of(product.m), block_sparse.WIDTH / _half_lanes(context)
    steps = _units(group) * product.k / block_sparse.GROUP
    return seconds(steps * (2.4 + 1.85 * rows) * vectors, 0.0, group, context)


IMPLEMENTATIONS = tuple(
    row
    for op in ("MatMul", "Gemm")
    for row in (
        weights_row("row_sparse", op, "row_sparse", _rows_rejection, _lower_blocks, _blocks_cost),
        weights_row("block16", op, "block16", _block_rejection, _lower_blocks, _blocks_cost, rank=1),
        weights_row("half", op, "2:4", _half_rejection, _lower_halves, _halves_cost),
    )
)
