"""Rows of pooling over images in channel blocks (`.blocked`) or with channels last (`.last`)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import nchwc
from app.engine.backends.cpu.calls import Operand, Operands, kernel_call, of_type, of_values, typed_call
from app.engine.backends.cpu.rows import after, group_roofline, single_rejection
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import (
    LANEWISE,
    UNDEFINED,
    Cost,
    Implementation,
    Lower,
    Padding,
    PlanningContext,
    Rejection,
)
from app.engine.cost.roofline import roofline
from app.engine.operators.axes import first_input, first_output, output_at, reduced_axes
from app.engine.operators.pool_geometry import windows
from app.engine.types.layout import Layout
from app.kernels.cpu.nchwc_pool import LINE, RUN

MOST_TAPS = 25  # of a window of blocks without a loop

# Operator: name of its rows, operation of the kernels.
WINDOWS = {"MaxPool": ("max_pool", "max"), "AveragePool": ("average_pool", "average")}
WHOLE = {
    "GlobalAveragePool": ("global_average_pool", "average"),
    "GlobalMaxPool": ("global_max_pool", "max"),
    "ReduceMean": ("reduce_mean", "average"),
    "ReduceMax": ("reduce_max", "max"),
}


@after(single_rejection)
def _rejection(group: Group, _context: PlanningContext) -> str | None:
    return nchwc.images_rejection(group, first_input(group))


@after(single_rejection)
def _last_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why images have no channels last; bytes may, where windows are compared only."""
    types = nchwc.LAST_TYPES if group.op == "MaxPool" else nchwc.BLOCKED_TYPES
    return nchwc.images_rejection(group, first_input(group), types=types)


def _windows_rejection(group: Group, _context: PlanningContext) -> str | None:
    if output_at(group, 1) is not None:
        return "the indices are read"
    if min(graph.attribute(group.anchor, "pads", (0,)), default=0) < 0:
        return "padding must not be negative"
    return None


_window_rejection = after(_rejection)(_windows_rejection)
_last_window_rejection = after(_last_rejection)(_windows_rejection)


@after(_rejection)
def _whole_rejection(group: Group, _context: PlanningContext) -> str | None:
    axes = reduced_axes(group)
    return None if axes == (2, 3) else f"reduces axes {axes}; this one reduces the pixels (2, 3)"


def _images(group: Group) -> tuple[ir.Value, ...]:
    """Images of the group: [batch, channels] without pixels are row-major."""
    return tuple(v for v in (first_input(group), first_output(group)) if len(graph.static_shape(v)) == 4)


def _counts(group: Group) -> tuple[Constant, ...]:
    """Elements that count in each row and in each column of windows."""
    g, include_pad = windows(group.anchor), bool(graph.attribute(group.anchor, "count_include_pad", 0))
    return tuple(Constant(g.counted(axis, include_pad).astype(np.float32)) for axis in (1, 2))


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """Operands of the kernels of windows over blocks.

    Attributes:
        tables: extents of windows along rows and columns, and the elements of each that count.
        whole: columns [first, last) of whole windows.
        static: arguments of the generators.
    """

    tables: tuple[Operand, ...]
    whole: tuple[int, int]
    static: tuple[object, ...]


def window_sizes(group: Group, context: PlanningContext) -> WindowSizes:
    """The operands of a pooling of windows over blocks."""
    g, counts = windows(group.anchor), _counts(group)
    _, kh, kw = g.kernel
    inside = g.inside(2)
    # Columns of whole windows follow one another; those that begin in the padding are not whole.
    whole = np.flatnonzero((inside[:, 1] == kw) & (counts[1].array == kw))
    inner, outer = (int(whole[0]), int(whole[-1]) + 1) if whole.size else (0, 0)
    static: tuple[object, ...] = (kh, kw, g.strides[2], g.dilations[2])
    if math.prod(g.kernel) > MOST_TAPS:
        inner, outer, static = 0, 0, (1, 1, 1, 1)
    tables = (
        *of_type("int64*", Constant(g.inside(1)), Constant(inside)),
        *of_type("float32*", *counts),
    )
    static = (WINDOWS[group.op][1], context.target.vector_lanes, *static)
    return WindowSizes(tables, (inner, outer), static)


def _window_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    g, found, lanes = windows(group.anchor), window_sizes(group, context), context.target.vector_lanes
    batch, channels, h, w = graph.static_shape(x)
    _, oh, ow = g.out
    operands: Operands = (
        *of_type("float32*", x, y),
        *found.tables,
        *(h, w, oh, ow, *found.whole, g.dilations[1] * w * lanes, g.dilations[2] * lanes),
    )
    units = batch * nchwc.blocks_of(channels, context) * oh
    return (kernel_call("app.kernels.cpu.nchwc_pool:emit_window", operands, units, found.static),)


