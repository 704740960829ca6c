"""Rows of reductions over the channels of blocked images.

They read whole blocks: padded lanes count, and must hold 0, which adds nothing.
"""

from collections.abc import Mapping

import onnx_ir as ir

from app.engine.backends.cpu import nchwc
from app.engine.backends.cpu.calls import Operands, of_type, typed_call
from app.engine.backends.cpu.rows import after, group_roofline, single_rejection
from app.engine.core import graph
from app.engine.core.calls import Call, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import ZERO_READER, Implementation, PlanningContext
from app.engine.operators.axes import first_input, first_output, reduced_axes
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


@after(single_rejection)
def _rejection(group: Group, context: PlanningContext) -> str | None:
    reason = nchwc.image_rejection(first_input(group)) or nchwc.type_rejection(first_output(group))
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
    pixels, sums = h * w, Workspace(PIXELS * lanes * 4, per_thread=True)
    sizes = nchwc.blocks_of(channels, context), channels, pixels
    operands: Operands = (*of_type("float32*", x, first_output(group), sums), *sizes)
    units, static = batch * -(-pixels // PIXELS), (_REDUCTIONS[group.op][0], lanes)
    return (typed_call("app.kernels.cpu.nchwc_reduce:emit_channels", operands, units, static),)


def _cost(group: Group, context: PlanningContext) -> float:
    """The zeros of the last blocks included, which the writer may have to be given."""
    batch, channels, h, w = graph.static_shape(first_input(group))
    lanes = context.target.vector_lanes
    elements = nchwc.layout_of(context).elements((batch, channels, h, w))
    zeros = 2 * batch * h * w * lanes if channels % lanes else 0
    moved = 4.0 * (elements + zeros) + graph.nbytes(first_output(group))
    return group_roofline(group, context, 2.0 * elements, 0.2, moved)


IMPLEMENTATIONS = tuple(
    Implementation(
        f"{op.removeprefix('Reduce').lower()}_of_channels.blocked", op, "numba-cpu", _rejection, _lower,
        _cost, layouts=_layouts, padding=ZERO_READER,
    )
    for op in _REDUCTIONS
)  # fmt: skip
