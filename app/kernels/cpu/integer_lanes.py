"""Depthwise convolutions of 8-bit integers with 16 channels side by side, exact.

For images whose rows would leave most of a register empty. A band of rows is gathered with its border as
int16, 16 channels a pixel, and widened to PAIRS of vertical neighbors, so that two taps are one
multiplication; sums go back to planes through transposes in registers. Images with channels last become
PAIRS at once (`emit_last`).
"""

import itertools
from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ll
from numba import types
from numba.core import cgutils

from app.kernels.cpu.byte_transposes import TILE
from app.kernels.cpu.codegen.generator import outlined
from app.kernels.cpu.codegen.instructions import I32, Vectors, number, repeat, typed
from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import PAIRS
from app.kernels.cpu.epilogue import ALONG, FIXED, ROWS
from app.kernels.cpu.requantize import converted_run_library
from app.kernels.expressions import Recipe

REGISTERS = {4: 8, 8: 8, 16: 16}  # of sums, by lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerLanesSizes(SizeTable):
    """Sizes of a depthwise convolution with channels side by side."""

    channels: int
    h: int
    w: int
    top: int  # rows and columns before the input
    left: int
    line: int  # pixels of a row with its border
    reach: int  # rows from the first to the last that a row of the output reads, and one more
    distance: int  # rows between the neighbors of a pair
    stride_h: int
    stride_w: int
    rows: int  # of the output
    columns: int
    taps: int
    band: int  # rows of the output of a unit
    elements: int  # of the whole input
    gathered_step: int
    pairs_size: int
    sums_size: int
    turned_row: int
    work_step: int


# Sums of the pixels of a band from pairs of its lines.
_TILES = """\
        own_weights = at(weights, block * TILE * taps)
        for r in range(height):
            for j in range(0, columns, PIXELS):
                # A tile writes beyond the end of a row what the next one puts right.
                tile(at(pairs, r * stride_h * row + j * stride_w * TILE), stride_w * TILE, offsets,
                     own_weights, taps, min(PIXELS, columns - j), at(sums, (r * columns + j) * TILE))
"""

# Where operands of a recipe begin for channel j of a block.
PLACES = {
    "same": "place + j * pixels",
    "channel": "first + j",
    "plane": "image * channels + first + j",
    "scalar": "0",
}

_KERNEL = """\
from numba import int32
from app.kernels.cpu.byte_transposes import TILE, to_pixels
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.integer_lanes import lanes_tile
from app.kernels.cpu.integer_pixels import turn
{imports}
LANES, PIXELS = {lanes}, {tile_pixels}
whole = to_pixels("{dtype}", TILE, TILE, wide=True)
ragged = to_pixels("{dtype}", {rest}, TILE, wide=True)
tile = lanes_tile(LANES, PIXELS)
turned_tile = turn(LANES)


def kernel(x, zero, weights, y, offsets, sizes, gathered, work{operands}, begin, end, thread):
    {unpack}
    blocks, bands, pixels = (channels + TILE - 1) // TILE, (rows + band - 1) // band, rows * columns
    added = -1 * zero[0]
    own = at(gathered, thread * gathered_step)
    pairs = at(work, thread * work_step)
    sums = at(pairs, pairs_size)
    turned = at(sums, sums_size)
    step, row = h * w, line * TILE
    for unit in range(begin, end):
        top_row, plane = unit % bands * band, unit // bands
        block, image = plane % blocks, plane // blocks
        first = block * TILE
        count, height = min(TILE, channels - first), min(band, rows - top_row)
        lines = (height - 1) * stride_h + reach
        for i in range(lines):
            z, to = top_row * stride_h + i - top, at(own, i * row)
            if z < 0 or z >= h:
                for j in range(row):
                    to[j] = 0
                continue
            for j in range(left * TILE):
                to[j] = 0
            for j in range((left + w) * TILE, row):
                to[j] = 0
            source = (image * channels + first) * step + z * w
            for j in range(0, w, TILE):
                if w >= TILE:
                    j = min(j, w - TILE)  # the last tile overlaps the one before
                n, place = min(TILE, w - j), at(to, (left + j) * TILE)
                if source + j + (count - 1) * step + TILE > elements:  # a tile would read beyond the input
                    for p in range(n):
                        for c in range(count):
                            place[p * TILE + c] = x[source + j + c * step + p] + added
                elif count == TILE:
                    whole(at(x, source + j), step, place, TILE, n, added)
                else:
                    ragged(at(x, source + j), step, place, TILE, n, added)
        below = at(own, distance * row)
        for i in range((lines - distance) * row):
            pairs[i] = (int32(below[i]) << 16) | (int32(own[i]) & 65535)
{tiles}        m, place = height * columns, (image * channels + first) * pixels + top_row * columns
        for c in range(0, count, LANES):
            for p in range(0, m, LANES):
                turned_tile(at(sums, p * TILE + c), TILE, at(turned, p), turned_row)
            for j in range(c, min(c + LANES, count)):
                values = at(turned, (j - c) * turned_row)
{finish}
"""

_COPIED = """\
                for i in range(m):
                    y[place + j * pixels + i] = values[i]"""


