"""Operands of operators that read or write at indices."""

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.operators.operands import data
from app.engine.operators.strides import strides_of

INDEX_TYPES = ("int32", "int64")


def axis_of(node: ir.Node) -> int:
    """The attribute `axis`, counted from the front."""
    return graph.attribute(node, "axis", 0) % max(len(graph.static_shape(data(node))), 1)


def indices_of(node: ir.Node) -> ir.Value:
    """The second input."""
    return graph.operand(node, 1)


def bad_indices(node: ir.Node, sizes: tuple[int, ...]) -> str | None:
    """Reason why the indices cannot be used: their dtype, or a constant one that is outside.

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


def indexed_axes(node: ir.Node, first: int) -> tuple[tuple[int, int], ...]:
    """(size, stride) of the axes that the last axis of the indices names, from axis `first` on."""
    depth = graph.static_shape(indices_of(node))[-1]
    shape = graph.static_shape(data(node))
    return tuple(zip(shape, strides_of(shape)))[first : first + depth]
