"""Convolutions to few channels over row-major images: pixels are the columns of a tile.

A strip of the input is copied with its padding, [lines, channels, strip_row]. For one tap along the width
the rows of the strip from a line on, a fixed distance apart, are the second operand of a product: the
reduction runs over taps down the height and channels, and the next tap is the same a few elements on. So
nothing is written once more for a tap, and no lane is lost on channels that are not there.
"""

from dataclasses import dataclass

from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import Shapes, lanes_of
from app.kernels.cpu.conv import PLACES
from app.kernels.cpu.epilogue import ALONG, FIXED, run_library
from app.kernels.cpu.gemm import product_library
from app.kernels.expressions import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class FewOutputsSizes(SizeTable):
    """Sizes of a convolution to few channels."""

    channels: int  # of the input
    h: int
    w: int
    outputs: int  # channels of the output
    rows: int  # of the output
    columns: int
    stride: int  # down the height
    high: int  # taps down the height, which are neighbors
    wide: int  # taps along the width
    top: int  # first line of the input that the first row reads
    left: int  # the same of columns
    strip_rows: int  # of the output
    strip_row: int  # elements between rows of the strip
    strip_size: int
    sums_size: int
    depth: int  # steps of the reduction at once
    work_step: int  # elements of workspace per thread
    flags: int


_KERNEL = """
def kernel(x, weights, y, bias, residual, scalars, along, sizes, work{operands}, begin, end, thread):
    {unpack}
    strips = (rows + strip_rows - 1) // strip_rows
    strip = at(work, thread * work_step)
    sums = at(strip, strip_size)
    spare = at(sums, sums_size)
    steps = high * channels
    length = columns + along[wide - 1] - left
    for unit in range(begin, end):
        image, row0 = unit // strips, unit % strips * strip_rows
        row1 = min(row0 + strip_rows, rows)
        first = row0 * stride + top
        for line in range((row1 - 1 - row0) * stride + high):
            inside = 0 <= first + line < h
            for channel in range(channels):
                source = at(x, ((image * channels + channel) * h + first + line) * w + left)
                copy(at(strip, (line * channels + channel) * strip_row), source,
                     -left if inside else length, w - left, length)
        for row in range(row0, row1):
            lines = at(strip, (row - row0) * stride * channels * strip_row)
            for j in range(0, columns, COLUMNS):
                n = min(COLUMNS, columns - j)
                place = (image * outputs * rows + row) * columns + j
                again = 0
                for k0 in range(0, steps, depth):
                    k = min(depth, steps - k0)
                    for tap in range(wide):
                        last = k0 + k == steps and tap == wide - 1
                        direct = last and {direct}
                        to, step = (at(y, place), rows * columns) if direct else (sums, COLUMNS)
                        product(at(weights, (tap * steps + k0) * outputs), True, steps, 1, 0,
                                at(lines, k0 * strip_row + j + along[tap] - left), strip_row, COLUMNS,
                                k, to, step, outputs, n, spare, sums, COLUMNS, bias, 1, bias,
                                at(residual, place), rows * columns, scalars,
                                again | (flags if direct else 0))
                        again = ACCUMULATE
{finish}
"""

_RUNS = """\
                for i in range(outputs):
                    channel = image * outputs + i
                    place = (channel * rows + row) * columns + j
                    addend = bias[i] if flags & ROW_BIAS else bias[0]
                    run(at(sums, i * COLUMNS), 1, at(y, place), 1, n, addend, at(residual, place), scalars,
                        flags, spare{places})
"""
# Where operands of a recipe begin for output channel i: by their name, the offset.
_PLACES = {**PLACES, "channel": "i", "plane": "channel"}


def emit(
    dtype: str,
    lanes: int,
    shape: tuple[int, int],
    recipe: Recipe = (),
    operands: tuple[tuple[str, str], ...] = (),
) -> Sources:
    """The module of a convolution to few channels.

    x: T[batch, channels, h, w]; y, residual: T[batch, outputs, rows, columns];
    weights: T[wide, high * channels, outputs]; bias: T[outputs]; scalars: T[4], see `generator`;
    along: int64[wide], ascending offsets of taps along the width; sizes: FewOutputsSizes; work: per thread;
    then the operands of the recipe.
    Units are strips of `strip_rows` rows of the output (fastest) and batch.

    Args:
        dtype: T, a type of floats.
        lanes: float32 in a register.
        shape: channels of the output, and vectors of columns of a tile.
        recipe: what follows bias, residual and limits.
        operands: (place, element type) of the recipe's inputs after the first; see `conv.PLACES`.
    """
    outputs, vectors = shape
    shapes: Shapes = {lanes: (outputs, 1, vectors, 2)}
    kernel = _KERNEL.format(
        unpack=FewOutputsSizes.unpack(),
        operands="".join(f", x{i}" for i in range(len(operands))),
        direct=not recipe,
        finish=_RUNS.format(
            places="".join(f", at(x{i}, {_PLACES[place]})" for i, (place, _) in enumerate(operands))
        )
        if recipe
        else "",
    )
    head = (
        "from app.kernels.cpu.copies import copier\n"
        "from app.kernels.cpu.codegen.generator import at\n"
        "from app.kernels.cpu.codegen.tiles import ACCUMULATE, ROW_BIAS\n"
        "from LIBRARY0 import COLUMNS, product\n"
        "from LIBRARY1 import run\n"
        f'copy = copier("{dtype}", {lanes_of(dtype, lanes)}, 1)\n'
    )
    advances = tuple((ALONG if place == "same" else FIXED, kind) for place, kind in operands)
    return product_library(dtype, lanes, shapes), run_library(dtype, recipe, advances), head + kernel
