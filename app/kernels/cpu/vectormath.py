"""Elementary functions of float32 without branches or calls, so that loops of them vectorize.

Relative errors stay near 1e-7 over the whole range, results below the smallest normal number
apart, and infinities and NaN come out as IEEE 754 says. Coefficients are minimax fits (Remez
exchange on the relative error, in 50 digits); each table states the error of the fit.
Every function takes and returns float32. `libm` has the same functions for float64.
"""

from fractions import Fraction

import numpy as np
from numba import njit

from app.kernels.cpu.intrinsics import (
    biased_exponent,
    copysign,
    fma,
    has_bit,
    horner,
    muladd,
    rint,
    scaled,
    select,
    split,
    sqrt,
)

_f = np.float32
_d = np.float64
inlined = njit(error_model="numpy", boundscheck=False, forceinline=True)


def _table(*coefficients: float) -> tuple[np.float32, ...]:
    return tuple(_f(c) for c in coefficients)


ZERO, HALF, ONE, TWO = _f(0), _f(0.5), _f(1), _f(2)
INFINITY, NAN = _f(np.inf), _f(np.nan)
LOG2_E = _f(1.4426950408889634)
LN2_HIGH, LN2_LOW = _f(0.693359375), _f(-2.1219444005469057e-4)  # the high part times |n| <= 256 is exact
LN2 = _f(0.6931471805599453)
PI, HALF_PI, QUARTER_PI = _f(3.141592653589793), _f(1.5707963267948966), _f(0.7853981633974483)
SMALLEST_NORMAL = _f(2.0**-126)
LOWEST, HIGHEST = _f(-104.0), _f(89.0)  # exp gives 0 below and infinity above
FLUSHED = _f(-88.0)  # 2**n with n = -127, whose bits are those of 0

