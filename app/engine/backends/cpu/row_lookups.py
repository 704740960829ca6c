"""Rows of lookups whose table or gradient is row_sparse: gathered, added up, retained."""

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.calls import Operands, kernel_call, of_values
from app.engine.backends.cpu.rows import after
from app.engine.backends.cpu.storage import (
    cycle_seconds,
    moving_seconds,
    result,
    second,
    sparse_parts,
    sparse_rejection,
)
from app.engine.core import graph
from app.engine.core.calls import Call, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators.indexing import INDEX_TYPES, axis_of, bad_indices
from app.engine.operators.operands import data

Array = np.ndarray[Any, Any]


@after(sparse_rejection)
def _scatter_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    shape, indices = graph.static_shape(result(group)), second(group)
    if len(group.nodes) > 1 or graph.attribute(node, "reduction", "none") != "add":
        return "rows are added, without an epilogue"
    if not shape or graph.static_shape(indices)[-1:] != (1,) or not graph.elements(indices):
        return "indices are not of rows"
    array = graph.constant(data(node))
    if array is None or array.any():
        return "rows are added to a value that is not constant zeros"
    return bad_indices(node, shape[:1])


def _scatter_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    ids, updates = second(group), graph.operand(group.anchor, 2)
    target, form = sparse_parts(result(group), "row_sparse", context)
    count = graph.elements(ids)
    sizes = count, form.rows, form.columns, form.places, form.values
    operands: Operands = (*of_values(ids, updates), ("int64*", Workspace(8 * count)), *target, *sizes)
    return (kernel_call("app.kernels.cpu.storage:scattered_rows", operands, 1),)


def _scatter_cost(group: Group, context: PlanningContext) -> float:
    count, columns = graph.elements(second(group)), math.prod(graph.static_shape(result(group))[1:])
    return cycle_seconds(count * (10 * math.log2(count + 1) + 2 * columns), context)


@after(sparse_rejection)
def _retain_rejection(group: Group, _context: PlanningContext) -> str | None:
    kind = str(graph.dtype(second(group)))
    return None if kind in INDEX_TYPES else f"indices of dtype {kind}, expected int32 or int64"


def _retain_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    ids = second(group)
    source, form = sparse_parts(data(group.anchor), "row_sparse", context)
    target, into = sparse_parts(result(group), "row_sparse", context)
    operands: Operands = (
        *source,
        *of_values(ids),
        *target,
        *(graph.elements(ids), form.columns, form.places, form.values, into.places, into.values),
    )
    return (kernel_call("app.kernels.cpu.storage:retained", operands, 1),)


@after(sparse_rejection)
def _gather_rejection(group: Group, context: PlanningContext) -> str | None:
    if len(group.nodes) > 1 or axis_of(group.anchor) != 0:
        return "rows are gathered along axis 0, without an epilogue"
    if str(graph.dtype(second(group))) not in INDEX_TYPES:
        return f"indices of dtype {graph.dtype(second(group))}, expected int32 or int64"
    table = data(group.anchor)
    if graph.is_constant(table) and _empty_rows(table, context) == 0:
        return f"no row of {table.name!r} is all zeros"
    return None


def _empty_rows(value: ir.Value, context: PlanningContext) -> int:
    def count(array: Array) -> int:
        return int(np.count_nonzero(~array.reshape(array.shape[0], -1).any(axis=1)))

    return graph.fact(value, "empty rows", count, context.cache) if graph.static_shape(value) else 0


def _gather_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    ids = second(group)
    sparse, form = sparse_parts(data(group.anchor), "row_sparse", context)
    sizes = form.rows, form.columns, form.places, form.values
    operands: Operands = (*sparse, *of_values(ids, result(group)), *sizes)
    return (kernel_call("app.kernels.cpu.storage:gathered_rows", operands, graph.elements(ids)),)


def _gather_cost(group: Group, context: PlanningContext) -> float:
    """A search for each row, then the row; a table that is left out of the caches costs its misses."""
    rows = graph.static_shape(data(group.anchor))[0]
    searched = graph.elements(second(group)) * math.log2(max(rows, 2)) * 1.5e-9
    return searched + roofline(
        context.target, flops=0.0, nbytes=2 * graph.nbytes(result(group)), threads=context.threads
    )


IMPLEMENTATIONS = (
    Implementation(
        "scatter_nd.row_sparse", "ScatterND", "numba-cpu", _scatter_rejection, _scatter_lower,
        cost=_scatter_cost, storage=lambda group, _context: {result(group): "row_sparse"}, makes_sparse=True,
    ),
    Implementation(
        "sparse_retain.rows", "SparseRetain", "numba-cpu", _retain_rejection, _retain_lower,
        cost=moving_seconds, domain="stowplan",
        storage=lambda group, _context: {data(group.anchor): "row_sparse", result(group): "row_sparse"},
    ),
    Implementation(
        "gather.row_sparse", "Gather", "numba-cpu", _gather_rejection, _gather_lower, cost=_gather_cost,
        storage=lambda group, _context: {data(group.anchor): "row_sparse"},
    ),
)  # fmt: skip
