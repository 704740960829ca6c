"""Rows of reductions over the channels of blocked images.

They read whole blocks: padded lanes count, and must hold 0, which adds nothing.
"""

from collections.abc import Mapping

import onnx_ir as ir

from app.engine.backends.cpu import nchwc
from app.engine.core import graph
from app.engine.core.plan import Call, Group, KernelCall, Workspace
from app.engine.core.registry import ZERO_READER, Implementation, Known
from app.engine.cost.roofline import roofline
from app.engine.operators.axes import first_input, first_output, reduced_axes
from app.engine.operators.operands import unsuited
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


def _unless(group: Group, known: Known) -> str | None:
    reason = unsuited(group) or nchwc.image_refusal(first_input(group))
    if reason is not None:
        return reason
    axes, (n, channels, h, w) = reduced_axes(group), graph.static_shape(first_input(group))
    if axes != (1,):
        return f"reduces axes {axes}; this one reduces the channels (1,)"
    if not n * channels * h * w:
        return "the input has no elements"
    if _REDUCTIONS[group.op][1] and channels % known.target.vector_lanes:
        return f"{channels} channels; the zeros of padded lanes would count"
    return None


def _layouts(group: Group, known: Known) -> Mapping[ir.Value, Layout]:
    return {first_input(group): nchwc.layout_of(known)}


def _lower(group: Group, known: Known) -> tuple[Call, ...]:
    x, lanes = first_input(group), known.target.vector_lanes
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
                nchwc.blocks_of(channels, known),
                channels,
                pixels,
            ),
            units=batch * -(-pixels // PIXELS),
            static=(_REDUCTIONS[group.op][0], lanes),
            takes_thread=True,
        ),
    )


def _cost(group: Group, known: Known) -> float:
    """The zeros of the last blocks included, which the writer may have to be given."""
    batch, channels, h, w = graph.static_shape(first_input(group))
    lanes = known.target.vector_lanes
    elements = nchwc.layout_of(known).elements((batch, channels, h, w))
    zeros = 2 * batch * h * w * lanes if channels % lanes else 0
    return roofline(
        known.target,
        flops=2.0 * elements,
        nbytes=4.0 * (elements + zeros) + graph.nbytes(first_output(group)),
        efficiency=0.2,
        threads=known.threads,
    )


IMPLEMENTATIONS = tuple(
    Implementation(
        f"{op.removeprefix('Reduce').lower()}_of_channels.blocked", op, "numba-cpu", _unless, _lower, _cost,
        layouts=_layouts, padding=ZERO_READER,
    )
    for op in _REDUCTIONS
)  # fmt: skip
