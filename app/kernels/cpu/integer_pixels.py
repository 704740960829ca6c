"""Convolutions of 8-bit integers as products of pixels and weights, exact.

Pixels are the rows of register tiles and output channels their columns, so that no lane is spent on pixels
that are not there and weights are a single stream. `emit_gather` puts the channels of a pixel side by side,
with the border; what a window reads is then a few stretches of memory, which a block of pixels copies one
after the other. Sums, or the bytes that they become, go back to planes through transposes in registers.
"""

from dataclasses import dataclass
from typing import Any

from numba import types

from app.kernels.cpu.codegen.instructions import Vectors, number, typed
from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import PAIRED, PAIRS, QUADS, TWO_VECTORS, Shapes
from app.kernels.cpu.copies import transposed
from app.kernels.cpu.epilogue import ALONG, FIXED
from app.kernels.cpu.gemm import product_library
from app.kernels.cpu.integer_products import CONV_PLACES
from app.kernels.cpu.requantize import converted_run_library
from app.kernels.expressions import Recipe

FEW = 4  # channels of pixels that are gathered 16 at once
PLANES, ONE_PIXEL = "planes", "one pixel"  # where outputs go


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherSizes(SizeTable):
    """Sizes of an input whose channels are gathered."""

    channels: int  # of a group
    d: int
    h: int
    w: int
    wide_d: int  # with the border
    wide_h: int
    wide_w: int
    front: int  # where the input begins in it
    top: int
    left: int
    row: int  # elements of a pixel
    plane: int  # elements of an image
    elements: int  # of the whole input
    part: int  # pixels of a unit


_GATHER = """\
from app.kernels.cpu.byte_transposes import TILE, to_few, to_pixels
from app.kernels.cpu.codegen.generator import at

{few}whole = to_pixels("{dtype}", TILE, TILE, wide={wide})
ragged = to_pixels("{dtype}", {channels}, {width}, wide={wide})


def kernel(x, zero, shift, y, sizes, begin, end):
    {unpack}
    parts = (w + part - 1) // part
    added = shift - {wide} * zero[0]
    blank = 0 if {wide} else (zero[0] + shift) & 255
    step = d * h * w
    whole_blocks = channels // TILE
    for unit in range(begin, end):
        start, above = unit % parts * part, unit // parts
        line, image = above % (wide_d * wide_h), above // (wide_d * wide_h)
        z, i = line // wide_h - front, line % wide_h - top
        to = at(y, image * plane + line * wide_w * row)
        if z < 0 or z >= d or i < 0 or i >= h:
            if start == 0:
                for j in range(wide_w * row):
                    to[j] = blank
            continue
        if start == 0:
            for j in range(left * row):
                to[j] = blank
            for j in range((left + w) * row, wide_w * row):
                to[j] = blank
        first = image * channels * step + (z * h + i) * w
        for j in range(start, min(start + part, w), TILE):
            if w >= TILE:
                j = min(j, w - TILE)  # the last tile overlaps the one before
            n = min(TILE, w - j)
            for block in range(whole_blocks):
                c = block * TILE
                source, place = first + c * step + j, (left + j) * row + c
                if source + (TILE - 1) * step + TILE <= elements:
                    whole(at(x, source), step, at(to, place), row, n, added)
                else:  # a tile would read beyond the input
                    for p in range(n):
                        for e in range(TILE):
                            to[place + p * row + e] = x[source + e * step + p] + added
            c = whole_blocks * TILE
            source, place = first + c * step + j, (left + j) * row + c
            if c < channels:
                inside = source + (channels - c - 1) * step + TILE <= elements
                if {are_few}inside:
                    ragged(at(x, source), step, at(to, place), row, n, added)
                else:
                    for p in range(n):
                        for e in range(row - c):
                            there = c + e < channels
                            to[place + p * row + e] = x[source + e * step + p] + added if there else 0
"""


_FEW = """
                    few(at(x, source), step, at(to, place), added)
                elif """


