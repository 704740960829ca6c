"""Values of images between pixels: GridSample, and the columns of a deformable convolution.

Where a point lies does not depend on the channel. A unit is a block of points: a table of the pixels around
each and their weights is made first, then read by every channel. `place: int32[taps, BLOCK]` holds offsets in
a plane, negative ones where a tap lies outside and counts as zero; `weight: T[taps, BLOCK]`.

Source: the ONNX operators GridSample, version 20, and DeformConv, version 22.
"""

import itertools
import math

from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.extrema import like

BLOCK = 64  # points whose table stays in the first cache beside the pixels
FAR = 4  # pixels beyond the border, where no tap of any mode meets the image
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}  # along an axis
CUBIC = -0.75  # the parameter of Keys' filter


@njit
def unnormalized(g, size, align):
    """The coordinate in pixels of one from -1 to 1."""
    one, half = like(g, 1), like(g, 0.5)
    if align:
        return (g + one) * half * like(g, size - 1)
    return ((g + one) * like(g, size) - one) * half


@njit
def reflected(v, low, high):
    """V, reflected at the borders until it lies between them."""
    span = high - low
    if not span > like(v, 0):
        return like(v, 0)
    distance = low - v if v < low else v - high
    if distance <= like(v, 0):
        return v
    turns = math.floor(distance / span)
    rest = distance - like(v, turns) * span
    is_even = turns % 2 == 0
    if v < low:
        return low + rest if is_even else high - rest
    return high - rest if is_even else low + rest


@njit
def clamped(v, low, high):
    """V, or the nearer border; NaN becomes the lower one."""
    return (v if v <= high else high) if v >= low else low


@njit
def zeros_coordinate(v, size, low, high):
    """V, or a coordinate from where no pixel is reached."""
    return v if like(v, -FAR) < v < like(v, size + FAR) else like(v, -FAR)


@njit
def border_coordinate(v, size, low, high):
    """V within the centers of the outer pixels."""
    return clamped(v, like(v, 0), like(v, size - 1)) if v < low or v > high or v != v else v


@njit
def reflection_coordinate(v, size, low, high):
    """V within the borders."""
    return clamped(reflected(v, low, high), low, high)


@njit
def zeros_pixel(i, size, low, high):
    """The index of a pixel; -1 outside."""
    return i if 0 <= i < size else -1


@njit
def border_pixel(i, size, low, high):
    """The index of the nearest pixel."""
    return min(max(i, 0), size - 1)


@njit
def reflection_pixel(i, size, low, high):
    """The index of a pixel, reflected at the borders."""
    if 0 <= i < size:
        return i
    return min(max(int(reflected(like(low, i), low, high)), 0), size - 1)


@njit
def cubic_near(f):
    """Weight of a pixel at a distance up to one. Keys, 1981, equation 4."""
    a = like(f, CUBIC)
    return ((a + like(f, 2)) * f - (a + like(f, 3))) * f * f + like(f, 1)


@njit
def cubic_far(f):
    """Weight of a pixel at a distance from one to two."""
    a = like(f, CUBIC)
    return ((a * f - like(f, 5) * a) * f + like(f, 8) * a) * f - like(f, 4) * a


@njit
def weighed(x, base, step, place, weight, entry, taps):
    """The weighted sum of the taps that count, at offsets in multiples of `step`."""
    total = like(weight[entry], 0)
    for t in range(taps):
        at = entry + t * BLOCK
        if weight[at] != like(total, 0):
            total += weight[at] * x[base + place[at] * step]
    return total


_VECTOR_HEAD = "from app.kernels.cpu.codegen.vectors import load, splat, store\n\n"

_HEAD = """\
import math

import numpy as np
from numba import int32, int64

from app.kernels.cpu.extrema import like
from app.kernels.cpu.sampling import (
    border_coordinate, border_pixel, cubic_far, cubic_near, reflection_coordinate, reflection_pixel,
    unnormalized, weighed, zeros_coordinate, zeros_pixel,
)


"""

