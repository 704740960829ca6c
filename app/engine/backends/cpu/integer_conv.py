"""Rows of integer convolutions as implicit matrix products."""

import itertools
import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from app.engine.backends.cpu import blocking
from app.engine.backends.cpu.calls import Operands, kernel_call, of_type, size_operand, typed_call
from app.engine.backends.cpu.integer import (
    CONVOLUTIONS,
    DEPTH,
    FORMS,
    Form,
    Inputs,
    corrections,
    cost,
    finish_of,
    replaceable,
    rows,
    widening_call,
    window_of,
    with_zero,
)
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.operators.conv_geometry import Window
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.codegen.tiles import PAIRS, RIGHT_UNSIGNED
from app.kernels.cpu.integer_products import IntegerConvSizes
from app.kernels.expressions import stored

COLUMNS = 256  # pixels of a block, whose sums stay in the first cache
ROWS = 24  # of sums that are finished at once


@dataclass(frozen=True, slots=True)
class Planes:
    """The widened input: planes of pairs or fours of channels, each with its border.

    `before` and `whole`: elements of the border before the input, and of a plane, along its three axes.
    """

    before: tuple[int, ...]
    whole: tuple[int, ...]
    steps: int  # pairs or fours of channels of a group
    size: int  # elements from one plane to the next
    count: int

    @property
    def layer(self) -> int:
        """Elements from one slice of depth to the next."""
        return self.whole[1] * self.whole[2]

    def taps(self, window: Window) -> list[int]:
        """Offsets of the taps in a plane."""
        inside = ([o + p for o in offsets] for offsets, p in zip(window.offsets, self.before))
        return [d * self.layer + h * self.whole[2] + w for d, h, w in itertools.product(*inside)]


def bordered(window: Window) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Elements of the border before the input, and of input and border, along the three axes."""
    before = tuple(max(-min(o), 0) for o in window.offsets)
    whole = tuple(
        p + max(s, (n - 1) * t + max(o) + 1)
        for p, s, n, t, o in zip(before, window.size, window.out, window.stride, window.offsets)
    )
    return before, whole


def _planes(window: Window, together: int) -> Planes:
    before, whole = bordered(window)
    steps = -(-window.channels // together)
    size = blocking.panel_row(math.prod(whole), 4)
    return Planes(before, whole, steps, size, window.batch * window.groups * steps)


def _gather(of: Inputs, window: Window, planes: Planes, x: Workspace, shift: int | None) -> KernelCall:
    """The call that widens the input, or puts four channels together, with `shift` added."""
    sizes = (window.channels, *window.size, *planes.whole, *planes.before, planes.size)
    table = Constant(np.array(sizes, np.int64))
    if shift is None:
        return widening_call(of, x, table, planes.count)
    operands: Operands = (*with_zero(of.a, of.a_zero), shift, ("uint8*", x), ("int64*", table))
    return kernel_call("app.kernels.cpu.pairs:group_planes", operands, planes.count)


def _sizes(window: Window, planes: Planes, form: Form, context: PlanningContext) -> IntegerConvSizes:
    lanes, shapes = context.target.vector_lanes, form.shapes
    multiple = tiles.TILE if form.tiled else 1
    depth = planes.steps * window.taps
    gathers = window.taps > 1 or window.stride != (1, 1, 1) or planes.whole != window.out
    block_n = blocking.balanced(window.pixels, COLUMNS, tiles.columns_of(PAIRS, lanes, shapes))
    block_k = blocking.balanced(depth, DEPTH, multiple)
    block_m = blocking.balanced(window.outputs, ROWS, shapes[lanes][0])
    part = window.outputs
    units = window.batch * window.groups * -(-window.pixels // block_n)
    if units < 4 * context.threads and context.threads > 1:
        part = blocking.balanced(window.outputs, -(-window.outputs // context.threads), block_m)
    row = blocking.panel_row(block_n, 4)
    sums = row * (part + block_m if depth > block_k else block_m)
    spare = form.spare(lanes)
    return IntegerConvSizes(
        packed_image=gathers,
        pairs=planes.steps,
        plane=planes.size,
        layer=planes.layer,
        line=planes.whole[2],
        rows=window.out[1],
        columns=window.out[2],
        stride_d=window.stride[0],
        stride_h=window.stride[1],
        stride_w=window.stride[2],
        tap_count=window.taps,
        groups=window.groups,
        outputs=window.outputs,
        weight_rows=blocking.balanced(window.outputs, window.outputs, multiple),
        weight_row=blocking.balanced(depth, depth, multiple),
        pixels=window.pixels,
        block_m=block_m,
        part_m=part,
        block_n=block_n,
        block_k=block_k,
        panel_row=row,
        sums_row=row,
        sums_size=sums,
        spare_size=spare,
        work_step=sums + spare + gathers * (block_k + 1) * row,
    )


def _lower(group: Group, context: PlanningContext, form: Form) -> tuple[KernelCall, ...]:
    together = form.together
    (y,) = group.outputs
    of, finish, window = Inputs(group.anchor), finish_of(group), window_of(group).flat()
    lanes = context.target.vector_lanes
    planes = _planes(window, together)
    sizes = _sizes(window, planes, form, context)
    width = tiles.columns_of(PAIRS, lanes, form.shapes)
    behind = (tiles.TILE if form.tiled else 0) * planes.size
    # A ragged tile reads beyond the last plane.
    x = Workspace((planes.count * planes.size + behind + 4 * width) * 4)
    correcting, added = corrections(of, form, context)
    weights = panels(of, window, sizes.part_m, sizes.block_m, lanes, form)
    operands: Operands = (
        *of_type("int32*", x, weights, added),
        (f"{stored(finish.result)}*", y),
        ("int64*", Constant(np.array(planes.taps(window), np.int64))),
        size_operand(sizes),
        ("int32*", Workspace(sizes.work_step * 4, per_thread=True)),
        *finish.arguments,
    )
    units = window.batch * window.groups * -(-window.pixels // sizes.block_n)
    call = typed_call(
        "app.kernels.cpu.integer_products:emit_conv",
        operands,
        units * -(-window.outputs // sizes.part_m),
        (form.dtype(RIGHT_UNSIGNED, context), lanes, *finish.static),
    )
    shift = None if together == 2 else form.shift(of.a, context)
    return _gather(of, window, planes, x, shift), *correcting, call


def panels(of: Inputs, window: Window, part: int, block: int, lanes: int, form: Form) -> Constant:
    """The weights as tiles read them: [elements of channels * taps][rows] for every group of rows.

    Groups have `block` rows, and do not go over the borders of parts of so many.
    """
    shifted = of.shifted.reshape(window.groups * window.outputs, window.channels, -1)
    steps = tiles.pack_steps(shifted, form.together).reshape(window.groups, window.outputs, -1)
    if form.tiled:
        return Constant(np.stack([tiles.pack_row_tiles(matrix) for matrix in steps]), of.b.name or "")
    packed = [
        tiles.pack_rows(matrix[first : first + part], block, lanes, form.shapes)
        for matrix in steps
        for first in range(0, window.outputs, part)
    ]
    return Constant(np.concatenate(packed), of.b.name or "")


IMPLEMENTATIONS = tuple(
    row
    for form in FORMS
    for row in rows(
        CONVOLUTIONS,
        form.name,
        form.rejection,
        partial(_lower, form=form),
        partial(cost, form=form),
        replaceable,
    )
)
