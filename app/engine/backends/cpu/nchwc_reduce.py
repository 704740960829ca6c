"""Rows of reductions over the channels of blocked images.

They read whole blocks: padded lanes count, and must hold 0, which adds nothing.
"""

from collections.abc import Mapping

import onnx_ir as ir

from app.engine.backends.cpu import nchwc
from app.engine.core import graph
from app.engine.core.calls import Call, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import ZERO_READER, Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators.axes import first_input, first_output, reduced_axes
from app.engine.operators.operands import group_rejection
from app.engine.types.layout import Layout
from app.kernels.cpu.nchwc_reduce import PIXELS

# Operator: operation of the kernels, whether zeros change its result.
_REDUCTIONS = {
    "ReduceSum": ("sum", False),
    "ReduceMean": ("mean", False),
    "ReduceSumSquare": ("sum_square", False),
    "ReduceL2": ("l2", False),
    "ReduceMax": ("max", True),
    "ReduceMin": ("min", True),
}


def _rejection(group: Group, context: PlanningContext) -> str | None:
    reason = group_rejection(group) or nchwc.image_rejection(first_input(group))
    if reason is not None:
        return reason
    axes, (n, channels, h, w) = reduced_axes(group), graph.static_shape(first_input(group))
    if axes != (1,):
        return f"reduces axes {axes}; this one reduces the channels (1,)"
    if not n * channels * h * w:
        return "the input has no elements"
    if _REDUCTIONS[group.op][1] and channels % context.target.vector_lanes:
        return f"{channels} channels; the zeros of padded lanes would count"
    return None


def _layouts(group: Group, context: PlanningContext) -> Mapping[ir.Value, Layout]:
    return {first_input(group): nchwc.layout_of(context)}


def _lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    x, lanes = first_input(group), context.target.vector_lanes
    batch, channels, h, w = graph.static_shape(x)
    pixels = h * w
    return (
        KernelCall(
            "app.kernels.cpu.nchwc_reduce:emit_channels",
            (*("float32*",) * 3, *("int64",) * 3),
            (
                x,
                first_output(group),
                Workspace(PIXELS * lanes * 4, per_thread=True),
                nchwc.blocks_of(channels, context),
                channels,
                pixels,
            ),
            units=batch * -(-pixels // PIXELS),
            static=(_REDUCTIONS[group.op][0], lanes),
            takes_thread=True,
        ),
    )


def _cost(group: Group, context: PlanningContext) -> float:
    """The zeros of the last blocks included, which the writer may have to be given."""
    batch, channels, h, w = graph.static_shape(first_input(group))
    lanes = context.target.vector_lanes
    elements = nchwc.layout_of(context).elements((batch, channels, h, w))
    zeros = 2 * batch * h * w * lanes if channels % lanes else 0
    return roofline(
        context.target,
        flops=2.0 * elements,
        nbytes=4.0 * (elements + zeros) + graph.nbytes(first_output(group)),
        efficiency=0.2,
        threads=context.threads,
    )


IMPLEMENTATIONS = tuple(
    Implementation(
        f"{op.removeprefix('Reduce').lower()}_of_channels.blocked", op, "numba-cpu", _rejection, _lower,
        _cost, layouts=_layouts, padding=ZERO_READER,
    )
    for op in _REDUCTIONS
)  # fmt: skip