def emit_gather(dtype: str, channels: int, width: int, wide: bool) -> Sources:
    """The module that puts the channels of each pixel side by side.

    x: `dtype`[images * groups, channels, d, h, w]; zero: `dtype`[1]; y: uint8[images * groups, plane], x +
    shift modulo 256 and the border zero + shift, or where `wide` int16, x - zero and 0; sizes: GatherSizes.
    Units are parts of a line with its border (fastest), lines, images.

    Args:
        dtype: of x.
        channels: those beyond the last 16, 1 to 16.
        width: elements of a pixel for these, no fewer; more hold anything.
        wide: whether elements become pairs of int16.
    """
    few = are_few = ""
    if width <= FEW:
        few = f'few = to_few("{dtype}", {channels}, {width}, wide={int(wide)})\n'
        are_few = f"inside and n == TILE and channels <= {FEW} and row == {width}:{_FEW}"
    return (
        _GATHER.format(
            few=few,
            are_few=are_few,
            dtype=dtype,
            channels=channels,
            width=width,
            wide=int(wide),
            unpack=GatherSizes.unpack(),
        ),
    )


def turn(lanes: int) -> Any:
    """An intrinsic that transposes a square tile of int32.

    turn(x, x_row, y, y_row): y[c * y_row + p] = x[p * x_row + c], c and p < `lanes`.
    """
    address, size = types.CPointer(types.int32), types.int64

    def generate(context: Any, b: Any, _signature: Any, values: Any) -> Any:
        x, x_row, y, y_row = values
        v = Vectors(b, "int32", lanes)
        rows = [v.load(v.at(x, b.mul(number(p), x_row))) for p in range(lanes)]
        for c, vector in enumerate(transposed(v, rows)):
            v.store(vector, v.at(y, b.mul(number(c), y_row)))
        return context.get_dummy_value()

    return typed(types.void(address, size, address, size), generate)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerPixelsSizes(SizeTable):
    """Sizes of a convolution of gathered pixels."""

    packed: int  # whether windows are copied, or pixels are rows of the product as they lie
    groups: int
    outputs: int  # channels of the output, per group
    pixels: int  # of the output
    rows: int
    columns: int
    step_d: int  # bytes between windows of neighboring pixels of the output
    step_h: int
    step_w: int
    runs: int  # stretches that a window reads
    run: int  # bytes of one
    image_step: int  # bytes of an image of all groups
    group_step: int  # bytes between groups
    depth: int  # elements of the reduction
    a_row: int  # from one pixel to the next
    block_m: int
    block_n: int
    block_k: int
    sums_size: int
    spare_size: int
    turned_row: int
    work_step: int
    panel_step: int  # bytes


# One vector, or up to twice as many bytes: two, which overlap.
_OVERLAPPING = """\
    elif n == {nbytes}:
        for i in range(count):
            store(at(to, i * to_step), 0, load(at(source, i * source_step), 0, {nbytes}))
    elif n >= {nbytes}:
        for i in range(count):
            x, y = at(source, i * source_step), at(to, i * to_step)
            first, last = load(x, 0, {nbytes}), load(x, n - {nbytes}, {nbytes})
            store(y, 0, first)
            store(y, n - {nbytes}, last)
"""