def tile_pixels(lanes: int, columns: int) -> int:
    """Pixels of the tiles that compute the fewest that are not there, of a row of so many."""
    most = REGISTERS[lanes] * lanes // TILE
    return -(-columns // -(-columns // most))


def lanes_tile(lanes: int, pixels: int) -> Any:
    """An intrinsic that computes some pixels of 16 channels.

    tile(x, x_pixel, offsets, weights, taps, m, y): y[16 p + c] = the sum over taps t of weights[16 t + c] *
    x[min(p, m - 1) * x_pixel + offsets[t] + c], for p < pixels; x and weights are PAIRS.
    """
    address, size = types.CPointer(types.int32), types.int64
    signature = types.void(address, size, types.CPointer(types.int64), address, size, size, address)
    vectors = TILE // lanes

    def write(b: Any, values: Any) -> None:
        x, x_pixel, offsets, weights, taps, m, y = values
        v = Vectors(b, PAIRS, lanes)
        last = b.sub(m, number(1))
        starts = []
        for p in range(pixels):
            pixel = b.select(b.icmp_signed("<", number(p), m), number(p), last)
            starts.append(v.at(x, b.mul(pixel, x_pixel)))

        def tap(state: list[Any]) -> list[Any]:
            offset_at, weight_at, *sums = state
            offset = b.load(offset_at)
            own = [v.load(v.at(weight_at, i * lanes)) for i in range(vectors)]
            for p, i in itertools.product(range(pixels), range(vectors)):
                read = v.load(v.at(v.at(starts[p], offset), i * lanes))
                sums[p * vectors + i] = v.dot(read, own[i], sums[p * vectors + i])
            return [v.at(offset_at, 1), v.at(weight_at, TILE), *sums]

        _, _, *sums = repeat(b, taps, [offsets, weights, *[v.zero] * (pixels * vectors)], tap)
        for i, each in enumerate(sums):
            v.store(each, v.at(y, i * lanes))
        b.ret_void()

    return typed(signature, outlined(f"lanes_{pixels}x{lanes}", write))


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLanesSizes(SizeTable):
    """Sizes of a depthwise convolution of images with channels last."""

    channels: int
    h: int
    w: int
    top: int  # rows and columns before the input
    left: int
    line: int  # pixels of a row with its border
    reach: int  # rows from the first to the last that a row of the output reads, and one more
    distance: int  # rows between the neighbors of a pair
    stride_h: int
    stride_w: int
    rows: int  # of the output
    columns: int
    taps: int
    band: int  # rows of the output of a unit
    pairs_size: int
    work_step: int


# Where operands of a recipe begin for the first pixel of a band.
_LAST_PLACES = {
    "same": "place",
    "channel": "first",
    "plane": "image * channels + first",
    "scalar": "0",
}

_LAST_KERNEL = """\
from app.kernels.cpu.byte_transposes import TILE
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.integer_lanes import lanes_tile, paired_pixels
{imports}
PIXELS = {tile_pixels}
tile = lanes_tile({lanes}, PIXELS)
paired = paired_pixels("{dtype}")


def kernel(x, zero, weights, y, offsets, sizes, work{operands}, begin, end, thread):
    {unpack}
    blocks, bands, pixels = (channels + TILE - 1) // TILE, (rows + band - 1) // band, rows * columns
    pairs = at(work, thread * work_step)
    sums = at(pairs, pairs_size)
    row = line * TILE
    for unit in range(begin, end):
        top_row, plane = unit % bands * band, unit // bands
        block, image = plane % blocks, plane // blocks
        first = min(block * TILE, channels - TILE)  # the last block overlaps the one before
        height = min(band, rows - top_row)
        for i in range((height - 1) * stride_h + reach - distance):
            upper, to = top_row * stride_h + i - top, at(pairs, i * row)
            lower = upper + distance
            above, below = 0 <= upper < h, 0 <= lower < h
            if not above and not below:
                for j in range(row):
                    to[j] = 0
                continue
            for j in range(left * TILE):
                to[j] = 0
            for j in range((left + w) * TILE, row):
                to[j] = 0
            source = at(x, image * h * w * channels + first)
            paired(at(source, max(upper, 0) * w * channels), at(source, min(lower, h - 1) * w * channels),
                   channels, at(to, left * TILE), w, zero[0], above, below)
{tiles}        m, place = height * columns, (image * pixels + top_row * columns) * channels + first
{finish}
"""

_LAST_COPIED = """\
        for i in range(m):
            for c in range(TILE):
                y[place + i * channels + c] = sums[i * TILE + c]"""


def paired_pixels(dtype: str) -> Any:
    """An intrinsic that makes PAIRS of 16 channels of the pixels of two rows.

    paired(upper, lower, step, y, count, zero, above, below): y[16 p + c] = (upper[p * step + c] - zero,
    lower[p * step + c] - zero), p < count; zeros for what is not `above` or not `below`.
    """
    source = types.CPointer(types.uint8 if dtype == "uint8" else types.int8)
    size, flag = types.int64, types.boolean
    signature = types.void(source, source, size, types.CPointer(types.int32), size, source.dtype, flag, flag)

    def generate(context: Any, b: Any, _signature: Any, values: Any) -> Any:
        upper, lower, step, y, count, zero, *there = values
        v = Vectors(b, "int32", TILE)
        narrow = ll.VectorType(ll.IntType(8), TILE)
        widen = b.zext if dtype == "uint8" else b.sext
        origin = v.splat(widen(zero, I32))
        masks = [v.splat(b.sext(b.trunc(f, ll.IntType(1)), I32)) for f in there]
        low, high = (ll.Constant(v.type, [bits] * TILE) for bits in (0xFFFF, 16))
        with cgutils.for_range(b, count) as turn:
            halves = []
            for pointer, mask in zip((upper, lower), masks, strict=True):
                place = b.bitcast(b.gep(pointer, [b.mul(turn.index, step)]), narrow.as_pointer())
                halves.append(b.and_(b.sub(widen(b.load(place, align=1), v.type), origin), mask))
            pair = b.or_(b.and_(halves[0], low), b.shl(halves[1], high))
            v.store(pair, v.at(y, b.mul(turn.index, number(TILE))))
        return context.get_dummy_value()

    return typed(signature, generate)


def emit_last(
    dtype: str,
    lanes: int,
    pixels: int,
    recipe: Recipe = (),
    operands: tuple[tuple[str, str], ...] = (),
    result: str = "int32",
) -> Sources:
    """The module of a depthwise convolution along two axes over images with channels last.

    x: T[batch, h, w, channels]; zero: T[1]; weights: PAIRS[blocks, taps, 16]; y: [batch, rows, columns,
    channels] of type `result`; offsets: int64[taps], in rows of pairs; sizes: LastLanesSizes; work: int32, by
    thread; then the operands of the recipe. Units are bands of rows (fastest), blocks of 16 channels, images.

    Args:
        dtype: T, int8 or uint8.
        lanes: int32 in a register.
        pixels: of a tile.
        recipe: what makes an element of y of a sum, its input 0; empty where y takes the sums.
        operands: (place, dtype) of the recipe's other inputs; see PLACES.
        result: dtype of y.
    """
    begins = "".join(f", at(x{i}, {_LAST_PLACES[place]})" for i, (place, _) in enumerate(operands))
    text = _LAST_KERNEL.format(
        dtype=dtype,
        lanes=lanes,
        tile_pixels=pixels,
        tiles=_TILES,
        imports="from LIBRARY0 import run_rows\n" if recipe else "",
        unpack=LastLanesSizes.unpack(),
        operands="".join(f", x{i}" for i in range(len(operands))),
        finish=f"        run_rows(sums, TILE, m, TILE, at(y, place), channels{begins})"
        if recipe
        else _LAST_COPIED,
    )
    ways = {"scalar": FIXED, "same": ROWS}
    return *_library(recipe, [ways.get(place, ALONG) for place, _ in operands], operands, result, lanes), text


def _library(
    recipe: Recipe, ways: list[str], operands: tuple[tuple[str, str], ...], result: str, lanes: int
) -> Sources:
    """Library that finishes sums, if anything does; `ways` tell how its operands advance."""
    if not recipe:
        return ()
    advances = tuple((way, kind) for way, (_, kind) in zip(ways, operands, strict=True))
    return (converted_run_library("int32", result, recipe, advances, lanes),)


def emit(
    dtype: str,
    rest: int,
    lanes: int,
    pixels: int,
    recipe: Recipe = (),
    operands: tuple[tuple[str, str], ...] = (),
    result: str = "int32",
) -> Sources:
    """The module of a depthwise convolution along two axes.

    x: T[batch, channels, h, w]; zero: T[1]; weights: PAIRS[blocks, taps, 16]; y: [batch, channels, rows,
    columns] of type `result`; offsets: int64[taps], in gathered rows; sizes: IntegerLanesSizes; gathered:
    int16, work: int32, per thread; then the operands of the recipe. Units are bands of rows (fastest),
    blocks of 16 channels, images.

    Args:
        dtype: T, int8 or uint8.
        rest: channels of the last block.
        lanes: int32 in a register.
        pixels: of a tile.
        recipe: what makes an element of y of a sum, its input 0; empty where y takes the sums.
        operands: (place, dtype) of the recipe's other inputs; see PLACES.
        result: dtype of y.
    """
    begins = "".join(f", at(x{i}, {PLACES[place]})" for i, (place, _) in enumerate(operands))
    text = _KERNEL.format(
        dtype=dtype,
        rest=rest,
        lanes=lanes,
        tile_pixels=pixels,
        tiles=_TILES,
        imports="from LIBRARY0 import run\n" if recipe else "",
        unpack=IntegerLanesSizes.unpack(),
        operands="".join(f", x{i}" for i in range(len(operands))),
        finish=f"                run(values, at(y, place + j * pixels), m{begins})" if recipe else _COPIED,
    )
    ways = [ALONG if place == "same" else FIXED for place, _ in operands]
    return *_library(recipe, ways, operands, result, lanes), text
