"""Limits, rounding to a grid and remainders of floats, as functions of scalars without branches."""

from numba import njit

from app.kernels.cpu.extrema import like
from app.kernels.cpu.intrinsics import copysign, frem, rint, select

inlined = njit(error_model="numpy", boundscheck=False, forceinline=True)


@inlined
def at_least(low, x):
    """x, or `low` where x is below; a NaN x stays."""
    return select(low > x, low, x)


@inlined
def at_most(high, x):
    """x, or `high` where x is above; a NaN x stays."""
    return select(high < x, high, x)


@inlined
def quantized(x, scale, zero, low, high):
    """The nearest whole number to x / scale, plus `zero`, limited; a NaN becomes `low`."""
    v = rint(x / scale) + zero
    v = select(v > low, v, low)
    return select(v < high, v, high)


@inlined
def real_remainder(a, b):
    """The rest a - n b for a whole n, with the sign of a; exact."""
    return frem(a, b)


@inlined
def real_floor_remainder(a, b):
    """The rest a - n b for a whole n, with the sign of b."""
    r = frem(a, b)
    wrong = (r != like(a, 0)) & ((r < like(a, 0)) != (b < like(a, 0)))
    return select(wrong, r + b, copysign(r, select(r == like(a, 0), b, r)))
