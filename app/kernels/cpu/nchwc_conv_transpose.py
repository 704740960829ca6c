"""Transposed convolutions over channel-blocked images whose taps do not overlap: size = stride.

Every output pixel is a product of one input pixel and one tap, so the taps of a kernel row are so
many output columns side by side: a tile is some input pixels times the vectors of a kernel row.
"""

from typing import Any

import llvmlite.ir as ll
from numba import types

from app.kernels.cpu.codegen.instructions import I64, Vectors, number, typed
from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.tiles import CLAMP, HIGH, LOW, RESIDUAL
from app.kernels.cpu.epilogue import lanes_run_library
from app.kernels.cpu.strips import STRIPS
from app.kernels.expressions import Recipe

ACCUMULATORS = 12  # of a tile, beside which the weights of a channel fit 16 registers; twice as many 32
PIXELS = 8  # of a tile, whose addresses fit general registers

_BLOCKED = """\
from app.kernels.cpu.nchwc_conv_transpose import pixel_tile
from app.kernels.cpu.codegen.generator import at

LANES, PIXELS, TAPS, ROWS = {lanes}, {pixels}, {vectors}, {rows}
tile = pixel_tile(LANES, PIXELS, TAPS, {flags})


def kernel(
    x, weights, y, bias, residual, scalars, channels, blocks, h, w, buffer, buffer_step{operands},
    begin, end, thread,
):
    scratch = at(buffer, thread * buffer_step)
    step = h * w * LANES
    for unit in range(begin, end):
        line, plane = unit % h, unit // h
        block, image = plane % blocks, plane // blocks
        add = at(bias, block * LANES)
        source = at(x, (image * ((channels + LANES - 1) // LANES) * h + line) * w * LANES)
        for row in range(ROWS):
            own = at(weights, (block * ROWS + row) * channels * TAPS * LANES)
            start = (unit * ROWS + row) * w * TAPS * LANES
            for column in range(0, w, PIXELS):
                place = start + column * TAPS * LANES
                tile(at(source, column * LANES), step, channels, own, at(y, place), add, 0,
                     at(residual, place), scalars, w - column)
{finish}
"""

_FINISH = """\
        place = unit * ROWS * w * TAPS * LANES
        run(at(y, place), ROWS * w * TAPS * LANES, scratch{places})
"""

_FEW = """\
from app.kernels.cpu.nchwc_conv_transpose import pixel_tile
from app.kernels.cpu.codegen.generator import at

LANES, PIXELS, VECTORS, ROWS, TAPS = {lanes}, {pixels}, {vectors}, {rows}, {taps}
tile = pixel_tile(LANES, PIXELS, VECTORS, {flags})


def kernel(
    x, weights, y, bias, residual, scalars, channels, outputs, h, w, buffer, buffer_step{operands},
    begin, end, thread,
):
    products = at(buffer, thread * buffer_step)
    scratch = at(products, w * VECTORS * LANES)
    step = h * w * LANES
    for unit in range(begin, end):
        line, image = unit % h, unit // h
        source = at(x, (image * ((channels + LANES - 1) // LANES) * h + line) * w * LANES)
        for column in range(0, w, PIXELS):
            tile(at(source, column * LANES), step, channels, weights, at(products, column * VECTORS * LANES),
                 bias, LANES, residual, scalars, w - column)
        for output in range(outputs):
            lines = at(y, ((image * outputs + output) * h + line) * ROWS * w * TAPS)
            for row in range(ROWS):
                lane = (output * ROWS + row) * TAPS
                for column in range(w):
                    for tap in range(TAPS):
                        place = column * VECTORS * LANES + lane + tap
                        lines[(row * w + column) * TAPS + tap] = products[place]
{finish}
"""

_FEW_FINISH = """\
            run(lines, ROWS * w * TAPS, scratch{places})
"""

