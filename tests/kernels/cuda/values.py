"""Arrays as kernels see them, from and to float64."""

from collections.abc import Sequence

import numpy as np

from app.kernels.cuda.geometry import Strided, contiguous
from app.kernels.cuda.kernel import Launches
from app.kernels.cuda.transpose import moved
from tests.kernels.cuda.simulator import POISON, simulate
from tests.kernels.cuda.twins import from_bf16, from_f16, to_bf16, to_f16

Array = np.ndarray
EPSILON = {"float32": 2.0**-22, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_STORED = {"bfloat16": "uint16", "float16": "uint16", "bool": "uint8"}


def transpose(shape: Sequence[int], permutation: Sequence[int], dtype: str) -> Launches:
    """Axes in another order: roles x0 and y0, contiguous."""
    steps, extents = contiguous(shape), [shape[a] for a in permutation]
    source = Strided(dtype, tuple(steps[a] for a in permutation))
    return moved(extents, source, Strided(dtype, contiguous(extents)))


def encoded(x: Array, dtype: str) -> Array:
    """A tensor in memory."""
    if dtype == "bfloat16":
        return to_bf16(np.asarray(x, np.float32))
    if dtype == "float16":
        return to_f16(np.asarray(x, np.float32))
    return np.ascontiguousarray(x, _STORED.get(dtype, dtype))


def decoded(x: Array, dtype: str) -> Array:
    """Its values: float64 for floats."""
    if dtype == "bfloat16":
        return from_bf16(x).astype(np.float64)
    if dtype == "float16":
        return from_f16(x).astype(np.float64)
    return x.astype(np.float64) if dtype == "float32" else x.astype(dtype)


def poisoned(shape: tuple[int, ...] | int, dtype: str) -> Array:
    """Memory before it is written: NaN."""
    array = np.empty(shape, _STORED.get(dtype, dtype))
    array.reshape(-1).view(np.uint8).fill(POISON)
    return array


def normal(seed: int, shape: tuple[int, ...] | int, dtype: str = "float32") -> tuple[Array, Array]:
    """Random numbers that the type holds: (in memory, as float64)."""
    bits = encoded(np.random.default_rng(seed).standard_normal(shape), dtype)
    return bits, decoded(bits, dtype)


def run(launches: Launches, seed: int = 0, **arrays: Array) -> None:
    """Simulate in place."""
    simulate(launches, arrays, seed)


def close(found: Array, expected: Array, dtype: str = "float32", scale: float = 1.0) -> None:
    """Equal to the rounding of the type, at magnitudes up to `scale` times those expected."""
    largest = np.max(np.abs(expected[np.isfinite(expected)]), initial=1e-30)
    np.testing.assert_allclose(
        decoded(found, dtype),
        expected,
        rtol=EPSILON[dtype] * scale,
        atol=EPSILON[dtype] * scale * float(largest),
    )
