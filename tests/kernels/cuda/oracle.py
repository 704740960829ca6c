"""Storage types of the tests, and what kernels should compute, in float64."""

import math
from collections.abc import Callable

import numpy as np

from app.kernels.cuda.epilogue import Epilogue
from tests.kernels.cuda.twins import from_bf16, from_f16, to_bf16, to_f16

Codec = Callable[[np.ndarray], np.ndarray]

# To the bits that travel, and back.
ENCODE: dict[str, Codec] = {
    "float32": lambda x: np.ascontiguousarray(x, np.float32),
    "bfloat16": to_bf16,
    "float16": to_f16,
}
DECODE: dict[str, Codec] = {"float32": lambda x: x, "bfloat16": from_bf16, "float16": from_f16}

# Of a result in this type whose sums are exact to float32, relative to its norm.
TOLERANCE = {"float32": 1e-6, "bfloat16": 3e-3, "float16": 4e-4}
# The same by the precision of products.
PRECISION_TOLERANCE = {"f32": 1e-6, "3xtf32": 1e-6, "tf32": 6e-4, "bf16": 3e-3, "fp16": 4e-4}


def encoded(dtype: str, x: np.ndarray) -> np.ndarray:
    """A contiguous array of a storage type."""
    return np.ascontiguousarray(ENCODE[dtype](np.asarray(x, np.float32)))


def decoded(dtype: str, x: np.ndarray) -> np.ndarray:
    """The same as float64."""
    return np.asarray(DECODE[dtype](x), np.float64)


def poisoned(dtype: str, *shape: int) -> np.ndarray:
    """NaN everywhere."""
    return encoded(dtype, np.full(shape, np.nan))


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """Relative to the norm; NaN anywhere gives NaN, which no limit admits."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


ERF = np.vectorize(math.erf, otypes=[np.float64])

ACTIVATIONS: dict[str, Callable[..., np.ndarray]] = {
    "": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "clip": lambda x, low, high: np.clip(x, low, high),
    "leaky_relu": lambda x, slope: np.where(x >= 0, x, slope * x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + ERF(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "tanh": np.tanh,
    "hard_sigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "elu": lambda x, a: np.where(x > 0, x, a * np.expm1(x)),
}


def finished(sums: np.ndarray, after: Epilogue, bias: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """What an epilogue makes of sums [..., columns]."""
    name, *parameters = after.activation
    y = after.alpha * sums
    if after.bias:
        y = y + bias
    if after.residual == "before":
        y = y + residual
    y = ACTIVATIONS[str(name)](y, *parameters)
    return y + residual if after.residual == "after" else y
