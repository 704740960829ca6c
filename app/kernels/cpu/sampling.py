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


_HEAD = """\
import math

import numpy as np
from numba import int64

from app.kernels.cpu.extrema import like
from app.kernels.cpu.sampling import (
    cubic_far, cubic_near, unnormalized, {padding}_coordinate, {padding}_pixel,
)


"""

_GRID = """\
def kernel(x, grid, y, place, weight, channels, {sizes}, points, blocks, begin, end, thread):
    table = thread * {TABLE}
    one = like(weight[table], 1)
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
        for c in range(channels):
            base = (image * channels + c) * plane
            target = (image * channels + c) * points + start
            for i in range(n):
                entry = table + i
                y[target + i] = {blend}
"""

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
    return TAPS[mode] ** rank


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
        lines.append(f"place[entry + {index * BLOCK}] = {offset} if {inside} else -1")
        lines.append(f"weight[entry + {index * BLOCK}] = {product}")
    return "\n".join(" " * 12 + line for line in lines)


def _blend(taps: int, *, outside: bool) -> str:
    """The weighted sum of the taps of a point in one channel."""
    terms = []
    for t in range(taps):
        at = f"entry + {t * BLOCK}"
        value = f"x[base + place[{at}]]"
        if outside:
            value = f"(x[base + max(place[{at}], 0)] if place[{at}] >= 0 else like(one, 0))"
        terms.append(f"weight[{at}] * {value}")
    return " + ".join(terms)


def grid_sample(mode: str, padding: str, rank: int, align: bool) -> str:
    """Source of a kernel for GridSample over `rank` spatial axes.

    x: T[n, channels, *sizes]; grid: T[n, points, rank], coordinates of the last axis first;
    y: T[n, channels, points]. Units are blocks of points of an image.
    """
    sizes = tuple(f"n{a}" for a in range(rank))
    coordinates = ""
    for a in range(rank):
        borders = "like(one, 0), like(one, n{a} - 1)" if align else "like(one, -0.5), like(one, n{a} - 0.5)"
        coordinates += _BORDERS.format(a=a, borders=borders.format(a=a), place=rank - 1 - a, align=int(align))
        coordinates += _ALONG[mode].format(a=a, padding=padding)
    taps = taps_of(mode, rank)
    return _HEAD.format(padding=padding) + _GRID.format(
        sizes=", ".join(sizes),
        plane=" * ".join(sizes),
        TABLE=taps * BLOCK,
        BLOCK=BLOCK,
        rank=rank,
        coordinates=coordinates.rstrip("\n"),
        taps=_table(mode, rank, sizes),
        blend=_blend(taps, outside=padding == "zeros"),
    )


_COLUMNS = """\
def kernel(
    x, offset, mask, columns, place, weight, groups, channels, n0, n1, height, width, kh, kw, sh, sw, ph, pw,
    dh, dw, blocks, begin, end, thread
):
    table = thread * {TABLE}
    one = like(weight[table], 1)
    low0 = high0 = low1 = high1 = one
    points = height * width
    taps = kh * kw
    for unit in range(begin, end):
        start = unit % blocks * {BLOCK}
        tap = unit // blocks % taps
        group = unit // blocks // taps  # of an image
        n = min({BLOCK}, points - start)
        row = tap // kw * dh - ph
        column = tap % kw * dw - pw
        for i in range(n):
            point = start + i
            entry = table + i
            at = (group * taps + tap) * 2 * points + point
            v0 = like(one, point // width * sh + row) + offset[at]
            v1 = like(one, point % width * sw + column) + offset[at + points]
{scale}
{coordinates}
{taps}
        for c in range(channels):
            base = (group * channels + c) * n0 * n1
            target = ((group * channels + c) * taps + tap) * points + start
            for i in range(n):
                entry = table + i
                columns[target + i] = {blend}
"""


def deformed_columns(masked: bool) -> str:
    """Source of a kernel for the columns of a deformable convolution of images.

    x: T[n, groups, channels, n0, n1]; offset: T[n, groups, taps, 2, points]; mask: T[n, groups, taps, points];
    columns: T[n, groups, channels, taps, points]. Units are n * groups * taps * blocks of points.
    """
    sizes = ("n0", "n1")
    coordinates = "".join(_ALONG["linear"].format(a=a, padding="zeros") for a in range(2))
    scale = "scale = mask[(group * taps + tap) * points + point]" if masked else "scale = one"
    return _HEAD.format(padding="zeros") + _COLUMNS.format(
        TABLE=4 * BLOCK,
        BLOCK=BLOCK,
        scale=" " * 12 + scale,
        coordinates=coordinates.rstrip("\n"),
        taps=_table("linear", 2, sizes, "scale"),
        blend=_blend(4, outside=True),
    )
