"""Scalar functions that expressions call: NumPy's and ONNX's rules where Python's differ."""

import math

import numba
import numpy as np

from app.kernels.cpu.vectormath import erf32, tanh32

_inline = numba.njit(error_model="numpy", forceinline=True)

exp64 = numba.njit(error_model="numpy")(lambda x: math.exp(x))
log64 = numba.njit(error_model="numpy")(lambda x: math.log(x))
tanh64 = numba.njit(error_model="numpy")(lambda x: math.tanh(x))
erf64 = numba.njit(error_model="numpy")(lambda x: math.erf(x))
expm1_64 = numba.njit(error_model="numpy")(lambda x: math.expm1(x))


@_inline
def sigmoid64(x):
    return 1.0 / (1.0 + math.exp(-x))


@_inline
def softplus64(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x))) if x == x else x


@_inline
def gelu32(x):
    return np.float32(0.5) * x * (np.float32(1.0) + erf32(x * np.float32(0.7071067811865476)))


@_inline
def gelu64(x):
    return 0.5 * x * (1.0 + math.erf(x * 0.7071067811865476))


@_inline
def gelu_tanh32(x):
    t = np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (np.float32(1.0) + tanh32(t))


@_inline
def gelu_tanh64(x):
    return 0.5 * x * (1.0 + math.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@_inline
def larger(x, y):
    """NaN if either is NaN."""
    return x if x > y or x != x else y


@_inline
def smaller(x, y):
    """NaN if either is NaN."""
    return x if x < y or x != x else y


@_inline
def quotient(x, y):
    """Truncated towards zero, as ONNX says; zero where the divisor is zero, as NumPy."""
    if y == 0:
        return x - x
    q = x // y
    return q + 1 if q < 0 and q * y != x else q


@_inline
def integer_mod(x, y):
    """The sign of the divisor; zero where the divisor is zero."""
    return x % y if y != 0 else x - x


@_inline
def integer_fmod(x, y):
    """The sign of the dividend; zero where the divisor is zero."""
    return x - quotient(x, y) * y


@_inline
def float_mod(x, y):
    """The sign of the divisor."""
    r = np.fmod(x, y)
    return r + y if r != 0 and (r < 0) != (y < 0) else r


@_inline
def shift_left(x, n, bits):
    """Zero when everything is shifted out; a shift outside 0..bits counts as that."""
    return x << n if 0 <= n < bits else x - x


@_inline
def shift_right(x, n, bits):
    """Sign bits or zeros when everything is shifted out, by less than zero as well."""
    return x >> n if 0 <= n < bits else (x - x if x >= 0 else x - x - 1)


@_inline
def integer_power(x, n):
    """By squaring, wrapping like the multiplication; 0 for a negative exponent unless |x| is 1."""
    if n < 0:
        return x**0 if x == 1 else (x if x == -1 and n % 2 else (x * x if x == -1 else x - x))
    result, base = x**0, x
    while n > 0:
        if n % 2:
            result *= base
        base *= base
        n //= 2
    return result