def _last_window_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    g = windows(group.anchor)
    batch, channels, h, w = graph.static_shape(x)
    _, oh, ow = g.out
    dtype = graph.element_type(x)
    counts = (Constant(c.array.astype(dtype)) for c in _counts(group))
    operands: Operands = (
        *of_values(x, y),
        *of_type("int64*", Constant(g.inside(1)), Constant(g.inside(2))),
        *of_type(f"{dtype.name}*", *counts),
        *(h, w, oh, ow, channels, g.dilations[1] * w * channels, g.dilations[2] * channels),
    )
    static = (WINDOWS[group.op][1], 4 * context.target.vector_lanes // dtype.itemsize, dtype.name)
    return (kernel_call("app.kernels.cpu.nhwc_pool:emit_window", operands, batch * oh, static),)


def stored_channels(group: Group, context: PlanningContext) -> int:
    """Elements of a whole image's result: with the lanes of its last block if it is an image itself."""
    channels = graph.static_shape(first_input(group))[1]
    wide = nchwc.blocks_of(channels, context) * context.target.vector_lanes
    return channels if len(graph.static_shape(first_output(group))) == 2 else wide


def _whole_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    lanes = context.target.vector_lanes
    batch, channels, h, w = graph.static_shape(x)
    blocks = nchwc.blocks_of(channels, context)
    sums = Workspace(lanes * 4, per_thread=True)
    operands: Operands = (
        *of_type("float32*", x, y, sums),
        blocks,
        stored_channels(group, context),
        h * w,
        w if w >= LINE else RUN,
    )
    static = (WHOLE[group.op][1], lanes)
    return (typed_call("app.kernels.cpu.nchwc_pool:emit_whole", operands, batch * blocks, static),)


def _last_whole_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    batch, channels, h, w = graph.static_shape(x)
    sums = Workspace(channels * 4, per_thread=True)
    operands: Operands = (*of_type("float32*", x, y, sums), channels, h * w)
    return (typed_call("app.kernels.cpu.nhwc_pool:emit_whole", operands, batch, (WHOLE[group.op][1],)),)


def _moved(group: Group) -> int:
    return graph.nbytes(first_input(group)) + graph.nbytes(first_output(group))


def _wide(group: Group, context: PlanningContext) -> float:
    """Lanes over channels."""
    channels = graph.static_shape(first_input(group))[1]
    return nchwc.blocks_of(channels, context) * context.target.vector_lanes / max(channels, 1)


def _compared(group: Group, wide: float) -> float:
    """Elements of all windows, `wide` times as many as the channels have."""
    return wide * math.prod(windows(group.anchor).kernel) * graph.elements(first_output(group))


def _window_cost(group: Group, context: PlanningContext) -> float:
    wide = _wide(group, context)
    return group_roofline(group, context, _compared(group, wide), 0.2, wide * _moved(group))


def _last_window_cost(group: Group, context: PlanningContext) -> float:
    return group_roofline(group, context, _compared(group, 1.0), 0.12, _moved(group))


def _whole_cost(group: Group, context: PlanningContext) -> float:
    wide = _wide(group, context)
    return group_roofline(
        group, context, wide * graph.elements(first_input(group)), 0.3, wide * _moved(group)
    )


def _last_whole_cost(group: Group, context: PlanningContext) -> float:
    return roofline(
        context.target,
        flops=graph.elements(first_input(group)),
        nbytes=_moved(group),
        efficiency=0.15,
        threads=min(context.threads, graph.static_shape(first_input(group))[0]),
    )


def _rows(
    layout: str,
    layout_of: nchwc.LayoutOf,
    padding: Padding,
    rank: int,
    window: tuple[Rejection, Lower, Cost],
    whole: tuple[Rejection, Lower, Cost],
) -> tuple[Implementation, ...]:
    """Rows over images in a layout: calls and costs of windows, and of whole planes."""

    def layouts(group: Group, context: PlanningContext) -> Mapping[ir.Value, Layout]:
        return dict.fromkeys(_images(group), layout_of(context))

    return tuple(
        Implementation(
            f"{name}.{layout}", op, "numba-cpu", rejection, lower, cost,
            layouts=layouts, padding=padding, rank=rank,
        )
        for table, (rejection, lower, cost) in ((WINDOWS, window), (WHOLE, whole))
        for op, (name, _) in table.items()
    )  # fmt: skip


BLOCKED = (
    (_window_rejection, _window_lower, _window_cost),
    (_whole_rejection, _whole_lower, _whole_cost),
)
LAST = (
    (_last_window_rejection, _last_window_lower, _last_window_cost),
    (_whole_rejection, _last_whole_lower, _last_whole_cost),
)
IMPLEMENTATIONS = (
    *_rows("blocked", nchwc.layout_of, LANEWISE, 0, *BLOCKED),
    *_rows("last", nchwc.last_of, UNDEFINED, 2, *LAST),
)