_BLOCKED_STRIP = """\
from app.kernels.cpu.nchwc_conv_transpose import pixel_tile
from app.kernels.cpu.codegen.generator import at

LANES, PIXELS, TAPS, ROWS = {lanes}, {pixels}, {vectors}, {rows}
tile = pixel_tile(LANES, PIXELS, TAPS, {flags})


def kernel(
    x, weights, y, bias, residual, scalars, channels, blocks, rows, w, buffer_step, rings, cursors, most,
    buffer{operands}, begin, end, thread,
):
    {unpack_rings}
    scratch = at(buffer, work_at + thread * buffer_step)
    step, line = x_ring * w * LANES, w * TAPS * LANES
{span}
    while first < last:
{piece}{planes}            block, add = plane, at(bias, plane * LANES)
            for i in range(upper, lower):
                row = first + i
                source = at(x, (row // ROWS - x_origin) % x_ring * w * LANES)
                own = at(weights, (plane * ROWS + row % ROWS) * channels * TAPS * LANES)
                place = (plane * y_ring + y_slot + i) * line
                r_place = r_at + (plane * r_ring + r_slot + i) * line
                for column in range(0, w, PIXELS):
                    pixel = column * TAPS * LANES
                    tile(at(source, column * LANES), step, channels, own, at(y, place + pixel), add, 0,
                         at(residual, r_place + pixel), scalars, w - column)
{finish}
        first += count
"""

_BLOCKED_STRIP_FINISH = """\
                run(at(y, place), line, scratch{places})
"""

_FEW_STRIP = """\
from app.kernels.cpu.nchwc_conv_transpose import pixel_tile
from app.kernels.cpu.codegen.generator import at

LANES, PIXELS, VECTORS, ROWS, TAPS = {lanes}, {pixels}, {vectors}, {rows}, {taps}
tile = pixel_tile(LANES, PIXELS, VECTORS, {flags})


def kernel(
    x, weights, y, bias, residual, scalars, channels, outputs, rows, w, buffer_step, rings, cursors, most,
    buffer{operands}, begin, end, thread,
):
    {unpack_rings}
    products = at(buffer, work_at + thread * buffer_step)
    scratch = at(products, w * VECTORS * LANES)
    step = x_ring * w * LANES
{span}
    upper = first // ROWS
    lines = max((last + ROWS - 1) // ROWS - upper, 0)
    for line in range(upper + lines * begin // shares, upper + lines * end // shares):
        source = at(x, (line - x_origin) % x_ring * w * LANES)
        for column in range(0, w, PIXELS):
            tile(at(source, column * LANES), step, channels, weights, at(products, column * VECTORS * LANES),
                 bias, LANES, residual, scalars, w - column)
        for output in range(outputs):
            for row in range(max(line * ROWS, first), min(line * ROWS + ROWS, last)):
                target = at(y, (output * y_ring + (row - y_origin) % y_ring) * w * TAPS)
                lane = (output * ROWS + row % ROWS) * TAPS
                for column in range(w):
                    for tap in range(TAPS):
                        target[column * TAPS + tap] = products[column * VECTORS * LANES + lane + tap]
{finish}
"""

_FEW_STRIP_FINISH = """\
                run(target, w * TAPS, scratch{places})
"""


