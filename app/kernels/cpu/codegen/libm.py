"""The functions of `vectormath` for float64, on the C library: the accurate, slower twins."""

import math

from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.intrinsics import select

inlined = njit(error_model="numpy", boundscheck=False, forceinline=True)

exp64 = math.exp
expm1_64 = math.expm1
expm1_falling64 = math.expm1
log64 = math.log
tanh64 = math.tanh
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
def sigmoid64(x):
    z = math.exp(-abs(x))
    return select(x < 0.0, z, 1.0) / (1.0 + z)


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
def gelu64(x):
    return 0.5 * x * math.erfc(-x * 0.7071067811865476)


@inlined
def gelu_tanh64(x):
    return x * sigmoid64(1.5957691216057308 * (x + 0.044715 * x * x * x))
