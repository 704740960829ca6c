"""Rows of integer convolutions of one channel to one."""

import numpy as np

from app.engine.backends.cpu.calls import Operand, size_operand, typed_call
from app.engine.backends.cpu.integer import Inputs, finish_of, less_zero, rejection, zero_point
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators import conv_geometry
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.integer_depthwise import ROWS, IntegerDepthwiseSizes
from app.kernels.expressions import stored

SUMS = 4096  # of a channel that are finished at once


def _rejection(group: Group, context: PlanningContext) -> str | None:
    """Reason why a convolution is none of one channel to one, along two axes at most."""
    reason = rejection(group, context)
    if reason is not None:
        return reason
    window = conv_geometry.of_conv(group, Inputs(group.anchor).b)
    if (window.channels, window.outputs) != (1, 1):
        return f"{window.channels} channels to {window.outputs} in a group; this one takes 1 to 1"
    if (window.size[0], window.out[0], window.offsets[0]) != (1, 1, (0,)):
        return "three spatial axes; this one has two"
    return None


def _lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    (y,) = group.outputs
    if graph.elements(y) == 0:
        return ()
    of, finish = Inputs(group.anchor), finish_of(group)
    assert not isinstance(finish, str)
    window = conv_geometry.of_conv(group, of.b)
    lanes = context.target.vector_lanes
    (_, h, w), (_, rows, columns), (_, stride_h, stride_w) = window.size, window.out, window.stride
    down, across = window.offsets[1:]
    top, left = max(-min(down), 0), max(-min(across), 0)
    distance = down[1] - down[0] if len(down) > 1 else 1
    # Tiles are whole: they read rows and columns beyond the last.
    lines = (-(-rows // ROWS) * ROWS - 1) * stride_h + max(down) + top + 1
    line = -(-columns // lanes) * lanes + (max(across) + left) // stride_w + 1
    row = line * stride_w
    phase = -(-lines * line // lanes) * lanes
    offsets = [
        (c + left) % stride_w * phase + (r + top) * line + (c + left) // stride_w
        for r in down[::2]
        for c in across
    ]
    shifted = less_zero(of.b, of.b_zero, 0).reshape(-1, len(down), len(across))
    weights = tiles.pack_steps(shifted, 2).reshape(window.groups, -1)
    block = max(min(SUMS // max(columns, 1), rows) // ROWS * ROWS, min(ROWS, rows))
    plane = phase * stride_w
    border = plane + distance * row
    sums = block * columns + lanes
    sizes = IntegerDepthwiseSizes(
        channels=window.groups,
        h=h,
        w=w,
        top=top,
        left=left,
        lines=lines,
        row=row,
        phase=phase,
        distance=distance,
        stride_h=stride_h,
        stride_w=stride_w,
        rows=rows,
        columns=columns,
        taps=len(offsets),
        block=block,
        plane_size=plane,
        work_step=plane + sums,
        border_step=border,
    )
    kind = graph.element_type(of.a)
    pointer = f"{kind.name}*"
    operands: tuple[Operand, ...] = (
        (pointer, of.a),
        (pointer, zero_point(of.a_zero, of.a)),
        ("int32*", Constant(weights, of.b.name or "")),
        (f"{stored(finish.result)}*", y),
        ("int64*", Constant(np.array(offsets, np.int64))),
        size_operand(sizes),
        (pointer, Workspace(border, per_thread=True)),
        ("int32*", Workspace((plane + sums) * 4, per_thread=True)),
        *finish.arguments,
    )
    call = typed_call(
        "app.kernels.cpu.integer_depthwise:emit",
        operands,
        window.batch * window.groups,
        static=(kind.name, lanes, *finish.static),
    )
    return (call,)


def _cost(group: Group, context: PlanningContext) -> float:
    """Bound by loads: one for every two taps."""
    work = sum(graph.elements(v) for v in group.anchor.outputs) * graph.elements(Inputs(group.anchor).b)
    per_channel = work / max(graph.static_shape(group.anchor.outputs[0])[1], 1)
    nbytes = sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs))
    return roofline(
        context.target, flops=2 * per_channel, nbytes=4 * nbytes, efficiency=0.4, threads=context.threads
    )


IMPLEMENTATIONS = tuple(
    Implementation(f"{name}.depthwise", op, "numba-cpu", _rejection, _lower, _cost)
    for name, op in (("conv_integer", "ConvInteger"), ("qlinear_conv", "QLinearConv"))
)
