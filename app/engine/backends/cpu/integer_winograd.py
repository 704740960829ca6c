"""Rows of integer convolutions by Winograd's algorithm, exact like those they compete with."""

import numpy as np

from app.engine.backends.cpu import blocking
from app.engine.backends.cpu.calls import Operand, size_operand, typed_call
from app.engine.backends.cpu.integer import Inputs, finish_of, less_zero, rejection, widening_call
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import flops, roofline
from app.engine.operators import conv_geometry
from app.kernels.cpu import integer_winograd
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.codegen.tiles import PAIRED, PAIRS
from app.kernels.cpu.integer_winograd import POSITIONS, IntegerWinogradSizes
from app.kernels.expressions import stored

TILES = 64  # of a block, whose sums stay in the second cache
ROWS = 12  # of products that are finished at once


def _rejection(group: Group, context: PlanningContext) -> str | None:
    reason = rejection(group, context)
    if reason is not None:
        return reason
    of = Inputs(group.anchor)
    window = conv_geometry.of_conv(group, of.b)
    if window.groups != 1:
        return f"{window.groups} groups; this one has 1"
    steps = [tuple(np.diff(o)) for o in window.offsets]
    if steps != [(), (1, 1), (1, 1)] or window.size[0] != 1 or window.stride != (1, 1, 1):
        return "not a convolution of 3 x 3 neighbors in steps of one"
    if not integer_winograd.fits(less_zero(of.b, of.b_zero, 0)):
        return f"sums of products with {of.b.name!r} may not fit 32 bits four times"
    return None


def _lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    (y,) = group.outputs
    if graph.elements(y) == 0:
        return ()
    of, finish = Inputs(group.anchor), finish_of(group)
    assert not isinstance(finish, str)
    window = conv_geometry.of_conv(group, of.b)
    lanes = context.target.vector_lanes
    (_, h, w), (_, rows, columns) = window.size, window.out
    top, left = (-o[0] for o in window.offsets[1:])
    high, wide = -(-rows // 2), -(-columns // 2)
    tall, line = max(2 * high + 2, top + h), max(2 * wide + 2, left + w)
    pairs = -(-window.channels // 2)
    plane = blocking.panel_row(tall * line, 4)
    planes = window.batch * pairs
    x = Workspace((planes * plane + 4 * lanes) * 4)  # the last tiles read beyond the last plane
    table = Constant(np.array((window.channels, 1, h, w, 1, tall, line, 0, top, left, plane), np.int64))

    lines = min(blocking.balanced(high, max(TILES // wide, 1), 1), high)
    block = blocking.balanced(window.outputs, ROWS, PAIRED[lanes][0])
    units = window.batch * -(-high // lines)
    part = window.outputs
    if units < 4 * context.threads and context.threads > 1:
        part = blocking.balanced(window.outputs, -(-window.outputs // context.threads), block)
    weights = integer_winograd.transformed(less_zero(of.b, of.b_zero, 0))
    steps = tiles.pack_steps(weights.transpose(0, 2, 1), 2).transpose(0, 2, 1)
    panels = [
        tiles.pack_rows(matrix[first : first + part], block, lanes, PAIRED)
        for matrix in steps
        for first in range(0, window.outputs, part)
    ]
    v_row = blocking.panel_row(lines * wide + lanes, 4)
    v_size, m_size = pairs * v_row, block * v_row
    sums = 2 * lines * columns + 2 * lanes
    spare = tiles.spare(PAIRS, lanes, PAIRED)
    whole = POSITIONS * v_size + tiles.columns_of(PAIRS, lanes, PAIRED)  # a ragged tile reads on
    work = whole + POSITIONS * m_size + sums + spare
    sizes = IntegerWinogradSizes(
        pairs=pairs,
        plane=plane,
        line=line,
        outputs=window.outputs,
        rows=rows,
        columns=columns,
        high=high,
        wide=wide,
        lines=lines,
        block_m=block,
        part_m=part,
        v_row=v_row,
        v_size=v_size,
        v_whole=whole,
        m_size=m_size,
        m_whole=POSITIONS * m_size,
        sums_size=sums,
        work_step=work,
    )
    operands: tuple[Operand, ...] = (
        ("int32*", x),
        ("int32*", Constant(np.concatenate(panels), of.b.name or "")),
        ("int32*", Constant(np.zeros(4, np.int32))),
        (f"{stored(finish.result)}*", y),
        size_operand(sizes),
        ("int32*", Workspace(work * 4, per_thread=True)),
        *finish.arguments,
    )
    call = typed_call(
        "app.kernels.cpu.integer_winograd:emit",
        operands,
        units * -(-window.outputs // part),
        static=(lanes, *finish.static),
    )
    return widening_call(of, x, table, planes), call


def _cost(group: Group, context: PlanningContext) -> float:
    """Seconds of 4 products for 9, and of the sums before and after them, measured in products."""
    window = conv_geometry.of_conv(group, Inputs(group.anchor).b)
    wasted = 1 + 16 / max(window.channels, 1) + 8 / max(window.outputs, 1)
    return roofline(
        context.target,
        flops=flops(group) * wasted / (2.25 * 2.0),
        nbytes=sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs)),
        efficiency=0.6,
        threads=context.threads,
    )


IMPLEMENTATIONS = tuple(
    Implementation(f"{name}.winograd", op, "numba-cpu", _rejection, _lower, _cost)
    for name, op in (("conv_integer", "ConvInteger"), ("qlinear_conv", "QLinearConv"))
)
