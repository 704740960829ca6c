"""The row of depthwise convolutions."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.engine.backends.cpu.calls import Operands, of_type, size_operand, typed_call
from app.engine.backends.cpu.conv import epilogue_arguments, rejection
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import flops
from app.engine.operators import conv_geometry
from app.engine.operators.conv_geometry import Window
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.depthwise import ROWS, DepthwiseSizes
from app.kernels.cpu.epilogue import CHUNK

STRIP = 20 * 1024  # byte of a channel that stay in the first cache


@after(rejection)
def _rejection(group: Group, _context: PlanningContext) -> str | None:
    window = conv_geometry.of_conv(group)
    if window.channels != 1:
        return f"{window.channels} input channels per group; this one takes 1"
    return None


@dataclass(frozen=True, slots=True)
class Strip:
    """Padded input rows of a channel that a thread has in its buffer, a line for each phase of the stride.

    Attributes:
        rows: output rows of a strip.
        below: input rows that taps reach beyond the first.
        line: elements of a line.
        slab: elements of the strip of a slice; there is one for each tap along the depth.
    """

    rows: int
    below: int
    line: int
    slab: int


def _strip(window: Window, kind: np.dtype[Any], vector: int) -> Strip:
    """A strip that stays in the first cache, of whole tiles."""
    columns, stride = window.out[2], window.stride
    is_wide = columns > vector
    tile_rows = ROWS if is_wide else 2 * ROWS
    deep, down, along = window.offsets
    reach = (along[-1] - along[0]) // stride[2] + max(columns, vector * (1 + is_wide))
    line = max(reach, (window.size[2] - along[0]) // stride[2] + 1) + vector
    below = down[-1] - down[0]
    fitting = STRIP // (len(deep) * stride[2] * line * kind.itemsize) - below
    rows = max(fitting // (stride[1] * tile_rows), 1) * tile_rows
    rows = min(rows, -(-window.out[1] // tile_rows) * tile_rows)
    return Strip(rows, below, line, ((rows - 1) * stride[1] + 1 + below) * stride[2] * line)


def _offsets(window: Window, strip: Strip) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where taps are in the buffer, then the offsets of slices."""
    deep, down, along = window.offsets
    top, left, stride, line = -min(down), -min(along), window.stride[2], strip.line
    places = [
        k * strip.slab + (i + top) * stride * line + (j + left) % stride * line + (j + left) // stride
        for k, i, j in itertools.product(range(len(deep)), down, along)
    ]
    return np.array([*places, *deep], np.int64)


def _sizes(window: Window, strip: Strip, work: int, flags: int) -> DepthwiseSizes:
    _, down, along = window.offsets
    return DepthwiseSizes(
        filters=window.groups * window.outputs,
        outputs=window.outputs,
        slices=window.out[0],
        stride_d=window.stride[0],
        read=len(window.offsets[0]),
        slab=strip.slab,
        d=window.size[0],
        h=window.size[1],
        w=window.size[2],
        rows=window.out[1],
        columns=window.out[2],
        stride_h=window.stride[1],
        stride_w=window.stride[2],
        top=-min(down),
        left=-min(along),
        taps=window.taps,
        strip=strip.rows,
        below=strip.below,
        line=strip.line,
        work_step=work,
        flags=flags,
    )


def _lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    (y,) = group.outputs
    if graph.elements(y) == 0:
        return ()
    kind = graph.element_type(y)
    window = conv_geometry.of_conv(group)
    vector = tiles.lanes_of(kind.name, context.target.vector_lanes)
    strip = _strip(window, kind, vector)
    work = len(window.offsets[0]) * strip.slab + CHUNK + 3 * vector
    ends = epilogue_arguments(group, kind)
    pointer = f"{kind.name}*"
    operands: Operands = (
        *of_type(pointer, graph.operand(group.anchor, 0), graph.operand(group.anchor, 1), y),
        *of_type(pointer, ends.bias, ends.residual, ends.scalars),
        ("int64*", Constant(_offsets(window, strip))),
        size_operand(_sizes(window, strip, work, ends.flags)),
        (pointer, Workspace(work * kind.itemsize, per_thread=True)),
        *ends.operands,
    )
    units = window.batch * window.groups * window.outputs * window.out[0]
    static = (kind.name, context.target.vector_lanes, *ends.epilogue.static)
    return (typed_call("app.kernels.cpu.depthwise:emit", operands, units, static),)


def _cost(group: Group, context: PlanningContext) -> float:
    window = conv_geometry.of_conv(group)
    kind = graph.element_type(group.outputs[0])
    # A tap takes a load as well as a product, and the buffer is filled once for all taps.
    vector = tiles.lanes_of(kind.name, context.target.vector_lanes)
    columns = -(-window.out[2] // vector) * vector / max(window.out[2], 1)
    filled = len(window.offsets[0]) * math.prod(window.stride[1:])
    filling = 1.0 + 4.0 * filled / max(window.taps, 1)
    return group_roofline(group, context, flops(group) * columns * filling * kind.itemsize / 4, 0.25)


IMPLEMENTATIONS = (Implementation("conv.depthwise", "Conv", "numba-cpu", _rejection, _lower, cost=_cost),)
