"""Depthwise convolutions over images whose channels lie last (NHWC).

The tile is that of blocked images; its pixels are a whole row of channels apart. A last block of
channels that is not whole begins earlier and computes some channels twice, alike.
"""

from dataclasses import dataclass

from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import CLAMP, RESIDUAL
from app.kernels.cpu.epilogue import ALONG, FIXED, run_library
from app.kernels.cpu.nchwc_depthwise import reach
from app.kernels.cpu.nhwc_conv import PLACES
from app.kernels.expressions import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class NhwcDepthwiseSizes(SizeTable):
    """Sizes of a depthwise convolution over NHWC images."""

    channels: int
    h: int
    w: int
    rows: int  # of the output
    columns: int
    bands: int  # of output rows, in an image
    band: int  # output rows of a band
    stride_h: int
    dilation_h: int
    top: int  # padding
    left: int
    taps: int  # rows of the window
    buffer_step: int  # elements of scratch per thread


_SOURCE = """\
from app.kernels.cpu.nchwc_depthwise import row_tile
from app.kernels.cpu.codegen.generator import at
{imports}
LANES, PIXELS, TAPS, STRIDE, REACH = {lanes}, {pixels}, {taps}, {stride}, {reach}
inner = row_tile(LANES, PIXELS, TAPS, STRIDE, {dilation}, {flags}, False)
outer = row_tile(LANES, PIXELS, TAPS, STRIDE, {dilation}, {flags}, True)


def kernel(x, weights, y, bias, residual, scalars, sizes, buffer{operands}, begin, end, thread):
    {unpack}
    spare = at(buffer, thread * buffer_step)
    all_outputs, first_output = channels, 0
    x_step = dilation_h * w * channels
    for unit in range(begin, end):
        image = unit // bands
        first = unit % bands * band
        for row in range(first, min(first + band, rows)):
            above = row * stride_h - top
            k0 = max((dilation_h - 1 - above) // dilation_h, 0)
            k1 = max(min((h - above + dilation_h - 1) // dilation_h, taps), k0)
            line = at(x, (image * h + above + k0 * dilation_h) * w * channels)
            for block in range((channels + LANES - 1) // LANES):
                c = min(block * LANES, channels - LANES)
                w0, add = at(weights, (block * taps + k0) * TAPS * LANES), at(bias, block * LANES)
                for column in range(0, columns, PIXELS):
                    low = left - column * STRIDE
                    to = ((image * rows + row) * columns + column) * channels + c
                    if low <= 0 and w + low >= REACH and column + PIXELS <= columns:
                        inner(at(line, c - low * channels), x_step, w0, k1 - k0, at(y, to), add,
                              at(residual, to), scalars, low, w + low, PIXELS, channels)
                    else:
                        outer(at(line, c - low * channels), x_step, w0, k1 - k0, at(y, to), add,
                              at(residual, to), scalars, low, w + low, columns - column, channels)
{finish}
"""

_RUN = """\
            place = (image * rows + row) * columns * channels
            for p in range(columns):
                point = at(y, place + p * channels)
                run(point, 1, point, 1, channels, scalars[0], residual, scalars, 0, spare{places})
"""


def emit(
    lanes: int,
    pixels: int,
    taps: int,
    stride: int,
    dilation: int,
    flags: int,
    recipe: Recipe = (),
    places: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """The module of a depthwise convolution.

    x: float32[batch, h, w, channels]; y, residual: float32[batch, rows, columns, channels]; weights:
    float32[blocks, rows of taps, taps, lanes] and bias: float32[blocks, lanes], the last block that of the
    last `lanes` channels; scalars: float32[4], see `tiles`; sizes: NhwcDepthwiseSizes; buffer: per thread;
    then the operands of the recipe. Units are bands of rows (fastest), images. The output is the memory
    of no operand.

    Args:
        lanes: elements of a vector, no more than there are channels.
        pixels: of a tile.
        taps: columns of the window.
        stride: along the width.
        dilation: along the width.
        flags: RESIDUAL, CLAMP.
        recipe: what follows bias, residual and limits.
        places: of the recipe's inputs after the first, see `nhwc_conv.PLACES`.
    """
    kernel = _SOURCE.format(
        imports="from LIBRARY0 import run\n" if recipe else "",
        lanes=lanes,
        pixels=pixels,
        taps=taps,
        stride=stride,
        dilation=dilation,
        flags=flags & (RESIDUAL | CLAMP),
        reach=reach(pixels, taps, stride, dilation),
        unpack=NhwcDepthwiseSizes.unpack(),
        operands="".join(f", x{i}" for i in range(len(places))),
        finish=_RUN.format(places="".join(f", at(x{i}, {PLACES[p]})" for i, p in enumerate(places)))
        if recipe
        else "",
    )
    if not recipe:
        return (kernel,)
    operands = tuple((FIXED if place == "scalar" else ALONG, "float32") for place in places)
    return run_library("float32", recipe, operands), kernel