_GRID = """\
def kernel(x, grid, y, place, weight, {parameters}, {sizes}, points, blocks, begin, end, thread):
    table = thread * {TABLE}
    one, zero = like(weight[table], 1), like(weight[table], 0)
    plane = {plane}
    for unit in range(begin, end):
        image = unit // blocks
        start = unit % blocks * {BLOCK}
        n = min({BLOCK}, points - start)
        for i in range(n):
            at = (image * points + start + i) * {rank}
            entry = table + i
{coordinates}
{taps}
{read}
"""

_PLANES = """\
        for c in range(channels):
            base = (image * channels + c) * plane
            target = (image * channels + c) * points + start
            broken = zero
            for i in range(n):
                entry = table + i
                value = {blend}
                y[target + i] = value
                broken += value - value
            if broken != broken:
                for i in range(n):
                    y[target + i] = weighed(x, base, 1, place, weight, table + i, {T})"""

# Vectors of channels: `step` is the distance of pixels, `vectors` the channels' offsets in x and in y.
_VECTORS = """\
        for c in range(channels):
            base = image * x_image + vectors[2 * c]
            target = {target}
            broken = splat(zero, {L})
            for i in range(n):
                entry = table + i
                value = {blend}
                store({y}, target + i * {y_step}, value)
                broken = broken + (value - value)
            store(weight, table + {T} * {BLOCK}, broken)
            total = zero
            for lane in range({L}):
                total += weight[table + {T} * {BLOCK} + lane]
            if total != total:
                for i in range(n):
                    for lane in range({L}):
                        {y}[target + i * {y_step} + lane] = weighed(
                            x, base + lane, step, place, weight, table + i, {T})"""

_BORDERS = """\
            low{a}, high{a} = {borders}
            v{a} = unnormalized(grid[at + {place}], n{a}, {align})
"""

# Along axis {a}: p{a}_t and w{a}_t, index and weight of tap t.
_ALONG = {
    "nearest": """\
            p{a}_0 = {padding}_pixel(int64({padding}_coordinate(np.rint(v{a}), n{a}, low{a}, high{a})), \
n{a}, low{a}, high{a})
            w{a}_0 = one
""",
    "linear": """\
            v{a} = {padding}_coordinate(v{a}, n{a}, low{a}, high{a})
            i{a} = int64(math.floor(v{a}))
            f{a} = v{a} - like(one, i{a})
            p{a}_0 = {padding}_pixel(i{a}, n{a}, low{a}, high{a})
            p{a}_1 = {padding}_pixel(i{a} + 1, n{a}, low{a}, high{a})
            w{a}_0 = one - f{a}
            w{a}_1 = f{a}
""",
    "cubic": """\
            v{a} = {padding}_coordinate(v{a}, n{a}, low{a}, high{a})
            i{a} = int64(math.floor(v{a}))
            f{a} = v{a} - like(one, i{a})
            p{a}_0 = {padding}_pixel(i{a} - 1, n{a}, low{a}, high{a})
            p{a}_1 = {padding}_pixel(i{a}, n{a}, low{a}, high{a})
            p{a}_2 = {padding}_pixel(i{a} + 1, n{a}, low{a}, high{a})
            p{a}_3 = {padding}_pixel(i{a} + 2, n{a}, low{a}, high{a})
            w{a}_0 = cubic_far(f{a} + one)
            w{a}_1 = cubic_near(f{a})
            w{a}_2 = cubic_near(one - f{a})
            w{a}_3 = cubic_far(one + one - f{a})
""",
}


def taps_of(mode: str, rank: int) -> int:
    """Pixels that a value is made of."""
    return int(TAPS[mode] ** rank)


