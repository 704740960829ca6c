"""Convolutions over images whose channels lie last (NHWC), as products of pixels and weights.

The pixels of an output row are the rows of a register tile, a stride apart in the input, and the taps
of a row of the window that lie side by side are one stretch of the reduction: nothing is rearranged.
Where a window reaches over the border, a strip of the input is first copied with its padding. Sums of
the first chunks of the reduction wait in the output.
"""

from dataclasses import dataclass

from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import WIDE
from app.kernels.cpu.epilogue import ALONG, FIXED, run_library
from app.kernels.cpu.gemm import product_library
from app.kernels.cpu.nchwc_conv import fill_library
from app.kernels.expressions import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class NhwcConvSizes(SizeTable):
    """Sizes of a convolution over NHWC images."""

    x_image: int  # elements of an input image
    x_row: int  # elements between the rows of the input that follow one another
    x_group: int  # channels of the input, per group
    x_pixel: int  # elements between pixels of an output row
    h: int  # of the input
    w: int
    channels: int  # of the input
    rows: int  # of the output; of a flat one, runs of pixels
    columns: int
    pixels: int  # of the output
    strip_rows: int  # output rows of a unit at most
    stride: int  # of rows
    copied: int  # whether a strip is copied with its padding
    top: int
    left: int
    line: int  # pixels of a row of the strip
    lines: int  # rows of a whole strip
    groups: int
    outputs: int  # channels of the output, per group
    part: int  # channels of a unit
    depth: int  # products of an output element
    chunk_count: int
    strip_size: int  # elements of workspace for the strip
    spare_size: int
    work_step: int  # elements of workspace per thread
    flags: int


# Where operands of a recipe begin for a pixel of the output: by their place, the offset.
PLACES = {
    "same": "place + p * all_outputs",
    "channel": "first_output",
    "plane": "image * all_outputs + first_output",
    "scalar": "0",
}

_SOURCE = """\
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.tiles import ACCUMULATE, CLAMP, COLUMN_BIAS, RESIDUAL
from LIBRARY0 import COLUMNS, product
from LIBRARY1 import fill
{imports}

def kernel(x, weights, y, bias, residual, scalars, chunks, sizes, work{operands}, begin, end, thread):
    {unpack}
    strips = (rows + strip_rows - 1) // strip_rows
    parts = (outputs + part - 1) // part
    panels = (outputs + COLUMNS - 1) // COLUMNS
    all_outputs = groups * outputs
    strip, spare = at(work, thread * work_step), at(work, thread * work_step + strip_size)
    before = -1
    for unit in range(begin, end):
        strip_unit = unit // (parts * groups)
        group, low = unit // parts % groups, unit % parts * part
        width = min(part, outputs - low)
        at_strip, image = strip_unit % strips, strip_unit // strips
        first = at_strip * rows // strips
        count = (at_strip + 1) * rows // strips - first
        source, row_step = at(x, image * x_image + first * stride * x_row), stride * x_row
        if copied:
            row_step = stride * line * channels
            if strip_unit != before:
                fill(at(x, image * x_image), 0, channels, 1, channels, first * stride - top, lines, h, w,
                     left, line, strip)
                before = strip_unit
            source = strip
        source = at(source, group * x_group)
        first_output = group * outputs + low
        own = at(weights, (group * panels * COLUMNS + low) * depth)
        done = 0
        for c in range(chunk_count):
            k = chunks[2 * c + 1]
            last = c == chunk_count - 1
            now = flags & (COLUMN_BIAS | RESIDUAL) if c == 0 else ACCUMULATE  # the residual may lie in y
            now |= flags & CLAMP if last else 0
            for r in range(count):
                n = min(columns, pixels - (first + r) * columns)
                place = (image * pixels + (first + r) * columns) * all_outputs + first_output
                to = at(y, place)
                product(at(source, r * row_step + chunks[2 * c]), False, x_pixel, 1, 0,
                        at(own, done * COLUMNS), COLUMNS, depth * COLUMNS, k, to, all_outputs, n, width,
                        spare, to, all_outputs, bias, 0, at(bias, first_output), at(residual, place),
                        all_outputs, scalars, now)
{finish}
            done += k
"""

_RUN = """\
                for p in range(n if last else 0):
                    point = at(y, place + p * all_outputs)
                    run(point, 1, point, 1, width, scalars[0], residual, scalars, 0, spare{places})
"""


def emit(dtype: str, lanes: int, recipe: Recipe = (), places: tuple[str, ...] = ()) -> Sources:
    """The module of a convolution over images with channels last.

    x: T[batch, h, w, groups * x_group]; y, residual: T[batch, pixels, groups * outputs]; weights: T[groups,
    panels, depth, COLUMNS] (`tiles.pack_columns`); bias: T[groups * outputs]; scalars: T[4], see `tiles`;
    chunks: int64[chunk_count, 2], where a stretch of the reduction begins, from the pixel that a window
    begins at, and its length; sizes: NhwcConvSizes; work: per thread; then the operands of the recipe.
    Units are parts of output channels (fastest), groups, strips of rows, batch.

    Args:
        dtype: T.
        lanes: float32 in a register.
        recipe: what follows bias, residual and limits; no operand of it lies in y.
        places: of the recipe's inputs after the first; see PLACES.
    """
    operands = tuple((FIXED if place == "scalar" else ALONG, dtype) for place in places)
    source = _SOURCE.format(
        imports="from LIBRARY2 import run\n" if recipe else "",
        operands="".join(f", x{i}" for i in range(len(places))),
        unpack=NhwcConvSizes.unpack(),
        finish=_RUN.format(places="".join(f", at(x{i}, {PLACES[p]})" for i, p in enumerate(places)))
        if recipe
        else "",
    )
    libraries: list[str | tuple[str, ...]] = [product_library(dtype, lanes, WIDE), fill_library(dtype)]
    if recipe:
        libraries.append(run_library(dtype, recipe, operands))
    return *libraries, source
