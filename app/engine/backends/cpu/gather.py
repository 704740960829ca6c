"""Rows of Gather, GatherElements and GatherND, by element size."""

import math

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.strided import calls, element_type, merged
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, KernelCall
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.indexing import axis_of, bad_indices, indexed_axes, indices_of
from app.engine.operators.operands import data, group_rejection, itemsize, moved_seconds
from app.engine.operators.strides import StridedCopy, strides_of


def index_type(value: ir.Value) -> str:
    """The kernel type of the address of indices."""
    return f"{graph.dtype(value)}*"


def _gather_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = group_rejection(group)
    if reason:
        return reason
    shape = graph.static_shape(data(group.anchor))
    if not shape:
        return "Gather needs data of rank 1 or more"
    return bad_indices(group.anchor, (shape[axis_of(group.anchor)],))


def _gather_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    x, indices, y = data(node), indices_of(node), node.outputs[0]
    shape = graph.static_shape(x)
    axis = axis_of(node)
    outer, size, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    count = graph.elements(indices)
    fixed = graph.constant(indices)
    if fixed is not None and count == 1:
        index = int(fixed.reshape(-1)[0]) % size
        return calls(
            StridedCopy((outer, inner), (size * inner, 1), (inner, 1), index * inner), itemsize(x), x, y
        )
    address = element_type(itemsize(x))
    return (
        KernelCall(
            "app.kernels.cpu.gather:gather",
            (address, index_type(indices), address, "int64", "int64", "int64"),
            (x, indices, y, size, inner, count),
            units=outer * count if inner else 0,
        ),
    )


def _elements_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = group_rejection(group)
    if reason:
        return reason
    shape = graph.static_shape(data(group.anchor))
    if not shape:
        return "GatherElements needs data of rank 1 or more"
    return bad_indices(group.anchor, (shape[axis_of(group.anchor)],))


def _elements_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    x, indices, y = data(node), indices_of(node), node.outputs[0]
    shape, axis = graph.static_shape(x), axis_of(node)
    strides = strides_of(shape)
    sizes = graph.static_shape(y)
    steps = tuple(0 if a == axis else s for a, s in enumerate(strides))
    walk = merged(StridedCopy(sizes, steps, strides_of(sizes)))
    rows = list(zip(walk.sizes, walk.sx))[:-1]
    n0, sx0 = (walk.sizes[-1], walk.sx[-1]) if walk.sizes else (1, 0)
    address = element_type(itemsize(x))
    return (
        KernelCall(
            "app.kernels.cpu.gather:gather_elements",
            (address, index_type(indices), address, "int64*", *["int64"] * 5),
            (
                x,
                indices,
                y,
                Constant(np.array(rows or [(1, 0)], np.int64)),
                len(rows),
                shape[axis],
                strides[axis],
                n0,
                sx0,
            ),
            units=graph.elements(y),
        ),
    )


def _nd_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    reason = group_rejection(group)
    if reason:
        return reason
    axes = indexed_axes(node, graph.attribute(node, "batch_dims", 0))
    return bad_indices(node, tuple(n for n, _ in axes))


def _nd_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    x, indices, y = data(node), indices_of(node), node.outputs[0]
    first = graph.attribute(node, "batch_dims", 0)
    shape, tuple_shape = graph.static_shape(x), graph.static_shape(indices)
    axes = indexed_axes(node, first)
    inner = math.prod(shape[first + len(axes) :])
    address = element_type(itemsize(x))
    return (
        KernelCall(
            "app.kernels.cpu.gather:gather_nd",
            (address, index_type(indices), address, "int64*", *["int64"] * 4),
            (
                x,
                indices,
                y,
                Constant(np.array(axes or [(1, 0)], np.int64)),
                len(axes),
                math.prod(tuple_shape[first:-1]),
                math.prod(shape[first:]),
                inner,
            ),
            units=math.prod(tuple_shape[:-1]) if inner else 0,
        ),
    )


IMPLEMENTATIONS = (
    Implementation(
        "gather.rows", "Gather", "numba-cpu", _gather_rejection, _gather_lower, cost=moved_seconds
    ),
    Implementation(
        "gather_elements.lines",
        "GatherElements",
        "numba-cpu",
        _elements_rejection,
        _elements_lower,
        cost=moved_seconds,
    ),
    Implementation("gather_nd.rows", "GatherND", "numba-cpu", _nd_rejection, _nd_lower, cost=moved_seconds),
)
