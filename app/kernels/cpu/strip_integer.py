"""Strips of convolutions of 8-bit integers over rows that lie anywhere: exact sums, row by row.

Images are planes of channels; a table says where each row of a value begins, see `app.kernels.cpu.strips`.
Sums are exact and become what is stored by the recipe of the convolution without strips, so results are equal
bit by bit.
"""

from dataclasses import dataclass

from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import PAIRED, PAIRS, QUADS
from app.kernels.cpu.epilogue import ALONG, FIXED
from app.kernels.cpu.gemm import product_library
from app.kernels.cpu.integer_depthwise import LINES
from app.kernels.cpu.requantize import converted_run_library
from app.kernels.cpu.strips import NEXT_ROWS, RowPlaces
from app.kernels.expressions import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class StripConvSizes(SizeTable):
    """Sizes of an integer convolution by rows."""

    h: int
    w: int
    rows: int  # of the output
    columns: int
    stride_h: int
    stride_w: int
    tap_count: int
    groups: int
    channels: int  # of the input, per group
    outputs: int  # of the output, per group
    steps: int  # elements of several channels, per group
    span: int  # columns of a tile
    lines: int  # rows of a tile
    block_m: int
    panel_row: int
    panel_size: int
    zero: int  # of the input
    blank: int  # element of a pixel outside the image
    flip: int  # bits by which bytes change their sign


# Where operands of a recipe begin for output channel `channel + j` and row `row + i` of a tile.
PLACES = {"same": "r_place", "channel": "channel + j", "plane": "channel + j", "scalar": "0"}

_GATHER = """\
    low = min(max((stride - 1 - position) // stride, 0), n)
    high = max(min((w - position + stride - 1) // stride, n), low)
    for j in range(low):
        out[j] = blank
    if stride == 1:
        for j in range(low, high):
            p = position + j
            write(out, j, {element})
    elif stride == 2:
        for j in range(low, high):
            p = position + 2 * j
            write(out, j, {element})
    else:
        for j in range(low, high):
            p = position + stride * j
            write(out, j, {element})
    for j in range(high, n):
        out[j] = blank
"""

_ELEMENTS = {
    4: "((int32(read(a, p)) & 255) | (int32(read(b, p)) & 255) << 8 | (int32(read(c, p)) & 255) << 16"
    " | (int32(read(d, p)) & 255) << 24) ^ flip",
    2: "(int32(read(b, p)) - zero) << 16 | ((int32(read(a, p)) - zero) & 65535)",
}

_CONV = """\
from numba import int32
from app.kernels.cpu.access import read, write
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.tiles import ROW_BIAS
from LIBRARY0 import COLUMNS, product
{imports}
LANES, TOGETHER = {lanes}, {together}


@njit(error_model="numpy", boundscheck=False)
def gather(a, b, c, d, position, w, stride, n, zero, blank, flip, out):
    # out[j]: the channels in one element, at column position + j * stride.
{gather}

def kernel(x, weights, corrections, y, taps, table, sizes, places, cursors, most, work{operands}, begin, end):
    {unpack}
    {unpack_places}
{span}
    depth = steps * tap_count
    panels = at(work, work_at)
    sums = at(panels, panel_size)
    for row in range(first, last, lines):
        count = min(lines, last - row)
        for unit in range((columns + span - 1) // span * groups):
            group, column = unit % groups, unit // groups * span
            n = min(span, columns - column)
            for tap in range(tap_count):
                position = column * stride_w + taps[2 * tap + 1]
                for i in range(count):
                    above = (row + i) * stride_h + taps[2 * tap]
                    inside = above >= 0 and above < h
                    image = at(x, table[x_first + above] if inside else 0)
                    for step in range(steps):
                        out = at(panels, (step * tap_count + tap) * panel_row + i * n)
                        if not inside:
                            for j in range(n):
                                out[j] = blank
                            continue
                        left = channels - 1 - step * TOGETHER  # weights of channels behind the last are zero
                        a = at(image, (group * channels + step * TOGETHER) * x_plane)
                        b = at(a, min(left, 1) * x_plane)
                        c, d = at(a, min(left, 2) * x_plane), at(a, min(left, 3) * x_plane)
                        gather(a, b, c, d, position, w, stride_w, n, zero, blank, flip, out)
            # The distance of rows of a tile, so that one that is not whole is finished where it lies.
            sums_row = LANES if count * n <= LANES else COLUMNS
            for block in range(0, outputs, block_m):
                m, channel = min(block_m, outputs - block), group * outputs + block
                product(at(weights, channel * depth), True, depth, 1, 0, panels, panel_row, COLUMNS, depth,
                        sums, sums_row, m, count * n, sums, sums, sums_row, at(corrections, channel), 1,
                        sums, sums, 0, sums, {flags})
                for j in range(m):
                    for i in range(count):
                        place = table[y_first + row + i] + (channel + j) * y_plane + column
                        r_place = table[r_first + row + i] + (channel + j) * r_plane + column
                        source = at(sums, j * sums_row + i * n)
{finish}
"""