def pixels_of(lanes: int, vectors: int, w: int) -> int:
    """Input pixels of a tile, so that those of a line are few and need no more pixels than it has."""
    most = max(min(ACCUMULATORS * (1 + (lanes > 8)) // vectors, PIXELS), 1)
    return -(-w // max(-(-w // most), 1))


def pixel_tile(lanes: int, pixels: int, vectors: int, flags: int) -> Any:
    """An intrinsic that multiplies pixels with a matrix.

    It is called as
        tile(x, x_block, channels, weights, y, bias, bias_step, residual, scalars, m)
    and computes, for pixels p < m and v < vectors, y[p, v, :] = bias[v * bias_step + :] + the sum over
    c < channels of weights[c, v, :] * x[c // lanes * x_block + p * lanes + c % lanes], plus
    residual[p, v, :] and limited to scalars[LOW], scalars[HIGH] as `flags` ask.
    """
    address, size = types.CPointer(types.float32), types.int64
    signature = types.void(
        address, size, size, address, address, address, size, address, address, size
    )  # fmt: skip

    def generate(context, builder, _signature, values):
        x, x_block, channels, weights, y, bias, bias_step, residual, scalars, m = values
        v = Vectors(builder, "float32", lanes)
        last = builder.sub(m, number(1))
        starts = []
        for p in range(pixels):
            pixel = builder.select(builder.icmp_signed("<", number(p), m), number(p), last)
            starts.append(v.at(x, builder.mul(pixel, number(lanes))))
        biases = [v.load(v.at(bias, builder.mul(number(j), bias_step))) for j in range(vectors)]
        entry = builder.block
        head, body, end = (builder.append_basic_block(n) for n in ("head", "body", "end"))
        builder.branch(head)
        builder.position_at_end(head)
        channel, row = builder.phi(I64), builder.phi(weights.type)
        channel.add_incoming(number(0), entry)
        row.add_incoming(weights, entry)
        sums = [builder.phi(v.type) for _ in range(pixels * vectors)]
        for i, phi in enumerate(sums):
            phi.add_incoming(biases[i % vectors], entry)
        builder.cbranch(builder.icmp_signed("<", channel, channels), body, end)
        builder.position_at_end(body)
        shift = ll.Constant(I64, lanes.bit_length() - 1)
        place = builder.mul(builder.lshr(channel, shift), x_block)
        place = builder.add(place, builder.and_(channel, number(lanes - 1)))
        w = [v.load(v.at(row, j * lanes)) for j in range(vectors)]
        for p in range(pixels):
            pixel = v.broadcast(v.at(starts[p], place))
            for j in range(vectors):
                phi = sums[p * vectors + j]
                phi.add_incoming(v.fma(pixel, w[j], phi), body)
        channel.add_incoming(builder.add(channel, number(1)), body)
        row.add_incoming(v.at(row, vectors * lanes), body)
        builder.branch(head)
        builder.position_at_end(end)

        if flags & CLAMP:
            limits = [v.broadcast(v.at(scalars, i)) for i in (LOW, HIGH)]
        ended = builder.append_basic_block("ended")
        for p in range(pixels):
            if p:
                go = builder.append_basic_block("pixel")
                builder.cbranch(builder.icmp_signed("<", number(p), m), go, ended)
                builder.position_at_end(go)
            for i in range(p * vectors, (p + 1) * vectors):
                total = sums[i]
                if flags & RESIDUAL:
                    total = v.add(total, v.load(v.at(residual, i * lanes)))
                if flags & CLAMP:
                    total = v.clamp(total, *limits)
                v.store(total, v.at(y, i * lanes))
        builder.branch(ended)
        builder.position_at_end(ended)
        return context.get_dummy_value()

    return typed(signature, generate)


Operands = tuple[tuple[str, str, str], ...]  # (how it advances, offset where it begins, element type)


def emit_blocked(
    lanes: int, pixels: int, rows: int, taps: int, flags: int, recipe: Recipe = (), operands: Operands = ()
) -> Sources:
    """The module of a transposed convolution to blocks.

    x: float32[batch, ceil(channels / lanes), h, w, lanes]; weights: float32[blocks, rows, channels,
    taps, lanes]; y, residual: float32[batch, blocks, h * rows, w * taps, lanes]; bias:
    float32[blocks, lanes]; scalars: float32[4], see `tiles`; buffer: float32[threads, buffer_step];
    then the operands of the recipe. Units are rows of x (fastest), blocks of y, images.

    Args:
        lanes: channels in a block.
        pixels: of a tile, see `pixels_of`.
        rows: of the kernel.
        taps: columns of the kernel.
        flags: RESIDUAL, CLAMP.
        recipe: what follows bias, residual and limits.
        operands: of the recipe, after the first.
    """
    return _module(_BLOCKED, _FINISH, lanes, taps, flags, recipe, operands, pixels=pixels, rows=rows)


def emit_few(
    lanes: int,
    pixels: int,
    vectors: int,
    rows: int,
    taps: int,
    flags: int,
    recipe: Recipe = (),
    operands: Operands = (),
) -> Sources:
    """The module of a transposed convolution to few channels, row-major.

    A lane is one tap of one output channel, so that no lane is computed for nothing; weights:
    float32[channels, vectors, lanes], bias: float32[vectors, lanes], lanes in the order [outputs,
    rows, taps]; y: float32[batch, outputs, h * rows, w * taps]; residual: not read. Units are rows of
    x (fastest), images. All else as in `emit_blocked`.

    Args:
        lanes: channels in a block of x.
        pixels: of a tile, see `pixels_of`.
        vectors: of a pixel's products.
        rows: of the kernel.
        taps: columns of the kernel.
        flags: CLAMP.
        recipe: what follows bias and limits.
        operands: of the recipe, after the first; none may vary.
    """
    sizes = {"pixels": pixels, "rows": rows, "taps": taps}
    return _module(_FEW, _FEW_FINISH, lanes, vectors, flags, recipe, operands, **sizes)


def emit_blocked_strip(
    lanes: int, pixels: int, rows: int, taps: int, flags: int, recipe: Recipe = (), operands: Operands = ()
) -> Sources:
    """The module of a kernel that computes the next rows of a transposed convolution to blocks, see `strips`.

    x: float32[channel blocks, x_ring, w, lanes]; y: float32[blocks, y_ring, w * taps, lanes]; residual: the
    same with r_ring rows; rows: of y; rings: RingSizes; cursors: int64[operators], the next rows; most: rows
    of the call. All else as in `emit_blocked`, for an image alone. Units are shares of the rows of all
    blocks.
    """
    source, finish = _BLOCKED_STRIP, _BLOCKED_STRIP_FINISH
    return _module(source, finish, lanes, taps, flags, recipe, operands, pixels=pixels, rows=rows, **STRIPS)


def emit_few_strip(
    lanes: int,
    pixels: int,
    vectors: int,
    rows: int,
    taps: int,
    flags: int,
    recipe: Recipe = (),
    operands: Operands = (),
) -> Sources:
    """The module of a kernel that computes the next rows of a transposed convolution to few channels.

    x, rows, rings, cursors, most: as in `emit_blocked_strip`; y: float32[outputs, y_ring, w * taps]. All
    else as in `emit_few`, for an image alone. Units are shares of the rows of x, whose products calls compute
    again that begin or end within a kernel.
    """
    sizes = {"pixels": pixels, "rows": rows, "taps": taps}
    source, finish = _FEW_STRIP, _FEW_STRIP_FINISH
    return _module(source, finish, lanes, vectors, flags, recipe, operands, **sizes, **STRIPS)


def _module(
    source: str, finish: str, lanes: int, vectors: int, flags: int, recipe: Recipe, operands: Operands,
    **sizes: int | str,
) -> tuple[str, ...]:  # fmt: skip
    offsets = "".join(f", at(x{i}, {offset})" for i, (_, offset, _) in enumerate(operands))
    kernel = source.format(
        lanes=lanes,
        vectors=vectors,
        flags=flags & (RESIDUAL | CLAMP),
        operands="".join(f", x{i}" for i in range(len(operands))),
        finish=finish.format(places=offsets) if recipe else "",
        **sizes,
    )
    if not recipe:
        return (kernel,)
    library = lanes_run_library("float32", lanes, recipe, tuple((a, kind) for a, _, kind in operands))
    return library, "from LIBRARY0 import run\n" + kernel
