"""Sliding windows over one to three spatial axes, row-major: maximum, average, Lp norm.

A window is separable: an output row first reduces its input rows over depth and height into a
scratch row (unit stride), which has its padding cells around it, and then reduces that row along
the width without any bounds check.
"""

from dataclasses import dataclass

import numpy as np

from app.kernels.cpu.extrema import like


@dataclass(frozen=True, slots=True)
class Window:
    """One operation as Python expressions of an element `v`, partial results `a`, `b`, the result `t`."""

    start: str
    element: str
    step: str
    finish: str


WINDOWS = {
    "max": Window("lowest", "v", "maximum(a, b)", "t"),
    "average": Window("0", "v", "a + b", "t / (rows_counted * counted[o])"),
    "lp1": Window("0", "abs(v)", "a + b", "t"),
    "lp2": Window("0", "v * v", "a + b", "math.sqrt(t)"),
}

_SOURCE = """\
import math

from numba import float32, float64, int8, int32, int64, uint8

from app.kernels.cpu.extrema import maximum


def kernel(
    x, y, t_row, slices_counted, lines_counted, counted,
    d, h, w, od, oh, ow, kd, kh, kw, sd, sh, sw, pd, ph, pw, dd, dh, dw, span,
    begin, end, thread,
):
    s = thread * span
    for i in range(s, s + span):
        t_row[i] = {start}
    for unit in range(begin, end):
        oy = unit % oh
        oz = unit // oh % od
        plane = unit // oh // od
        rows_counted = slices_counted[oz] * lines_counted[oy]
        filled = False
        for kz in range(kd):
            z = oz * sd - pd + kz * dd
            if z < 0 or z >= d:
                continue
            for ky in range(kh):
                line = oy * sh - ph + ky * dh
                if line < 0 or line >= h:
                    continue
                at = ((plane * d + z) * h + line) * w
                into = s + pw
                if filled:
                    for i in range(w):
                        v = x[at + i]
                        b = {element}
                        a = t_row[into + i]
                        t_row[into + i] = {step}
                else:
                    filled = True
                    for i in range(w):
                        v = x[at + i]
                        t_row[into + i] = {element}
        if not filled:
            for i in range(s + pw, s + pw + w):
                t_row[i] = {start}
        out = unit * ow
{along}
"""


def _along(row: Window, taps: int, stride: int) -> str:
    """The loops along the width; with `taps` known one pass, else a pass per tap through y."""
    step = str(stride) if stride else "sw"
    if taps:
        lines = ["for o in range(ow):", f"    a = t_row[s + o * {step}]"]
        for k in range(1, taps):
            lines += [f"    b = t_row[s + o * {step} + {k}]", f"    a = {row.step}"]
        lines += ["    t = a", f"    y[out + o] = {row.finish}"]
    else:
        lines = [
            "for o in range(ow):",
            f"    y[out + o] = t_row[s + o * {step}]",
            "for k in range(1, kw):",
            "    for o in range(ow):",
            "        a = y[out + o]",
            f"        b = t_row[s + o * {step} + k * dw]",
            f"        y[out + o] = {row.step}",
        ]
        if row.finish != "t":
            lines += ["for o in range(ow):", "    t = y[out + o]", f"    y[out + o] = {row.finish}"]
    return "\n".join("        " + line for line in lines)


def power(p: int) -> Window:
    """The row of the Lp norm for any p >= 1."""
    return WINDOWS.get(f"lp{p}") or Window("0", f"abs(v) ** {p}", "a + b", f"t ** (1.0 / {p})")


def window(op: str, dtype: str, taps: int, stride: int) -> str:
    """Source of a pooling kernel.

    x: T[planes, d, h, w]; y: T[planes, od, oh, ow]; t_row: T[threads, span] with
    span >= max(pw + w, (ow - 1) sw + (kw - 1) dw + 1); slices_counted: T[od],
    lines_counted: T[oh], counted: T[ow] are how many elements of a window the average counts
    along each axis. Kernel k, stride s, padding before p and dilation d of each axis follow.
    Units are output rows: planes * od * oh.

    Args:
        op: a key of WINDOWS, or `lp` and a number.
        dtype: of x and y.
        taps: kw if it is known and dw is 1, else 0.
        stride: sw if it is known, else 0.
    """
    row = WINDOWS[op] if op in WINDOWS else power(int(op.removeprefix("lp")))
    kind = np.dtype(dtype)
    lowest = "-math.inf" if kind.kind == "f" else str(np.iinfo(kind).min)
    start = f"{dtype}({lowest if row.start == 'lowest' else row.start})"
    return _SOURCE.format(start=start, element=row.element, step=row.step, along=_along(row, taps, stride))


def max_with_indices(
    x, y, indices, d, h, w, od, oh, ow, kd, kh, kw, sd, sh, sw, pd, ph, pw, dd, dh, dw, by_column, begin, end
):
    """Maximum pooling with the position of each maximum, the first of equals.

    x: T[planes, d, h, w]; y: T[planes, od, oh, ow]; indices: int64 as y, counted over the whole
    of x, within a plane in row-major order or, with by_column, in column-major order. Units are
    output rows.
    """
    for unit in range(begin, end):
        oy = unit % oh
        oz = unit // oh % od
        plane = unit // oh // od
        start = plane * d * h * w
        for o in range(ow):
            best = like(x[0], 0)
            where = -1
            position = -1
            for kz in range(kd):
                z = oz * sd - pd + kz * dd
                if z < 0 or z >= d:
                    continue
                for ky in range(kh):
                    line = oy * sh - ph + ky * dh
                    if line < 0 or line >= h:
                        continue
                    for kx in range(kw):
                        i = o * sw - pw + kx * dw
                        if i < 0 or i >= w:
                            continue
                        v = x[start + (z * h + line) * w + i]
                        if where < 0 or v > best or (v != v and best == best):
                            best = v
                            where = (z * h + line) * w + i
                            position = (i * h + line) * d + z if by_column else where
            y[unit * ow + o] = best
            indices[unit * ow + o] = start + position