_SOURCE = (
    """\
from app.kernels.cpu.byte_transposes import TILE, to_planes
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.tiles import ACCUMULATE, COLUMN_BIAS
from app.kernels.cpu.codegen.vectors import load, store
from app.kernels.cpu.integer_pixels import turn
from LIBRARY0 import COLUMNS, ROWS, SMALL, VECTOR, product
{imports}
LANES = {lanes}
turned_tile = turn(LANES)
{planes_tile}

@njit(error_model="numpy", boundscheck=False)
def copies(to, to_step, source, source_step, count, n):
    # n bytes each, `count` times; the last vector overlaps the one before.
    if n >= 64:
        for i in range(count):
            x, y = at(source, i * source_step), at(to, i * to_step)
            for j in range(0, n - 64, 64):
                store(y, j, load(x, j, 64))
            store(y, n - 64, load(x, n - 64, 64))
"""
    + "".join(_OVERLAPPING.format(nbytes=nbytes) for nbytes in (32, 16, 8, 4))
    + """\
    else:
        for i in range(count):
            for j in range(n):
                to[i * to_step + j] = source[i * source_step + j]


@njit(error_model="numpy", boundscheck=False)
def tiled(size, full, small):
    # Whole tiles: what they compute beyond the last goes nowhere.
    left = size % full
    return size if left <= 1 else size - left + (small if left <= small else full)


def kernel(image, elements, weights, corrections, y, taps, sizes, work, panels, panel_elements{operands},
           begin, end, thread):
    {unpack}
    blocks_m, blocks_n = (pixels + block_m - 1) // block_m, (outputs + block_n - 1) // block_n
    chunks = max((depth + block_k - 1) // block_k, 1)
    all_panels = (outputs + COLUMNS - 1) // COLUMNS
    mine = at(work, thread * work_step)
    spare = at(mine, sums_size)
    turned = at(spare, spare_size)
    panel, first = at(panels, thread * panel_step), at(panel_elements, thread * (panel_step // 4))
    before = -1
    for unit in range(begin, end):
        low = unit % blocks_n * block_n
        block = unit // blocks_n
        start, plane_at = block % blocks_m * block_m, block // blocks_m  # of batch and groups
        group, own_image = plane_at % groups, plane_at // groups
        row = group * outputs + low
        m, n = min(block_m, pixels - start), min(block_n, outputs - low)
        begins = own_image * image_step + group * group_step
        if not packed:
            first = at(elements, begins // 4 + start * a_row)
        elif block != before:
            before = block
            source = at(image, begins)
            line, column, done = start // columns, start % columns, 0
            while done < m:
                length = min(columns - column, m - done)
                window = at(source, line // rows * step_d + line % rows * step_h + column * step_w)
                for r in range(runs):
                    copies(at(panel, done * a_row * 4 + r * run), a_row * 4, at(window, taps[r]), step_w,
                           length, run)
                line, column, done = line + 1, 0, done + length
        whole = at(weights, (group * all_panels + low // COLUMNS) * depth * COLUMNS)
        wide, tall = tiled(n, COLUMNS, VECTOR), tiled(m, ROWS, SMALL)
        wide = max(wide, VECTOR)
        for chunk in range(chunks):
            k0 = chunk * block_k
            flags = ACCUMULATE if chunk > 0 else COLUMN_BIAS if {corrects} else 0
            product(first, False, a_row, 1, k0, at(whole, k0 * COLUMNS), COLUMNS, depth * COLUMNS,
                    min(block_k, depth - k0), mine, block_n, tall, wide, spare, mine, block_n,
                    mine, 0, at(corrections, row), mine, 0, mine, flags)
        channel = own_image * groups * outputs + row
        place = channel * pixels + start
{finish}
"""
)

# Where operands of a recipe begin along channels: of a pixel, and where there is one pixel only.
_ALONG = {"channel": "row", "scalar": "0"}
_ONE = {"same": "place", "channel": "row", "plane": "channel", "scalar": "0"}

_ONE_PIXEL = """\
        finished(mine, at(y, place), n{places})
"""

_BYTES = """\
        own = at(bytes_, thread * bytes_step)
        finished_rows(mine, block_n, m, n, own, block_n{places})
        for p in range(0, m, TILE):
            p = min(p, m - TILE) if m >= TILE else p
            for c in range(0, n, TILE):
                if m >= TILE:
                    to_planes_tile(at(own, p * block_n + c), block_n, at(y, place + c * pixels + p), pixels,
                                   min(TILE, n - c))
                else:
                    for j in range(c, min(c + TILE, n)):
                        for i in range(p, m):
                            y[place + j * pixels + i] = own[i * block_n + j]
"""

_TURNED = """\
        for c in range(0, n, LANES):
            for p in range(0, m, LANES):
                turned_tile(at(mine, p * block_n + c), block_n, at(turned, p), turned_row)
            for j in range(c, min(c + LANES, n)):
                values = at(turned, (j - c) * turned_row)
{each}
"""

_COPIED = """\
                for i in range(m):
                    y[place + j * pixels + i] = values[i]
"""

_RUN = """\
                finished(values, at(y, place + j * pixels), m{places})
"""


