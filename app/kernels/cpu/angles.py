"""Circular and hyperbolic functions of float32 without branches, and their inverses.

As `vectormath`: float32 in and out, relative errors near 1e-7 for every argument, the largest
included.
"""

from fractions import Fraction

import numpy as np

from app.kernels.cpu.codegen.intrinsics import (
    biased_exponent,
    copysign,
    fma,
    has_bit,
    horner,
    muladd,
    rint,
    scaled,
    select,
    sqrt,
)
from app.kernels.cpu.codegen.vectormath import (
    HALF,
    LN2,
    NAN,
    ONE,
    TWO,
    ZERO,
    expm1_32,
    f32,
    half_exp32,
    inlined,
    log1p_32,
    log32,
    table,
)

_d = np.float64
PI, HALF_PI = f32(3.141592653589793), f32(1.5707963267948966)
# (sin(r) / r - 1) / r^2 and (cos(r) - 1 + r^2 / 2) / r^4 as polynomials of r^2, |r| <= pi / 4: 4e-9, 1e-10
SIN = table(-0.16666654589855832, 0.0083321550483191762, -0.00019514084536158496)
COS = table(0.041666646268794787, -0.001388733708760212, 2.4434846447658327e-5)
# (asin(s) / s - 1) / s^2 as a polynomial of s^2 on s <= 1/2: 5e-9
ASIN = table(
    0.16666754135343699,
    0.074952325570766122,
    0.045478353480469194,
    0.024140948947757318,
    0.042230602412682057,
)
# (atan(t) / t - 1) / t^2 as a polynomial of t^2 on t <= 1: 2.3e-9
ATAN = table(
    -0.3333330185975513,
    0.19998638438236114,
    -0.14265243707767528,
    0.10957568697447871,
    -0.084194405743128343,
    0.058234284784102934,
    -0.031455483818279178,
    0.011064346636917535,
    -0.0018271964447430023,
)
PI_DIGITS = Fraction(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798"
)


def _angles() -> tuple[np.ndarray, np.ndarray]:
    """2**k modulo 2 pi for k < 105 as a sum of 29 bits and a rest; then NaN, for infinity and NaN."""
    high, low = np.full(106, np.nan), np.full(106, np.nan)
    for k in range(105):
        angle = Fraction(2) ** k % (2 * PI_DIGITS)
        high[k] = float(Fraction(int(angle * 2**26), 2**26))
        low[k] = float(angle - Fraction(high[k]))
    return high, low


ANGLE_HIGH, ANGLE_LOW = _angles()
TWO_OVER_PI = 0.6366197723675814
HALF_PI_HIGH = 1.5707963267948966
HALF_PI_LOW = 6.123233995736766e-17


@inlined
def _turned(x):
    """(sin(r), cos(r), q) with x = q pi / 2 + r, q whole.

    A float32 from 2**24 on is a 24-bit integer times 2**k, and 2**k modulo 2 pi comes from a
    table, so the reduction is exact enough for every argument. Below, k = 0.
    """
    k = np.uint64(max(biased_exponent(x) - 150, 0))
    m = scaled(_d(x), -_d(np.int32(k)))
    p, rest = m * ANGLE_HIGH[k], m * ANGLE_LOW[k]  # p is exact: 24 bits times 29
    n = rint((p + rest) * TWO_OVER_PI)
    r = f32(fma(n, -HALF_PI_LOW, fma(n, -HALF_PI_HIGH, p)) + rest)
    z = r * r
    s = muladd(r * z, horner(z, SIN), r)
    c = muladd(z * z, horner(z, COS), muladd(z, -HALF, ONE))
    return s, c, n


@inlined
def sin32(x):
    s, c, q = _turned(x)
    y = select(has_bit(q, 1), c, s)
    return select(x == ZERO, x, select(has_bit(q, 2), -y, y))


@inlined
def cos32(x):
    s, c, q = _turned(x)
    y = select(has_bit(q, 1), s, c)
    return select(has_bit(q + 1.0, 2), -y, y)


@inlined
def tan32(x):
    s, c, q = _turned(x)
    odd = has_bit(q, 1)
    return select(x == ZERO, x, select(odd, -c, s) / select(odd, s, c))


@inlined
def _half_asin(a):
    """asin(a) for a <= 1/2; for others asin of sqrt((1 - a) / 2), which is pi / 4 - asin(a) / 2."""
    z = select(a > HALF, (ONE - a) * HALF, a * a)
    s = select(a > HALF, sqrt(z), a)
    return muladd(s * z, horner(z, ASIN), s)


@inlined
def asin32(x):
    a = abs(x)
    p = _half_asin(a)
    return copysign(select(a > HALF, HALF_PI - TWO * p, p), x)


@inlined
def acos32(x):
    a = abs(x)
    p = _half_asin(a)
    return select(a > HALF, select(x < ZERO, PI - TWO * p, TWO * p), HALF_PI - copysign(p, x))


@inlined
def atan32(x):
    a = abs(x)
    t = select(a > ONE, -ONE / a, a)
    z = t * t
    p = muladd(t * z, horner(z, ATAN), t)
    return copysign(select(a > ONE, HALF_PI + p, p), x)


@inlined
def sinh32(x):
    a = abs(x)
    m = expm1_32(select(a < ONE, a, ONE))
    h = half_exp32(a)
    return copysign(select(a < ONE, HALF * (m + m / (m + ONE)), h - f32(0.25) / h), x)


@inlined
def cosh32(x):
    h = half_exp32(abs(x))
    return h + f32(0.25) / h


@inlined
def asinh32(x):
    a = abs(x)
    square = a * a
    near = log1p_32(a + square / (ONE + sqrt(square + ONE)))
    return copysign(select(a < f32(1e9), near, log32(a) + LN2), x)


@inlined
def acosh32(x):
    t = x - ONE
    near = log1p_32(t + sqrt(t * (t + TWO)))
    y = select(x < f32(1e9), near, log32(x) + LN2)
    return select(x < ONE, NAN, y)


@inlined
def atanh32(x):
    a = abs(x)
    return copysign(HALF * log1p_32((a + a) / (ONE - a)), x)
