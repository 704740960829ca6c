"""Sliding windows over one to three spatial axes, row-major: maximum, average, Lp norm.

A window is separable: an output row first reduces its input rows over depth and height into a
scratch row, which has its padding cells around it, and then reduces that row along the width
without any bounds check. Some rows take the first step before any takes the second, because a
load that overlaps two stores still under way has to wait for both.
"""

from dataclasses import dataclass

import numpy as np

from app.kernels.cpu.extrema import like


@dataclass(frozen=True, slots=True)
class Window:
    """One operation as Python expressions, for numbers and vectors alike.

    `element` is what an input `v` contributes, `step` joins partial results `a` and `b`, `finish`
    makes the output of the result `t` and the number of elements `n`.
    """

    start: str
    element: str
    step: str
    finish: str


WINDOWS = {
    "max": Window("lowest", "{v}", "maximum({a}, {b})", "{t}"),
    "average": Window("0", "{v}", "{a} + {b}", "{t} / {n}"),
    "lp1": Window("0", "abs({v})", "{a} + {b}", "{t}"),
    "lp2": Window("0", "{v} * {v}", "{a} + {b}", "math.sqrt({t})"),
}

_SOURCE = """\
import math

from numba import float32, float64, int8, uint8

from app.kernels.cpu.extrema import maximum
from app.kernels.cpu.codegen.vectors import evens, load, odds, splat, store


def kernel(
    x, y, padded, slices, lines, slices_counted, lines_counted, counted,
    size, d, h, w, od, oh, ow, kw, sw, pw, slice_step, line_step, dw, span, rows,
    begin, end, thread,
):
    spare = thread * ({L} + rows * span)
    base = spare + {L}
    reach = -(-w // {L}) * {L}  # elements that vectors read of a row of x, those of the next one too
    padding = splat({start}, {L})
    for i in range(base, base + rows * span):
        padded[i] = {start}
    oy = begin % oh
    oz = begin // oh % od
    plane = begin // oh // od
    for band in range(begin, end, rows):
        next_band = min(band + rows, end)
        ny, nz = oy, oz
        s = base
        for unit in range(band, next_band):
            depth, height = slices[2 * oz + 1], lines[2 * oy + 1]
            corner = ((plane * d + slices[2 * oz]) * h + lines[2 * oy]) * w
            last = corner + (depth - 1) * slice_step + (height - 1) * line_step
            into = s + pw
            if depth == 0 or height == 0:
                for i in range(0, w, {L}):
                    store(padded, into + i, padding)
            elif last + reach > size:  # vectors would read beyond x
                for i in range(w):
                    one = {start}
                    for kz in range(depth):
                        for ky in range(height):
                            more = x[corner + kz * slice_step + ky * line_step + i]
                            one = {step_one}
                    padded[into + i] = one
            elif depth == 1 and height == {unrolled}:
                for i in range(0, w, {L}):
{down}
                    store(padded, into + i, a)
            else:
                for i in range(0, w, {L}):
                    v = load(x, corner + i, {L})
                    a = {element}
                    for ky in range(1, height):
                        v = load(x, corner + ky * line_step + i, {L})
                        b = {element}
                        a = {step}
                    for kz in range(1, depth):
                        for ky in range(height):
                            v = load(x, corner + kz * slice_step + ky * line_step + i, {L})
                            b = {element}
                            a = {step}
                    store(padded, into + i, a)
            store(padded, into + w, padding)  # over what the last vector wrote beyond the row
            s += span
            oy += 1
            if oy == oh:
                oy = 0
                oz += 1
                if oz == od:
                    oz = 0
                    plane += 1
        s = base
        for unit in range(band, next_band):
            rows_counted = slices_counted[nz] * lines_counted[ny]
            ny += 1
            if ny == oh:
                ny = 0
                nz = nz + 1 if nz + 1 < od else 0
            out = unit * ow
{along}
            s += span
"""

# A vector of outputs may run on into the following rows, which this call writes afterwards; at
# the end of its rows it goes through the cells before the padded row.
_ALONG_VECTORS = """\
            divisor = splat(rows_counted, {L})
            for o in range(0, ow, {L}):
                at = s + o * {stride}
{taps}
                result = {finish}
                if out + o + {L} <= end * ow:
                    store(y, out + o, result)
                else:
                    store(padded, spare, result)
                    for j in range(min({L}, ow - o)):
                        y[out + o + j] = padded[spare + j]"""

_ALONG_ELEMENTS = """\
            for o in range(ow):
                one = padded[s + o * sw]
                for k in range(1, kw):
                    more = padded[s + o * sw + k * dw]
                    one = {step_one}
                y[out + o] = {finish_one}"""


def _taps(row: Window, taps: int, stride: int, lanes: int) -> str:
    """Reduce the columns of a vector of outputs; unrolled where the number of taps is known."""

    def column(offset: str, lane: int, step: int = stride) -> str:
        if step == 1:
            return f"load(padded, at{offset}, {lanes})"
        half = step // 2
        first, second = (
            column(offset, lane % half, half),
            column(f"{offset} + {half * lanes}", lane % half, half),
        )
        return f"{('evens', 'odds')[lane // half]}({first}, {second})"

    step = row.step.format(a="a", b="b")
    lines = [f"a = {column('', 0)}"]
    for k in range(1, taps):
        lane = k % stride
        lines += [f"b = {column(f' + {k - lane}', lane)}", f"a = {step}"]
    if not taps:
        lines += ["for k in range(1, kw):", f"    b = {column(' + k * dw', 0)}", f"    a = {step}"]
    return "\n".join(" " * 16 + line for line in lines)


