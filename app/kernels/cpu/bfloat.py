"""float32 activations rounded to pairs of bfloat16 (`tiles.BFLOATS`), as products of them read them.

A pair holds neighbours along the reduction; an odd end has a zero beside it. Constants are packed
offline, see `tiles.pack_bfloats`.
"""

from typing import Any

import llvmlite.ir as ll
from numba import types

from app.kernels.cpu.codegen.instructions import I16, I32, Vectors, number, repeat, typed

PLANES = 4  # channels that an interleaved pixel holds at most


def narrower(dtype: str, lanes: int) -> Any:
    """An intrinsic that rounds vectors of float32 that lie one after the other.

    It is called as narrow(x, count, valid, y) and makes x[i * lanes + j] for i < count, j < lanes the
    half j % 2 of y[(i * lanes + j) // 2]; zeros where j >= valid, whatever x holds there.

    Args:
        dtype: of y, see `tiles.BFLOAT_PAIRS`.
        lanes: elements of a vector.
    """
    address, size = types.CPointer(types.float32), types.int64
    signature = types.void(address, size, size, address)

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        x, count, valid, y = values
        v = Vectors(builder, dtype, lanes)
        mask = v.below(valid)

        def step(state: list[Any]) -> list[Any]:
            source, target = state
            v.store(v.narrow(builder.select(mask, v.load(source), v.zero)), target)
            return [v.at(source, lanes), v.at(target, lanes // 2)]

        repeat(builder, count, [x, y], step)
        return context.get_dummy_value()

    return typed(signature, generate)


_ROWS = """\
from numba import types
from app.kernels.cpu.bfloat import narrower
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.intrinsics import bfloats

LANES = {lanes}
narrow = narrower("{dtype}", LANES)


def kernel(x, y, k, begin, end):
    pairs = (k + 1) // 2
    whole = k // LANES * LANES
    for i in range(begin, end):
        row, to = at(x, i * k), at(y, i * pairs)
        narrow(row, k // LANES, LANES, to)
        for p in range(whole, k - 1, 2):
            to[p // 2] = bfloats(row[p], row[p + 1])
        if k % 2 == 1:
            to[pairs - 1] = bfloats(row[k - 1], types.float32(0))
"""


def emit_rows(dtype: str, lanes: int) -> str:
    """The module that rounds rows: x: float32[m, k]; y: dtype[m, ceil(k / 2)]; then k. Units are rows.

    Args:
        dtype: see `tiles.BFLOAT_PAIRS`.
        lanes: float32 in a register.
    """
    return _ROWS.format(dtype=dtype, lanes=lanes)


_FILL = """\
from numba import types
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.bfloat import narrower
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.intrinsics import bfloats
from app.kernels.cpu.codegen.linking import shared

T, N = types.CPointer(types.float32), types.int64
LANES = {lanes}
narrow = narrower("{dtype}", LANES)


@njit(error_model="numpy", boundscheck=False)
def clear(y, n):
    for i in range(n):
        y[i] = 0


@shared(types.void(T, N, N, N, N, N, N, N, N, N, N, T))
def fill(x, x_block, x_lanes, blocks, channels, first, lines, h, w, left, line, out):
    # Rows first..first+lines of an image and their padding, channels in pairs: x_lanes pairs of each
    # block of 2 * x_lanes channels, or, where x_lanes is 1, of two planes.
    low = min(max(-first, 0), lines)
    high = max(min(h - first, lines), low)
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
            if not whole:
                clear(to, left * x_lanes)
                clear(at(to, (left + run) * x_lanes), (line - left - run) * x_lanes)
            to = at(to, left * x_lanes)
            if x_lanes > 1:
                narrow(at(x, block * x_block + pixel * LANES), run, channels - block * LANES, to)
                continue
            one = at(x, 2 * block * x_block + pixel)
            if 2 * block + 1 < channels:
                two = at(one, x_block)
                for i in range(run):
                    to[i] = bfloats(one[i], two[i])
            else:
                for i in range(run):
                    to[i] = bfloats(one[i], types.float32(0))
"""


def fill_library(dtype: str, lanes: int) -> str:
    """Defines `fill`: a strip of a blocked image, or of planes, with its padding, in pairs of channels."""
    return _FILL.format(dtype=dtype, lanes=lanes)


def block_narrower(lanes: int) -> Any:
    """An intrinsic that rounds pixels of two blocks of channels, as tile registers take them.

    It is called as narrow(x, x_block, x_pixel, count, valid, y) and makes y[i * lanes + p], for i < count,
    p < lanes, the pair of channels 2 * p and 2 * p + 1 of pixel i, of which channel c stands at
    x[c // lanes * x_block + i * x_pixel + c % lanes]; zeros where c >= valid, and nothing is read there.
    """
    address, size = types.CPointer(types.float32), types.int64
    signature = types.void(address, size, size, size, size, address)

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        x, x_block, x_pixel, count, valid, y = values
        v = Vectors(builder, "float32", lanes)
        masks = [v.below(builder.sub(valid, number(first))) for first in (0, lanes)]

        def step(state: list[Any]) -> list[Any]:
            source, target = state
            places = source, v.at(source, x_block)
            low, high = (v.masked_load(place, mask) for place, mask in zip(places, masks))
            v.store(v.narrow_two(low, high), target)
            return [v.at(source, x_pixel), v.at(target, lanes)]

        repeat(builder, count, [x, y], step)
        return context.get_dummy_value()

    return typed(signature, generate)


_FILL_PHASES = """\
from numba import types
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.bfloat import block_narrower
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.linking import shared

T, N = types.CPointer(types.float32), types.int64
LANES = {lanes}
narrow = block_narrower(LANES)


@njit(error_model="numpy", boundscheck=False)
def clear(y, n):
    for i in range(n):
        y[i] = 0


@shared(types.void(T, N, N, N, N, N, N, N, N, N, N, N, N, N, T))
def fill(x, x_block, blocks, channels, first, stride_h, stride_w, phases_h, phases_w, lines, h, w, left,
         line, out):
    # Blocks of 2 * LANES channels, in pairs. Each has an image of lines * line pixels for every phase of
    # the strides, row by row: pixel (i, j) of the image of phase (p, q) is that of the input in row
    # first + p + i * stride_h and column q + j * stride_w - left, zero outside.
    size = lines * line * LANES
    for image in range(blocks * phases_h * phases_w):
        p, q = image // phases_w % phases_h, image % phases_w
        block = image // (phases_h * phases_w)
        source, target = at(x, 2 * block * x_block), at(out, image * size)
        valid = channels - 2 * block * LANES
        low = min(max((stride_h - 1 - first - p) // stride_h, 0), lines)
        high = max(min((h + stride_h - 1 - first - p) // stride_h, lines), low)
        begin = min(max((stride_w - 1 + left - q) // stride_w, 0), line)
        end = max(min((w + stride_w - 1 + left - q) // stride_w, line), begin)
        runs, run = high - low, end - begin
        if stride_h == 1 and begin == 0 and stride_w * line == w and q == left:  # all rows in one
            runs, run = min(runs, 1), runs * line
        clear(target, low * line * LANES)
        clear(at(target, high * line * LANES), (lines - high) * line * LANES)
        for r in range(runs):
            to = at(target, (low + r) * line * LANES)
            pixel = (first + p + (low + r) * stride_h) * w + q + begin * stride_w - left
            clear(to, begin * LANES)
            if run < line:
                clear(at(to, end * LANES), (line - end) * LANES)
            narrow(at(source, pixel * LANES), x_block, stride_w * LANES, run, valid, at(to, begin * LANES))
"""


def fill_phases_library(lanes: int) -> str:
    """Defines `fill`: a strip of a blocked image with its padding, in pairs, cut by the phases of strides."""
    return _FILL_PHASES.format(lanes=lanes)


def plane_narrower(lanes: int, planes: int) -> Any:
    """An intrinsic that rounds pixels of a few planes and lays their channels side by side.

    It is called as narrow(x, x_plane, count, y) and makes y[i * p + c // 2], for i < count, c < 2 * p, the
    pair whose half c % 2 is x[c * x_plane + i], zero for c >= planes, where p = ceil(planes / 2), at most 2.
    Up to `lanes` - 1 pixels behind the last are zero.
    """
    address, size = types.CPointer(types.float32), types.int64
    signature = types.void(address, size, size, address)
    pairs = -(-planes // 2)

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        x, x_plane, count, y = values
        v = Vectors(builder, "float32", lanes)
        halves = ll.VectorType(I16, 2 * lanes)

        def step(state: list[Any]) -> list[Any]:
            left, source, target = state
            mask = v.below(left)
            loaded = [
                v.masked_load(v.at(source, builder.mul(number(c), x_plane)), mask) for c in range(planes)
            ]
            loaded += [v.zero] * (2 * pairs - planes)
            found = [
                builder.bitcast(v.narrow_two(*loaded[c : c + 2]), halves) for c in range(0, 2 * pairs, 2)
            ]
            # Channel c of pixel i is element c * lanes + i of both vectors, or of the one.
            order = [c * lanes + i for i in range(lanes) for c in range(2 * pairs)]
            for k in range(pairs):
                places = ll.Constant(
                    ll.VectorType(I32, 2 * lanes), order[2 * lanes * k : 2 * lanes * (k + 1)]
                )
                mixed = builder.shuffle_vector(found[0], found[-1], places)
                v.store(builder.bitcast(mixed, v.type), v.at(target, k * lanes))
            return [builder.sub(left, number(lanes)), v.at(source, lanes), v.at(target, pairs * lanes)]

        times = builder.sdiv(builder.add(count, number(lanes - 1)), number(lanes))
        repeat(builder, times, [count, x, y], step)
        return context.get_dummy_value()

    return typed(signature, generate)


_FILL_PLANES = """\
from numba import types
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.bfloat import plane_narrower
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.linking import shared

T, N = types.CPointer(types.float32), types.int64
PAIRS = {pairs}
narrow = plane_narrower({lanes}, {planes})


@njit(error_model="numpy", boundscheck=False)
def clear(y, n):
    for i in range(n):
        y[i] = 0


@shared(types.void(T, N, N, N, N, N, N, N, T))
def fill(x, x_plane, first, lines, h, w, left, line, out):
    # Rows first..first+lines of an image and their padding, PAIRS of channels a pixel. What is written
    # behind the end of a row, the next one overwrites.
    run = min(w, line - left)
    for r in range(lines):
        to, row = at(out, r * line * PAIRS), first + r
        if row < 0 or row >= h:
            clear(to, line * PAIRS)
            continue
        clear(to, left * PAIRS)
        narrow(at(x, row * w), x_plane, run, at(to, left * PAIRS))
        clear(at(to, (left + run) * PAIRS), (line - left - run) * PAIRS)
"""


def fill_planes_library(lanes: int, planes: int) -> str:
    """Defines `fill`: a strip of planes with its padding, the channels of a pixel side by side in pairs."""
    return _FILL_PLANES.format(lanes=lanes, planes=planes, pairs=-(-planes // 2))


_BLOCKED_ROWS = """\
from app.kernels.cpu.bfloat import block_narrower
from app.kernels.cpu.codegen.generator import at

LANES = {lanes}
narrow = block_narrower(LANES)


def kernel(x, y, k, y_row, begin, end):
    for i in range(begin, end):
        row, to = at(x, i * k), at(y, i * y_row)
        whole = k // (2 * LANES)
        narrow(row, LANES, 2 * LANES, whole, 2 * LANES, to)
        if k % (2 * LANES) > 0:
            narrow(at(row, whole * 2 * LANES), LANES, 2 * LANES, 1, k % (2 * LANES), at(to, whole * LANES))
"""


def emit_blocked_rows(lanes: int) -> str:
    """The module that rounds rows to whole vectors of pairs: x: float32[m, k]; y: pairs, rows y_row apart."""
    return _BLOCKED_ROWS.format(lanes=lanes)
