"""Convolutions of 8-bit integers over images with channels last, exact; windows are read where they lie.

Rows of a register tile are pixels of the output, each with the address of its window; columns are output
channels. The reduction runs over the stretches of memory that a window consists of, without a copy of them.
Stretches in the border above and below an image are left out where they add nothing to a sum. `emit_border`
copies images that need a border.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numba import types

from app.kernels.cpu.codegen.generator import outlined
from app.kernels.cpu.codegen.instructions import Vectors, number, repeat, typed
from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import LINE, PAIRS
from app.kernels.cpu.epilogue import ALONG, FIXED, ROWS
from app.kernels.cpu.requantize import converted_run_library
from app.kernels.expressions import Recipe

# Rows and vectors of columns of tiles, by lanes. With 32 registers 28 sums leave room for what is multiplied.
SHAPES: Mapping[int, tuple[tuple[int, int], ...]] = {
    4: ((5, 2), (4, 2), (7, 1)),
    8: ((5, 2), (4, 2), (7, 1)),
    16: ((6, 4), (8, 3), (7, 3), (12, 2), (7, 2), (14, 1), (7, 1)),
}
UNROLLED = 8  # steps of a stretch up to which tiles have no loop over them


@dataclass(frozen=True, slots=True, kw_only=True)
class BorderSizes(SizeTable):
    """Sizes of an image with channels last and its border."""

    h: int
    w: int
    wide_h: int  # with the border
    wide_w: int
    top: int  # where the input begins in it
    left: int
    row: int  # elements of a pixel
    plane: int  # elements of an image with its border


_BORDER = """\
from app.kernels.cpu.codegen.generator import at


def kernel(x, zero, shift, y, sizes, begin, end):
    {unpack}
    added = shift - {wide} * zero[0]
    blank = 0 if {wide} else (zero[0] + shift) & 255
    for unit in range(begin, end):
        line, image = unit % wide_h, unit // wide_h
        to = at(y, image * plane + line * wide_w * row)
        if line < top or line >= top + h:
            for j in range(wide_w * row):
                to[j] = blank
            continue
        for j in range(left * row):
            to[j] = blank
        for j in range((left + w) * row, wide_w * row):
            to[j] = blank
        source, inside = at(x, (image * h + line - top) * w * row), at(to, left * row)
        for j in range(w * row):
            inside[j] = source[j] + added
