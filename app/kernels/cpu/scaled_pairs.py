"""float32 in fixed point of 16 bits (`tiles.SCALED_PAIRS`): strips of images that convolutions read; rows.

A strip, or a chunk of a row, has one scale, by which its largest magnitude is `tiles.SCALED_MOST`. A pair
holds neighbors along the reduction; an odd end has a zero beside it. Constants are packed offline, see
`tiles.scaled_integers`.
"""

from typing import Any

import llvmlite.ir as ll
from numba import types
from numba.core import cgutils

from app.kernels.cpu.codegen.instructions import I16, I32, Vectors, number, repeat, typed
from app.kernels.cpu.codegen.tiles import SCALED_MOST, SCALED_PAIRS

LEAST = 1e-30  # of the largest magnitude of a strip: scales of smaller ones would be subnormal


def magnitudes(lanes: int) -> Any:
    """An intrinsic: the largest of the bits of magnitudes of float32, as int32; those of NaN are the largest.

    It is called as magnitudes(x, count, valid, before) for `count` elements in vectors of which the first
    `valid` count; the result is `before` at least.
    """
    signature = types.int32(types.CPointer(types.float32), types.int64, types.int64, types.int32)

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        x, count, valid, before = values
        floats, v = Vectors(builder, "float32", lanes), Vectors(builder, "int32", lanes)
        keep, ours = ll.Constant(v.type, [0x7FFFFFFF] * lanes), v.below(valid)

        def step(state: list[Any]) -> list[Any]:
            left, source, most = state
            mask = builder.and_(ours, v.below(left))
            bits = builder.and_(builder.bitcast(floats.masked_load(source, mask), v.type), keep)
            most = builder.select(builder.icmp_signed(">", bits, most), bits, most)
            return [builder.sub(left, number(lanes)), v.at(source, lanes), most]

        _, _, most = repeat(builder, vectors_of(builder, count, lanes), [count, x, v.splat(before)], step)
        function = cgutils.get_or_insert_function(
            builder.module, ll.FunctionType(I32, [v.type]), f"llvm.vector.reduce.smax.v{lanes}i32"
        )
        return builder.call(function, [most])

    return typed(signature, generate)


def vectors_of(builder: Any, count: Any, lanes: int) -> Any:
    """Number of vectors that hold so many elements."""
    return builder.sdiv(builder.add(count, number(lanes - 1)), number(lanes))


