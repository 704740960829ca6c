"""Resampling along one axis: y[o, j, i] = Σ_t weight[j, t] · x[o, place[j, t], i].

Linear, cubic and antialiased Resize are a chain of these. place: int64[n_out, taps], weight:
T[n_out, taps]; a row whose first place is negative lies outside and takes the fill value.
"""


def resample(x, y, place, weight, fill, n_in, n_out, inner, taps, begin, end):
    """x: T[outer, n_in, inner]; units are rows o · n_out + j."""
    for unit in range(begin, end):
        o = unit // n_out
        j = unit - o * n_out
        target = unit * inner
        first = place[j * taps]
        source = (o * n_in + first) * inner
        w0 = weight[j * taps]
        if first < 0:
            value = fill[0]
            for i in range(inner):
                y[target + i] = value
        elif taps == 1:
            for i in range(inner):
                y[target + i] = w0 * x[source + i]
        else:
            second = (o * n_in + place[j * taps + 1]) * inner
            w1 = weight[j * taps + 1]
            for i in range(inner):
                y[target + i] = w0 * x[source + i] + w1 * x[second + i]
            for t in range(2, taps):
                source = (o * n_in + place[j * taps + t]) * inner
                w0 = weight[j * taps + t]
                for i in range(inner):
                    y[target + i] += w0 * x[source + i]


def resample_rows(x, y, place, weight, fill, n_in, n_out, taps, begin, end):
    """The innermost axis: x: T[outer, n_in]; units are rows o."""
    for o in range(begin, end):
        source = o * n_in
        target = o * n_out
        for j in range(n_out):
            if place[j * taps] < 0:
                y[target + j] = fill[0]
            else:
                total = weight[j * taps] * x[source + place[j * taps]]
                for t in range(1, taps):
                    total += weight[j * taps + t] * x[source + place[j * taps + t]]
                y[target + j] = total


_TURNED = """\
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.vectors import load, splat, store
from app.kernels.cpu.copies import turner

LANES = {lanes}
turn = turner("float32", LANES, "{source}")
back = turner("float32", LANES)


def kernel(x, y, place, weight, fill, n_in, n_out, taps, outer, turned, begin, end, thread):
    columns = at(turned, thread * (n_in + n_out) * LANES)
    found = at(columns, n_in * LANES)
    outside = splat(fill[0], LANES)
    for unit in range(begin, end):
        last = (unit + 1) * LANES if (unit + 2) * LANES <= outer else outer
        for row in range(unit * LANES, last, LANES):
            first = min(row, last - LANES)
            for p in range(0, n_in, LANES):
                i = min(p, n_in - LANES)
                turn(at(x, first * n_in + i), n_in, at(columns, i * LANES), LANES, LANES)
            for j in range(n_out):
                total = outside
                if place[j * taps] >= 0:
                    total = load(columns, place[j * taps] * LANES, LANES) * weight[j * taps]
                    for t in range(j * taps + 1, j * taps + taps):
                        total = total + load(columns, place[t] * LANES, LANES) * weight[t]
                store(found, j * LANES, total)
            for p in range(0, n_out, LANES):
                j = min(p, n_out - LANES)
                back(at(found, j * LANES), LANES, at(y, first * n_out + j), n_out, LANES)
"""


def resample_turned(lanes: int, source: str) -> str:
    """Source of `resample_rows` for as many rows at once as a register has lanes, turned to columns and back.

    x: `source`[outer, n_in], y: float32[outer, n_out]; all three sizes are `lanes` at least. turned:
    float32[threads, n_in + n_out, lanes]. Units are `lanes` rows; the last one has what is left.
    """
    return _TURNED.format(lanes=lanes, source=source)


_WHOLE = """\
from numba import int32

from app.kernels.cpu.codegen.intrinsics import rint


def kernel(x, y, begin, end):
    for i in range(begin, end):
        y[i] = {conversion}
"""


def to_whole(low: int, high: int, rounds: bool) -> str:
    """Source of a kernel for y[i] = x[i] as a whole number from low to high: the nearest one, or cut off.

    x: T[n] of floats; y: integers. Units are elements.
    """
    number = "rint(x[i])" if rounds else "x[i]"
    kind = "int32" if -(2**31) <= low and high < 2**31 else "int"
    return _WHOLE.format(conversion=f"{kind}(min(max({number}, {float(low)}), {float(high)}))")


_BILINEAR = """\
from numba import int32


def kernel(x, y, down, share_down, along, share_along, lines, h, row, oh, width, begin, end, thread):
    upper = thread * 4 * width
    lower = upper + 2 * width
    upper_row = lower_row = -1
    for unit in range(begin, end):
        i = unit % oh
        plane = unit // oh * h
        first, second = plane + down[i], plane + down[oh + i]
        if first != upper_row:
            upper, lower = lower, upper
            upper_row, lower_row = lower_row, upper_row
        if first != upper_row:
            for j in range(width):
                lines[upper + j] = x[first * row + along[j]]
                lines[upper + width + j] = x[first * row + along[width + j]]
            upper_row = first
        if second != lower_row:
            for j in range(width):
                lines[lower + j] = x[second * row + along[j]]
                lines[lower + width + j] = x[second * row + along[width + j]]
            lower_row = second
        p, q = share_down[i], share_down[oh + i]
        target = unit * width
        for j in range(width):
            total = share_along[j] * p * lines[upper + j]
            total += share_along[width + j] * p * lines[upper + width + j]
            total += share_along[j] * q * lines[lower + j]
            total += share_along[width + j] * q * lines[lower + width + j]
            y[target + j] = {cut}
"""


def bilinear(bits: int) -> str:
    """Source of a kernel for whole numbers of images, interpolated along two axes and cut off.

    x: integers[planes, h, row]; y: [planes, oh, width]; down: int64[2, oh] and along: int64[2, width], rows
    of x and offsets within a row of the two neighbours; share_down, share_along: their weights, float32, or
    with `bits` int32 of so many of them; lines: of that type, [threads, 4, width]. Units are rows of y.
    Products and sums have the order of onnxruntime's, so that what is cut off is the same.
    """
    cut = f"(total + ((total >> 31) & {2 ** (2 * bits) - 1})) >> {2 * bits}" if bits else "int32(total)"
    return _BILINEAR.format(cut=cut)
