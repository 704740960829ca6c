"""The functions of `vectormath` for float64, on the C library: the accurate, slower twins."""

import math

from numba import njit

from app.kernels.cpu.intrinsics import select

inlined = njit(error_model="numpy", boundscheck=False, forceinline=True)


@inlined
def exp(x):
    return math.exp(x)


@inlined
def expm1(x):
    return math.expm1(x)


@inlined
def expm1_falling(x):
    return math.expm1(x)


@inlined
def log(x):
    return math.log(x)


@inlined
def sigmoid(x):
    z = math.exp(-abs(x))
    return select(x < 0.0, z, 1.0) / (1.0 + z)


@inlined
def tanh(x):
    return math.tanh(x)


@inlined
def softplus(x):
    return select(x < 0.0, 0.0, x) + math.log1p(math.exp(-abs(x)))


@inlined
def swish(x, alpha):
    return x * sigmoid(alpha * x)


@inlined
def mish(x):
    return x * math.tanh(softplus(x))


@inlined
def erf(x):
    return math.erf(x)


@inlined
def gelu(x):
    return 0.5 * x * math.erfc(-x * 0.7071067811865476)


@inlined
def gelu_tanh(x):
    return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@inlined
def sin(x):
    return math.sin(x)


@inlined
def cos(x):
    return math.cos(x)


@inlined
def tan(x):
    return math.tan(x)


@inlined
def asin(x):
    return math.asin(x)


@inlined
def acos(x):
    return math.acos(x)


@inlined
def atan(x):
    return math.atan(x)


@inlined
def sinh(x):
    return math.sinh(x)


@inlined
def cosh(x):
    return math.cosh(x)


@inlined
def asinh(x):
    return math.asinh(x)


@inlined
def acosh(x):
    return math.acosh(x)


@inlined
def atanh(x):
    return math.atanh(x)


@inlined
def power(x, y):
    return math.pow(x, y)
