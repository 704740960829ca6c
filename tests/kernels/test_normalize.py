"""Normalization rows against NumPy in float64."""

from typing import Any

import numpy as np
import pytest

from app.kernels.cpu.compiler import Compiler
from tests.harness import assert_close
from tests.kernels.single import node_group, refusal_of, run_node

Array = np.ndarray[Any, Any]


def standardized(x: Array, axes: Any, epsilon: float) -> tuple[Array, Array, Array]:
    wide = x.astype(np.float64)
    mean = wide.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(wide.var(axes, keepdims=True) + epsilon)
    return (wide - mean) * inverse, mean, inverse


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis", "operand"),
    [
        ((5, 7, 65), -1, (65,)),
        ((5, 7, 9), 1, (7, 9)),
        ((3, 4, 5), 1, (1, 5)),
        ((4, 6), 0, (4, 6)),
        ((0, 3), 1, (3,)),
    ],
)
def test_layer_normalization_with_all_outputs(
    compiler: Compiler, shape: tuple[int, ...], axis: int, operand: tuple[int, ...], inplace: bool
) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) * 3 + 1).astype(np.float32)
    scale, bias = (rng.standard_normal(operand).astype(np.float32) for _ in range(2))
    inputs = {"X": x, "S": scale, "B": bias}
    outputs = {"Y": x.dtype, "M": x.dtype, "D": x.dtype}
    group = node_group("LayerNormalization", inputs, outputs, axis=axis, epsilon=1e-3)
    y, mean, deviation = run_node(compiler, "normalize.layer_norm", group, inputs, threads=2, inplace=inplace)
    z, m, d = standardized(x, tuple(range(axis % x.ndim, x.ndim)), 1e-3)
    assert_close(y, (z * scale + bias).astype(np.float32), 1e-6)
    assert_close(mean, m.astype(np.float32), 1e-6)
    assert_close(deviation, d.astype(np.float32), 1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_layer_normalization_without_bias_and_with_a_large_mean(compiler: Compiler, dtype: Any) -> None:
    x = (np.random.default_rng(1).standard_normal((4, 257)) + 1000).astype(dtype)
    inputs = {"X": x, "S": np.full(257, 2, dtype)}
    group = node_group("LayerNormalization", inputs, {"Y": dtype})
    (y,) = run_node(compiler, "normalize.layer_norm", group, inputs)
    # The rounding of a float32 mean near 1000 is 3e-5 of the deviation.
    assert_close(y, (2 * standardized(x, 1, 1e-5)[0]).astype(dtype), 3e-5 if dtype == np.float32 else 1e-12)


def test_operands_that_do_not_repeat_along_rows_are_refused() -> None:
    x = np.zeros((2, 3, 4), np.float32)
    group = node_group(
        "LayerNormalization", {"X": x, "S": np.ones((3, 1), np.float32)}, {"Y": x.dtype}, axis=1
    )
    assert "does not repeat" in str(refusal_of("normalize.layer_norm", group))