def _table(mode: str, rank: int, sizes: tuple[str, ...], scale: str = "") -> str:
    """Lines that store offset and weight of every tap of point `entry`."""
    lines = []
    for index, taps in enumerate(itertools.product(range(TAPS[mode]), repeat=rank)):
        places = [f"p{a}_{t}" for a, t in enumerate(taps)]
        offset = places[0]
        for a in range(1, rank):
            offset = f"({offset}) * {sizes[a]} + {places[a]}"
        inside = f"({' | '.join(places)}) >= 0"
        product = " * ".join([*(f"w{a}_{t}" for a, t in enumerate(taps)), *([scale] if scale else [])])
        lines.append(f"inside = {inside}")
        lines.append(f"place[entry + {index * BLOCK}] = {offset} if inside else 0")
        lines.append(f"weight[entry + {index * BLOCK}] = {product} if inside else zero")
    return "\n".join(" " * 12 + line for line in lines)


def _blend(taps: int, lanes: int = 0) -> str:
    """The weighted sum of the taps of a point in one channel, or in so many that lie together."""
    places = [f"entry + {t * BLOCK}" for t in range(taps)]
    if lanes == 0:
        return " + ".join(f"weight[{at}] * x[base + place[{at}]]" for at in places)
    pixels = (f"load(x, base + place[{at}] * step, {lanes})" for at in places)
    return " + ".join(f"splat(weight[{at}], {lanes}) * {pixel}" for at, pixel in zip(places, pixels))


def table_size(taps: int, lanes: int = 0) -> int:
    """Entries of a thread's table."""
    return taps * BLOCK + lanes


def grid_sample(mode: str, padding: str, rank: int, align: bool, lanes: int = 0) -> str:
    """Source of a kernel for GridSample over `rank` spatial axes.

    x: T[n, channels, *sizes]; grid: T[n, points, rank], coordinates of the last axis first;
    y: T[n, channels, points]. Units are blocks of points of an image. With `lanes`, x and y are images of
    `x_image` and `y_image` elements in which so many channels of a pixel lie together, and pixels `step`
    apart; `vectors: int64[channels, 2]` are their offsets in x and in y.
    """
    sizes = tuple(f"n{a}" for a in range(rank))
    coordinates = ""
    for a in range(rank):
        borders = "zero, like(one, n{a} - 1)" if align else "like(one, -0.5), like(one, n{a} - 0.5)"
        coordinates += _BORDERS.format(a=a, borders=borders.format(a=a), place=rank - 1 - a, align=int(align))
        coordinates += _ALONG[mode].format(a=a, padding=padding)
    taps = taps_of(mode, rank)
    target = "image * y_image + vectors[2 * c + 1] + start * step"
    read = (_VECTORS if lanes else _PLANES).format(
        blend=_blend(taps, lanes), T=taps, L=lanes, BLOCK=BLOCK, target=target, y="y", y_step="step"
    )
    parameters = "vectors, channels, x_image, y_image, step" if lanes else "channels"
    return (
        (_VECTOR_HEAD if lanes else "")
        + _HEAD.format(padding=padding)
        + _GRID.format(
            parameters=parameters,
            sizes=", ".join(sizes),
            plane=" * ".join(sizes),
            TABLE=table_size(taps, lanes),
            BLOCK=BLOCK,
            rank=rank,
            coordinates=coordinates.rstrip("\n"),
            taps=_table(mode, rank, sizes),
            read=read,
        )
    )


_COLUMNS = """\
def kernel(
    x, offset, mask, columns, place, weight, {parameters}, groups, n0, n1, height, width, kh, kw, sh, sw,
    ph, pw, dh, dw, blocks, begin, end, thread
):
    table = thread * {TABLE}
    one, zero = like(weight[table], 1), like(weight[table], 0)
    low0 = high0 = low1 = high1 = one
    points = height * width
    taps = kh * kw
    inverse = 1.0 / width
    for unit in range(begin, end):
        start = unit % blocks * {BLOCK}
        tap = unit // blocks % taps
        group = unit // blocks // taps  # of all images
        n = min({BLOCK}, points - start)
        row = tap // kw * dh - ph
        column = tap % kw * dw - pw
        for i in range(n):
            point = start + i
            entry = table + i
            at = (group * taps + tap) * 2 * points + point
            line = int32((int32(point) + 0.5) * inverse)  # point // width, which there are no vectors of
            v0 = like(one, int32(line * sh + row)) + offset[at]
            v1 = like(one, int32((point - line * width) * sw + column)) + offset[at + points]
            scale = {scale}
{coordinates}
{taps}
{read}
"""

