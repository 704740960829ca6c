"""Rows of integer convolutions by Winograd's algorithm, exact like those they compete with."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from app.engine.backends.cpu import blocking
from app.engine.backends.cpu.calls import Operands, of_type, size_operand, typed_call
from app.engine.backends.cpu.integer import (
    CONVOLUTIONS,
    Inputs,
    finish_of,
    rejection,
    rows,
    widening_call,
    window_of,
)
from app.engine.backends.cpu.rows import group_roofline
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.cost.roofline import flops
from app.engine.operators.conv_geometry import Window
from app.kernels.cpu import integer_winograd
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.codegen.tiles import PAIRED, PAIRS
from app.kernels.cpu.integer_winograd import ALGORITHMS, Algorithm, IntegerWinogradSizes
from app.kernels.expressions import stored

TILES = 64  # of a block, whose sums stay in the second cache
ROWS = 12  # of products that are finished at once


def _rejection(group: Group, context: PlanningContext, algorithm: Algorithm) -> str | None:
    reason = rejection(group, context)
    if reason is not None:
        return reason
    of, window = Inputs(group.anchor), window_of(group)
    if window.groups != 1:
        return f"{window.groups} groups; this one has 1"
    steps = [tuple(np.diff(o)) for o in window.offsets]
    if steps != [(), (1, 1), (1, 1)] or window.size[0] != 1 or window.stride != (1, 1, 1):
        return "not a convolution of 3 x 3 neighbors in steps of one"
    if not integer_winograd.fits(of.shifted, algorithm, *_range(of)):
        times = 1 << algorithm.shift
        return f"sums of products with {of.b.name!r} may not fit 32 bits {times} times"
    return None


def _range(of: Inputs) -> tuple[int, int]:
    """Lowest and highest of the first operand less its zero point."""
    limits, zero = np.iinfo(graph.element_type(of.a)), graph.constant(of.a_zero)
    if of.a_zero is not None and zero is None:
        return -255, 255
    origin = 0 if zero is None else int(zero.reshape(-1)[0])
    return min(int(limits.min) - origin, 0), max(int(limits.max) - origin, 0)


@dataclass(frozen=True, slots=True)
class Planes:
    """The padded input, as planes of pairs of channels.

    Attributes:
        top, left: rows and columns before the first of the input.
        tall, line: rows and columns of a plane.
        pairs: pairs of channels of an image.
        step: distance of planes, in pairs.
    """

    top: int
    left: int
    tall: int
    line: int
    pairs: int
    step: int


@dataclass(frozen=True, slots=True)
class Cut:
    """How a convolution is cut: rows of tiles of a unit, output channels of a block and of a unit.

    `high` and `wide` count the tiles of an image along its axes, `outputs` the pixels of a tile.
    """

    outputs: int
    high: int
    wide: int
    lines: int
    block: int
    part: int


def _planes(window: Window, cut: Cut) -> Planes:
    _, h, w = window.size
    top, left = (-o[0] for o in window.offsets[1:])
    tall, line = (max(cut.outputs * n + 2, p + s) for n, p, s in ((cut.high, top, h), (cut.wide, left, w)))
    return Planes(top, left, tall, line, -(-window.channels // 2), blocking.panel_row(tall * line, 4))


def _cut(window: Window, context: PlanningContext, algorithm: Algorithm) -> Cut:
    high, wide = (-(-n // algorithm.outputs) for n in window.out[1:])
    lines = min(blocking.balanced(high, max(TILES // wide, 1), 1), high)
    block = blocking.balanced(window.outputs, ROWS, PAIRED[context.target.vector_lanes][0])
    part = window.outputs
    if window.batch * -(-high // lines) < 4 * context.threads and context.threads > 1:
        part = blocking.balanced(window.outputs, -(-window.outputs // context.threads), block)
    return Cut(algorithm.outputs, high, wide, lines, block, part)


def _packed(of: Inputs, cut: Cut, lanes: int, algorithm: Algorithm) -> Constant:
    """Transformed weights, pairs of channels as steps, by block of outputs and position: a single stream."""
    weights = integer_winograd.transformed(of.shifted, algorithm)
    steps = tiles.pack_steps(weights.transpose(0, 2, 1), 2).transpose(0, 2, 1)
    panels = [
        tiles.pack_rows(matrix[first : first + cut.block], cut.block, lanes, PAIRED)
        for first in range(0, steps.shape[1], cut.block)
        for matrix in steps
    ]
    return Constant(np.concatenate(panels), of.b.name or "")


def _sizes(
    window: Window, planes: Planes, cut: Cut, lanes: int, algorithm: Algorithm
) -> IntegerWinogradSizes:
    """Sizes of a convolution; a thread's workspace holds transformed tiles, products, sums and a spare."""
    _, rows, columns = window.out
    v_row = blocking.panel_row(cut.lines * cut.wide + lanes, 4)
    v_size, m_size = planes.pairs * v_row, cut.block * v_row
    v_whole = algorithm.positions * v_size + tiles.columns_of(PAIRS, lanes, PAIRED)  # a ragged tile reads on
    sums = cut.outputs * (cut.lines * columns + cut.wide + lanes)  # tiles are stored whole
    return IntegerWinogradSizes(
        pairs=planes.pairs,
        plane=planes.step,
        line=planes.line,
        outputs=window.outputs,
        rows=rows,
        columns=columns,
        high=cut.high,
        wide=cut.wide,
        lines=cut.lines,
        block_m=cut.block,
        part_m=cut.part,
        v_row=v_row,
        v_size=v_size,
        v_whole=v_whole,
        m_size=m_size,
        m_whole=algorithm.positions * m_size,
        sums_size=sums,
        work_step=v_whole + algorithm.positions * m_size + sums + tiles.spare(PAIRS, lanes, PAIRED),
    )


