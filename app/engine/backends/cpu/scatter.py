"""Rows of ScatterElements, ScatterND and TensorScatter: the data, then updates on top.

The copy of the data is harmless in place, so the data may share memory with the output.
"""

import math

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.axis_kernels import COLUMNS, blocks_of
from app.engine.backends.cpu.calls import Operands, kernel_call, of_values
from app.engine.backends.cpu.gather import along_axis_rejection
from app.engine.backends.cpu.rows import after, single_rejection
from app.engine.backends.cpu.strided import element_type, merged, whole_copy
from app.engine.core import graph
from app.engine.core.calls import Call, Constant
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.indexing import axis_of, bad_indices, indexed_axes, indices_of
from app.engine.operators.operands import data, itemsize, moved_seconds
from app.engine.operators.strides import StridedCopy, strides_of

REDUCTIONS = ("none", "add", "mul", "min", "max")
COMBINED = (
    *("float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)


def _reduction(node: ir.Node) -> str:
    return graph.attribute(node, "reduction", "none")


def _value_type(node: ir.Node) -> str:
    """Replacing looks at sizes only, arithmetic at the dtype."""
    if _reduction(node) == "none":
        return element_type(itemsize(data(node)))
    return f"{graph.dtype(data(node))}*"


@after(single_rejection)
def _reduction_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    kind = str(graph.dtype(data(node)))
    if _reduction(node) not in REDUCTIONS:
        return f"reduction {_reduction(node)!r} of {node.op_type} is unknown"
    if _reduction(node) != "none" and kind not in COMBINED:
        return f"reduction {_reduction(node)!r} has no kernel for {kind}"
    return None


_elements_rejection = after(_reduction_rejection)(along_axis_rejection)


def _elements_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    indices, y = indices_of(node), node.outputs[0]
    shape, axis = graph.static_shape(data(node)), axis_of(node)
    sizes = graph.static_shape(indices)
    steps, strides = strides_of(sizes), strides_of(shape)
    others = [a for a in range(len(sizes)) if a != axis]
    walk = merged(
        StridedCopy(
            tuple(sizes[a] for a in others),
            tuple(steps[a] for a in others),
            tuple(strides[a] for a in others),
        )
    )
    rows = list(zip(walk.sizes, walk.sx, walk.sy))
    is_contiguous = bool(rows) and rows[-1][1:] == (1, 1)
    width = rows.pop()[0] if is_contiguous else 1
    blocks = blocks_of(width)
    kind = _value_type(node)
    operands: Operands = (
        *(*of_values(indices), (kind, graph.operand(node, 2)), (kind, y), (element_type(itemsize(y)), y)),
        ("int64*", Constant(np.array(rows or [(1, 0, 0)], np.int64))),
        *(len(rows), width, COLUMNS, blocks, sizes[axis], steps[axis], shape[axis], strides[axis]),
    )
    units = math.prod(n for n, _, _ in rows) * blocks
    static = (_reduction(node),)
    return (
        *whole_copy(data(node), y),
        kernel_call("app.kernels.cpu.scatter:scatter_elements", operands, units, static),
    )


@after(_reduction_rejection)
def _nd_rejection(group: Group, _context: PlanningContext) -> str | None:
    return bad_indices(group.anchor, tuple(n for n, _ in indexed_axes(group.anchor, 0)))


def _nd_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    indices, y = indices_of(node), node.outputs[0]
    shape = graph.static_shape(data(node))
    axes = indexed_axes(node, 0)
    kind = _value_type(node)
    inner = math.prod(shape[len(axes) :])
    count, size = math.prod(graph.static_shape(indices)[:-1]), math.prod(shape[: len(axes)])
    operands: Operands = (
        *(*of_values(indices), (kind, graph.operand(node, 2)), (kind, y), (element_type(itemsize(y)), y)),
        ("int64*", Constant(np.array(axes or [(1, 0)], np.int64))),
        *(len(axes), count, size, inner),
    )
    written = kernel_call("app.kernels.cpu.scatter:scatter_nd", operands, inner, (_reduction(node),))
    return (*whole_copy(data(node), y), written)


@after(single_rejection)
def _cache_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    axis = _cache_axis(node)
    positions = graph.input_at(node, 2)
    if axis == 0:
        return "TensorScatter along the batch axis"
    if positions is not None and str(graph.dtype(positions)) != "int64":
        return f"write_indices of dtype {graph.dtype(positions)}, expected int64"
    return None


def _cache_axis(node: ir.Node) -> int:
    return graph.attribute(node, "axis", -2) % len(graph.static_shape(data(node)))


def _cache_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    update, y = indices_of(node), node.outputs[0]
    shape, axis = graph.static_shape(y), _cache_axis(node)
    address = element_type(itemsize(y))
    positions = graph.input_at(node, 2) or Constant(np.zeros(shape[0], np.int64))
    is_circular = int(graph.attribute(node, "mode", "linear") == "circular")
    operands: Operands = (
        *((address, update), ("int64*", positions), (address, y)),
        *(math.prod(shape[1:axis]), graph.static_shape(update)[axis], shape[axis]),
        *(math.prod(shape[axis + 1 :]), is_circular),
    )
    units = math.prod(shape[:axis])
    return (*whole_copy(data(node), y), kernel_call("app.kernels.cpu.scatter:scatter_rows", operands, units))


def _onto_the_data(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """The output may take the memory of the data, unless indices or updates are the same value."""
    node = group.anchor
    if data(node) in node.inputs[1:]:
        return ()
    return ((data(node), node.outputs[0]),)


IMPLEMENTATIONS = tuple(
    Implementation(name, op, "numba-cpu", rejection, lower, cost=moved_seconds, inplace=_onto_the_data)
    for name, op, rejection, lower in (
        ("scatter_elements.lines", "ScatterElements", _elements_rejection, _elements_lower),
        ("scatter_nd.slices", "ScatterND", _nd_rejection, _nd_lower),
        ("tensor_scatter.rows", "TensorScatter", _cache_rejection, _cache_lower),
    )
)
