"""Convolutions over row-major activations as implicit matrix products.

The product is weights [channels, taps] times the image-to-column matrix [taps, pixels], of which
only a block is ever written: a chunk of the reduction times a block of output pixels, per thread.
Small images are better off `turned`: pixels are the rows of a tile, channels its columns.
"""

from dataclasses import dataclass

from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import SHAPES, lanes_of
from app.kernels.cpu.epilogue import ALONG, FIXED, run_library
from app.kernels.cpu.gemm import product_library
from app.kernels.expressions import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvSizes(SizeTable):
    """Sizes of an implicit matrix product."""

    packed: int  # weights are panels of rows (`tiles.pack_rows`), or of columns when turned
    turned: int
    staged: int  # sums are stored by `store`, not by the tiles
    same: int  # a tap is a fixed distance in the input, `valid` tells where
    scatter: int  # output pixels lie apart
    valid_row: int
    channels: int  # of the input, per group
    d: int
    h: int
    w: int
    rows: int  # of the output
    columns: int
    stride_d: int
    stride_h: int
    stride_w: int
    tap_count: int
    groups: int
    outputs: int  # channels of the output, per group
    pixels: int  # output positions of one channel
    block_m: int  # channels
    part_m: int  # channels of a unit
    block_n: int  # pixels
    block_k: int  # of the reduction
    panel_row: int
    sums_row: int
    sums_size: int
    spare_size: int
    work_step: int  # elements of workspace per thread
    y_channel: int  # distances in the output
    y_base: int
    y_d: int
    y_h: int
    y_w: int
    flags: int


_PACKING = """\
from numba import types
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.copies import copier, lines_copier, selector
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.linking import shared

T, N = types.CPointer(types.{dtype}), types.int64
I, V = types.CPointer(types.int64), types.CPointer(types.uint8)
ROWS, SMALL = {rows}, {small}
copy1 = copier("{dtype}", {vector}, 1)
copy2 = copier("{dtype}", {vector}, 2)
lines1 = lines_copier("{dtype}", {vector}, 1)
lines2 = lines_copier("{dtype}", {vector}, 2)
SHORT = 4 * {vector}  # elements of lines that are copied together
select = selector("{dtype}", {vector})


@njit(error_model="numpy", boundscheck=False)
def strided_row(y, x, stride, low, high, n):
    low = min(max(low, 0), n)
    high = max(min(high, n), low)
    for i in range(low):
        y[i] = 0
    for i in range(low, high):
        y[i] = x[i * stride]
    for i in range(high, n):
        y[i] = 0


@shared(types.void(T, I, V, N, N, N, N, N, N, N, N, N, T, N))
def pack_same(x, taps, valid, valid_row, tap_count, depth, first, count, size, w, start, n, out, out_row):
    # `pack` where a tap is a fixed distance in the input, and `valid` tells what is padding.
    # Prefetching stays within the channels: of pages that were never there it takes longer than copying.
    channel, tap = first // tap_count, first % tap_count
    for k in range(count):
        place = channel * size + taps[tap * 5 + 1] * w + taps[tap * 5 + 2] + start
        ahead = 4 * size if first + k + 4 * tap_count < depth else 0
        select(at(out, k * out_row), at(x, place), at(valid, tap * valid_row + start), n, ahead)
        tap += 1
        if tap == tap_count:
            tap = 0
            channel += 1


@shared(types.void(T, I, N, N, N, N, N, N, N, N, N, N, N, N, N, T, N))
def pack(x, taps, tap_count, first, count, d, h, w, rows, columns, stride_d, stride_h, stride_w,
         start, n, out, out_row):
    # Rows first..first+count of the image-to-column matrix, for n output pixels from `start`.
    channel, tap = first // tap_count, first % tap_count
    row0, column0 = start // columns, start % columns
    z0, y0 = row0 // rows, row0 % rows
    for k in range(count):
        down, across, along = taps[tap * 5], taps[tap * 5 + 1], taps[tap * 5 + 2]
        low, high = taps[tap * 5 + 3], taps[tap * 5 + 4]
        target = at(out, k * out_row)
        z, y, column, done = z0, y0, column0, 0
        while done < n:
            run = min(columns - column, n - done)
            iz, iy = z * stride_d + down, y * stride_h + across
            to = at(target, done)
            if column == 0 and run == columns <= SHORT and stride_w <= 2:
                # The lines of a slice that are there, between zeros; `above` and `below` count them.
                lines = min((n - done) // columns, rows - y)
                above = min(max((stride_h - 1 - iy) // stride_h, 0), lines)
                below = min(max((stride_h - 1 - iy + h) // stride_h, above), lines)
                if iz < 0 or iz >= d:
                    above = below = lines
                for i in range(above * columns):
                    to[i] = 0
                source = at(x, ((channel * d + iz) * h + iy + above * stride_h) * w + along)
                within, step = at(to, above * columns), stride_h * w
                if stride_w == 1:
                    lines1(within, source, step, low, high, columns, below - above)
                else:
                    lines2(within, source, step, low, high, columns, below - above)
                for i in range(below * columns, lines * columns):
                    to[i] = 0
                done += lines * columns
                y += lines
                if y == rows:
                    y = 0
                    z += 1
                continue
            if 0 <= iz < d and 0 <= iy < h:
                source = at(x, ((channel * d + iz) * h + iy) * w + column * stride_w + along)
                if stride_w == 1:
                    copy1(to, source, low - column, high - column, run)
                elif stride_w == 2:
                    copy2(to, source, low - column, high - column, run)
                else:
                    strided_row(to, source, stride_w, low - column, high - column, run)
            else:
                for i in range(run):
                    to[i] = 0
            done += run
            column = 0
            y += 1
            if y == rows:
                y = 0
                z += 1
        tap += 1
        if tap == tap_count:
            tap = 0
            channel += 1


@shared(types.void(T, N, N, N, T))
def regroup(x, x_row, k, n, out):
    # [k][x_row] to one [k][rows] panel for each group of pixels, as `product` walks them.
    i = 0
    while i < n:
        left = n - i
        size = SMALL if ROWS < left <= 2 * SMALL else min(left, ROWS)
        to = at(out, i * k)
        if size == ROWS:
            for p in range(k):
                for r in range(ROWS):
                    to[p * ROWS + r] = x[p * x_row + i + r]
        else:
            for p in range(k):
                for r in range(size):
                    to[p * size + r] = x[p * x_row + i + r]
        i += size
"""

