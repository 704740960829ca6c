"""Quantization with a scale found at run time: the range of a tensor, then 8-bit integers.

The scale covers the range of x with zero included: scale = (high - low) / 255, zero = rint(-low /
scale); a tensor of zeros has scale 1. Units are chunks of `chunk` elements; every unit of the
second call sums up the ranges that the first has found.
"""

import numpy as np

from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.intrinsics import select
from app.kernels.cpu.codegen.vectors import load, splat
from app.kernels.cpu.softmax import SHORT_LANES, joined
from app.kernels.cpu.sums import inlined

_compiled = njit(error_model="numpy", boundscheck=False)
ROUNDER = np.float32(12582912.0)  # 1.5 · 2 ** 23: adding and subtracting it rounds half to even
LEVELS = np.float32(255.0)
ZERO = np.float32(0.0)
ONE = np.float32(1.0)


@_compiled
def rounded(v):
    """The nearest integer, half to even, of a float32 below 2 ** 22."""
    return (v + ROUNDER) - ROUNDER


@inlined
def _lower(a, b):
    return select(b < a, b, a)


@inlined
def _higher(a, b):
    return select(b > a, b, a)


@inlined
def _unordered(a, b):
    """B if it is NaN, else a."""
    return select(b == b, a, b)


@_compiled
def range_of(x, n):
    """The lowest and the highest of x[0], …, x[n - 1] and 0; NaN if any is."""
    a = b = c = d = nan = other = splat(ZERO, SHORT_LANES)
    whole = n - n % (2 * SHORT_LANES)
    for i in range(0, whole, 2 * SHORT_LANES):
        v, w = load(x, i, SHORT_LANES), load(x, i + SHORT_LANES, SHORT_LANES)
        a, c, nan = _lower(a, v), _higher(c, v), _unordered(nan, v)
        b, d, other = _lower(b, w), _higher(d, w), _unordered(other, w)
    low, high = joined(_lower(a, b), _lower), joined(_higher(c, d), _higher)
    odd = joined(_unordered(nan, other), _unordered)
    for i in range(whole, n):
        low, high, odd = _lower(low, x[i]), _higher(high, x[i]), _unordered(odd, x[i])
    return low + odd, high + odd


@_compiled
def scale_of(low, high):
    """The step of the scale."""
    step = (high - low) / LEVELS
    return step if step > ZERO else ONE


@_compiled
def zero_of(low, step):
    """The integer that stands for zero, as float32."""
    return min(max(rounded(-low / step), ZERO), LEVELS)


def ranges(x, limits, n, chunk, begin, end):
    """limits[2u], limits[2u + 1] = lowest and highest of chunk u. x: float32[n]."""
    for unit in range(begin, end):
        first = unit * chunk
        count = min(chunk, n - first)
        limits[2 * unit], limits[2 * unit + 1] = range_of(at(x, first), count)


@_compiled
def _whole_range(limits, units):
    low = ZERO
    high = ZERO
    for u in range(units):
        low = min(low, limits[2 * u])
        high = max(high, limits[2 * u + 1])
    return low, high


def quantize(x, limits, y, scale, zero, n, chunk, units, begin, end):
    """Compute y = clip(rint(x / scale) + zero). x: float32[n]; y: uint8[n]; scale, zero: one element each."""
    low, high = _whole_range(limits, units)
    step = scale_of(low, high)
    origin = zero_of(low, step)
    if begin == 0:
        scale[0] = step
        zero[0] = np.uint8(np.int32(origin))
    for unit in range(end - 1, begin - 1, -1):  # the end of x is what the first call has left in a cache
        for i in range(unit * chunk, min((unit + 1) * chunk, n)):
            y[i] = np.uint8(np.int32(_lower(LEVELS, _higher(ZERO, rounded(x[i] / step) + origin))))


@_compiled
def centered(x, y, n, low, high):
    """y[i] = the integer for x[i] on the scale of a range, less the one for zero; returns the step.

    y: int16, with a zero after an odd n.
    """
    step = scale_of(low, high)
    origin = zero_of(low, step)
    for i in range(n):
        y[i] = np.int16(np.int32(_lower(LEVELS, _higher(ZERO, rounded(x[i] / step) + origin)) - origin))
    if n % 2:
        y[n] = 0
    return step


def center_rows(x, limits, y, scale, k, units, begin, end):
    """`centered` of rows: y: int16[rows, 2 ceil(k / 2)]; scale: one element. Units are rows of k elements.

    limits: of `units` chunks, see `ranges`.
    """
    low, high = _whole_range(limits, units)
    row = (k + 1) // 2 * 2
    for i in range(begin, end):
        step = centered(at(x, i * k), at(y, i * row), k, low, high)
        if i == 0:
            scale[0] = step
