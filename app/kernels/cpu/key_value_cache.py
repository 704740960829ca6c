"""Keys and values behind those of a cache, and queries, both turned by angles of their positions."""

import math
from dataclasses import dataclass

import numpy as np
from numba import types
from numba.extending import intrinsic

from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.instructions import I64
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.vectors import alternating, evens, load, lower_half, odds, store, upper_half
from app.kernels.cpu.extrema import like

LANES = 8  # pairs that are turned at once


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendSizes(SizeTable):
    """Sizes of `append`, in elements."""

    heads: int
    rows: int
    width: int
    half: int  # pairs of a row that are turned; 0 for none
    interleaved: int  # pairs are neighbours, else `half` apart
    x_at: int  # elements before the first; then strides
    x_b: int
    x_h: int
    x_s: int
    y_b: int
    y_h: int
    placed: int  # rows of y stand at their positions, else one after the other


@intrinsic
def _same(_context, a, b):
    """True if two addresses are one."""

    def generate(_context, builder, _signature, values):
        return builder.icmp_unsigned("==", *(builder.ptrtoint(v, I64) for v in values))

    return types.boolean(a, b), generate


@njit(error_model="numpy", boundscheck=False)
def _copy(y, x, n):
    for i in range(n):
        y[i] = x[i]


@njit(error_model="numpy", boundscheck=False)
def _turn(y, x, cos, sin, half, interleaved):
    """Pairs of a row, turned: elements i and half + i, or 2i and 2i + 1 where they are interleaved.

    y may be x: a pair is read before it is written.
    """
    done = 0
    while done + LANES <= half:
        c, s = load(cos, done, LANES), load(sin, done, LANES)
        if interleaved:
            low, high = load(x, 2 * done, LANES), load(x, 2 * done + LANES, LANES)
            a, b = evens(low, high), odds(low, high)
            pairs = alternating(a * c - b * s, a * s + b * c)
            store(y, 2 * done, lower_half(pairs))
            store(y, 2 * done + LANES, upper_half(pairs))
        else:
            a, b = load(x, done, LANES), load(x, half + done, LANES)
            store(y, done, a * c - b * s)
            store(y, half + done, a * s + b * c)
        done += LANES
    for i in range(done, half):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, half + i)
        a, b = x[first], x[second]
        y[first] = a * cos[i] - b * sin[i]
        y[second] = a * sin[i] + b * cos[i]


def lengths_of(last, y, rows, begin, end):
    """y[b] = keys of sequence b with its new rows. last: int32[b], position of the last; y: int64[b]."""
    for b in range(begin, end):
        y[b] = max(np.int64(last[b]) + 1, rows)


def keep(past, present, old, length, width, begin, end):
    """Rows of the cache before the new ones; none is copied where both are one memory.

    past: float32[units, old, width]; present: float32[units, length, width], zeros behind the old rows.
    Units are heads of sequences.
    """
    if _same(past, present):
        return
    kept = min(old, length)
    for unit in range(begin, end):
        to = at(present, unit * length * width)
        _copy(to, at(past, unit * old * width), kept * width)
        for i in range(kept * width, length * width):
            to[i] = np.float32(0)


_unpacked = AppendSizes.reader()


def append(x, y, cos, sin, lengths, sizes, begin, end):
    """Rows of x, turned, to y. x, y: float32; cos, sin: float32[positions, half]; lengths: int64[b].

    Row s of sequence b stands at position lengths[b] - rows + s. Units are rows (b · heads + h) · rows + s.
    """
    n = _unpacked(sizes)
    for unit in range(begin, end):
        s = unit % n.rows
        h = unit // n.rows % n.heads
        b = unit // (n.rows * n.heads)
        position = lengths[b] - n.rows + s
        source = at(x, n.x_at + b * n.x_b + h * n.x_h + s * n.x_s)
        target = at(y, b * n.y_b + h * n.y_h + (position if n.placed else s) * n.width)
        turned = 2 * n.half
        if n.half:
            c, d = at(cos, position * n.half), at(sin, position * n.half)
            _turn(target, source, c, d, n.half, n.interleaved)
        _copy(at(target, turned), at(source, turned), n.width - turned)


def turn(x, y, cos, sin, positions, width, half, interleaved, rows, together, length, begin, end):
    """Rows of x, the first 2 * half elements of each turned, to y, which may be x. Units are rows.

    x, y: T[units, width]; row r has number r // rows * together + r % together among the rows of angles,
    cos and sin: T[length, half], or among `positions`: int64, of rows of angles, if `length` is not 0.
    A position that does not exist makes NaN.
    """
    for unit in range(begin, end):
        row = unit // rows * together + unit % together
        exists = True
        if length:
            row = positions[row]
            row += length if row < 0 else 0
            exists = 0 <= row < length
        source, target = at(x, unit * width), at(y, unit * width)
        if exists:
            _turn(target, source, at(cos, row * half), at(sin, row * half), half, interleaved)
        else:
            for i in range(2 * half):
                target[i] = like(x[0], math.nan)
        _copy(at(target, 2 * half), at(source, 2 * half), width - 2 * half)
