"""Rows of integer convolutions of one channel to one."""

from dataclasses import dataclass

import numpy as np

from app.engine.backends.cpu.calls import Operands, size_operand, typed_call
from app.engine.backends.cpu.integer import (
    CONVOLUTIONS,
    Inputs,
    finish_of,
    rejection,
    rows,
    window_of,
    with_zero,
)
from app.engine.backends.cpu.integer_last import images_rejection, layouts
from app.engine.backends.cpu.rows import after, group_roofline, total_bytes
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.operators.conv_geometry import Window
from app.kernels.cpu.byte_transposes import TILE
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.integer_depthwise import ROWS, IntegerDepthwiseSizes
from app.kernels.cpu.integer_lanes import IntegerLanesSizes, LastLanesSizes, tile_pixels
from app.kernels.expressions import stored

SUMS = 4096  # of a channel that are finished at once
PAIRS = 32 * 1024  # of gathered rows that are widened at once
# Operations of float32 that take as long as a channel and a pixel of it, beside its taps, and those of 16
# channels side by side: fitted to images of 7 x 7 to 112 x 112, windows of 3 x 3 and 5 x 5 (a core of Zen 5).
CHANNEL, PIXEL, BLOCK, BLOCK_PIXEL = 3200.0, 15.0, 21200.0, 140.0
LAST_PAIRS = 8 * 1024  # the same where channels lie last
LAST_BLOCK, LAST_PIXEL = 4000.0, 60.0


