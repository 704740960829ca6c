"""The functions of `vectormath` for float64, on the C library: the accurate, slower twins."""

import math

from numba import njit

from app.kernels.cpu.codegen.intrinsics import select

inlined = njit(error_model="numpy", boundscheck=False, forceinline=True)


@inlined
def exp64(x):
    return math.exp(x)


@inlined
def expm1_64(x):
    return math.expm1(x)


@inlined
def expm1_falling64(x):
    return math.expm1(x)


@inlined
def log64(x):
    return math.log(x)


@inlined
def sigmoid64(x):
    z = math.exp(-abs(x))
    return select(x < 0.0, z, 1.0) / (1.0 + z)


@inlined
def tanh64(x):
    return math.tanh(x)


@inlined
def softplus64(x):
    return select(x < 0.0, 0.0, x) + math.log1p(math.exp(-abs(x)))


@inlined
def silu64(x):
    return select(x < -745.0, 0.0, x * sigmoid64(x))


@inlined
def swish64(x, alpha):
    return x * sigmoid64(alpha * x)


@inlined
def mish64(x):
    return x * math.tanh(softplus64(x))


@inlined
def erf64(x):
    return math.erf(x)


@inlined
def gelu64(x):
    return 0.5 * x * math.erfc(-x * 0.7071067811865476)


@inlined
def gelu_tanh64(x):
    return x * sigmoid64(1.5957691216057308 * (x + 0.044715 * x * x * x))


@inlined
def sin64(x):
    return math.sin(x)


@inlined
def cos64(x):
    return math.cos(x)


@inlined
def tan64(x):
    return math.tan(x)


@inlined
def asin64(x):
    return math.asin(x)


@inlined
def acos64(x):
    return math.acos(x)


@inlined
def atan64(x):
    return math.atan(x)


@inlined
def sinh64(x):
    return math.sinh(x)


@inlined
def cosh64(x):
    return math.cosh(x)


@inlined
def asinh64(x):
    return math.asinh(x)


@inlined
def acosh64(x):
    return math.acosh(x)


@inlined
def atanh64(x):
    return math.atanh(x)


@inlined
def power64(x, y):
    return math.pow(x, y)
