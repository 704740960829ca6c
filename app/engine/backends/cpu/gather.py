"""Rows of Gather, GatherElements and GatherND, by element size."""

import math

import numpy as np

from app.engine.backends.cpu.calls import Operands, kernel_call, of_values
from app.engine.backends.cpu.rows import after, single_rejection
from app.engine.backends.cpu.strided import calls, element_type, merged
from app.engine.core import graph
from app.engine.core.calls import Call, Constant
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.indexing import axis_of, bad_indices, indexed_axes, indices_of
from app.engine.operators.operands import data, itemsize, moved_seconds
from app.engine.operators.strides import StridedCopy, strides_of


@after(single_rejection)
def along_axis_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Rejection of a node whose constant indices do not lie along its axis, or that has none."""
    shape = graph.static_shape(data(group.anchor))
    if not shape:
        return f"{group.op} needs data of rank 1 or more"
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
    operands: Operands = (address, x), *of_values(indices), (address, y), size, inner, count
    return (kernel_call("app.kernels.cpu.gather:gather", operands, outer * count if inner else 0),)


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
    table = Constant(np.array(rows or [(1, 0)], np.int64))
    operands: Operands = (
        *((address, x), *of_values(indices), (address, y), ("int64*", table)),
        *(len(rows), shape[axis], strides[axis], n0, sx0),
    )
    return (kernel_call("app.kernels.cpu.gather:gather_elements", operands, graph.elements(y)),)


@after(single_rejection)
def _nd_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
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
    table = Constant(np.array(axes or [(1, 0)], np.int64))
    operands: Operands = (
        *((address, x), *of_values(indices), (address, y), ("int64*", table)),
        *(len(axes), math.prod(tuple_shape[first:-1]), math.prod(shape[first:]), inner),
    )
    units = math.prod(tuple_shape[:-1]) if inner else 0
    return (kernel_call("app.kernels.cpu.gather:gather_nd", operands, units),)


IMPLEMENTATIONS = tuple(
    Implementation(name, op, "numba-cpu", rejection, lower, cost=moved_seconds)
    for name, op, rejection, lower in (
        ("gather.rows", "Gather", along_axis_rejection, _gather_lower),
        ("gather_elements.lines", "GatherElements", along_axis_rejection, _elements_lower),
        ("gather_nd.rows", "GatherND", _nd_rejection, _nd_lower),
    )
)
