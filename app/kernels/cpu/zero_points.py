"""Before and after integer products: zero points off, scales and zero points on."""

import numpy as np


def widen(x, zero, y, begin, end):
    """y[i] = x[i] - zero[0]. x, zero: 8-bit T; y: int32; units are elements."""
    offset = np.int64(zero[0])
    for i in range(begin, end):
        y[i] = np.int64(x[i]) - offset


def requantize(sums, factors, zero, y, columns, period, inner, low, high, begin, end):
    """The sums, scaled and rounded half to even, plus zero[0], limited to [low, high].

    sums: int32[rows, columns]; y: 8-bit T of that shape; the factor (float32) of element i of the
    whole is factors[i // inner % period]. Units are rows.
    """
    offset = np.int64(zero[0])
    for i in range(begin * columns, end * columns):
        scaled = np.rint(np.float32(sums[i]) * factors[i // inner % period])
        y[i] = min(max(np.int64(scaled) + offset, low), high)
