"""Rows of pooling over channel-blocked images."""

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import nchwc
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import LANEWISE, Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators.axes import first_input, first_output, output_at, reduced_axes
from app.engine.operators.operands import group_rejection
from app.engine.operators.pool_geometry import windows
from app.engine.types.layout import Layout

BACKEND = "numba-cpu"
MOST_TAPS = 25  # of a window without a loop

# Operator: operation of the kernels.
WINDOWS = {"MaxPool": "max", "AveragePool": "average"}
WHOLE = {
    "GlobalAveragePool": "average",
    "ReduceMean": "average",
    "GlobalMaxPool": "max",
    "ReduceMax": "max",
}


def _rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = group_rejection(group) or nchwc.image_rejection(first_input(group))
    if reason is None and graph.elements(first_output(group)) == 0:
        reason = "the output has no elements"
    return reason


def window_rejection(group: Group, context: PlanningContext) -> str | None:
    """Reason why an image's windows are not pooled in a layout of its own."""
    reason = _rejection(group, context)
    if reason is None and output_at(group, 1) is not None:
        reason = "the indices are read"
    if reason is None and min(graph.attribute(group.anchor, "pads", (0,)), default=0) < 0:
        reason = "padding must not be negative"
    return reason


def whole_rejection(group: Group, context: PlanningContext) -> str | None:
    """Reason why the pixels of an image are not reduced in a layout of its own."""
    reason = _rejection(group, context)
    if reason is None and reduced_axes(group) != (2, 3):
        reason = f"reduces axes {reduced_axes(group)}; this one reduces the pixels (2, 3)"
    return reason


def _wide(group: Group, context: PlanningContext) -> float:
    """Lanes over channels."""
    channels = graph.static_shape(first_input(group))[1]
    return nchwc.blocks_of(channels, context) * context.target.vector_lanes / max(channels, 1)


def _layouts(group: Group, context: PlanningContext) -> Mapping[ir.Value, Layout]:
    """Blocked, but [batch, channels] without pixels are row-major."""
    images = (v for v in (first_input(group), first_output(group)) if len(graph.static_shape(v)) == 4)
    return dict.fromkeys(images, nchwc.layout_of(context))


def _window_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    node, x, y = group.anchor, first_input(group), first_output(group)
    g = windows(node)
    lanes = context.target.vector_lanes
    batch, channels, h, w = graph.static_shape(x)
    _, oh, ow = g.out
    include_pad = bool(graph.attribute(node, "count_include_pad", 0))
    counts = [Constant(g.counted(axis, include_pad).astype(np.float32)) for axis in (1, 2)]
    _, kh, kw = g.kernel
    inside = g.inside(2)
    # Columns of whole windows follow one another; those that begin in the padding are not whole.
    whole = np.flatnonzero((inside[:, 1] == kw) & (counts[1].array == kw))
    inner, outer = (int(whole[0]), int(whole[-1]) + 1) if whole.size else (0, 0)
    static: tuple[object, ...] = (kh, kw, g.strides[2], g.dilations[2])
    if math.prod(g.kernel) > MOST_TAPS:
        inner, outer, static = 0, 0, (1, 1, 1, 1)
    return (
        KernelCall(
            "app.kernels.cpu.nchwc_pool:emit_window",
            ("float32*", "float32*", "int64*", "int64*", "float32*", "float32*", *("int64",) * 8),
            (
                x,
                y,
                Constant(g.inside(1)),
                Constant(inside),
                *counts,
                *(h, w, oh, ow, inner, outer),
                g.dilations[1] * w * lanes,
                g.dilations[2] * lanes,
            ),
            units=batch * nchwc.blocks_of(channels, context) * oh,
            static=(WINDOWS[node.op_type], lanes, *static),
        ),
    )


def _whole_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    lanes = context.target.vector_lanes
    batch, channels, h, w = graph.static_shape(x)
    blocks = nchwc.blocks_of(channels, context)
    stored = channels if len(graph.static_shape(y)) == 2 else blocks * lanes
    return (
        KernelCall(
            "app.kernels.cpu.nchwc_pool:emit_whole",
            ("float32*", "float32*", "float32*", *("int64",) * 3),
            (x, y, Workspace(lanes * 4, per_thread=True), blocks, stored, h * w),
            units=batch * blocks,
            static=(WHOLE[group.anchor.op_type], lanes),
            takes_thread=True,
        ),
    )


def _moved(group: Group, context: PlanningContext) -> float:
    return _wide(group, context) * sum(graph.nbytes(v) for v in (first_input(group), first_output(group)))


def _window_cost(group: Group, context: PlanningContext) -> float:
    taps = math.prod(windows(group.anchor).kernel)
    return roofline(
        context.target,
        flops=_wide(group, context) * taps * graph.elements(first_output(group)),
        nbytes=_moved(group, context),
        efficiency=0.2,
        threads=context.threads,
    )


def _whole_cost(group: Group, context: PlanningContext) -> float:
    return roofline(
        context.target,
        flops=_wide(group, context) * graph.elements(first_input(group)),
        nbytes=_moved(group, context),
        efficiency=0.3,
        threads=context.threads,
    )


IMPLEMENTATIONS = (
    *(
        Implementation(
            name,
            op,
            BACKEND,
            window_rejection,
            _window_lower,
            _window_cost,
            layouts=_layouts,
            padding=LANEWISE,
        )
        for name, op in (("max_pool.blocked", "MaxPool"), ("average_pool.blocked", "AveragePool"))
    ),
    *(
        Implementation(
            name, op, BACKEND, whole_rejection, _whole_lower, _whole_cost, layouts=_layouts, padding=LANEWISE
        )
        for name, op in (
            ("global_average_pool.blocked", "GlobalAveragePool"),
            ("global_max_pool.blocked", "GlobalMaxPool"),
            ("reduce_mean.blocked", "ReduceMean"),
            ("reduce_max.blocked", "ReduceMax"),
        )
    ),
)