_COLUMN_PLANES = """\
        for c in range(channels):
            base = (group * channels + c) * n0 * n1
            target = ((group * channels + c) * taps + tap) * points + start
            broken = zero
            for i in range(n):
                entry = table + i
                value = {blend}
                columns[target + i] = value
                broken += value - value
            if broken != broken:
                for i in range(n):
                    columns[target + i] = weighed(x, base, 1, place, weight, table + i, {T})"""


def deformed_columns(masked: bool, lanes: int = 0) -> str:
    """Source of a kernel for the columns of a deformable convolution of images.

    x: T[n, groups, channels, n0, n1]; offset: T[n, groups, taps, 2, points]; mask: T[n, groups, taps,
    points]; columns: T[n, groups, channels, taps, points]. Units are n * groups * taps * blocks of points.
    With `lanes` there is one group, x: T[n, n0, n1, step] and columns: T[n, points, taps, step], and so
    many channels are read together from each of the offsets `vectors: int64[channels, 2]`.
    """
    coordinates = "".join(_ALONG["linear"].format(a=a, padding="zeros") for a in range(2))
    if lanes:
        read = _VECTORS.format(
            blend=_blend(4, lanes), T=4, L=lanes, BLOCK=BLOCK, y="columns", y_step="taps * step",
            target="((image * points + start) * taps + tap) * step + vectors[2 * c]",
        )  # fmt: skip
        read = "        image, x_image = group, n0 * n1 * step\n" + read
    else:
        read = _COLUMN_PLANES.format(blend=_blend(4), T=4)
    return (
        (_VECTOR_HEAD if lanes else "")
        + _HEAD.format(padding="zeros")
        + _COLUMNS.format(
            parameters="vectors, channels, step" if lanes else "channels",
            TABLE=table_size(4, lanes),
            BLOCK=BLOCK,
            scale="mask[(group * taps + tap) * points + point]" if masked else "one",
            coordinates=coordinates.rstrip("\n"),
            taps=_table("linear", 2, ("n0", "n1"), "scale"),
            read=read,
        )
    )


def affine_grid(theta, y, xs, ys, zs, rank, width, height, depth, begin, end):
    """Rows of y[n, z, h, w, i] = theta[n, i] (xs[w], ys[h], zs[z], 1), without zs and its axis for rank 2.

    theta: T[batch, rank, rank + 1]; y: T[batch, depth, height, width, rank]; xs: T[width], ys: T[height],
    zs: T[depth] are coordinates of centers of pixels. Units are batch * depth * height.
    """
    for unit in range(begin, end):
        row, image = ys[unit % height], unit // height // depth
        t = image * rank * (rank + 1)
        start = unit * width * rank
        if rank == 2:
            a, b = theta[t], theta[t + 3]
            c, d = theta[t + 1] * row + theta[t + 2], theta[t + 4] * row + theta[t + 5]
            for j in range(width):
                y[start + 2 * j] = a * xs[j] + c
                y[start + 2 * j + 1] = b * xs[j] + d
        else:
            plane = zs[unit // height % depth]
            for i in range(3):
                a = theta[t + 4 * i]
                c = theta[t + 4 * i + 1] * row + theta[t + 4 * i + 2] * plane + theta[t + 4 * i + 3]
                for j in range(width):
                    y[start + 3 * j + i] = a * xs[j] + c
