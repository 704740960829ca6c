"""Elementary functions of float32 without branches or calls, so that loops of them vectorize.

Relative errors stay near 1e-7 over the whole range, results below the smallest normal number
apart, and infinities and NaN come out as IEEE 754 says. Coefficients are minimax fits (Remez
exchange on the relative error, in 50 digits); each table states the error of the fit.
Every function takes and returns float32. `libm` has the same functions for float64.
"""

import numpy as np

from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.intrinsics import (
    copysign,
    exponent_bits,
    horner,
    muladd,
    rint,
    scaled,
    select,
    split,
)

f32 = np.float32
_d = np.float64
inlined = njit(error_model="numpy", boundscheck=False, forceinline=True)


def table(*coefficients: float) -> tuple[np.float32, ...]:
    return tuple(f32(c) for c in coefficients)


ZERO, HALF, ONE, TWO = f32(0), f32(0.5), f32(1), f32(2)
INFINITY, NAN = f32(np.inf), f32(np.nan)
LOG2_E = f32(1.4426950408889634)
LN2_HIGH, LN2_LOW = f32(0.693359375), f32(-2.1219444005469057e-4)  # the high part times |n| <= 256 is exact
LN2 = f32(0.6931471805599453)
SMALLEST_NORMAL = f32(2.0**-126)
LOWEST, HIGHEST = f32(-104.0), f32(89.0)  # exp gives 0 below and infinity above
FLUSHED = f32(-88.0)  # 2**n with n = -127, whose bits are those of 0
# Added to a small number it leaves the nearest whole number n in the low bits of the sum, as n + 127: those
# of the exponent of 2**n, once they are shifted to its place.
TO_POWER = f32(1.5 * 2.0**23 + 127)

# (exp(r) - 1 - r) / r^2 on |r| <= ln(2) / 2: 1.4e-8
EXPM1 = table(
    0.50000000656830458,
    0.16666538015590375,
    0.041666266638361835,
    0.0083672467736993562,
    0.0013947592026835558,
)
# (log(1 + f) - f + f^2 / 2) / f^3 on [sqrt(1/2) - 1, sqrt(2) - 1]: 7.3e-10
LOG = table(
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
ATANH = table(
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
# (sigmoid(x) - 1/2) / x as a quotient of polynomials of x^2 on |x| <= 18 (weighted least squares): 9.3e-9
SIGMOID_ABOVE = table(0.249999977, 0.00835823912, 5.44775427e-05, 7.99667134e-08, 1.28746948e-11)
SIGMOID_BELOW = table(1.0, 0.116766199, 0.00161511933, 5.11148801e-06, 3.00877083e-09)
SIGMOID_LIMIT = f32(18.0)
# erf(x) / x as a quotient of polynomials of x^2 on |x| <= 3.95 (weighted least squares): 2.1e-8
ERF_ABOVE = table(
    1.1283791437869051,
    0.19154682722668832,
    0.052874955783772443,
    0.0038080000309740949,
    0.00028468204568918602,
    2.0259102061205608e-6,
)
ERF_BELOW = table(
    1.0,
    0.50308663256068119,
    0.11455815513235186,
    0.015054773313572372,
    0.0011706824561433664,
    3.7831521583734618e-5,
)
ERF_LIMIT = f32(3.95)  # erf is 1 in float32 from 3.92 on
# erf(x / sqrt(2)) / (2 x), from the above: factors of the argument are in the coefficients
GELU_ABOVE = table(*(float(c) * 0.5**1.5 * 0.5**i for i, c in enumerate(ERF_ABOVE)))
GELU_BELOW = table(*(float(c) * 0.5**i for i, c in enumerate(ERF_BELOW)))
GELU_LIMIT = f32(3.95 * 2**0.5)


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
def _power_and_rest(x, offset):
    """(2**(n - offset), exp(r) - 1) with x = n ln(2) + r, |r| <= ln(2) / 2, for |n - offset| <= 127.

    The power is 0 for n - offset = -127.
    """
    shift = TO_POWER - offset
    s = muladd(x, LOG2_E, shift)
    n = s - shift
    r = muladd(n, -LN2_LOW, muladd(n, -LN2_HIGH, x))
    return exponent_bits(s), muladd(r * r, horner(r, EXPM1), r)


@inlined
def exp32(x):
    """The exponential; what would be below 2**-125.5 is 0."""
    # Half of n = 128 is enough: 2**128 is infinity, and its product with a number below 1 may be finite.
    power, m = _power_and_rest(_clamped(x, FLUSHED + HALF, HIGHEST), ONE)
    return muladd(power, m, power) * TWO


@inlined
def half_exp32(x):
    """exp(x) / 2, which overflows later."""
    m, n = _reduced(_clamped(x, LOWEST, HIGHEST + ONE))
    return _scaled_twice(m + ONE, n - ONE)


@inlined
def exp_falling32(x):
    """The exponential of x <= 0; what would be below the smallest normal number is 0."""
    power, m = _power_and_rest(select(x < FLUSHED, FLUSHED, x), ZERO)
    return muladd(power, m, power)


@inlined
def expm1_32(x):
    m, n = _reduced(_clamped(x, LOWEST, HIGHEST))
    half = rint(n * HALF)
    # 2**n (m + 1) - 1 without cancellation at n = 0, scaled so that nothing overflows early.
    return scaled(scaled(m, n - half) + (scaled(ONE, n - half) - scaled(ONE, -half)), half)


@inlined
def expm1_falling32(x):
    """The exponential of x <= 0, minus 1."""
    power, m = _power_and_rest(select(x < FLUSHED, FLUSHED, x), ZERO)
    return muladd(power, m, power - ONE)


@inlined
def log32(x):
    tiny = x < SMALLEST_NORMAL
    m, e = split(select(tiny, x * f32(2.0**23), x))
    e = select(tiny, e - f32(23.0), e)
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
def silu32(x):
    """The product x sigmoid(x) without an exponential; off by 1.9e-7 |x| at most, 18 for |x| below -18."""
    x = select(x < -SIGMOID_LIMIT, -SIGMOID_LIMIT, x)
    y = select(x > SIGMOID_LIMIT, SIGMOID_LIMIT, x)
    z = y * y
    return x * (HALF + y * (horner(z, SIGMOID_ABOVE) / horner(z, SIGMOID_BELOW)))


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
    """The product x (1 + erf(x / sqrt(2))) / 2; off by 1e-7 |x| at most."""
    y = _clamped(x, -GELU_LIMIT, GELU_LIMIT)
    z = y * y
    half_erf = _clamped(y * (horner(z, GELU_ABOVE) / horner(z, GELU_BELOW)), -HALF, HALF)
    return x * (HALF + half_erf)


@inlined
def gelu_tanh32(x):
    cube = x * x * x
    return x * sigmoid32(f32(1.5957691216057308) * muladd(cube, f32(0.044715), x))


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
    r = f32((p - n) * 0.6931471805599453)
    result = _scaled_twice(muladd(r * r, horner(r, EXPM1), r) + ONE, f32(n))
    whole = rint(y) == y
    odd = whole & (rint(y * HALF) != y * HALF)
    result = copysign(result, select(odd, x, ONE))
    outside = (x < ZERO) & (x > -INFINITY) & (y == y) & (not whole)
    result = select(outside, NAN, result)
    return select((x == ONE) | (y == ZERO), ONE, result)
