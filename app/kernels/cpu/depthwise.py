"""Convolutions with one input channel per group: direct, vectorized over the width.

A strip of the channel is copied with its padding into a buffer in the first cache, columns sorted
by their residue modulo the stride, so that every tap of a row of output pixels is one vector. Of volumes
these are the strips of all slices that a slice of the output reads, one after the other.
"""

from dataclasses import dataclass

from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import lanes_of
from app.kernels.cpu.epilogue import ALONG, CHUNK, FIXED, run_library
from app.kernels.expressions import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseSizes(SizeTable):
    """Sizes of a depthwise convolution over row-major images and volumes."""

    filters: int  # channels of the output
    outputs: int  # per group
    slices: int  # of the output
    stride_d: int
    read: int  # slices that one of the output reads
    slab: int  # elements of the strip of a slice
    d: int
    h: int
    w: int
    rows: int  # of the output
    columns: int
    stride_h: int
    stride_w: int
    top: int  # rows and columns of the buffer before the first of the input
    left: int
    taps: int
    strip: int  # output rows whose input rows are in the buffer
    below: int  # buffer rows that an output row reads after its first
    line: int  # elements of a buffer row of one residue
    work_step: int  # elements of workspace per thread
    flags: int


ROWS = 4  # of the tile for wide images, which has two vectors a row

_SOURCE = """\
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.copies import rows_copier
from app.kernels.cpu.codegen.generator import at, taps_tile
from app.kernels.cpu.codegen.tiles import RESIDUAL

VECTOR, ROWS = {vector}, {rows}
wide = taps_tile("{dtype}", VECTOR, ROWS, 2)
narrow = taps_tile("{dtype}", VECTOR, 2 * ROWS, 1)
copy1 = rows_copier("{dtype}", VECTOR, 1)
copy2 = rows_copier("{dtype}", VECTOR, 2)


@njit(error_model="numpy", boundscheck=False)
def fill(x, h, w, top, left, first, count, stride_w, line, out):
    # Buffer rows first..first+count of a channel; what is not written is zero from before.
    row = stride_w * line
    inside = min(max(top - first, 0), count)
    after = max(min(count, h + top - first), inside)
    for i in range(inside * row):
        out[i] = 0
    for i in range(after * row, count * row):
        out[i] = 0
    for residue in range(stride_w):
        # Column j of this residue is input column j * stride_w + residue - left.
        skip = max((left - residue + stride_w - 1) // stride_w, 0)
        column = skip * stride_w + residue - left
        n = max((w - column + stride_w - 1) // stride_w, 0)
        target = at(out, inside * row + residue * line + skip)
        source = at(x, (first + inside - top) * w + column)
        if stride_w == 1:
            copy1(target, row, source, w, after - inside, n)
        elif stride_w == 2:
            copy2(target, row, source, w, after - inside, n)
        else:
            for r in range(after - inside):
                for j in range(n):
                    target[r * row + j] = source[r * w + j * stride_w]


def kernel(x, weights, y, bias, residual, scalars, offsets, sizes, work{operands}, begin, end, thread):
    {unpack}
    spare = at(work, thread * work_step)
    spare_residual = at(spare, {chunk})
    buffer = at(spare_residual, 2 * VECTOR)
    buffer_row = stride_w * line
    step = stride_h * buffer_row
    for i in range(work_step - {chunk} - 2 * VECTOR):
        buffer[i] = 0
    is_wide = columns > VECTOR
    tile_rows = ROWS if is_wide else 2 * ROWS
    width = 2 * VECTOR if is_wide else VECTOR
    overlap = columns >= width
    if 2 * columns < width:
        tile_rows = 1  # rows before the last spill beyond the channel too, and each may have to be spare
    for unit in range(begin, end):
        channel = unit // slices
        plane, row_bias = at(y, unit * rows * columns), at(bias, channel % filters)
        extra = at(residual, unit * rows * columns)
        own = at(weights, channel % filters * taps)
        for first in range(0, rows, strip):
            count = min(strip, rows - first)
            lines = (count - 1) * stride_h + 1 + below
            for i in range(read):
                z, part = unit % slices * stride_d + offsets[taps + i], at(buffer, i * slab)
                source = at(x, (channel // outputs * d + z) * h * w)
                outside = z < 0 or z >= d
                fill(source, 0 if outside else h, w, top, left, first * stride_h, lines, stride_w, line, part)
            for row in range(first, first + count, tile_rows):
                m = min(tile_rows, first + count - row)
                # Beyond the last column a vector spills into the next rows, which come later; none
                # may spill beyond the channel, which another thread or another value follows.
                last = (row + m - 1) * columns
                ends = last + width > rows * columns
                for column in range(0, columns, width):
                    j = column
                    if overlap and j + width > columns:
                        j = columns - width
                    to, add = at(plane, row * columns + j), at(extra, row * columns + j)
                    to_last, add_last = at(plane, last + j), at(extra, last + j)
                    if ends and not overlap:
                        to_last = spare
                        if flags & RESIDUAL:
                            for i in range(columns):
                                spare_residual[i] = add_last[i]
                            add_last = spare_residual
                    from_ = at(buffer, (row - first) * step + j)
                    if is_wide:
                        wide(from_, step, offsets, own, taps, m, to, columns, to_last, add, columns, add_last,
                             row_bias, scalars, flags)
                    else:
                        narrow(from_, step, offsets, own, taps, m, to, columns, to_last, add, columns,
                               add_last, row_bias, scalars, flags)
                    if ends and not overlap:
                        for i in range(columns):
                            plane[last + i] = spare[i]
{finish}
"""

_RUN = """\
            place = unit * rows * columns + first * columns
            done = at(plane, first * columns)
            run(done, 1, done, 1, count * columns, bias[0], residual, scalars, 0, spare{places})
"""

# Where operands of a recipe begin for a strip of a channel: by their name, the offset.
PLACES = {"same": "place", "channel": "channel % filters", "plane": "channel", "scalar": "0"}


def emit(dtype: str, lanes: int, recipe: Recipe = (), operands: tuple[tuple[str, str], ...] = ()) -> Sources:
    """The module of a depthwise convolution.

    x: T[batch, groups, d, h, w]; y, residual: T[batch, groups * outputs, slices, rows, columns]; weights:
    T[groups * outputs, taps]; bias: T[groups * outputs]; offsets: int64[taps + read], of a tap in the
    buffer, then of the slices that one reads; sizes: DepthwiseSizes; then the operands of the recipe. Units
    are slices of output channels of the batch.

    Args:
        dtype: T.
        lanes: float32 in a register.
        recipe: what follows bias, residual and limits.
        operands: (place, element type) of the recipe's inputs after the first; see PLACES.
    """
    places = "".join(f", at(x{i}, {PLACES[place]})" for i, (place, _) in enumerate(operands))
    kernel = _SOURCE.format(
        dtype=dtype,
        vector=lanes_of(dtype, lanes),
        rows=ROWS,
        unpack=DepthwiseSizes.unpack(),
        operands="".join(f", x{i}" for i in range(len(operands))),
        chunk=CHUNK,
        finish=_RUN.format(places=places) if recipe else "",
    )
    advances = tuple((ALONG if place == "same" else FIXED, kind) for place, kind in operands)
    if not recipe:
        return (kernel,)
    return run_library(dtype, recipe, advances), "from LIBRARY0 import run\n" + kernel
