"""Rows of pooling over images whose channels lie last (NHWC)."""

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import nchwc_pool
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators.axes import first_input, first_output
from app.engine.operators.pool_geometry import windows
from app.engine.types.layout import LAST, Layout


def _layouts(group: Group, _context: PlanningContext) -> Mapping[ir.Value, Layout]:
    """Channels last, but [batch, channels] without pixels are row-major."""
    images = (v for v in (first_input(group), first_output(group)) if len(graph.static_shape(v)) == 4)
    return dict.fromkeys(images, LAST)


def _window_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    node, x, y = group.anchor, first_input(group), first_output(group)
    g = windows(node)
    batch, channels, h, w = graph.static_shape(x)
    _, oh, ow = g.out
    include_pad = bool(graph.attribute(node, "count_include_pad", 0))
    counts = [Constant(g.counted(axis, include_pad).astype(np.float32)) for axis in (1, 2)]
    return (
        KernelCall(
            "app.kernels.cpu.nhwc_pool:emit_window",
            ("float32*", "float32*", "int64*", "int64*", "float32*", "float32*", *("int64",) * 7),
            (
                x,
                y,
                Constant(g.inside(1)),
                Constant(g.inside(2)),
                *counts,
                *(h, w, oh, ow, channels),
                g.dilations[1] * w * channels,
                g.dilations[2] * channels,
            ),
            units=batch * oh,
            static=(nchwc_pool.WINDOWS[node.op_type], context.target.vector_lanes),
        ),
    )


def _whole_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    batch, channels, h, w = graph.static_shape(x)
    return (
        KernelCall(
            "app.kernels.cpu.nhwc_pool:emit_whole",
            ("float32*", "float32*", "float32*", "int64", "int64"),
            (x, y, Workspace(channels * 4, per_thread=True), channels, h * w),
            units=batch,
            static=(nchwc_pool.WHOLE[group.anchor.op_type],),
            takes_thread=True,
        ),
    )


def _moved(group: Group) -> float:
    return float(sum(graph.nbytes(v) for v in (first_input(group), first_output(group))))


def _window_cost(group: Group, context: PlanningContext) -> float:
    taps = math.prod(windows(group.anchor).kernel)
    return roofline(
        context.target,
        flops=taps * graph.elements(first_output(group)),
        nbytes=_moved(group),
        efficiency=0.12,
        threads=context.threads,
    )


def _whole_cost(group: Group, context: PlanningContext) -> float:
    return roofline(
        context.target,
        flops=graph.elements(first_input(group)),
        nbytes=_moved(group),
        efficiency=0.15,
        threads=min(context.threads, graph.static_shape(first_input(group))[0]),
    )


IMPLEMENTATIONS = (
    *(
        Implementation(
            name, op, "numba-cpu", nchwc_pool.window_rejection, _window_lower, _window_cost,
            layouts=_layouts, rank=2,
        )
        for name, op in (("max_pool.last", "MaxPool"), ("average_pool.last", "AveragePool"))
    ),
    *(
        Implementation(
            name, op, "numba-cpu", nchwc_pool.whole_rejection, _whole_lower, _whole_cost,
            layouts=_layouts, rank=2,
        )
        for name, op in (
            ("global_average_pool.last", "GlobalAveragePool"),
            ("global_max_pool.last", "GlobalMaxPool"),
            ("reduce_mean.last", "ReduceMean"),
            ("reduce_max.last", "ReduceMax"),
        )
    ),
)  # fmt: skip
