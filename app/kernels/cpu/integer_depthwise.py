"""Depthwise convolutions of 8-bit integers: one channel at a time, exact, in the first caches.

A channel is widened to PAIRS of vertical neighbours, so two taps are one multiplication; columns go by
residue modulo the stride, so every tap reads neighbouring pixels.
"""

from dataclasses import dataclass

from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.epilogue import ALONG, FIXED
from app.kernels.cpu.requantize import converted_run_library
from app.kernels.expressions import Recipe

ROWS = 8  # of a tile: as many sums as hide the latency of a product


# What the kernel reads from its table of sizes.
@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerDepthwiseSizes(SizeTable):
    """Sizes of an integer depthwise convolution."""

    channels: int
    h: int
    w: int
    top: int  # rows and columns of zeros before the image
    left: int
    lines: int  # rows of the channel with its border
    row: int  # from one to the next, a multiple of stride_w
    phase: int  # elements of a widened channel of one residue
    distance: int  # rows between the neighbours of a pair
    stride_h: int
    stride_w: int
    rows: int  # of the output
    columns: int
    taps: int
    block: int  # rows of the output that are finished at once
    plane_size: int
    work_step: int
    border_step: int


# Where operands of a recipe begin.
PLACES = {"same": "place", "channel": "channel", "plane": "unit", "scalar": "0"}

# Copies of rows, and their pairs with those below.
LINES = """\
@njit(error_model="numpy", boundscheck=False)
def copy(to, source, n):
    # Eight elements at a time, the last eight from the end.
    for i in range(0, n - 7, 8):
        store(to, i, load(source, i, 8))
    if n >= 8:
        store(to, n - 8, load(source, n - 8, 8))
    else:
        for i in range(n):
            to[i] = source[i]


@njit(error_model="numpy", boundscheck=False)
def widen(to, x, distance, offset, stride, n):
    # to[i] = the pair of x[i * stride] and its neighbour below.
    below = at(x, distance)
    if stride == 1:
        for i in range(n):
            write(to, i, (int32(read(below, i)) - offset) << 16 | ((int32(read(x, i)) - offset) & 65535))
    elif stride == 2:
        for i in range(n):
            low, high = int32(read(x, 2 * i)) - offset, int32(read(below, 2 * i)) - offset
            write(to, i, (high << 16) | (low & 65535))
    else:
        for i in range(n):
            low, high = int32(read(x, stride * i)) - offset, int32(read(below, stride * i)) - offset
            write(to, i, (high << 16) | (low & 65535))


"""

_KERNEL = """\
from numba import int32
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.access import read, write
from app.kernels.cpu.codegen.generator import at, taps_tile
from app.kernels.cpu.codegen.tiles import PAIRS
from app.kernels.cpu.codegen.vectors import load, store

LANES, ROWS = {lanes}, {rows_}
tile = taps_tile(PAIRS, LANES, ROWS, 1)


{lines}def kernel(x, zero, weights, y, offsets, sizes, borders, work{operands}, begin, end, thread):
    {unpack}
    offset = int32(zero[0])
    plane = at(work, thread * work_step)
    sums = at(plane, plane_size)
    framed = at(borders, thread * border_step)  # stays around the image of every channel
    for j in range(border_step):
        framed[j] = zero[0]
    line = row // stride_w
    for unit in range(begin, end):
        channel = unit % channels
        for r in range(min(h, lines - top)):
            copy(at(framed, (top + r) * row + left), at(x, (unit * h + r) * w), min(w, row - left))
        for p in range(stride_w):
            widen(at(plane, p * phase), at(framed, p), distance * row, offset, stride_w, phase)
        for top_row in range(0, rows, block):
            height = min(block, rows - top_row)
            # A tile writes beyond the end of its rows what the next one, or the next row, puts right.
            for r in range(0, height, ROWS):
                m = min(ROWS, height - r)
                source = at(plane, (top_row + r) * stride_h * line)
                for j in range((columns - 1) // LANES * LANES, -1, -LANES):
                    to = at(sums, r * columns + j)
                    last = at(to, (m - 1) * columns)
                    tile(at(source, j), stride_h * line, offsets, at(weights, channel * taps), taps, m,
                         to, columns, last, to, 0, to, sums, sums, 0)
            place = (unit * rows + top_row) * columns
            n = height * columns
{finish}
"""


def emit(
    dtype: str,
    lanes: int,
    recipe: Recipe = (),
    operands: tuple[tuple[str, str], ...] = (),
    result: str = "int32",
) -> Sources:
    """The module of a depthwise convolution along two axes.

    x: T[batch, channels, h, w]; zero: T[1]; weights: PAIRS[channels, taps]; y: [batch, channels, rows,
    columns] of type `result`; offsets: int64[taps] in the widened channel; sizes: IntegerDepthwiseSizes;
    borders: T, a channel with its border per thread; work: int32, per thread; then the operands of the
    recipe. Units are channels of images.

    Args:
        dtype: T, int8 or uint8.
        lanes: int32 in a register.
        recipe: what makes an element of y of a sum, its input 0; empty where y takes the sums.
        operands: (place, dtype) of the recipe's other inputs; see PLACES.
        result: dtype of y.
    """
    begins = "".join(f", at(x{i}, {PLACES[place]})" for i, (place, _) in enumerate(operands))
    copy = "            for i in range(n):\n                y[place + i] = sums[i]"
    text = _KERNEL.format(
        lanes=lanes,
        rows_=ROWS,
        lines=LINES,
        unpack=IntegerDepthwiseSizes.unpack(),
        operands="".join(f", x{i}" for i in range(len(operands))),
        finish=f"            run(sums, at(y, place), n{begins})" if recipe else copy,
    )
    if not recipe:
        return (text,)
    advances = tuple((ALONG if place == "same" else FIXED, kind) for place, kind in operands)
    return converted_run_library(
        "int32", result, recipe, advances, lanes
    ), f"from LIBRARY0 import run\n{text}"
