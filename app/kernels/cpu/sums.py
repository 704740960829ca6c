"""Sums of contiguous runs that stay accurate: short runs on many accumulators, runs in float64.

Only here may LLVM reorder additions (`reassoc`): it makes the lanes of a vector accumulators of
their own, which is also what keeps the rounding error near that of pairwise summation.
"""

from numba import float64
from numba.extending import intrinsic

from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.extrema import like

RUN = 4096  # elements that one partial sum in the type of x spans
REORDERED = {"reassoc", "nsz"}


@intrinsic
def add_in_any_order(_context, a, b):
    """A + b of one type, where LLVM may make the sum of a loop on many accumulators."""

    def generate(_context, builder, _signature, values):
        return builder.fadd(*values, flags=tuple(sorted(REORDERED)))

    return a(a, b), generate


@njit(fastmath=REORDERED)
def _sum(x, start, stop):
    a = like(x[0], 0)
    for i in range(start, stop):
        a += x[i]
    return a


@njit(fastmath=REORDERED)
def _sum_squares(x, start, stop, center):
    a = like(x[0], 0)
    for i in range(start, stop):
        v = x[i] - center
        a += v * v
    return a


@njit(fastmath=REORDERED)
def _sum_magnitudes(x, start, stop):
    a = like(x[0], 0)
    for i in range(start, stop):
        a += abs(x[i])
    return a


@njit
def total(x, start, stop):
    """Sum of x[start:stop] as float64."""
    t = float64(0)
    for c in range(start, stop, RUN):
        t += _sum(x, c, min(c + RUN, stop))
    return t


@njit(forceinline=True)
def total_squares(x, start, stop, center):
    """Sum of (x[start:stop] - center)^2 as float64; center has the type of x."""
    t = float64(0)
    for c in range(start, stop, RUN):
        t += _sum_squares(x, c, min(c + RUN, stop), center)
    return t


@njit
def total_magnitudes(x, start, stop):
    """Sum of |x[start:stop]| as float64."""
    t = float64(0)
    for c in range(start, stop, RUN):
        t += _sum_magnitudes(x, c, min(c + RUN, stop))
    return t
