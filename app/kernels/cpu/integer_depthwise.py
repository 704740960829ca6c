"""Depthwise convolutions of 8-bit integers: one channel at a time, exact, in the first caches.

A channel is widened to PAIRS of vertical neighbours, so two taps are one multiplication; columns go by
residue modulo the stride, so every tap reads neighbouring pixels.
"""

from app.kernels.cpu.epilogue import ALONG, FIXED, converted_run_library
from app.kernels.cpu.expressions import Recipe
from app.kernels.cpu.linking import Sources

ROWS = 8  # of a tile: as many sums as hide the latency of a product

# What the kernel reads from its table of sizes.
SIZES = (
    "channels",
    "h",
    "w",
    "top",  # rows and columns of zeros before the image
    "left",
    "lines",  # rows of the widened channel
    "phase",  # columns of one residue
    "distance",  # rows between the neighbours of a pair
    "stride_h",
    "stride_w",
    "rows",  # of the output
    "columns",
    "taps",
    "block",  # rows of the output that are finished at once
    "plane_size",
    "work_step",
    "blank_step",
)

# Where operands of a recipe begin.
PLACES = {"same": "place", "channel": "channel", "plane": "unit", "scalar": "0"}

_KERNEL = """\
import numpy as np
from numba import njit
from app.kernels.cpu.generator import at, taps_tile
from app.kernels.cpu.tiles import PAIRS

LANES, ROWS = {lanes}, {rows_}
tile = taps_tile(PAIRS, LANES, ROWS, 1)


@njit(error_model="numpy", boundscheck=False)
def pair(a, b, offset):
    return ((np.int32(b) - offset) << np.int32(16)) | ((np.int32(a) - offset) & np.int32(65535))


@njit(error_model="numpy", boundscheck=False)
def widen(to, a, b, offset, stride, first, n):
    # to[i] = the pair of a and b at column first + i * stride.
    if stride == 1:
        for i in range(n):
            to[i] = np.int32(pair(a[first + i], b[first + i], offset))
    elif stride == 2:
        for i in range(n):
            to[i] = np.int32(pair(a[first + 2 * i], b[first + 2 * i], offset))
    else:
        for i in range(n):
            to[i] = np.int32(pair(a[first + i * stride], b[first + i * stride], offset))


def kernel(x, zero, weights, y, offsets, sizes, blanks, work{operands}, begin, end, thread):
    {unpack} = {sizes}
    offset = np.int32(zero[0])
    plane = at(work, thread * work_step)
    sums = at(plane, plane_size)
    blank = at(blanks, thread * blank_step)
    for j in range(w):
        blank[j] = zero[0]
    line = phase * stride_w
    for unit in range(begin, end):
        channel = unit % channels
        image = at(x, unit * h * w)
        for r in range(lines):
            low, high = r - top, r - top + distance
            a = at(image, low * w) if 0 <= low < h else blank
            b = at(image, high * w) if 0 <= high < h else blank
            for p in range(stride_w):
                to = at(plane, r * line + p * phase)
                start = min(max((left - p + stride_w - 1) // stride_w, 0), phase)
                stop = min(max((w + left - p + stride_w - 1) // stride_w, start), phase)
                for i in range(start):
                    to[i] = 0
                widen(at(to, start), a, b, offset, stride_w, start * stride_w + p - left, stop - start)
                for i in range(stop, phase):
                    to[i] = 0
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
    columns] of type `result`; offsets: int64[taps] in the widened channel; sizes: int64, see SIZES;
    blanks: T, a row per thread; work: int32, per thread; then the operands of the recipe.
    Units are channels of images.

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
        unpack=", ".join(SIZES),
        sizes=", ".join(f"sizes[{i}]" for i in range(len(SIZES))),
        operands="".join(f", x{i}" for i in range(len(operands))),
        finish=f"            run(sums, at(y, place), n{begins})" if recipe else copy,
    )
    if not recipe:
        return (text,)
    advances = tuple((ALONG if place == "same" else FIXED, kind) for place, kind in operands)
    return converted_run_library("int32", result, recipe, advances, lanes), f"from LIBRARY0 import run\n{text}"