def emit_conv(
    dtype: str,
    lanes: int,
    recipe: Recipe = (),
    operands: tuple[tuple[str, str], ...] = (),
    result: str = "int32",
) -> Sources:
    """The module of a kernel that computes the next rows of an integer convolution of one image.

    x: 8-bit, planes of channels; weights, corrections: as of `integer_products.emit_conv`, all outputs of a
    group in one part; y: planes of channels of type `result`; taps: int64[taps, 2], rows and columns from
    the first of an output; table: int32, elements from the address of a value to each of its rows; sizes:
    StripConvSizes; places: RowPlaces; cursors: int64[operators]; most: rows of the call; work: int32; then
    the operands of the recipe. One unit.

    Args:
        dtype: of the elements of operands: PAIRS, or four numbers in one.
        lanes: int32 in a register.
        recipe: what makes an element of y of a sum, its input 0; empty where y takes the sums.
        operands: (place, dtype) of the recipe's other inputs; see PLACES.
        result: dtype of y.
    """
    together = 2 if dtype == PAIRS else 4
    begins = "".join(f", at(x{i}, {PLACES[place]})" for i, (place, _) in enumerate(operands))
    indent = " " * 24
    run = f"{indent}run(source, at(y, place), n{begins})"
    copy = f"{indent}for q in range(n):\n{indent}    y[place + q] = source[q]"
    text = _CONV.format(
        imports="from LIBRARY1 import run\n" if recipe else "",
        lanes=lanes,
        together=together,
        gather=_GATHER.format(element=_ELEMENTS[together]),
        operands="".join(f", x{i}" for i in range(len(operands))),
        unpack=StripConvSizes.unpack(),
        unpack_places=RowPlaces.unpack("places"),
        span=NEXT_ROWS,
        flags="0" if dtype == PAIRS else "ROW_BIAS",
        finish=run if recipe else copy,
    )
    product = product_library(dtype, lanes, PAIRED if dtype == PAIRS else QUADS)
    return (product, *_runs(lanes, recipe, operands, result), text)


def _runs(lanes: int, recipe: Recipe, operands: tuple[tuple[str, str], ...], result: str) -> tuple[str, ...]:
    """The library that turns a run of sums of one channel into what is stored; none without a recipe."""
    advances = tuple((ALONG if place == "same" else FIXED, kind) for place, kind in operands)
    return (converted_run_library("int32", result, recipe, advances, lanes),) if recipe else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StripDepthwiseSizes(SizeTable):
    """Sizes of an integer depthwise convolution by rows; see `integer_depthwise.IntegerDepthwiseSizes`."""

    channels: int
    h: int
    w: int
    top: int
    left: int
    lines: int  # rows of the windows of a tile
    reach: int  # of one window
    row: int
    phase: int
    distance: int
    stride_h: int
    stride_w: int
    rows: int
    columns: int
    taps: int
    plane_size: int
    sums_size: int
    frame_size: int  # bytes
    zero: int


