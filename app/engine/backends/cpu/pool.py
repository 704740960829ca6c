"""Pooling on one to three spatial axes of row-major tensors."""

import math
from typing import Any

import numpy as np

from app.engine.backends.cpu.axis_kernels import (
    FLOATS,
    HALVES,
    computed,
    takes,
    takes_mixed,
    type_name,
)
from app.engine.backends.cpu.calls import Operands, kernel_call, of_type, of_values, typed_call
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.axes import first_input, first_output, output_at
from app.engine.operators.pool_geometry import Windows, windows

NARROWEST = 16  # bytes of a row whose elements are pooled side by side
BAND, ROWS = 8192, 16  # byte, rows; scratch that stays in the first cache beside the input
UNROLLED = (2, 3, 4, 5)  # heights and widths of windows without a loop
VECTOR_STRIDES = (1, 2, 4, 8)  # that a vector of outputs is picked from vectors at

_OPERATIONS = {"MaxPool": "max", "AveragePool": "average"}


def _window_rejection(group: Group, _context: PlanningContext) -> str | None:
    rank = len(graph.static_shape(first_input(group)))
    if not 3 <= rank <= 5:
        return f"pools 1 to 3 spatial axes, the input has rank {rank}"
    if min(graph.attribute(group.anchor, "pads", (0,)), default=0) < 0:
        return "padding must not be negative"
    return None


def _type_rejection(group: Group, context: PlanningContext) -> str | None:
    """Rejection of types that maxima are not taken of."""
    if type_name(first_input(group)) in (*FLOATS, *HALVES):
        return takes_mixed(group, context)
    return takes("int8", "uint8")(group, context)


_float_rejection = after(takes_mixed)(_window_rejection)
_ordered_rejection = after(_type_rejection)(_window_rejection)


@after(_ordered_rejection)
def _max_rejection(group: Group, _context: PlanningContext) -> str | None:
    return None if output_at(group, 1) is None else "the indices are read"


@after(_ordered_rejection)
def _indices_rejection(group: Group, _context: PlanningContext) -> str | None:
    return "nothing reads the indices" if output_at(group, 1) is None else None


def _lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    node, x, y = group.anchor, first_input(group), first_output(group)
    op = _OPERATIONS.get(node.op_type) or f"lp{graph.attribute(node, 'p', 2)}"
    g = windows(node)
    dtype = np.dtype(computed(x))
    kind = f"{dtype.name}*"
    lanes = 4 * context.target.vector_lanes // dtype.itemsize
    if _is_across_rows(group):
        return (_lower_rows(group, op, g, dtype, lanes),)
    include_pad = bool(graph.attribute(node, "count_include_pad", 0))
    counts = [g.counted(axis, include_pad).astype(dtype) for axis in range(3)]
    counts[2] = np.pad(counts[2], (0, lanes), constant_values=1)
    _, h, w = g.size
    reach = (g.out[2] - 1) * g.strides[2] + (g.kernel[2] - 1) * g.dilations[2] + 1
    stride = g.strides[2] if g.strides[2] in VECTOR_STRIDES else 0
    span = -(-(max(g.before[2] + w, reach) + max(stride, 2) * lanes) // lanes) * lanes
    rows = min(max(BAND // (span * dtype.itemsize), 1), ROWS)
    taps = g.kernel[2] if g.dilations[2] == 1 and g.kernel[2] in UNROLLED else 0
    operands: Operands = (
        *of_values(x, y),
        (kind, Workspace((lanes + rows * span) * dtype.itemsize, per_thread=True)),
        *of_type("int64*", Constant(g.inside(0)), Constant(g.inside(1))),
        *of_type(kind, *map(Constant, counts)),
        *(graph.elements(x), *g.size, *g.out, g.kernel[2], g.strides[2], g.before[2]),
        *(g.dilations[0] * h * w, g.dilations[1] * w, g.dilations[2], span, rows),
    )
    static = (op, dtype.name, min(g.kernel[1], UNROLLED[-1]), taps, stride, lanes)
    return (typed_call("app.kernels.cpu.pool:window", operands, g.planes * g.out[0] * g.out[1], static),)


def _is_across_rows(group: Group) -> bool:
    """True if windows have one element of a row each, and rows are wide enough to pool them side by side."""
    g, itemsize = windows(group.anchor), np.dtype(computed(first_input(group))).itemsize
    alone = (g.kernel[2], g.strides[2], g.before[2], g.after[2]) == (1, 1, 0, 0)
    return alone and group.op in _OPERATIONS and g.size[2] * itemsize >= NARROWEST


def _lower_rows(group: Group, op: str, g: Windows, dtype: np.dtype[Any], lanes: int) -> Call:
    """The call for windows across rows: elements are pooled side by side, as channels that lie last."""
    include_pad = bool(graph.attribute(group.anchor, "count_include_pad", 0))
    counts = (Constant(g.counted(axis, include_pad).astype(dtype)) for axis in (0, 1))
    depth, height, width = g.size
    operands: Operands = (
        *of_values(first_input(group), first_output(group)),
        *of_type("int64*", Constant(g.inside(0)), Constant(g.inside(1))),
        *of_type(f"{dtype}*", *counts),
        *(depth, height, *g.out[:2], width, g.dilations[0] * height * width, g.dilations[1] * width),
    )
    static = (op, lanes, dtype.name)
    return kernel_call("app.kernels.cpu.nhwc_pool:emit_window", operands, g.planes * g.out[0], static)


def _lower_indices(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node, x, y = group.anchor, first_input(group), first_output(group)
    g = windows(node)
    order = graph.attribute(node, "storage_order", 0)
    operands: Operands = (*of_values(x, y), ("int64*", node.outputs[1]), *g.numbers, order)
    units = g.planes * g.out[0] * g.out[1]
    return (kernel_call("app.kernels.cpu.pool:max_with_indices", operands, units),)


def _cost(group: Group, context: PlanningContext) -> float:
    g = windows(group.anchor)
    if _is_across_rows(group):
        return group_roofline(group, context, g.planes * math.prod(g.out) * math.prod(g.kernel), 0.12)
    # Rows over depth and height in unit stride, then along the width: both count once a tap.
    along = math.prod(g.out) * g.kernel[2]
    across = math.prod(g.out[:2]) * g.size[2] * g.kernel[0] * g.kernel[1]
    # Zen 4: rows of 14 and 28 elements reach 3 to 5 % of the peak.
    return group_roofline(group, context, g.planes * (along + across), 0.05)


def _indices_cost(group: Group, context: PlanningContext) -> float:
    g = windows(group.anchor)
    return group_roofline(group, context, g.planes * math.prod(g.out) * math.prod(g.kernel), 0.02)


IMPLEMENTATIONS = tuple(
    Implementation(f"pool.{name}", op, "numba-cpu", rejection, lower, cost)
    for name, op, rejection, lower, cost in (
        ("max", "MaxPool", _max_rejection, _lower, _cost),
        ("max_with_indices", "MaxPool", _indices_rejection, _lower_indices, _indices_cost),
        ("average", "AveragePool", _float_rejection, _lower, _cost),
        ("lp", "LpPool", _float_rejection, _lower, _cost),
    )
)