def _lower(group: Group, context: PlanningContext, algorithm: Algorithm) -> tuple[KernelCall, ...]:
    (y,) = group.outputs
    of, finish, window = Inputs(group.anchor), finish_of(group), window_of(group)
    lanes = context.target.vector_lanes
    cut = _cut(window, context, algorithm)
    planes = _planes(window, cut)
    count = window.batch * planes.pairs
    # The last tiles read beyond the last plane.
    x = Workspace((count * planes.step + 2 * cut.outputs * lanes) * 4)
    _, h, w = window.size
    table = np.array(
        (window.channels, 1, h, w, 1, planes.tall, planes.line, 0, planes.top, planes.left, planes.step),
        np.int64,
    )
    sizes = _sizes(window, planes, cut, lanes, algorithm)
    operands: Operands = (
        *of_type("int32*", x, _packed(of, cut, lanes, algorithm), Constant(np.zeros(4, np.int32))),
        (f"{stored(finish.result)}*", y),
        size_operand(sizes),
        ("int32*", Workspace(sizes.work_step * 4, per_thread=True)),
        *finish.arguments,
    )
    call = typed_call(
        "app.kernels.cpu.integer_winograd:emit",
        operands,
        window.batch * -(-cut.high // cut.lines) * -(-window.outputs // cut.part),
        static=(lanes, algorithm.outputs, *finish.static),
    )
    return widening_call(of, x, Constant(table), count), call


def _cost(group: Group, context: PlanningContext, algorithm: Algorithm) -> float:
    """Seconds of the products of whole tiles, and of the sums before and after them, measured in products."""
    window = window_of(group)
    cut = _cut(window, context, algorithm)
    saved = 9 * algorithm.outputs**2 / algorithm.positions
    wasted = 1 + 16 / max(window.channels, 1) + 8 / max(window.outputs, 1)
    width = tiles.columns_of(PAIRS, context.target.vector_lanes, PAIRED)
    columns = cut.lines * cut.wide
    wasted *= -(-columns // width) * width / columns
    wasted *= cut.high * cut.wide * cut.outputs**2 / max(window.pixels, 1)
    return group_roofline(group, context, flops(group) * wasted / (saved * 2.0), 0.6)


IMPLEMENTATIONS = tuple(
    row
    for outputs, algorithm in ALGORITHMS.items()
    for row in rows(
        CONVOLUTIONS,
        f"winograd_f{outputs}",
        partial(_rejection, algorithm=algorithm),
        partial(_lower, algorithm=algorithm),
        partial(_cost, algorithm=algorithm),
    )
)