_DEPTHWISE = """\
from numba import int32
from app.kernels.cpu.access import read, write
from app.kernels.cpu.codegen.generator import at, taps_tile
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.tiles import PAIRS
from app.kernels.cpu.codegen.vectors import load, store
{imports}
LANES, ROWS = {lanes}, {tile_rows}
tile = taps_tile(PAIRS, LANES, ROWS, 1)

{lines}
def kernel(x, weights, y, offsets, table, sizes, places, cursors, most, frames, work{operands}, begin, end):
    {unpack}
    {unpack_places}
{span}
    plane = at(work, work_at)
    sums = at(plane, plane_size)
    framed = at(frames, 4 * (work_at + plane_size + sums_size))
    for j in range(frame_size if first < last else 0):
        framed[j] = zero
    line = row // stride_w
    for start in range(first, last, ROWS):
        count = min(ROWS, last - start)
        above = start * stride_h - top
        low, high = max(-above, 0), min(h - above, (count - 1) * stride_h + reach)
        for r in range(0, low):
            for j in range(row):
                framed[r * row + j] = zero
        for r in range(max(high, 0), lines):
            for j in range(row):
                framed[r * row + j] = zero
        for channel in range(channels):
            for r in range(low, high):
                copy(at(framed, r * row + left), at(x, table[x_first + above + r] + channel * x_plane),
                     min(w, row - left))
            for p in range(stride_w):
                widen(at(plane, p * phase), at(framed, p), distance * row, int32(zero), stride_w, phase)
            for j in range((columns - 1) // LANES * LANES, -1, -LANES):
                to = at(sums, j)
                tile(at(plane, j), stride_h * line, offsets, at(weights, channel * taps), taps, count,
                     to, columns, at(to, (count - 1) * columns), to, 0, to, sums, sums, 0)
            for i in range(count):
                place = table[y_first + start + i] + channel * y_plane
                r_place = table[r_first + start + i] + channel * r_plane
                source = at(sums, i * columns)
{finish}
"""

_DEPTHWISE_PLACES = {"same": "r_place", "channel": "channel", "plane": "channel", "scalar": "0"}


def emit_depthwise(
    dtype: str,
    lanes: int,
    tile_rows: int,
    recipe: Recipe = (),
    operands: tuple[tuple[str, str], ...] = (),
    result: str = "int32",
) -> Sources:
    """The module of a kernel that computes the next rows of a depthwise convolution of one image.

    frames: T, the memory of `work`; the other arguments are those of `emit_conv` and of
    `integer_depthwise.emit`. One unit.

    Args:
        dtype: T, int8 or uint8.
        lanes: int32 in a register.
        tile_rows: rows of the output of a tile.
        recipe: what makes an element of y of a sum, its input 0; empty where y takes the sums.
        operands: (place, dtype) of the recipe's other inputs.
        result: dtype of y.
    """
    begins = "".join(f", at(x{i}, {_DEPTHWISE_PLACES[place]})" for i, (place, _) in enumerate(operands))
    indent = " " * 16
    run = f"{indent}run(source, at(y, place), columns{begins})"
    copy = f"{indent}for q in range(columns):\n{indent}    y[place + q] = source[q]"
    text = _DEPTHWISE.format(
        imports="from LIBRARY0 import run\n" if recipe else "",
        lanes=lanes,
        tile_rows=tile_rows,
        lines=LINES,
        operands="".join(f", x{i}" for i in range(len(operands))),
        unpack=StripDepthwiseSizes.unpack(),
        unpack_places=RowPlaces.unpack("places"),
        span=NEXT_ROWS,
        finish=run if recipe else copy,
    )
    return (*_runs(lanes, recipe, operands, result), text)
