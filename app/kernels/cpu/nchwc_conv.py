"""Convolutions over blocked images (NCHW8c, NCHW16c), direct: no image-to-column matrix.

Output pixels are the rows of a register tile and blocks of output channels its columns, so weights
are read as vectors, packed offline in the order of use, and pixels as scalars where they are. Where a
window reaches over the border, a strip of the input is first copied with its padding: a copy of what
each of its elements is multiplied with hundreds of times.

A chunk of the reduction is as deep as a panel of weights fits the first cache; sums of the first
chunks wait in the output.

In bfloat16 (`tiles.BFLOAT_PAIRS`) the input is rounded into a strip of pairs of channels, each element of
which is used by all output channels; outputs, bias and residual are float32. In fixed point
(`tiles.SCALED_PAIRS`) the strip has a scale, and each chunk of a column of weights.
"""

from dataclasses import dataclass

import numpy as np

from app.kernels.cpu import bfloat, matrix_tiles, scaled_pairs
from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import (
    BFLOAT_PAIRS,
    FLOAT_PAIRS,
    SCALED_PAIRS,
    TILED_BFLOATS,
    element,
    right_bytes,
    right_element,
    symbol,
)
from app.kernels.cpu.epilogue import ADVANCE, lanes_run_library
from app.kernels.expressions import Recipe

# Vectors of a tile to its rows: as many accumulators as hide the latency of a product and leave
# registers for the operands, of which there are 16 below 16 lanes and 32 from there.
ROWS = {8: {1: 8, 2: 6, 3: 4, 4: 2}, 16: {1: 8, 2: 12, 3: 8, 4: 6}}
LINE = 16  # elements of a cache line


def rows_of(lanes: int, columns: int) -> int:
    """Rows of the largest tile with this many vectors."""
    return ROWS[16 if lanes > 8 else 8][columns]


@dataclass(frozen=True, slots=True, kw_only=True)
class NchwcConvSizes(SizeTable):
    """Sizes of a convolution over NCHWc images."""

    groups: int
    x_image: int  # elements of the input of one group of one image
    x_block: int  # elements between blocks of the input, or planes
    x_blocks: int  # blocks of one group of the strip, or planes
    x_lanes: int  # elements of a block of the strip
    channels: int  # of one group of the input
    h: int  # of the input
    w: int
    strip_rows: int  # output rows of a unit at most
    strip_step: int  # what they are a multiple of
    columns: int  # of the output; of a flat one, pixels
    rows: int  # of the output
    stride: int  # of rows
    stride_w: int
    phases_h: int  # images that a strip has of a block, see `bfloat.fill_phases_library`; else 1
    phases_w: int
    copied: int  # whether a strip is copied with its padding
    top: int
    left: int
    line: int  # pixels of a row of the strip
    lines: int  # rows of a whole strip
    blocks: int  # whole blocks of input channels of a group
    tail: int  # channels beyond, or taps that lie side by side
    chunk: int  # blocks of a chunk
    tap_count: int
    depth: int  # products of an output element
    out_blocks: int  # blocks of output channels of a group
    part: int  # blocks of a unit
    strip_size: int  # elements of workspace for the strip
    work_step: int  # elements of workspace per thread
    flags: int


_PRODUCT = """\
from numba import types
from app.kernels.cpu.nchwc_tile import pixels_tile
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.linking import shared
from app.kernels.cpu.codegen.memory import pointer

T, N, I = types.CPointer(types.{element}), types.int64, types.CPointer(types.int64)
W = pointer("{right}")
LINES = {lines}  # cache lines of weights between the prefetches of a tile
{tiles}
MAIN = "tile_{symbol}_{rows}x{columns}x{lanes}"  # takes nearly all the time


@shared(types.void(T, I, N, I, N, N, N, N, W, N, T, N, N, T, T, T, N))
def product(x, pixels, n, taps, tap_count, blocks, block_step, tail, weights, following, y, y_row, y_block,
            bias, residual, scalars, flags):
    # `pixels_tile` for n pixels, shared evenly by as few tiles as it takes. The first of them ask for
    # the weights `following` elements beyond these, each for other cache lines.
    i = tile = 0
    asking = min((n + {rows} - 1) // {rows}, LINES)
    while i < n:
        ahead = following + tile * LINES // asking * {line} if tile < asking else 0
        tile += 1
        left = n - i
        count = (left + {rows} - 1) // {rows}
        size = (left + count - 1) // count
        place, to, add = at(pixels, i), at(y, i * y_row), at(residual, i * y_row)
{calls}
        i += size
"""

_FILL = """\
from numba import types
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.linking import shared

T, N = types.CPointer(types.{dtype}), types.int64


@shared(types.void(T, N, N, N, N, N, N, N, N, N, N, T))
def fill(x, x_block, x_lanes, blocks, channels, first, lines, h, w, left, line, out):
    # Rows first..first+lines of an image and their padding.
    row, width, before = line * x_lanes, w * x_lanes, left * x_lanes
    for block in range(blocks):
        for r in range(lines):
            target, y = at(out, (block * lines + r) * row), first + r
            if y < 0 or y >= h:
                for i in range(row):
                    target[i] = 0
                continue
            source = at(x, block * x_block + y * width)
            for i in range(before):
                target[i] = 0
            for i in range(min(width, row - before)):
                target[before + i] = source[i]
            for i in range(before + width, row):
                target[i] = 0
"""

