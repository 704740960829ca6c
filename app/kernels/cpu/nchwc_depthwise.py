"""Depthwise convolutions over channel-blocked images (NCHW8c, NCHW16c).

A vector is one pixel of a block of channels, so a tile is some pixels of an output row, each an
accumulator. Every input pixel is loaded once for a row of taps and multiplied into all the sums
that read it. Nothing is copied: tiles at the ends of a row skip columns outside the image, and
rows of taps above and below it are not walked.
"""

from dataclasses import dataclass
from typing import Any

from numba import types

from app.kernels.cpu.codegen.instructions import Vectors, number, repeat, typed, where
from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import CLAMP, HIGH, LOW, RESIDUAL
from app.kernels.cpu.epilogue import ADVANCE, lanes_run_library
from app.kernels.cpu.strips import STRIPS
from app.kernels.expressions import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class NchwcDepthwiseSizes(SizeTable):
    """Sizes of a depthwise convolution over NCHWc images."""

    blocks: int  # of channels
    h: int
    w: int
    rows: int  # of the output
    columns: int
    bands: int  # of output rows, in a block
    band: int  # output rows of a band
    strip: int  # output rows that the recipe follows at once
    stride_h: int
    dilation_h: int
    top: int  # padding
    left: int
    taps: int  # rows of the window
    buffer_step: int  # elements of scratch per thread


_SOURCE = """\
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.nchwc_depthwise import row_tile
from app.kernels.cpu.codegen.generator import at

LANES, PIXELS, TAPS, STRIDE, REACH = {lanes}, {pixels}, {taps}, {stride}, {reach}
inner = row_tile(LANES, PIXELS, TAPS, STRIDE, {dilation}, {flags}, False)
outer = row_tile(LANES, PIXELS, TAPS, STRIDE, {dilation}, {flags}, True)


def kernel(x, weights, y, bias, residual, scalars, sizes, buffer{operands}, begin, end, thread):
    {unpack}
    scratch = at(buffer, thread * buffer_step)
    x_step = dilation_h * w * LANES
    for unit in range(begin, end):
        plane = unit // bands
        block = plane % blocks
        first = unit % bands * band
        last = min(first + band, rows)
        image = at(x, plane * h * w * LANES)
        own = at(weights, block * taps * TAPS * LANES)
        add = at(bias, block * LANES)
        for start in range(first, last, strip):
            stop = min(start + strip, last)
            for row in range(start, stop):
                above = row * stride_h - top
                k0 = max((dilation_h - 1 - above) // dilation_h, 0)
                k1 = max(min((h - above + dilation_h - 1) // dilation_h, taps), k0)
                line = at(image, (above + k0 * dilation_h) * w * LANES)
                w0 = at(own, k0 * TAPS * LANES)
                for column in range(0, columns, PIXELS):
                    low = left - column * STRIDE
                    place = ((plane * rows + row) * columns + column) * LANES
                    if low <= 0 and w + low >= REACH and column + PIXELS <= columns:
                        inner(at(line, -low * LANES), x_step, w0, k1 - k0, at(y, place), add,
                              at(residual, place), scalars, low, w + low, PIXELS, LANES)
                    else:
                        outer(at(line, -low * LANES), x_step, w0, k1 - k0, at(y, place), add,
                              at(residual, place), scalars, low, w + low, columns - column, LANES)
{finish}
"""

