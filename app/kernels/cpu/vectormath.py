"""Transcendental functions of float32 without branches or calls, so that loops of them vectorize.

Polynomials are minimax or truncated series as named; float64 arguments take the C library's
functions, which are exact to the last bit or two but scalar.
"""

import math

import llvmlite.ir as ll
import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

f32 = np.float32
LOG2E = f32(1.4426950408889634)
LN2_HIGH = f32(0.693359375)  # exact in few bits: n * LN2_HIGH has no rounding error
LN2_LOW = f32(-2.12194440e-4)
LN2 = f32(0.6931471805599453)
LOWEST_EXP = f32(-104.0)  # and below: zero
HIGHEST_EXP = f32(89.0)  # and above: infinity
ROUND = f32(12582912.0)  # 1.5 * 2 ** 23: float32 near it are the integers
ROUND_BITS = np.int32(0x4B400000)


@intrinsic
def _power_of_two(_context, exponent):
    """2 ** exponent for an int32 in [-126, 127], by its bits."""

    def generate(_context, builder, _signature, values):
        biased = builder.add(values[0], ll.Constant(ll.IntType(32), 127))
        return builder.bitcast(builder.shl(biased, ll.Constant(ll.IntType(32), 23)), ll.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def _bits(_context, number):
    """The bits of a float32."""

    def generate(_context, builder, _signature, values):
        return builder.bitcast(values[0], ll.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def _of_bits(_context, bits):
    """The float32 of these bits."""

    def generate(_context, builder, _signature, values):
        return builder.bitcast(values[0], ll.FloatType())

    return types.float32(types.int32), generate


@numba.njit(error_model="numpy", forceinline=True, fastmath={"contract"})
def exp32(x):
    """E ** x, relative error 1e-7. Cephes polynomial of degree 5 on [-ln 2 / 2, ln 2 / 2].

    The limits are where the result is zero or infinity by itself; a comparison with NaN is false,
    which lets NaN through. Adding ROUND puts the nearest integer into the low bits of the sum.
    """
    t = min(max(x, LOWEST_EXP), HIGHEST_EXP)
    shifted = t * LOG2E + ROUND
    n = shifted - ROUND
    r = t - n * LN2_HIGH
    r = r - n * LN2_LOW
    p = f32(1.9875691500e-4)
    p = p * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    p = p * (r * r) + r + f32(1.0)
    # In two factors, so that results below 2 ** -126 are denormals and not garbage.
    k = np.int32(_bits(shifted) - ROUND_BITS)
    half = k >> np.int32(1)
    return p * _power_of_two(half) * _power_of_two(k - half)


@numba.njit(error_model="numpy", forceinline=True)
def log32(x):
    """Natural logarithm, relative error 1e-7. Cephes polynomial of degree 8 on [sqrt(1/2), sqrt(2)]."""
    tiny = x < f32(1.17549435e-38)
    t = x * f32(8388608.0) if tiny else x
    bits = _bits(t)
    e = ((bits >> np.int32(23)) & np.int32(0xFF)) - np.int32(126)
    m = _of_bits((bits & np.int32(0x007FFFFF)) | np.int32(0x3F000000))  # in [1/2, 1)
    low = m < f32(0.70710678)
    n = f32(e) - (f32(1.0) if low else f32(0.0)) - (f32(23.0) if tiny else f32(0.0))
    r = (m + m - f32(1.0)) if low else (m - f32(1.0))
    z = r * r
    p = f32(7.0376836292e-2)
    p = p * r + f32(-1.1514610310e-1)
    p = p * r + f32(1.1676998740e-1)
    p = p * r + f32(-1.2420140846e-1)
    p = p * r + f32(1.4249322787e-1)
    p = p * r + f32(-1.6668057665e-1)
    p = p * r + f32(2.0000714765e-1)
    p = p * r + f32(-2.4999993993e-1)
    p = p * r + f32(3.3333331174e-1)
    y = p * r * z + n * LN2_LOW - f32(0.5) * z
    y = r + y + n * LN2_HIGH
    y = f32(math.inf) if x == f32(math.inf) else y
    y = f32(-math.inf) if x == f32(0.0) else y
    return f32(math.nan) if x < f32(0.0) or x != x else y


@numba.njit(error_model="numpy", forceinline=True)
def expm1_32(x):
    """E ** x - 1 without cancellation near zero: a series of degree 7 below ln 2 / 2."""
    small = abs(x) < f32(0.34657359)
    t = x if small else f32(0.0)
    p = f32(1.0 / 5040.0)
    p = p * t + f32(1.0 / 720.0)
    p = p * t + f32(1.0 / 120.0)
    p = p * t + f32(1.0 / 24.0)
    p = p * t + f32(1.0 / 6.0)
    p = p * t + f32(0.5)
    return t * t * p + t if small else exp32(x) - f32(1.0)


@numba.njit(error_model="numpy", forceinline=True)
def log1p_32(x):
    """log(1 + x); the rounding of 1 + x is made good by its first-order term."""
    u = f32(1.0) + x
    d = u - f32(1.0)
    exact = log32(u) * (x / d) if d != f32(0.0) else x
    return log32(u) if u == f32(math.inf) else exact


@numba.njit(error_model="numpy", forceinline=True)
def tanh32(x):
    """Through expm1, odd and saturating."""
    a = min(abs(x), f32(20.0))
    e = expm1_32(a + a)
    t = e / (e + f32(2.0))
    t = -t if x < f32(0.0) else t
    return x if x != x or x == f32(0.0) else t


@numba.njit(error_model="numpy", forceinline=True)
def sigmoid32(x):
    """1 / (1 + e ** -x)."""
    return f32(1.0) / (f32(1.0) + exp32(-x))


@numba.njit(error_model="numpy", forceinline=True)
def softplus32(x):
    """log(1 + e ** x) without overflow."""
    return max(x, f32(0.0)) + log1p_32(exp32(-abs(x))) if x == x else x


@numba.njit(error_model="numpy", forceinline=True)
def erf32(x):
    """Error function, absolute error 2e-7.

    Near zero a Taylor polynomial; else 1 - t * exp(-x * x + P(t)) with t = 1 / (1 + |x| / 2),
    the Chebyshev fit of Press et al., Numerical Recipes, section 6.2.
    """
    a = abs(x)
    s = x * x
    q = f32(-1.0 / 1320.0)
    q = q * s + f32(1.0 / 216.0)
    q = q * s + f32(-1.0 / 42.0)
    q = q * s + f32(1.0 / 10.0)
    q = q * s + f32(-1.0 / 3.0)
    near = f32(1.1283791670955126) * (x + x * s * q)
    t = f32(1.0) / (f32(1.0) + f32(0.5) * a)
    p = f32(0.17087277)
    p = p * t + f32(-0.82215223)
    p = p * t + f32(1.48851587)
    p = p * t + f32(-1.13520398)
    p = p * t + f32(0.27886807)
    p = p * t + f32(-0.18628806)
    p = p * t + f32(0.09678418)
    p = p * t + f32(0.37409196)
    p = p * t + f32(1.00002368)
    p = p * t + f32(-1.26551223)
    far = f32(1.0) - t * exp32(p - a * a)
    far = -far if x < f32(0.0) else far
    y = near if a < f32(0.5) else far
    return x if x != x else y