_IMPLICIT = """
def kernel(x, weights, y, bias, residual, scalars, taps, valid, sizes, work{operands}, begin, end, thread):
    {unpack}
    depth = channels * tap_count
    parts = (outputs + part_m - 1) // part_m
    blocks = (pixels + block_n - 1) // block_n
    chunks = max((depth + block_k - 1) // block_k, 1)
    panel_count = (outputs + COLUMNS - 1) // COLUMNS
    sums = at(work, thread * work_step)
    spare = at(sums, sums_size)
    panels = at(spare, spare_size)
    pixel_panels = at(panels, (block_k + 1) * panel_row)
    v_channel, v_pixel = (1, sums_row) if turned else (sums_row, 1)
    before = -1
    keeps = chunks > 1
    for unit in range(begin, end):
        part, image = unit % parts, unit // parts
        start = image % blocks * block_n
        image //= blocks  # of batch and groups
        group = image % groups
        n = min(block_n, pixels - start)
        m0 = part * part_m
        m1 = min(m0 + part_m, outputs)
        source = at(x, image * channels * d * h * w)
        for chunk in range(chunks):
            k0 = chunk * block_k
            k = min(block_k, depth - k0)
            if k > 0 and (chunks > 1 or unit // parts != before):
                if same:
                    pack_same(source, taps, valid, valid_row, tap_count, depth, k0, k, d * h * w, w, start,
                              n, panels, panel_row)
                else:
                    pack(source, taps, tap_count, k0, k, d, h, w, rows, columns,
                         stride_d, stride_h, stride_w, start, n, panels, panel_row)
                if turned:
                    regroup(panels, panel_row, k, n, pixel_panels)
                before = unit // parts
            last = chunk == chunks - 1
            again = ACCUMULATE if chunk > 0 else 0
            for i in range(m0, m1, block_m):
                m = min(block_m, m1 - i)
                row, channel = group * outputs + i, image * outputs + i
                mine = at(sums, (i - m0) * v_channel * keeps)
                if turned:
                    panel = at(weights, ((group * panel_count + i // COLUMNS) * depth + k0) * COLUMNS)
                    product(pixel_panels, True, k, 1, 0, panel, COLUMNS, depth * COLUMNS, k,
                            mine, sums_row, n, m, spare, mine, sums_row, bias, 0, bias,
                            residual, 0, scalars, again)
                else:
                    place = y_base + channel * y_channel + start
                    direct = last and not staged
                    to, step = (at(y, place), y_channel) if direct else (mine, sums_row)
                    product(at(weights, row * depth), packed != 0, depth, 1, k0, panels, panel_row, COLUMNS,
                            k, to, step, m, n, spare, mine, sums_row, at(bias, row), 1, bias,
                            at(residual, place), y_channel, scalars, again | (flags if direct else 0))
                if not last or not staged:
                    continue
                for j in range(m):
                    addend = bias[row + j] if flags & ROW_BIAS else bias[0]
                    from_ = at(mine, j * v_channel)
                    if not scatter:
                        place = y_base + (channel + j) * y_channel + start
                        run(from_, v_pixel, at(y, place), 1, n, addend, at(residual, place), scalars, flags,
                            spare{places})
                        continue
                    line, column, done = start // columns, start % columns, 0
                    while done < n:
                        length = min(columns - column, n - done)
                        place = (channel + j) * y_channel + y_base + line // rows * y_d
                        place += line % rows * y_h + column * y_w
                        run(at(from_, done * v_pixel), v_pixel, at(y, place), y_w, length, addend,
                            at(residual, place), scalars, flags, spare{places})
                        done += length
                        column = 0
                        line += 1
"""


