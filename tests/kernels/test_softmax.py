"""Softmax rows against NumPy in float64."""

from typing import Any

import numpy as np
import pytest

from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import assert_close
from tests.kernels.single_node import node_group, run_node

Array = np.ndarray[Any, Any]


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True, initial=-1e30))
    return e / e.sum(axis, keepdims=True)


def log_softmax(x: Array, axis: int) -> Array:
    d = x.astype(np.float64) - x.max(axis, keepdims=True, initial=-1e30)
    return d - np.log(np.exp(d).sum(axis, keepdims=True))


ROWS = [("softmax.softmax", "Softmax", softmax), ("softmax.log_softmax", "LogSoftmax", log_softmax)]


@pytest.mark.parametrize(("row", "op", "oracle"), ROWS)
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((3, 4, 65), -1), ((3, 5, 65), 1), ((7, 600), 0), ((5,), 0), ((2, 1), 1), ((0, 3), 1), ((3, 0), 0)],
)
def test_any_axis_and_in_place(
    compiler: Compiler, row: str, op: str, oracle: Any, shape: tuple[int, ...], axis: int, inplace: bool
) -> None:
    x = (10 * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)
    group = node_group(op, {"X": x}, {"Y": x.dtype}, axis=axis)
    (y,) = run_node(compiler, row, group, {"X": x}, threads=2, inplace=inplace)
    assert_close(y, oracle(x, axis).astype(np.float32), 1e-6)


@pytest.mark.parametrize(("row", "op", "oracle"), ROWS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_every_length(compiler: Compiler, row: str, op: str, oracle: Any, dtype: Any) -> None:
    for n in (*range(1, 132), 160, 255, 256, 257):
        x = (10 * np.random.default_rng(n).standard_normal((2, n))).astype(dtype)
        for inplace in (False, True):
            group = node_group(op, {"X": x}, {"Y": x.dtype})
            (y,) = run_node(compiler, row, group, {"X": x}, inplace=inplace)
            tolerance = 1e-6 if dtype == np.float32 else 1e-14
            assert_close(y, oracle(x, -1).astype(dtype), tolerance)


@pytest.mark.parametrize(("row", "op", "oracle"), ROWS)
@pytest.mark.parametrize("axis", [0, 1])
def test_double_precision(compiler: Compiler, row: str, op: str, oracle: Any, axis: int) -> None:
    x = 10 * np.random.default_rng(1).standard_normal((9, 21))
    group = node_group(op, {"X": x}, {"Y": x.dtype}, axis=axis)
    (y,) = run_node(compiler, row, group, {"X": x})
    assert_close(y, oracle(x, axis), 1e-14)


@pytest.mark.parametrize(("row", "op", "oracle"), ROWS)
def test_large_and_masked_elements_do_not_overflow(
    compiler: Compiler, row: str, op: str, oracle: Any
) -> None:
    x = np.array([[1e4, 1e4 - 1, -1e4], [-np.inf, 0, -np.inf], [-3e38, 3e38, 0]], np.float32)
    group = node_group(op, {"X": x}, {"Y": x.dtype})
    (y,) = run_node(compiler, row, group, {"X": x})
    with np.errstate(over="ignore"):
        want = oracle(x, -1).astype(np.float32)
    np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-30)


def test_a_long_row_sums_to_one(compiler: Compiler) -> None:
    x = np.random.default_rng(2).standard_normal((1, 100_000)).astype(np.float32)
    (y,) = run_node(compiler, "softmax.softmax", node_group("Softmax", {"X": x}, {"Y": x.dtype}), {"X": x})
    assert abs(y.astype(np.float64).sum() - 1) < 1e-6
    np.testing.assert_allclose(y, softmax(x, -1), rtol=1e-6)


@pytest.mark.parametrize(("row", "op", "oracle"), ROWS)
@pytest.mark.parametrize("n", [1, 7, 40, 300])
def test_a_row_with_a_nan_is_nan_and_no_other(
    compiler: Compiler, row: str, op: str, oracle: Any, n: int
) -> None:
    for place in (0, n // 2, n - 1):
        x = np.random.default_rng(3).standard_normal((3, n)).astype(np.float32)
        x[1, place] = np.nan
        (y,) = run_node(compiler, row, node_group(op, {"X": x}, {"Y": x.dtype}), {"X": x})
        assert np.isnan(y[1]).all()
        assert_close(y[::2], oracle(x[::2], -1).astype(np.float32), 1e-6)