# (exp(r) - 1 - r) / r^2 on |r| <= ln(2) / 2: 1.4e-8
EXPM1 = _table(
    0.50000000656830458,
    0.16666538015590375,
    0.041666266638361835,
    0.0083672467736993562,
    0.0013947592026835558,
)
# (log(1 + f) - f + f^2 / 2) / f^3 on [sqrt(1/2) - 1, sqrt(2) - 1]: 7.3e-10
LOG = _table(
    0.33333310446241533,
    -0.24999986600242076,
    0.20002226251854367,
    -0.16669250489257016,
    0.14218664320765123,
    -0.12384358784487581,
    0.11872945459272221,
    -0.11789732149405399,
    0.069153366441050502,
)
# (atanh(s) / s - 1) / s^2 as a polynomial of s^2 on s <= 1/3: 1.1e-10
ATANH = _table(
    0.33333337810896523, 0.19999438878798188, 0.14308442221642056, 0.10713830647108461, 0.12150461508631157
)
# The same on s <= 0.1716, for float64 arithmetic: 1.2e-18
ATANH_NARROW = (
    0.33333333333333673,
    0.19999999999706551,
    0.14285714371385248,
    0.1111109926537402,
    0.090917833434503415,
    0.076569931793809629,
    0.073983142039440606,
)
# erf(x) / x as a quotient of polynomials of x^2 on |x| <= 3.95 (weighted least squares): 2.1e-8
ERF_ABOVE = _table(
    1.1283791437869051,
    0.19154682722668832,
    0.052874955783772443,
    0.0038080000309740949,
    0.00028468204568918602,
    2.0259102061205608e-6,
)
ERF_BELOW = _table(
    1.0,
    0.50308663256068119,
    0.11455815513235186,
    0.015054773313572372,
    0.0011706824561433664,
    3.7831521583734618e-5,
)
ERF_LIMIT = _f(3.95)  # erf is 1 in float32 from 3.92 on
# (sin(r) / r - 1) / r^2 and (cos(r) - 1 + r^2 / 2) / r^4 as polynomials of r^2, |r| <= pi / 4: 4e-9, 1e-10
SIN = _table(-0.16666654589855832, 0.0083321550483191762, -0.00019514084536158496)
COS = _table(0.041666646268794787, -0.001388733708760212, 2.4434846447658327e-5)
# (asin(s) / s - 1) / s^2 as a polynomial of s^2 on s <= 1/2: 5e-9
ASIN = _table(
    0.16666754135343699,
    0.074952325570766122,
    0.045478353480469194,
    0.024140948947757318,
    0.042230602412682057,
)
# (atan(t) / t - 1) / t^2 as a polynomial of t^2 on t <= 1: 2.3e-9
ATAN = _table(
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


@inlined
def _reduced(x):
    """(exp(r) - 1, n) with x = n ln(2) + r, |r| <= ln(2) / 2."""
    n = rint(x * LOG2_E)
    r = muladd(n, -LN2_LOW, muladd(n, -LN2_HIGH, x))
    return muladd(r * r, horner(r, EXPM1), r), n


@inlined
def _clamped(x, low, high):
    x = select(x < low, low, x)
    return select(x > high, high, x)


@inlined
def _scaled_twice(x, n):
    """The product x * 2**n for |n| <= 252: the power itself may overflow or vanish."""
    half = rint(n * HALF)
    return scaled(scaled(x, half), n - half)


@inlined
def exp32(x):
    m, n = _reduced(_clamped(x, LOWEST, HIGHEST))
    return _scaled_twice(m + ONE, n)


@inlined
def _half_exp(x):
    """exp(x) / 2, which overflows later."""
    m, n = _reduced(_clamped(x, LOWEST, HIGHEST + ONE))
    return _scaled_twice(m + ONE, n - ONE)


@inlined
def exp_falling32(x):
    """The exponential of x <= 0; what would be below the smallest normal number is 0."""
    m, n = _reduced(select(x < FLUSHED, FLUSHED, x))
    return scaled(m + ONE, n)


@inlined
def expm1_32(x):
    m, n = _reduced(_clamped(x, LOWEST, HIGHEST))
    half = rint(n * HALF)
    # 2**n (m + 1) - 1 without cancellation at n = 0, scaled so that nothing overflows early.
    return scaled(scaled(m, n - half) + (scaled(ONE, n - half) - scaled(ONE, -half)), half)


@inlined
def expm1_falling32(x):
    """The exponential of x <= 0, minus 1."""
    m, n = _reduced(select(x < FLUSHED, FLUSHED, x))
    power = scaled(ONE, n)
    return muladd(power, m, power - ONE)


@inlined
def log32(x):
    tiny = x < SMALLEST_NORMAL
    m, e = split(select(tiny, x * _f(2.0**23), x))
    e = select(tiny, e - _f(23.0), e)
    f = m - ONE
    square = f * f
    low = muladd(f * square, horner(f, LOG), muladd(e, LN2_LOW, -HALF * square))
    y = muladd(e, LN2_HIGH, f + low)
    y = select(x < INFINITY, y, x)
    return select(x > ZERO, y, select(x == ZERO, -INFINITY, NAN))


@inlined
def log1p_32(x):
    u = ONE + x
    lost = (x - (u - ONE)) / u  # what rounding took from u
    regular = (u > ZERO) & (u < INFINITY)
    return log32(u) + select(regular, lost, ZERO)


@inlined
def sigmoid32(x):
    z = exp_falling32(-abs(x))
    return select(x < ZERO, z, ONE) / (ONE + z)


@inlined
def tanh32(x):
    t = expm1_falling32(-TWO * abs(x))
    return copysign(t / (t + TWO), x)


@inlined
def softplus32(x):
    y = exp_falling32(-abs(x))
    s = y / (TWO + y)
    square = s * s
    s = s + s
    return select(x < ZERO, ZERO, x) + muladd(s * square, horner(square, ATANH), s)


@inlined
def swish32(x, alpha):
    return x * sigmoid32(alpha * x)


@inlined
def mish32(x):
    y = exp_falling32(-abs(x))
    below = select(x < ZERO, ONE, y * y)
    above = select(x < ZERO, y * (y + TWO), ONE + TWO * y)
    return x * (above / (above + TWO * below))


@inlined
def erf32(x):
    x = _clamped(x, -ERF_LIMIT, ERF_LIMIT)
    z = x * x
    y = x * horner(z, ERF_ABOVE) / horner(z, ERF_BELOW)
    return _clamped(y, -ONE, ONE)


@inlined
def gelu32(x):
    return HALF * x * (ONE + erf32(x * _f(0.7071067811865476)))


@inlined
def gelu_tanh32(x):
    cube = x * x * x
    return x * sigmoid32(_f(1.5957691216057308) * muladd(cube, _f(0.044715), x))


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
    r = _f(fma(n, -HALF_PI_LOW, fma(n, -HALF_PI_HIGH, p)) + rest)
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
    h = _half_exp(a)
    return copysign(select(a < ONE, HALF * (m + m / (m + ONE)), h - _f(0.25) / h), x)


@inlined
def cosh32(x):
    h = _half_exp(abs(x))
    return h + _f(0.25) / h


@inlined
def asinh32(x):
    a = abs(x)
    square = a * a
    near = log1p_32(a + square / (ONE + sqrt(square + ONE)))
    return copysign(select(a < _f(1e9), near, log32(a) + LN2), x)


@inlined
def acosh32(x):
    t = x - ONE
    near = log1p_32(t + sqrt(t * (t + TWO)))
    y = select(x < _f(1e9), near, log32(x) + LN2)
    return select(x < ONE, NAN, y)


@inlined
def atanh32(x):
    a = abs(x)
    return copysign(HALF * log1p_32((a + a) / (ONE - a)), x)


@inlined
def power32(x, y):
    """x**y as pow of C99; the logarithm in float64, so that large powers stay accurate."""
    a = _d(abs(x))
    m, e = split(a)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    s = s * 2.8853900817779268  # 2 / ln(2)
    logarithm = muladd(s * z, horner(z, ATANH_NARROW), s) + e
    logarithm = select(a > 0.0, logarithm, -np.inf)
    logarithm = select(a < np.inf, logarithm, a)  # infinity and NaN
    p = select(((a == 1.0) & (y == y)) | (y == ZERO), 0.0, _d(y) * logarithm)
    p = select(p < -151.0, -151.0, p)
    p = select(p > 129.0, 129.0, p)
    n = rint(p)
    r = _f((p - n) * 0.6931471805599453)
    result = _scaled_twice(muladd(r * r, horner(r, EXPM1), r) + ONE, _f(n))
    whole = rint(y) == y
    odd = whole & (rint(y * HALF) != y * HALF)
    result = copysign(result, select(odd, x, ONE))
    outside = (x < ZERO) & (x > -INFINITY) & (y == y) & (not whole)
    result = select(outside, NAN, result)
    return select((x == ONE) | (y == ZERO), ONE, result)