"""


def emit_border(wide: bool) -> Sources:
    """The module that copies images with channels last, with a border.

    x: 8-bit T[images, h, w, row]; zero: T[1]; y: uint8[images, plane], x + shift modulo 256 and the border
    zero + shift, or where `wide` int16, x - zero and 0; sizes: BorderSizes. Units are lines with the border
    (fastest), images.
    """
    return (_BORDER.format(wide=int(wide), unpack=BorderSizes.unpack()),)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerWindowsSizes(SizeTable):
    """Sizes of a convolution of images with channels last."""

    groups: int
    outputs: int  # channels of the output, per group
    total: int  # of all groups, of which the last may have fewer
    pixels: int  # of the output
    columns: int
    step_h: int  # bytes between windows of neighboring pixels of the output
    step_w: int
    image_step: int  # bytes of an image of all groups
    group_step: int  # bytes between groups
    steps: int  # of a stretch, elements
    depth: int  # of all stretches
    block_m: int
    block_n: int
    ahead_step: int  # bytes of the next panel that a step asks for
    work_step: int
    windows_step: int


_SOURCE = """\
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.integer_windows import window_tile
{imports}
LANES, ROWS, WIDTH = {lanes}, {rows}, {width}
whole = window_tile("{dtype}", LANES, ROWS, WIDTH // LANES, WIDTH, {steps}, {lines})
{part}

def kernel(image, weights, corrections, y, taps, reach, sizes, work, windows{operands}, begin, end, thread):
    {unpack}
    blocks_m, blocks_n = (pixels + block_m - 1) // block_m, (outputs + block_n - 1) // block_n
    panels = (outputs + WIDTH - 1) // WIDTH
    sums, own = at(work, thread * work_step), at(windows, thread * windows_step)
    stretches = at(own, block_m + ROWS)  # first and last of each tile
    before = -1
    for unit in range(begin, end):
        low = unit % blocks_n * block_n
        block = unit // blocks_n
        start, plane_at = block % blocks_m * block_m, block // blocks_m  # of batch and groups
        group, own_image = plane_at % groups, plane_at // groups
        row = group * outputs + low
        m, n = min(block_m, pixels - start), min(block_n, outputs - low, total - row)
        if start != before:
            before = start
            line, column = start // columns, start % columns
            for i in range(m):
                own[i] = line * step_h + column * step_w
                column += 1
                if column == columns:
                    line, column = line + 1, 0
            for i in range(m, m + ROWS):
                own[i] = own[m - 1]
            for i in range(0, m, ROWS):
                upper, lower = (start + i) // columns, (start + min(i + ROWS, m) - 1) // columns
                stretches[i // ROWS * 2] = reach[lower * 2]
                stretches[i // ROWS * 2 + 1] = reach[upper * 2 + 1]
        source = at(image, own_image * image_step + group * group_step)
        for j in range(0, n, WIDTH):
            panel = at(weights, (group * panels + (low + j) // WIDTH) * depth * WIDTH)
            ahead = at(panel, depth * WIDTH)
            for i in range(0, m, ROWS):
                first, last = stretches[i // ROWS * 2], stretches[i // ROWS * 2 + 1]
                {choice}
                whole(source, at(own, i), at(taps, first), last - first, steps,
                      at(panel, first * steps * WIDTH), at(ahead, i * depth * WIDTH // m), ahead_step,
                      at(corrections, row + j), at(sums, i * block_n + j), block_n)
        place = (own_image * pixels + start) * total + row
{finish}
"""

_CHOICE = """\
if outputs - low - j <= {part}:
                    part(source, at(own, i), at(taps, first), last - first, steps,
                         at(panel, first * steps * WIDTH), at(ahead, i * depth * WIDTH // m), ahead_step,
                         at(corrections, row + j), at(sums, i * block_n + j), block_n)
                    continue"""

_COPIED = """\
        for i in range(m):
            for j in range(n):
                y[place + i * total + j] = sums[i * block_n + j]
"""

# Where operands of a recipe begin, for the first pixel of a block.
_PLACES = {"same": "place", "channel": "row", "plane": "own_image * total + row", "scalar": "0"}


def window_tile(dtype: str, lanes: int, rows: int, columns: int, width: int, steps: int, lines: int) -> Any:
    """An intrinsic that computes `columns` vectors of output channels of `rows` pixels.

    tile(image, windows, taps, runs, steps, weights, ahead, ahead_step, bias, y, y_row): y[r * y_row + j] =
    bias[j] + the sum over stretches t < runs and steps s of the element at byte windows[r] + taps[t] + 4 s of
    the image times weights[(t * steps + s) * width + j]. The bias is left out of PAIRS.

    Args:
        dtype: of elements, see `tiles`.
        lanes: int32 in a register.
        rows: pixels.
        columns: vectors.
        width: int32 from one step of the weights to the next.
        steps: of a stretch, if few; 0 where only the argument tells.
        lines: cache lines that a step asks for from ahead + s * ahead_step bytes on.
    """
    bytes_, elements, size = types.CPointer(types.uint8), types.CPointer(types.int32), types.int64
    places = types.CPointer(size)
    signature = types.void(
        bytes_, places, places, size, size, elements, elements, size, elements, elements, size
    )

    def write(b: Any, values: Any) -> None:
        image, windows, taps, runs, count, weights, ahead, ahead_step, bias, y, y_row = values
        v = Vectors(b, dtype, lanes)
        starts = [b.gep(image, [b.load(v.at(windows, r))]) for r in range(rows)]
        element = v.type.element.as_pointer()
        ahead = b.bitcast(ahead, image.type)

        def step(state: list[Any]) -> list[Any]:
            index, place, line, *sums = state
            own = [v.load_right(v.at(place, j * lanes)) for j in range(columns)]
            for ask in range(lines):
                v.prefetch(b.gep(line, [number(ask * LINE)]))
            for r in range(rows):
                x = v.splat(b.load(b.bitcast(b.gep(starts[r], [index]), element), align=1))
                for j in range(columns):
                    sums[r * columns + j] = v.dot(x, own[j], sums[r * columns + j])
            line = b.gep(line, [ahead_step]) if lines else line
            return [b.add(index, number(4)), v.at(place, width), line, *sums]

        def stretch(state: list[Any]) -> list[Any]:
            tap, *state = state
            inside = [b.load(tap), *state]
            if steps:
                for _ in range(steps):
                    inside = step(inside)
            else:
                inside = repeat(b, b.ashr(count, number(1)), inside, lambda two: step(step(two)))
                inside = repeat(b, b.and_(count, number(1)), inside, step)
            return [v.at(tap, 1), *inside[1:]]

        first = [v.zero if dtype == PAIRS else v.load(v.at(bias, j * lanes)) for j in range(columns)]
        _, _, _, *sums = repeat(b, runs, [taps, weights, ahead, *first * rows], stretch)
        for i, each in enumerate(sums):
            at = b.mul(number(i // columns), y_row)
            v.store(each, v.at(v.at(y, at), i % columns * lanes))
        b.ret_void()

    return typed(signature, outlined(f"window_{rows}x{columns}x{lanes}", write))


def emit(
    dtype: str,
    lanes: int,
    shape: tuple[int, int],
    part: int,
    steps: int,
    lines: int,
    recipe: Recipe = (),
    operands: tuple[tuple[str, str], ...] = (),
    result: str = "int32",
) -> Sources:
    """The module of a convolution of images with channels last.

    image: uint8, elements of `dtype`; weights: [groups, panels, depth, width] (`tiles.pack_columns`), the
    steps of one stretch after those of another; corrections: int32[groups * outputs], not of PAIRS; y:
    [batch, pixels, total] of type `result`; taps: int64[stretches], where they begin in a window, bytes;
    reach: int64[lines of the output, 2], its first stretch and the one behind its last; sizes:
    IntegerWindowsSizes; work: int32, windows: int64, per thread; then the operands of the recipe. Units are
    blocks of output channels (fastest), blocks of pixels, groups, batch. Behind corrections a whole tile is
    read.

    Args:
        dtype: of the elements of operands: PAIRS, or four numbers in one.
        lanes: int32 in a register.
        shape: rows and vectors of columns of a tile.
        part: vectors of the last tile of output channels where it has fewer; else 0.
        steps: of a stretch, up to UNROLLED; else 0.
        lines: see `window_tile`.
        recipe: what makes an element of y of a sum, its input 0; empty where y takes the sums.
        operands: (place, dtype) of the recipe's other inputs; see _PLACES.
        result: dtype of y.
    """
    rows, vectors = shape
    names = tuple(place for place, _ in operands)
    begins = "".join(f", at(x{i}, {_PLACES[place]})" for i, place in enumerate(names))
    finish = f"        run_rows(sums, block_n, m, n, at(y, place), total{begins})"
    text = _SOURCE.format(
        dtype=dtype,
        lanes=lanes,
        rows=rows,
        width=vectors * lanes,
        steps=steps,
        lines=lines,
        part=f'part = window_tile("{dtype}", LANES, ROWS, {part}, WIDTH, {steps}, {lines})' if part else "",
        choice=_CHOICE.format(part=part * lanes) if part else "",
        imports="from LIBRARY0 import run_rows\n" if recipe else "",
        operands="".join(f", x{i}" for i in range(len(operands))),
        unpack=IntegerWindowsSizes.unpack(),
        finish=finish if recipe else _COPIED,
    )
    if not recipe:
        return (text,)
    ways = {"scalar": FIXED, "same": ROWS}
    advances = tuple((ways.get(place, ALONG), kind) for place, kind in operands)
    return converted_run_library("int32", result, recipe, advances, lanes), text