def _down(row: Window, height: int, lanes: int) -> str:
    """Reduce the rows of a vector of columns, as many as a whole window has."""
    lines = []
    for k in range(height):
        lines.append(f"v = load(x, corner + {k} * line_step + i, {lanes})")
        lines.append(f"{'b' if k else 'a'} = {row.element.format(v='v')}")
        if k:
            lines.append(f"a = {row.step.format(a='a', b='b')}")
    return "\n".join(" " * 20 + line for line in lines)


def _window(op: str) -> Window:
    """The operation; `lp` and a number is the norm of that order."""
    if op in WINDOWS:
        return WINDOWS[op]
    p = int(op.removeprefix("lp"))
    return Window("0", " * ".join(["abs({v})"] * p), "{a} + {b}", f"{{t}} ** (1.0 / {p})")


def start_of(op: str, dtype: str) -> str:
    """Start of the maximum of such elements, as Python."""
    kind, start = np.dtype(dtype), _window(op).start
    lowest = "-math.inf" if kind.kind == "f" else str(np.iinfo(kind).min)
    return f"{dtype}({lowest if start == 'lowest' else start})"


def window(op: str, dtype: str, unrolled: int, taps: int, stride: int, lanes: int) -> str:
    """Source of a pooling kernel that works on vectors of `lanes` elements.

    x: T[planes, d, h, w] of `size` elements; y: T[planes, od, oh, ow]; padded:
    T[threads, lanes + rows * span] for `rows` rows between one stage and the next, each of pw + w
    elements or the reach of the last window, and max(stride, 2) vectors more. slices: int64[od, 2], lines:
    int64[oh, 2]: first index inside x and number of those that a window spans; slices_counted:
    T[od], lines_counted: T[oh], counted: T[ow + lanes]: how many the average counts. slice_step,
    line_step: elements from tap to tap; kw, sw, pw, dw: kernel, stride, padding before and
    dilation of the width. Units are output rows: planes * od * oh.

    Args:
        op: a key of WINDOWS, or `lp` and a number.
        dtype: of x and y.
        unrolled: kh, of windows whose rows are read without a loop.
        taps: kw if it is known and dw is 1, else 0.
        stride: sw if it is 1, 2, 4 or 8, else 0.
        lanes: elements of a vector.
    """
    row = _window(op)
    along = _ALONG_VECTORS if stride and op in WINDOWS else _ALONG_ELEMENTS
    more = row.element.format(v="more")
    text = {
        "L": lanes,
        "stride": stride,
        "unrolled": unrolled,
        "down": _down(row, unrolled, lanes),
        "start": start_of(op, dtype),
        "element": row.element.format(v="v"),
        "step": row.step.format(a="a", b="b"),
        "finish": row.finish.format(t="a", n=f"(divisor * load(counted, o, {lanes}))"),
        "finish_one": row.finish.format(t="one", n="(rows_counted * counted[o])"),
    }
    source = _SOURCE.replace("{step_one}", row.step.format(a="one", b=more))
    across = along.replace("{step_one}", row.step.format(a="one", b="more"))
    return source.format(**text, along=across.format(**text, taps=_taps(row, taps, stride or 1, lanes)))


def max_with_indices(
    x, y, indices, d, h, w, od, oh, ow, kd, kh, kw, sd, sh, sw, pd, ph, pw, dd, dh, dw, by_column, begin, end
):
    """Maximum pooling with the position of each maximum, the first of equals.

    x: T[planes, d, h, w]; y: T[planes, od, oh, ow]; indices: int64 as y, counted over the whole
    of x, within a plane in row-major order or, with by_column, in column-major order. Units are
    output rows.
    """
    nothing = like(x[0], 0)
    for unit in range(begin, end):
        oy = unit % oh
        oz = unit // oh % od
        start = unit // oh // od * d * h * w
        out = unit * ow
        for o in range(out, out + ow):
            y[o] = nothing
            indices[o] = -1
        for tap in range(kd * kh * kw):
            z = oz * sd - pd + tap // (kh * kw) * dd
            line = oy * sh - ph + tap // kw % kh * dh
            if z < 0 or z >= d or line < 0 or line >= h:
                continue
            first = tap % kw * dw - pw  # column that output 0 reads
            place, step = (z * h + line) * w + first, sw
            if by_column:
                place, step = (first * h + line) * d + z, sw * h * d
            at = start + (z * h + line) * w + first
            for o in range(max(-(first // sw), 0), min((w - 1 - first) // sw + 1, ow)):
                v, best, where = x[at + o * sw], y[out + o], indices[out + o]
                better = (where < 0) | (v > best) | ((v != v) & (best == best))
                y[out + o] = v if better else best
                indices[out + o] = start + place + o * step if better else where
