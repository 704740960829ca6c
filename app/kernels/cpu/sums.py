"""Sums and other folds of contiguous runs, by the same operations in the same order on every processor.

Four vectors take turns as accumulators, which also keeps the rounding error near that of pairwise
summation; in the end they are joined, and then one half of the lanes with the other. The steps and their
order are those of the code: LLVM, left to reorder the additions of a loop, orders them by the processor that
it compiles for.
"""

import math
import operator

from numba import float64

from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.inner import njit, overload
from app.kernels.cpu.codegen.intrinsics import fma, opaque
from app.kernels.cpu.codegen.vectors import load, load_like, lower_half, only_lane, splat, upper_half
from app.kernels.cpu.extrema import like, maximum

RUN = 4096  # elements that one partial sum in the type of x spans
inlined = njit(error_model="numpy", boundscheck=False, forceinline=True)


def _rest(step, join, lanes):
    """Function (x, y, n, total, p) that folds the last n % (2 * lanes) elements and 2 * lanes of `total`."""
    if lanes == 0:
        return inlined(lambda _x, _y, _n, total, _p: only_lane(total))
    rest = _rest(step, join, lanes // 2)

    @inlined
    def narrow(x, y, n, total, p):
        half = join(lower_half(total), upper_half(total))
        more = n & lanes
        if more:
            half = step(half, load(x, 0, lanes), y, p)
        return rest(at(x, more), at(y, more), n, half, p)

    return narrow


def fold(step, join, lanes=(8, 4, 16, 32)):
    """Function (x, y, n, identity, p) that folds x[:n] to a number of its type.

    Args:
        step: function (total, v, y, p) of an accumulator, a vector v of elements of x, the address of the
            elements of y beside them, and p, to the next accumulator. Vectors of `lanes`, of half as many and
            so on, down to one.
        join: function of two accumulators to one; `identity` changes no accumulator.
        lanes: of elements of 32, 64, 16 and 8 bits: 32 bytes for what loads bound, since a load of 64 mostly
            touches two lines of the cache; 64 for what arithmetic bounds.
    """
    runs = {bits: _run(step, join, n) for bits, n in zip((32, 64, 16, 8), lanes)}

    def run(_x, _y, _n, _identity, _p):
        raise NotImplementedError("for compiled code")

    @overload(run, error_model="numpy", boundscheck=False)
    def _typed(x, y, n, identity, p):
        own = runs[x.dtype.bitwidth]
        return lambda x, y, n, identity, p: own(x, y, n, identity, p)

    return run


def _run(step, join, lanes):
    rest = _rest(step, join, lanes // 2)

    @njit(error_model="numpy", boundscheck=False)
    def run(x, y, n, identity, p):
        a = b = c = d = splat(like(x[0], identity), lanes)
        left = n
        while left >= 4 * lanes:
            v, w = load(x, 0, lanes), load(x, lanes, lanes)
            s, t = load(x, 2 * lanes, lanes), load(x, 3 * lanes, lanes)
            a = step(a, v, y, p)
            b = step(b, w, at(y, lanes), p)
            c = step(c, s, at(y, 2 * lanes), p)
            d = step(d, t, at(y, 3 * lanes), p)
            x, y = at(x, 4 * lanes), at(y, 4 * lanes)
            left = opaque(left - 4 * lanes)  # LLVM would unroll the loop, and lose at its end what it gains
        if n & (2 * lanes):
            a = step(a, load(x, 0, lanes), y, p)
            b = step(b, load(x, lanes, lanes), at(y, lanes), p)
            x, y = at(x, 2 * lanes), at(y, 2 * lanes)
        if n & lanes:
            c = step(c, load(x, 0, lanes), y, p)
            x, y = at(x, lanes), at(y, lanes)
        return rest(x, y, n, join(join(a, c), join(b, d)), p)

    return run


@inlined
def _element(total, v, _y, _p):
    return total + v


@inlined
def _square(total, v, _y, center):
    d = v - center
    return fma(d, d, total)


@inlined
def _magnitude(total, v, _y, _p):
    return total + abs(v)


@inlined
def _product(total, v, y, _p):
    return fma(v, load_like(y, 0, v), total)


@inlined
def _larger(top, v, _y, _p):
    return maximum(v, top)


_sum = fold(_element, operator.add)
_sum_squares = fold(_square, operator.add)
_sum_magnitudes = fold(_magnitude, operator.add)
_sum_products = fold(_product, operator.add)
_maximum = fold(_larger, maximum)


@njit
def largest(x, start, stop):
    """Maximum of x[start:stop] in the type of x; NaN if one is among them."""
    return _maximum(at(x, start), x, stop - start, -math.inf, 0)


@njit(error_model="numpy", boundscheck=False, forceinline=True)
def dot(a, b, n):
    """Sum of a[i] * b[i] for i < n, in the type of a."""
    return _sum_products(b, a, n, 0, 0)


@inlined
def joined(v):
    """Sum of a vector of 16 lanes, one half of the lanes with the other, as `dot` joins those of its own."""
    eight = lower_half(v) + upper_half(v)
    four = lower_half(eight) + upper_half(eight)
    two = lower_half(four) + upper_half(four)
    return only_lane(lower_half(two) + upper_half(two))


@njit
def total(x, start, stop):
    """Sum of x[start:stop] as float64."""
    t = float64(0)
    for c in range(start, stop, RUN):
        t += _sum(at(x, c), x, min(RUN, stop - c), 0, 0)
    return t


@njit(forceinline=True)
def total_squares(x, start, stop, center):
    """Sum of (x[start:stop] - center)^2 as float64; center has the type of x."""
    t = float64(0)
    for c in range(start, stop, RUN):
        t += _sum_squares(at(x, c), x, min(RUN, stop - c), 0, center)
    return t


@njit
def total_magnitudes(x, start, stop):
    """Sum of |x[start:stop]| as float64."""
    t = float64(0)
    for c in range(start, stop, RUN):
        t += _sum_magnitudes(at(x, c), x, min(RUN, stop - c), 0, 0)
    return t