_TILE = """\
        {keyword} size == {rows}:
            tile_{rows}(x, place, taps, tap_count, blocks, block_step, tail, weights, ahead, to, y_row,
                   y_block, bias, add, scalars, flags)
"""


def fill_library(dtype: str) -> str:
    """Defines `fill`: a copy of rows of an image with their padding."""
    return _FILL.format(dtype=dtype)


def product_library(dtype: str, lanes: int, columns: int) -> tuple[str, ...]:
    """Defines `product`: register tiles of this many vectors over any number of pixels; see `pixels_tile`.

    The texts differ in how far loops are unrolled, the one that is best where it was measured first.
    """
    unrolled: tuple[int, ...] = (2, 4, 1) if columns > 1 else (4, 2, 1)
    if dtype == SCALED_PAIRS:
        unrolled = (1, 2)  # two steps are spilled on Sapphire Rapids, and no faster on Zen 5
    return tuple(_product_text(dtype, lanes, columns, unroll) for unroll in unrolled)


def _product_text(dtype: str, lanes: int, columns: int, unroll: int) -> str:
    largest = rows_of(lanes, columns)
    rows = range(largest, 0, -1)
    step = lanes // 2 if dtype in FLOAT_PAIRS else lanes
    tiles = [f'tile_{r} = pixels_tile("{dtype}", {lanes}, {r}, {columns}, {unroll}, {step})' for r in rows]
    calls = [_TILE.format(keyword="if" if r == largest else "elif", rows=r) for r in rows]
    line = LINE * np.dtype(element(dtype)).itemsize // right_bytes(dtype)
    return _PRODUCT.format(
        symbol=symbol(dtype),
        element=element(dtype),
        right=right_element(dtype),
        lanes=lanes,
        rows=largest,
        columns=columns,
        lines=max(min(unroll, step) * columns * lanes // line, 1),
        line=line,
        tiles="\n".join(tiles),
        calls="".join(calls),
    )


_SOURCE = """\
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.tiles import ACCUMULATE, ALPHA, CLAMP, COLUMN_BIAS, HIGH, LOW, RESIDUAL
{imports}
LANES, WIDE = {lanes}, {wide}
ENDS = {ends}  # steps of a panel that hold scales


@njit
def vectors(left):
    # Blocks of the next tile, as in `tiles.block_groups`.
    if left == WIDE + 1:
        return (left + 1) // 2 if WIDE > 2 else 3
    return min(left, 3) if left < WIDE else WIDE


def kernel(x, weights, y, bias, residual, scalars, pixels, taps, sizes, work{operands}, begin, end, thread):
    {unpack}
    strips, steps = (rows + strip_rows - 1) // strip_rows, (rows + strip_step - 1) // strip_step
    parts = (out_blocks + part - 1) // part
    strip, buffer = at(work, thread * work_step), at(work, thread * work_step + strip_size)
    factors = {factors}
    plane_size = rows * columns * LANES
    before = -1
    for unit in range(begin, end):
        at_strip = unit // parts % strips
        first = at_strip * steps // strips * strip_step
        image = unit // parts // strips  # of batch and groups
        group = image % groups
        n = (min((at_strip + 1) * steps // strips * strip_step, rows) - first) * columns
        source, step = at(x, image * x_image + first * stride * w * x_lanes), x_block
        if copied:
            step = {step}
            if unit // parts != before:
                origin = at(x, image * x_image)
                {fill}
                before = unit // parts
            source = strip
        low = unit % parts * part
        high = min(low + part, out_blocks)
        chunks = max((blocks + chunk - 1) // chunk, 1)
        for c in range(chunks):
            begin_block = c * chunk
            last = c == chunks - 1
            count = blocks - begin_block if last else chunk
            now = flags & (COLUMN_BIAS | RESIDUAL) if c == 0 else ACCUMULATE  # the residual may lie in y
            block = low
            while block < high:
                wide = vectors(high - block)
                plane = image * out_blocks + block
                place = plane * plane_size + first * columns * LANES
                panel = (group * out_blocks + block) * depth
                panel += (begin_block * x_lanes * tap_count + c * ENDS) * wide
                then, start = block + wide, begin_block  # of the panel after this one
                if then >= high:
                    then, start = low, 0 if last else begin_block + chunk
                following = (group * out_blocks + then) * depth
                following += (start * x_lanes * tap_count + c * ENDS) * vectors(high - then) - panel
{products}{finish}
                block += wide
"""

# How a strip is filled, and elements between its blocks.
_COPY = (
    "fill(origin, x_block, x_lanes, x_blocks, channels, first * stride - top, lines, h, w, left, line,"
    " strip)",
    "lines * line * x_lanes",
)
_PHASES = (
    "fill(origin, x_block, x_blocks, channels, first * stride - top, stride, stride_w, phases_h, phases_w,"
    " lines, h, w, left, line, strip)",
    "phases_h * phases_w * lines * line * x_lanes",
)
# The same where a strip has a scale, which goes before the limits of the results.
_SCALED = (
    f"factors[ALPHA], factors[LOW], factors[HIGH] = {_COPY[0]}, scalars[LOW], scalars[HIGH]",
    _COPY[1],
)
_FACTORS = "at(work, (thread + 1) * work_step - 16)"
_PLANES = "fill(origin, x_block, first * stride - top, lines, h, w, left, line, strip)", "LANES"

_CALL = """\
                {keyword} wide == {columns}:
                    product{columns}(at(source, begin_block * step), pixels, n, taps, tap_count, count, step,
                             tail if last else 0, at(weights, panel * LANES), following * LANES,
                             at(y, place), LANES, plane_size, at(bias, (group * out_blocks + block) * LANES),
                             at(residual, place), factors, now | (flags & CLAMP if last else 0))
"""

_RUN = """\
                if last:
                    for j in range(wide):
                        run(at(y, place + j * plane_size), n * LANES, buffer{places})
"""

# Where operands of a recipe begin for block j of a tile: by their place, the offset.
PLACES = {
    "same": "place + j * plane_size",
    "channel": "(group * out_blocks + block + j) * LANES",
    "plane": "(plane + j) * LANES",
    "scalar": "0",
}


def emit(
    dtype: str,
    lanes: int,
    wide: int,
    widths: tuple[int, ...],
    recipe: Recipe = (),
    places: tuple[str, ...] = (),
    spacing: int = matrix_tiles.LANES,
    planes: int = 0,
) -> Sources:
    """The module of a convolution over blocked images.

    x: T[batch, groups, blocks, h, w, lanes], or planes; y, residual: T[batch, groups, out_blocks, rows,
    columns, lanes]; weights: packed (`tiles.pack_blocks`); bias: T[groups * out_blocks * lanes];
    scalars: T[4], see `tiles`; pixels: int64[strip_rows * columns], where the output pixels of a strip
    read; taps: int64[tap_count], offsets from there; sizes: NchwcConvSizes; work: per thread; then operands
    of the recipe. Units are parts of output channels (fastest), strips of rows, groups, batch.

    Args:
        dtype: T, and what the weights hold (`tiles.HALF_RIGHTS`); or of the pairs that are multiplied where T
            is float32, and the input is always copied.
        lanes: channels of a block of the output.
        wide: blocks of output channels of a tile, 2 to 4; what is left over takes fewer, or 3.
        widths: blocks of the tiles that there are, see `tiles.block_groups`.
        recipe: what follows bias, residual and limits.
        places: of the recipe's inputs after the first; see PLACES.
        spacing: elements of the strip between neighbors of a row of output pixels, for tile registers.
        planes: of the input, where they have planes; else 0.
    """
    (fill, step), filling = _COPY, fill_library(element(dtype))
    if dtype == TILED_BFLOATS:
        products: list[str | tuple[str, ...]] = [matrix_tiles.pixels_library(w, spacing) for w in widths]
        fill, step = _PLANES if planes else _PHASES
        filling = bfloat.fill_planes_library(lanes, planes) if planes else bfloat.fill_phases_library(lanes)
    else:
        products = [product_library(dtype, lanes, columns) for columns in widths]
        filling = bfloat.fill_library(dtype, lanes) if dtype in BFLOAT_PAIRS else filling
    if dtype == SCALED_PAIRS:
        (fill, step), filling = _SCALED, scaled_pairs.fill_library(lanes)
    libraries = [filling, *products]
    imports = ["from LIBRARY0 import fill\n"]
    imports += [f"from LIBRARY{i} import product as product{w}\n" for i, w in enumerate(widths, start=1)]
    if recipe:
        imports.append(f"from LIBRARY{len(libraries)} import run\n")
        advances = tuple((ADVANCE[place], element(dtype)) for place in places)
        libraries.append(lanes_run_library(element(dtype), lanes, recipe, advances))
    calls = [_CALL.format(keyword="elif" if i else "if", columns=columns) for i, columns in enumerate(widths)]
    source = _SOURCE.format(
        lanes=lanes,
        wide=wide,
        ends=int(dtype == SCALED_PAIRS),
        factors=_FACTORS if dtype == SCALED_PAIRS else "scalars",
        fill=fill,
        step=step,
        imports="".join(imports),
        products="".join(calls),
        operands="".join(f", x{i}" for i in range(len(places))),
        unpack=NchwcConvSizes.unpack(),
        finish=_RUN.format(places="".join(f", at(x{i}, {PLACES[p]})" for i, p in enumerate(places)))
        if recipe
        else "",
    )
    return *libraries, source
