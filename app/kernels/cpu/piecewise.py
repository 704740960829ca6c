"""Limits and remainders of floats, as functions of scalars without branches."""

from app.kernels.cpu.codegen import intrinsics
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.intrinsics import copysign, frem, select
from app.kernels.cpu.extrema import like

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
def saturated(x, low, high):
    """The value within limits; a NaN becomes `low`."""
    x = select(x > low, x, low)
    return select(x < high, x, high)


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


# LLVM computes a rounding between 16-bit floats in 16 bits, for which it has no vectors. It knows no copysign
# that it might do the same with, and the sign of the result is that of the argument, for zero too.
@inlined
def floor(x):
    """The largest whole number that is not above x."""
    return copysign(intrinsics.floor(x), x)


@inlined
def ceil(x):
    """The smallest whole number that is not below x."""
    return copysign(intrinsics.ceil(x), x)


@inlined
def rint(x):
    """The nearest whole number, the even one of two."""
    return copysign(intrinsics.rint(x), x)