def packing_library(dtype: str, lanes: int) -> str:
    """Defines `pack`, `pack_same` and `regroup`."""
    rows, small = SHAPES[lanes][:2]
    return _PACKING.format(dtype=dtype, vector=lanes_of(dtype, lanes), rows=rows, small=small)


# Where operands of a recipe begin for output channel j of the block: by their name, the offset.
PLACES = {"same": "place", "channel": "row + j", "plane": "channel + j", "scalar": "0"}


def emit_implicit(
    dtype: str, lanes: int, recipe: Recipe = (), operands: tuple[tuple[str, str], ...] = ()
) -> Sources:
    """The module of a convolution as an implicit matrix product.

    x: T[batch, groups * channels, d, h, w]; y, residual: T[batch, groups * outputs, ...];
    weights: packed, or T[groups * outputs, channels * tap_count]; bias: T[groups * outputs];
    scalars: T[4], see `generator`; taps: int64[tap_count, 5], offsets of a tap along the axes and the
    output columns [low, high) where it is valid; valid: uint8[tap_count, valid_row];
    sizes: ConvSizes; work: per thread; then the operands of the recipe.
    Units are parts of `part_m` output channels (fastest), blocks of `block_n` pixels, groups, batch.

    Args:
        dtype: T.
        lanes: float32 in a register.
        recipe: what follows bias, residual and limits.
        operands: (place, element type) of the recipe's inputs after the first; see PLACES.
    """
    kernel = _IMPLICIT.format(
        unpack=ConvSizes.unpack(),
        operands="".join(f", x{i}" for i in range(len(operands))),
        places="".join(f", at(x{i}, {PLACES[place]})" for i, (place, _) in enumerate(operands)),
    )
    head = (
        "from app.kernels.cpu.codegen.generator import at\n"
        "from app.kernels.cpu.codegen.tiles import ACCUMULATE, ROW_BIAS\n"
        "from LIBRARY0 import COLUMNS, product\n"
        "from LIBRARY1 import pack, pack_same, regroup\n"
        "from LIBRARY2 import run\n"
    )
    advances = tuple((ALONG if place == "same" else FIXED, kind) for place, kind in operands)
    return (
        product_library(dtype, lanes),
        packing_library(dtype, lanes),
        run_library(dtype, recipe, advances),
        head + kernel,
    )
