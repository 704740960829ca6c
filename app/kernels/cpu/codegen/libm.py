"""The functions of `vectormath` for float64, most on the C library: the accurate, slower twins."""

import math

from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.intrinsics import copysign, horner, muladd, rint, scaled, select

inlined = njit(error_model="numpy", boundscheck=False, forceinline=True)

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10  # the high part times |n| <= 2^20 is exact
LOWEST, HIGHEST = -746.0, 710.0  # exp gives 0 below and infinity above
# (exp(r) - 1 - r) / r^2 on |r| <= ln(2) / 2, by Taylor: the next term is 4e-18 of the sum
EXPM1 = tuple(1.0 / math.factorial(k) for k in range(2, 14))

log64 = math.log
erf64 = math.erf
sin64 = math.sin
cos64 = math.cos
tan64 = math.tan
asin64 = math.asin
acos64 = math.acos
atan64 = math.atan
sinh64 = math.sinh
cosh64 = math.cosh
asinh64 = math.asinh
acosh64 = math.acosh
atanh64 = math.atanh
power64 = math.pow


@inlined
def _reduced(x):
    """(exp(r) - 1, n, half of n) with x = n ln(2) + r, |r| <= ln(2) / 2."""
    x = select(x < LOWEST, LOWEST, x)
    x = select(x > HIGHEST, HIGHEST, x)
    n = rint(x * LOG2_E)
    r = muladd(n, -LN2_LOW, muladd(n, -LN2_HIGH, x))
    return muladd(r * r, horner(r, EXPM1), r), n, rint(n * 0.5)


@inlined
def exp64(x):
    m, n, half = _reduced(x)
    return scaled(scaled(m + 1.0, half), n - half)


@inlined
def expm1_64(x):
    m, n, half = _reduced(x)
    # 2**n (m + 1) - 1 without cancellation at n = 0, scaled so that nothing overflows early.
    return scaled(scaled(m, n - half) + (scaled(1.0, n - half) - scaled(1.0, -half)), half)


expm1_falling64 = expm1_64


@inlined
def tanh64(x):
    t = expm1_64(-2.0 * abs(x))
    return copysign(t / (t + 2.0), x)


@inlined
def sigmoid64(x):
    z = exp64(-abs(x))
    return select(x < 0.0, z, 1.0) / (1.0 + z)


@inlined
def softplus64(x):
    return select(x < 0.0, 0.0, x) + math.log1p(exp64(-abs(x)))


@inlined
def silu64(x):
    return select(x < -745.0, 0.0, x * sigmoid64(x))


@inlined
def swish64(x, alpha):
    return x * sigmoid64(alpha * x)


@inlined
def mish64(x):
    return x * tanh64(softplus64(x))


@inlined
def gelu64(x):
    return 0.5 * x * math.erfc(-x * 0.7071067811865476)


@inlined
def gelu_tanh64(x):
    return x * sigmoid64(1.5957691216057308 * (x + 0.044715 * x * x * x))