def shapes_of(dtype: str, lanes: int, outputs: int) -> Shapes:
    """Shapes of tiles that compute the fewest output channels that are not there; of equals the wider."""
    wide = PAIRED if dtype == PAIRS else QUADS
    if lanes not in TWO_VECTORS:
        return wide

    def computed(shapes: Shapes) -> int:
        width = shapes[lanes][2] * lanes
        whole, rest = divmod(outputs, width)
        return whole * width + (lanes if 0 < rest <= lanes else width if rest else 0)

    # Less than a vector has tiles of one vector: the more rows, the fewer of them.
    return min((TWO_VECTORS, wide) if outputs <= lanes else (wide, TWO_VECTORS), key=computed)


def goes_along_channels(places: tuple[str, ...], result: str, recipe: Recipe) -> bool:
    """True if bytes are made of sums pixel by pixel, before they go to planes."""
    return bool(recipe) and result in ("int8", "uint8") and all(place in _ALONG for place in places)


def _finish(ends: str, recipe: Recipe, names: tuple[str, ...], as_bytes: bool) -> str:
    """Statements that finish the sums of a block."""
    table = _ONE if ends == ONE_PIXEL else _ALONG if as_bytes else CONV_PLACES
    places = "".join(f", at(x{i}, {table[place]})" for i, place in enumerate(names))
    if ends == ONE_PIXEL and recipe:
        return _ONE_PIXEL.format(places=places)
    if as_bytes:
        return _BYTES.format(places=places)
    return _TURNED.format(each=_RUN.format(places=places) if recipe else _COPIED)


def emit(
    dtype: str,
    lanes: int,
    vectors: int,
    ends: str,
    recipe: Recipe = (),
    operands: tuple[tuple[str, str], ...] = (),
    result: str = "int32",
) -> Sources:
    """The module of a convolution whose pixels have their channels side by side (`emit_gather`).

    image, elements: the same memory; weights: [groups, panels, depth, COLUMNS] (`tiles.pack_columns`);
    corrections: int32[groups * outputs], not of PAIRS; y: [batch, groups * outputs, ...] of type
    `result`; taps: int64[runs], where they begin in a window, bytes; sizes: IntegerPixelsSizes; work: int32,
    per thread; panels, panel_elements: the same memory, per thread; bytes and their number per thread where
    `goes_along_channels` of PLANES; then the operands of the recipe. Units are blocks of output channels
    (fastest), blocks of pixels, groups, batch. Behind the image, sums, corrections and panels a whole tile is
    read.

    Args:
        dtype: of the elements of operands: PAIRS, or four numbers in one.
        lanes: int32 in a register.
        vectors: of columns of a tile, see `shapes_of`.
        ends: where outputs go: PLANES, or ONE_PIXEL for those of one pixel.
        recipe: what makes an element of y of a sum, its input 0; empty where y takes the sums.
        operands: (place, dtype) of the recipe's other inputs; see CONV_PLACES.
        result: dtype of y.
    """
    names = tuple(place for place, _ in operands)
    as_bytes = ends == PLANES and goes_along_channels(names, result, recipe)
    along = as_bytes or ends != PLANES
    finish = _finish(ends, recipe, names, as_bytes)
    imports = "from LIBRARY1 import run as finished, run_rows as finished_rows\n"
    text = _SOURCE.format(
        lanes=lanes,
        imports=imports if recipe else "",
        planes_tile=f'to_planes_tile = to_planes("{result}")\n' if as_bytes else "",
        operands=", bytes_, bytes_step" * as_bytes + "".join(f", x{i}" for i in range(len(operands))),
        unpack=IntegerPixelsSizes.unpack(),
        corrects=dtype != PAIRS,
        finish=finish,
    )
    wide = PAIRED if dtype == PAIRS else QUADS
    product = product_library(dtype, lanes, wide if wide[lanes][2] == vectors else TWO_VECTORS)
    if not recipe:
        return product, text
    fixed: tuple[str, ...] = ("scalar",) if along else ("channel", "plane", "scalar")
    advances = tuple((FIXED if place in fixed else ALONG, kind) for place, kind in operands)
    return product, converted_run_library("int32", result, recipe, advances, lanes), text