def shortened(lanes: int, *, masked: bool = False) -> Any:
    """An intrinsic that rounds vectors of float32 that lie one after the other to integers, in pairs.

    It is called as shorten(x, count, valid, factor, y) and makes x[i * lanes + j] * factor, for i < count,
    j < lanes, the half j % 2 of y[(i * lanes + j) // 2]; zeros where j >= valid, not read if `masked`.
    """
    address, size = types.CPointer(types.float32), types.int64
    signature = types.void(address, size, size, types.float32, address)

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        x, count, valid, factor, y = values
        v = Vectors(builder, SCALED_PAIRS, lanes)
        mask, times = v.below(valid), v.splat(factor)

        def step(state: list[Any]) -> list[Any]:
            source, target = state
            found = v.masked_load(source, mask) if masked else builder.select(mask, v.load(source), v.zero)
            whole = v.rounded(v.multiply(found, times))
            words = builder.fptosi(whole, ll.VectorType(I32, lanes))
            shorts = builder.trunc(words, ll.VectorType(I16, lanes))
            v.store(builder.bitcast(shorts, ll.VectorType(v.element, lanes // 2)), target)
            return [v.at(source, lanes), v.at(target, lanes // 2)]

        repeat(builder, count, [x, y], step)
        return context.get_dummy_value()

    return typed(signature, generate)


def paired_planes(lanes: int) -> Any:
    """An intrinsic that rounds the elements of two planes to integers and lays both of a pixel side by side.

    It is called as pair(x, apart, count, factor, y) and makes x[i] * factor and x[apart + i] * factor the
    halves of y[i] for i < count; the second is zero where `apart` is. Up to `lanes` - 1 elements behind the
    last are written, with zeros.
    """
    address, size = types.CPointer(types.float32), types.int64
    signature = types.void(address, size, size, types.float32, address)

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        x, apart, count, factor, y = values
        v = Vectors(builder, SCALED_PAIRS, lanes)
        kind = ll.VectorType(I32, lanes)
        times, low, high = (
            v.splat(factor),
            ll.Constant(kind, [0xFFFF] * lanes),
            ll.Constant(kind, [16] * lanes),
        )
        both = builder.icmp_signed("!=", apart, number(0))

        def step(state: list[Any]) -> list[Any]:
            left, source, target = state
            mask = v.below(left)
            words = [
                builder.fptosi(v.rounded(v.multiply(v.masked_load(place, mask), times)), kind)
                for place in (source, v.at(source, apart))
            ]
            second = builder.select(both, builder.shl(words[1], high), ll.Constant(kind, [0] * lanes))
            v.store(builder.or_(builder.and_(words[0], low), second), target)
            return [builder.sub(left, number(lanes)), v.at(source, lanes), v.at(target, lanes)]

        repeat(builder, vectors_of(builder, count, lanes), [count, x, y], step)
        return context.get_dummy_value()

    return typed(signature, generate)


def bits_as_float() -> Any:
    """An intrinsic: the float32 of some bits."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ll.FloatType())

    return typed(types.float32(types.int32), generate)


_FILL = """\
from numba import types
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.scaled_pairs import bits_as_float, magnitudes, paired_planes, shortened
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.linking import shared

T, N = types.CPointer(types.float32), types.int64
LANES = {lanes}
LEAST, MOST = types.float32({least}), types.float32({most})
as_float, largest, shorten, pair = bits_as_float(), magnitudes(LANES), shortened(LANES), paired_planes(LANES)


@njit(error_model="numpy", boundscheck=False)
def clear(y, n):
    for i in range(n):
        y[i] = 0


@njit(error_model="numpy", boundscheck=False)
def peak(x, x_block, blocked, channels, begin, pixels):
    # The largest magnitude of these pixels of an image.
    most = types.int32(0)
    if blocked:
        for block in range((channels + LANES - 1) // LANES):
            part = at(x, block * x_block + begin * LANES)
            most = largest(part, pixels * LANES, channels - block * LANES, most)
    else:
        for channel in range(channels):
            most = largest(at(x, channel * x_block + begin), pixels, LANES, most)
    return as_float(most)


@shared(types.float32(T, N, N, N, N, N, N, N, N, N, N, T))
def fill(x, x_block, x_lanes, blocks, channels, first, lines, h, w, left, line, out):
    # Rows first..first+lines of an image and their padding, channels in pairs: x_lanes pairs of each
    # block of 2 * x_lanes channels, or, where x_lanes is 1, of two planes. Returns the scale.
    low = min(max(-first, 0), lines)
    high = max(min(h - first, lines), low)
    most = peak(x, x_block, x_lanes > 1, channels, (first + low) * w, (high - low) * w)
    if most < LEAST:
        most = LEAST
    factor = MOST / most
    runs, run = high - low, min(w, line - left)
    step = line * x_lanes
    whole = left == 0 and line == w
    if whole:  # all rows in one
        runs, run = min(runs, 1), runs * w
    for block in range(blocks):
        target = at(out, block * lines * step)
        clear(target, low * step)
        clear(at(target, high * step), (lines - high) * step)
        for r in range(runs):
            to = at(target, (low + r) * step)
            pixel = (first + low + r) * w
            if x_lanes > 1:
                at_run = at(to, left * x_lanes)
                shorten(at(x, block * x_block + pixel * LANES), run, channels - block * LANES, factor, at_run)
            else:
                apart = x_block if 2 * block + 1 < channels else 0
                pair(at(x, 2 * block * x_block + pixel), apart, run, factor, at(to, left))
            if not whole:
                clear(to, left * x_lanes)
                clear(at(to, (left + run) * x_lanes), (line - left - run) * x_lanes)
    return most / MOST
"""


def fill_library(lanes: int) -> str:
    """Defines `fill`: a strip of a blocked image, or of planes, with its padding, in pairs of channels."""
    return _FILL.format(lanes=lanes, least=LEAST, most=SCALED_MOST)


_ROWS = """\
from numba import types
from app.kernels.cpu.scaled_pairs import bits_as_float, magnitudes, shortened
from app.kernels.cpu.codegen.generator import at

LANES = {lanes}
LEAST, MOST = types.float32({least}), types.float32({most})
as_float, largest, shorten, shorten_part = (
    bits_as_float(), magnitudes(LANES), shortened(LANES), shortened(LANES, masked=True)
)


def kernel(x, y, k, steps, y_row, begin, end):
    for i in range(begin, end):
        to = at(y, i * y_row)
        for first in range(0, k, 2 * steps):
            row, count = at(x, i * k + first), min(2 * steps, k - first)
            most = as_float(largest(row, count, LANES, types.int32(0)))
            if most < LEAST:
                most = LEAST
            factor = MOST / most
            whole = count // LANES
            shorten(row, whole, LANES, factor, to)
            if count % LANES:  # the rest of the last vector is overwritten
                place = whole * LANES
                shorten_part(at(row, place), 1, count - place, factor, at(to, place // 2))
            pairs = (count + 1) // 2
            to[pairs] = most / MOST
            to = at(to, pairs + 1)
"""


def emit_rows(lanes: int) -> str:
    """The module that rounds rows in chunks. x: float32[m, k]; y: float32[m, y_row]; then k, steps and y_row.

    Of each row `steps` pairs and their scale, float32, follow each other, in the last chunk fewer pairs; up
    to lanes / 2 elements behind the last are written. Units are rows.
    """
    return _ROWS.format(lanes=lanes, least=LEAST, most=SCALED_MOST)
