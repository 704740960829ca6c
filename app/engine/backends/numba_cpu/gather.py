"""Rows of Gather, GatherElements and GatherND, by element size."""

import math

import numpy as np
import onnx_ir as ir

from app.engine import graph
from app.engine.backends.numba_cpu.operands import data, itemsize, moved_seconds, unsuited
from app.engine.backends.numba_cpu.strided import StridedCopy, calls, element_type, merged, strides_of
from app.engine.plan import Call, Constant, Group, KernelCall
from app.engine.registry import Implementation, Known

INDEX_TYPES = ("int32", "int64")


def axis_of(node: ir.Node) -> int:
    """The attribute `axis`, counted from the front."""
    return graph.attribute(node, "axis", 0) % max(len(graph.static_shape(data(node))), 1)


def index_type(value: ir.Value) -> str:
    """The kernel type of the address of indices."""
    return f"{graph.dtype(value)}*"


def indices_of(node: ir.Node) -> ir.Value:
    """The second input."""
    value = node.inputs[1]
    assert value is not None
    return value


def bad_indices(node: ir.Node, sizes: tuple[int, ...]) -> str | None:
    """Why the indices cannot be used: their dtype, or a constant one that is outside.

    Args:
        node: its second input holds indices, the last axis counts as `sizes` when it has several.
        sizes: extents of the indexed axes.
    """
    value = indices_of(node)
    if str(graph.dtype(value)) not in INDEX_TYPES:
        return f"indices of dtype {graph.dtype(value)}, expected int32 or int64"
    fixed = graph.constant(value)
    if fixed is not None and fixed.size:
        limit = np.array(sizes, np.int64)
        if np.any(fixed < -limit) or np.any(fixed >= limit):
            return f"an index of {value.name!r} is outside of axes of extents {list(sizes)}"
    return None


def _gather_unless(group: Group, _known: Known) -> str | None:
    reason = unsuited(group)
    if reason:
        return reason
    shape = graph.static_shape(data(group.anchor))
    if not shape:
        return "Gather needs data of rank 1 or more"
    return bad_indices(group.anchor, (shape[axis_of(group.anchor)],))


def _gather_lower(group: Group, _known: Known) -> tuple[Call, ...]:
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


def _elements_unless(group: Group, _known: Known) -> str | None:
    reason = unsuited(group)
    if reason:
        return reason
    shape = graph.static_shape(data(group.anchor))
    if not shape:
        return "GatherElements needs data of rank 1 or more"
    return bad_indices(group.anchor, (shape[axis_of(group.anchor)],))


def _elements_lower(group: Group, _known: Known) -> tuple[Call, ...]:
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


def indexed_axes(node: ir.Node, first: int) -> tuple[tuple[int, int], ...]:
    """(size, stride) of the axes that the last axis of the indices names, from axis `first` on."""
    depth = graph.static_shape(indices_of(node))[-1]
    shape = graph.static_shape(data(node))
    return tuple(zip(shape, strides_of(shape)))[first : first + depth]


def _nd_unless(group: Group, _known: Known) -> str | None:
    node = group.anchor
    reason = unsuited(group)
    if reason:
        return reason
    axes = indexed_axes(node, graph.attribute(node, "batch_dims", 0))
    return bad_indices(node, tuple(n for n, _ in axes))


def _nd_lower(group: Group, _known: Known) -> tuple[Call, ...]:
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
    Implementation("gather.rows", "Gather", "numba-cpu", _gather_unless, _gather_lower, cost=moved_seconds),
    Implementation(
        "gather_elements.lines",
        "GatherElements",
        "numba-cpu",
        _elements_unless,
        _elements_lower,
        cost=moved_seconds,
    ),
    Implementation("gather_nd.rows", "GatherND", "numba-cpu", _nd_unless, _nd_lower, cost=moved_seconds),
)