_STRIP_SOURCE = """\
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.nchwc_depthwise import row_tile
from app.kernels.cpu.codegen.generator import at

LANES, PIXELS, TAPS, STRIDE, REACH = {lanes}, {pixels}, {taps}, {stride}, {reach}
inner = row_tile(LANES, PIXELS, TAPS, STRIDE, {dilation}, {flags}, False, True)
outer = row_tile(LANES, PIXELS, TAPS, STRIDE, {dilation}, {flags}, True, True)


def kernel(x, weights, y, bias, residual, scalars, sizes, rings, cursors, most, buffer{operands}, begin, end,
           thread):
    {unpack}
    {unpack_rings}
    scratch = at(buffer, work_at + thread * buffer_step)
    x_step, back = dilation_h * w * LANES, x_ring * w * LANES
{span}
    while first < last:
{piece}{planes}            block = plane
            image = at(x, plane * back)
            own = at(weights, plane * taps * TAPS * LANES)
            add = at(bias, plane * LANES)
            start = (plane * y_ring + y_slot) * columns * LANES
            r_start = r_at + (plane * r_ring + r_slot) * columns * LANES
            for i in range(upper, lower):
                above = (first + i) * stride_h - top
                k0 = max((dilation_h - 1 - above) // dilation_h, 0)
                k1 = max(min((h - above + dilation_h - 1) // dilation_h, taps), k0)
                slot = (above + k0 * dilation_h - x_origin) % x_ring
                before = (x_ring - slot + dilation_h - 1) // dilation_h  # rows of taps to the end of the ring
                line = at(image, slot * w * LANES)
                w0 = at(own, k0 * TAPS * LANES)
                for column in range(0, columns, PIXELS):
                    low = left - column * STRIDE
                    place = start + (i * columns + column) * LANES
                    r_place = r_start + (i * columns + column) * LANES
                    if low <= 0 and w + low >= REACH and column + PIXELS <= columns:
                        inner(at(line, -low * LANES), x_step, w0, k1 - k0, at(y, place), add,
                              at(residual, r_place), scalars, low, w + low, PIXELS, LANES, before, back)
                    else:
                        outer(at(line, -low * LANES), x_step, w0, k1 - k0, at(y, place), add,
                              at(residual, r_place), scalars, low, w + low, columns - column, LANES,
                              before, back)
{finish}
        first += count
"""

_STRIP_RUN = """\
            begun = upper * columns * LANES
            run(at(y, start + begun), (lower - upper) * columns * LANES, scratch{places})
"""

_RUN = """\
            place = (plane * rows + start) * columns * LANES
            run(at(y, place), (stop - start) * columns * LANES, scratch{places})
"""


def reach(pixels: int, taps: int, stride: int, dilation: int) -> int:
    """Columns from the first to the last that a tile reads."""
    return (pixels - 1) * stride + (taps - 1) * dilation + 1


def row_tile(
    lanes: int,
    pixels: int,
    taps: int,
    stride: int,
    dilation: int,
    flags: int,
    guarded: bool,
    ring: bool = False,
) -> Any:
    """An intrinsic that computes `pixels` neighbours in an output row of one block.

    It is called as
        tile(x, x_row, weights, rows, y, bias, residual, scalars, low, high, m, step)
    and computes y[p * step + :] = bias[:] + the sum over i < rows and t < taps of
    weights[i, t, :] * x[i * x_row + (p * stride + t * dilation) * step + :], plus residual[p * step + :] and
    limited to scalars[LOW], scalars[HIGH] as `flags` ask. When `guarded`, only columns low <= j < high
    are read and counted, and only m pixels are written. In a `ring` of rows it takes two arguments more,
    `before` and `back`: after so many rows of taps the next one lies `back` elements before.
    """
    scalar = types.float32
    address, size = types.CPointer(scalar), types.int64
    signature = types.void(address, size, address, size, *(address,) * 4, *(size,) * (6 if ring else 4))
    columns: dict[int, list[tuple[int, int]]] = {}
    for p in range(pixels):
        for t in range(taps):
            columns.setdefault(p * stride + t * dilation, []).append((p, t))

    def generate(context, builder, _signature, values):
        x, x_row, weights, rows, y, bias, residual, scalars, low, high, m, step, *ends = values
        v = Vectors(builder, "float32", lanes)

        first = v.load(bias)
        width = builder.sub(high, low)

        def taps_of_row(state: list[Any]) -> list[Any]:
            pointer, row_weights, *new = state
            until, new = (new[:1], new[1:]) if ring else ([], new)
            w = [v.load(v.at(row_weights, t * lanes)) for t in range(taps)]
            for place, uses in sorted(columns.items()):

                def changed(place=place, uses=uses):
                    pixel = v.load(v.at(pointer, builder.mul(step, number(place))))
                    return [v.fma(pixel, w[t], new[p]) for p, t in uses]

                if guarded:
                    inside = builder.icmp_unsigned("<", builder.sub(number(place), low), width)
                    values = where(builder, inside, [new[p] for p, _ in uses], changed)
                else:
                    values = changed()
                for (p, _), value in zip(uses, values):
                    new[p] = value
            follows = x_row
            if ring:
                until = [builder.sub(until[0], number(1))]
                ended = builder.icmp_signed("==", until[0], number(0))
                follows = builder.select(ended, builder.sub(x_row, ends[1]), x_row)
            return [v.at(pointer, follows), v.at(row_weights, taps * lanes), *until, *new]

        start = [x, weights, *ends[:1], *[first] * pixels]
        sums = repeat(builder, rows, start, taps_of_row)[-pixels:]

        if flags & CLAMP:
            limits = [v.broadcast(v.at(scalars, i)) for i in (LOW, HIGH)]
        ended = builder.append_basic_block("ended")
        for p, total in enumerate(sums):
            if guarded and p:
                go = builder.append_basic_block("pixel")
                builder.cbranch(builder.icmp_signed("<", number(p), m), go, ended)
                builder.position_at_end(go)
            if flags & RESIDUAL:
                total = v.add(total, v.load(v.at(residual, builder.mul(step, number(p)))))
            if flags & CLAMP:
                total = v.clamp(total, *limits)
            v.store(total, v.at(y, builder.mul(step, number(p))))
        builder.branch(ended)
        builder.position_at_end(ended)
        return context.get_dummy_value()

    return typed(signature, generate)