@after(rejection)
def depthwise_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why a convolution is none of one channel to one, along two axes at most."""
    window = window_of(group)
    if (window.channels, window.outputs) != (1, 1):
        return f"{window.channels} channels to {window.outputs} in a group; this one takes 1 to 1"
    if (window.size[0], window.out[0], window.offsets[0]) != (1, 1, (0,)):
        return "three spatial axes; this one has two"
    return None


@dataclass(frozen=True, slots=True)
class Planes:
    """The padded input of a channel, a plane for each phase of the stride along rows.

    Attributes:
        top, left: rows and columns before the first of the input.
        lines: rows of the padded input.
        line: elements of a row of a plane.
        phase: elements of a plane.
        distance: rows from tap to tap.
    """

    top: int
    left: int
    lines: int
    line: int
    phase: int
    distance: int


def planes_of(window: Window, lanes: int, rows: int) -> Planes:
    """The planes of so many rows of the output."""
    (_, _, columns), (_, stride_h, stride_w) = window.out, window.stride
    down, across = window.offsets[1:]
    top, left = max(-min(down), 0), max(-min(across), 0)
    lines = (rows - 1) * stride_h + max(down) + top + 1
    # Tiles are whole: they read rows and columns beyond the last.
    line = -(-columns // lanes) * lanes + (max(across) + left) // stride_w + 1
    distance = down[1] - down[0] if len(down) > 1 else 1
    return Planes(top, left, lines, line, -(-lines * line // lanes) * lanes, distance)


def offsets_of(window: Window, planes: Planes) -> list[int]:
    """Where the pairs of taps, one below the other, are in the planes."""
    down, across = window.offsets[1:]
    stride = window.stride[2]
    return [
        (c + planes.left) % stride * planes.phase
        + (r + planes.top) * planes.line
        + (c + planes.left) // stride
        for r in down[::2]
        for c in across
    ]


def _sizes(window: Window, planes: Planes, taps: int, lanes: int) -> IntegerDepthwiseSizes:
    """Sizes of a convolution, among them the workspaces of a thread: `work_step` and `border_step`."""
    (_, h, w), (_, rows, columns), (_, stride_h, stride_w) = window.size, window.out, window.stride
    row = planes.line * stride_w
    block = max(min(SUMS // max(columns, 1), rows) // ROWS * ROWS, min(ROWS, rows))
    plane = planes.phase * stride_w
    return IntegerDepthwiseSizes(
        channels=window.groups,
        h=h,
        w=w,
        top=planes.top,
        left=planes.left,
        lines=planes.lines,
        row=row,
        phase=planes.phase,
        distance=planes.distance,
        stride_h=stride_h,
        stride_w=stride_w,
        rows=rows,
        columns=columns,
        taps=taps,
        block=block,
        plane_size=plane,
        work_step=plane + block * columns + lanes,
        border_step=plane + planes.distance * row,
    )


def _lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    (y,) = group.outputs
    of, finish, window = Inputs(group.anchor), finish_of(group), window_of(group)
    lanes = context.target.vector_lanes
    planes = planes_of(window, lanes, -(-window.out[1] // ROWS) * ROWS)
    offsets = offsets_of(window, planes)
    sizes = _sizes(window, planes, len(offsets), lanes)
    kind = graph.element_type(of.a)
    operands: Operands = (
        *with_zero(of.a, of.a_zero),
        ("int32*", packed_weights(of, window)),
        (f"{stored(finish.result)}*", y),
        ("int64*", Constant(np.array(offsets, np.int64))),
        size_operand(sizes),
        (f"{kind.name}*", Workspace(sizes.border_step, per_thread=True)),
        ("int32*", Workspace(sizes.work_step * 4, per_thread=True)),
        *finish.arguments,
    )
    call = typed_call(
        "app.kernels.cpu.integer_depthwise:emit",
        operands,
        window.batch * window.groups,
        static=(kind.name, lanes, *finish.static),
    )
    return (call,)


def packed_weights(of: Inputs, window: Window) -> Constant:
    """PAIRS[channels, taps]: two taps, one below the other, in one element."""
    _, down, across = window.offsets
    shifted = of.shifted.reshape(-1, len(down), len(across))
    return Constant(tiles.pack_steps(shifted, 2).reshape(window.groups, -1), of.b.name or "")


def _cost(group: Group, context: PlanningContext) -> float:
    """Whole tiles of a channel, its border and its end."""
    window, lanes = window_of(group), context.target.vector_lanes
    _, rows, columns = window.out
    tile = -(-rows // ROWS) * ROWS * -(-columns // lanes) * lanes
    work = CHANNEL + PIXEL * _moved(window) + 2.0 * _pairs(window) * tile
    return group_roofline(group, context, window.batch * window.groups * work, 0.4, total_bytes(group))


def _moved(window: Window) -> int:
    """Pixels of a channel that are widened, or become results."""
    return max(window.size[1] * window.size[2], window.pixels)


def _pairs(window: Window) -> int:
    """Pairs of vertical neighbors among the taps."""
    return -(-len(window.offsets[1]) // 2) * len(window.offsets[2])


@after(depthwise_rejection)
def _lanes_rejection(group: Group, _context: PlanningContext) -> str | None:
    channels = window_of(group).groups
    return f"{channels} channels, fewer than {TILE // 2}" if channels < TILE // 2 else None


def _lanes_sizes(window: Window, context: PlanningContext, taps: int) -> IntegerLanesSizes:
    """Sizes where 16 channels lie side by side: bands of rows whose pairs fit the second cache."""
    lanes = context.target.vector_lanes
    (_, h, w), (_, rows, columns), (_, stride_h, stride_w) = window.size, window.out, window.stride
    down, across = window.offsets[1:]
    top, left = max(-min(down), 0), max(-min(across), 0)
    line = left + max(w, (columns - 1) * stride_w + max(across) + 1)
    distance = down[1] - down[0] if len(down) > 1 else 1
    reach = down[::2][-1] + top + distance + 1
    band = max(min((PAIRS // (line * TILE) - reach) // stride_h + 1, rows), 1)
    blocks = window.batch * -(-window.groups // TILE)
    while band > 1 and context.threads > 1 and blocks * -(-rows // band) < 4 * context.threads:
        band = -(-band // 2)
    lines = (band - 1) * stride_h + reach
    turned_row = -(-band * columns // lanes) * lanes
    pairs = (lines - distance) * line * TILE
    sums = (max(turned_row, band * columns) + tile_pixels(lanes, columns)) * TILE
    return IntegerLanesSizes(
        channels=window.groups,
        h=h,
        w=w,
        top=top,
        left=left,
        line=line,
        reach=reach,
        distance=distance,
        stride_h=stride_h,
        stride_w=stride_w,
        rows=rows,
        columns=columns,
        taps=taps,
        band=band,
        elements=window.batch * window.groups * h * w,
        gathered_step=lines * line * TILE,
        pairs_size=pairs,
        sums_size=sums,
        turned_row=turned_row,
        work_step=pairs + sums + lanes * turned_row,
    )


def _lanes_lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    (y,) = group.outputs
    of, finish, window = Inputs(group.anchor), finish_of(group), window_of(group)
    _, down, across = window.offsets
    pairs = packed_weights(of, window).array
    taps, blocks = pairs.shape[1], -(-window.groups // TILE)
    whole = np.pad(pairs, ((0, blocks * TILE - window.groups), (0, 0))).reshape(blocks, TILE, taps)
    sizes, lanes = _lanes_sizes(window, context, taps), context.target.vector_lanes
    offsets = [((r + sizes.top) * sizes.line + c + sizes.left) * TILE for r in down[::2] for c in across]
    kind = graph.element_type(of.a)
    operands: Operands = (
        *with_zero(of.a, of.a_zero),
        ("int32*", Constant(np.ascontiguousarray(whole.swapaxes(1, 2)), of.b.name or "")),
        (f"{stored(finish.result)}*", y),
        ("int64*", Constant(np.array(offsets, np.int64))),
        size_operand(sizes),
        ("int16*", Workspace(sizes.gathered_step * 2, per_thread=True)),
        ("int32*", Workspace(sizes.work_step * 4, per_thread=True)),
        *finish.arguments,
    )
    rest = (window.groups - 1) % TILE + 1
    call = typed_call(
        "app.kernels.cpu.integer_lanes:emit",
        operands,
        window.batch * blocks * -(-window.out[1] // sizes.band),
        static=(kind.name, rest, lanes, tile_pixels(lanes, window.out[2]), *finish.static),
    )
    return (call,)


def _lanes_cost(group: Group, context: PlanningContext) -> float:
    """Gathering, pairs and transposes of whole blocks of channels beside the taps."""
    window = window_of(group)
    pixels = tile_pixels(context.target.vector_lanes, window.out[2])
    blocks = window.batch * -(-window.groups // TILE)
    tile = window.out[1] * -(-window.out[2] // pixels) * pixels
    work = BLOCK + BLOCK_PIXEL * _moved(window) + 2.25 * TILE * _pairs(window) * tile
    return group_roofline(group, context, blocks * work, 0.4, total_bytes(group))


@after(depthwise_rejection)
def _last_rejection(group: Group, _context: PlanningContext) -> str | None:
    channels = window_of(group).groups
    if channels < TILE:
        return f"{channels} channels do not fill a vector of {TILE}"
    return images_rejection(group)


def _last_sizes(window: Window, context: PlanningContext, taps: int) -> LastLanesSizes:
    """Sizes of bands of rows whose pairs fit the first cache."""
    of = _lanes_sizes(window, context, taps)
    band = max(min((LAST_PAIRS // (of.line * TILE) + of.distance - of.reach) // of.stride_h + 1, of.band), 1)
    pairs = ((band - 1) * of.stride_h + of.reach - of.distance) * of.line * TILE
    sums = (band * of.columns + tile_pixels(context.target.vector_lanes, of.columns)) * TILE
    return LastLanesSizes(
        channels=of.channels,
        h=of.h,
        w=of.w,
        top=of.top,
        left=of.left,
        line=of.line,
        reach=of.reach,
        distance=of.distance,
        stride_h=of.stride_h,
        stride_w=of.stride_w,
        rows=of.rows,
        columns=of.columns,
        taps=taps,
        band=band,
        pairs_size=pairs,
        work_step=pairs + sums,
    )


def _last_lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    (y,) = group.outputs
    of, finish, window = Inputs(group.anchor), finish_of(group), window_of(group)
    _, down, across = window.offsets
    pairs = packed_weights(of, window).array
    taps, channels, lanes = pairs.shape[1], window.groups, context.target.vector_lanes
    firsts = [min(c, channels - TILE) for c in range(0, channels, TILE)]
    packed = np.stack([pairs[c : c + TILE].T for c in firsts])
    sizes = _last_sizes(window, context, taps)
    offsets = [((r + sizes.top) * sizes.line + c + sizes.left) * TILE for r in down[::2] for c in across]
    kind = graph.element_type(of.a)
    operands: Operands = (
        *with_zero(of.a, of.a_zero),
        ("int32*", Constant(packed, of.b.name or "")),
        (f"{stored(finish.result)}*", y),
        ("int64*", Constant(np.array(offsets, np.int64))),
        size_operand(sizes),
        ("int32*", Workspace(sizes.work_step * 4, per_thread=True)),
        *finish.arguments,
    )
    call = typed_call(
        "app.kernels.cpu.integer_lanes:emit_last",
        operands,
        window.batch * len(firsts) * -(-window.out[1] // sizes.band),
        static=(kind.name, lanes, tile_pixels(lanes, window.out[2]), *finish.static),
    )
    return (call,)


def _last_cost(group: Group, context: PlanningContext) -> float:
    """Pairs of whole blocks of channels beside the taps."""
    window, pixels = window_of(group), tile_pixels(context.target.vector_lanes, window_of(group).out[2])
    blocks = window.batch * -(-window.groups // TILE)
    tile = window.out[1] * -(-window.out[2] // pixels) * pixels
    work = LAST_BLOCK + LAST_PIXEL * _moved(window) + 2.25 * TILE * _pairs(window) * tile
    return group_roofline(group, context, blocks * work, 0.4, total_bytes(group))


IMPLEMENTATIONS = (
    *rows(CONVOLUTIONS, "depthwise", depthwise_rejection, _lower, _cost),
    *rows(CONVOLUTIONS, "depthwise_lanes", _lanes_rejection, _lanes_lower, _lanes_cost),
    *rows(
        CONVOLUTIONS,
        "depthwise_last",
        _last_rejection,
        _last_lower,
        _last_cost,
        layouts=layouts,
        rank=2,
    ),
)