def emit(
    lanes: int,
    pixels: int,
    taps: int,
    stride: int,
    dilation: int,
    flags: int,
    recipe: Recipe = (),
    operands: tuple[tuple[str, str, str], ...] = (),
) -> tuple[str, ...]:
    """The module of a depthwise convolution.

    x: float32[batch, blocks, h, w, lanes]; y, residual: float32[batch, blocks, rows, columns, lanes];
    weights: float32[blocks, rows of taps, taps, lanes]; bias: float32[blocks, lanes]; scalars:
    float32[4], see `tiles`; sizes: NchwcDepthwiseSizes; buffer: per thread; then the operands of the
    recipe. Units are bands of rows (fastest), blocks, images.

    Args:
        lanes: channels in a block.
        pixels: of a tile.
        taps: columns of the window.
        stride: along the width.
        dilation: along the width.
        flags: RESIDUAL, CLAMP.
        recipe: what follows bias, residual and limits.
        operands: (how it advances, offset where it begins, element type) of the recipe's inputs
            after the first.
    """
    offsets = "".join(f", at(x{i}, {offset})" for i, (_, offset, _) in enumerate(operands))
    kernel = _SOURCE.format(
        lanes=lanes,
        pixels=pixels,
        taps=taps,
        stride=stride,
        dilation=dilation,
        flags=flags & (RESIDUAL | CLAMP),
        reach=reach(pixels, taps, stride, dilation),
        unpack=NchwcDepthwiseSizes.unpack(),
        operands="".join(f", x{i}" for i in range(len(operands))),
        finish=_RUN.format(places=offsets) if recipe else "",
    )
    if not recipe:
        return (kernel,)
    library = lanes_run_library("float32", lanes, recipe, tuple((a, kind) for a, _, kind in operands))
    return library, "from LIBRARY0 import run\n" + kernel


# Where operands of a recipe begin in a strip, by their place; the batch is one image.
STRIP_OFFSETS = {
    "same": "r_start + begun",
    "channel": "plane * LANES",
    "plane": "plane * LANES",
    "scalar": "0",
}


def emit_strip(
    lanes: int,
    pixels: int,
    taps: int,
    stride: int,
    dilation: int,
    flags: int,
    recipe: Recipe = (),
    places: tuple[str, ...] = (),
) -> Sources:
    """The module of a kernel that computes the next rows of a depthwise convolution, see `strips`.

    x: float32[blocks, x_ring, w, lanes]; y: float32[blocks, y_ring, columns, lanes]; residual: the same with
    r_ring rows; rings: RingSizes; cursors: int64[operators], the next rows; most: rows of the call. The other
    arguments are those of `emit`, for an image alone; `places` are those of the recipe's inputs after the
    first. Units are shares of the rows of all blocks.
    """
    offsets = "".join(f", at(x{i}, {STRIP_OFFSETS[place]})" for i, place in enumerate(places))
    kernel = _STRIP_SOURCE.format(
        lanes=lanes,
        pixels=pixels,
        taps=taps,
        stride=stride,
        dilation=dilation,
        flags=flags & (RESIDUAL | CLAMP),
        reach=reach(pixels, taps, stride, dilation),
        unpack=NchwcDepthwiseSizes.unpack(),
        **STRIPS,
        operands="".join(f", x{i}" for i in range(len(places))),
        finish=_STRIP_RUN.format(places=offsets) if recipe else "",
    )
    if not recipe:
        return (kernel,)
    library = lanes_run_library("float32", lanes, recipe, tuple((ADVANCE[p], "float32") for p in places))
    return library, "from LIBRARY0 import run\n" + kernel
