"""Reductions against NumPy in float64, over every pattern of axes."""

from typing import Any

import numpy as np
import pytest

from app.engine.backends.cpu.reduce import collapse
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import assert_close
from tests.kernels.single_node import node_group, rejection_of, run_node, run_text

Array = np.ndarray[Any, Any]

OPERATIONS: dict[str, Any] = {
    "ReduceSum": lambda x, a: x.sum(a, keepdims=True),
    "ReduceMean": lambda x, a: x.mean(a, keepdims=True),
    "ReduceMax": lambda x, a: x.max(a, keepdims=True, initial=-np.inf),
    "ReduceMin": lambda x, a: x.min(a, keepdims=True, initial=np.inf),
    "ReduceProd": lambda x, a: x.prod(a, keepdims=True),
    "ReduceL1": lambda x, a: np.abs(x).sum(a, keepdims=True),
    "ReduceL2": lambda x, a: np.sqrt((x * x).sum(a, keepdims=True)),
    "ReduceLogSum": lambda x, a: np.log(x.sum(a, keepdims=True)),
    "ReduceLogSumExp": lambda x, a: np.log(np.exp(x).sum(a, keepdims=True)),
    "ReduceSumSquare": lambda x, a: (x * x).sum(a, keepdims=True),
}


def reduce(
    compiler: Compiler, op: str, x: Array, axes: tuple[int, ...] | None, threads: int = 1, **attributes: Any
) -> Array:
    given = None if axes is None else np.array(axes, np.int64)
    inputs = {"X": x, "A": given}
    group = node_group(op, inputs, {"Y": x.dtype}, constants=("A",), **attributes)
    (y,) = run_node(compiler, f"reduce.{op}", group, {"X": x}, threads=threads)
    return y


@pytest.mark.parametrize("axes", [(-1,), (0,), (1,), (0, 2), (1, 3), (0, 1, 2, 3), (2, 3), (0, 1)])
def test_every_pattern_of_kept_and_reduced_axes(compiler: Compiler, axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((3, 5, 7, 37)).astype(np.float32)
    y = reduce(compiler, "ReduceSum", x, axes, threads=2)
    assert_close(y, x.astype(np.float64).sum(axes, keepdims=True).astype(np.float32), 1e-6)


@pytest.mark.parametrize("axes", [(0, 2, 4), (1, 3, 5), (2, 4), (0, 3)])
def test_alternating_axes_up_to_rank_six(compiler: Compiler, axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 3, 2, 5)).astype(np.float32)
    y = reduce(compiler, "ReduceMax", x, axes, keepdims=0)
    np.testing.assert_array_equal(y, x.max(axes))


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("axes", [(1, 2), (0, 1)])
def test_operations_on_floats(compiler: Compiler, op: str, axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(2).uniform(0.5, 1.5, (4, 6, 33)).astype(np.float32)
    if op in ("ReduceL1", "ReduceL2"):
        x[0] *= -1
    y = reduce(compiler, op, x, axes)
    assert_close(y, OPERATIONS[op](x.astype(np.float64), axes).astype(np.float32), 2e-6)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMin", "ReduceLogSumExp"])
@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_operations_in_double_precision(compiler: Compiler, op: str, axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(3).uniform(0.5, 1.5, (9, 21))
    assert_close(reduce(compiler, op, x, axes), OPERATIONS[op](x, axes), 1e-14)


@pytest.mark.parametrize("axes", [(0,), (1,)])
@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("ReduceSum", np.int32),
        ("ReduceSum", np.int64),
        ("ReduceProd", np.int32),
        ("ReduceL1", np.int64),
        ("ReduceSumSquare", np.int32),
        ("ReduceMax", np.int64),
        ("ReduceMax", np.uint8),
        ("ReduceMin", np.int8),
    ],
)
def test_integers_are_exact(compiler: Compiler, op: str, dtype: Any, axes: tuple[int, ...]) -> None:
    low, high = (0, 255) if dtype == np.uint8 else (-100, 100)
    x = np.random.default_rng(4).integers(low, high, (5, 70)).astype(dtype)
    oracle = {
        **OPERATIONS,
        "ReduceMax": lambda x, a: x.max(a, keepdims=True),
        "ReduceMin": lambda x, a: x.min(a, keepdims=True),
    }
    wide = x.astype(np.int64)
    np.testing.assert_array_equal(reduce(compiler, op, x, axes), oracle[op](wide, axes).astype(dtype))


def test_an_integer_mean_truncates_towards_zero(compiler: Compiler) -> None:
    x = np.array([[-7, 0], [7, 0], [-3, -4]], np.int64)
    np.testing.assert_array_equal(reduce(compiler, "ReduceMean", x, (1,), keepdims=0), [-3, 3, -3])


def test_booleans_reduce_to_any_and_all(compiler: Compiler) -> None:
    x = np.array([[True, False, True], [True, True, True], [False, False, False]])
    np.testing.assert_array_equal(reduce(compiler, "ReduceMax", x, (1,), keepdims=0), x.any(1))
    np.testing.assert_array_equal(reduce(compiler, "ReduceMin", x, (1,), keepdims=0), x.all(1))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_sum_of_a_hundred_thousand_floats_keeps_its_digits(compiler: Compiler, axis: int) -> None:
    x = np.random.default_rng(5).uniform(0, 1, 200_000).astype(np.float32)
    x = x.reshape(2, -1) if axis else x.reshape(-1, 2)
    y = reduce(compiler, "ReduceSum", x, (axis,))
    exact = x.astype(np.float64).sum(axis, keepdims=True)
    assert np.max(np.abs(y / exact - 1)) < 1e-6


@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_extrema_keep_nan(compiler: Compiler, axes: tuple[int, ...]) -> None:
    x = np.zeros((40, 40), np.float32)
    x[3, 35] = np.nan
    np.testing.assert_array_equal(reduce(compiler, "ReduceMax", x, axes), x.max(axes, keepdims=True))
    np.testing.assert_array_equal(reduce(compiler, "ReduceMin", x, axes), x.min(axes, keepdims=True))


@pytest.mark.parametrize("shape", [(3, 0), (0, 3)])
@pytest.mark.parametrize(
    ("op", "identity"),
    [
        ("ReduceSum", 0),
        ("ReduceProd", 1),
        ("ReduceMax", -np.inf),
        ("ReduceMin", np.inf),
        ("ReduceLogSumExp", -np.inf),
    ],
)
def test_an_empty_set_gives_the_identity(
    compiler: Compiler, op: str, identity: float, shape: tuple[int, ...]
) -> None:
    y = reduce(compiler, op, np.zeros(shape, np.float32), (shape.index(0),), keepdims=0)
    np.testing.assert_array_equal(y, np.full(3, identity, np.float32))


def test_no_output_needs_no_work(compiler: Compiler) -> None:
    assert reduce(compiler, "ReduceSum", np.zeros((3, 0, 2), np.float32), (0,)).shape == (1, 0, 2)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_single_elements_of_any_rank(compiler: Compiler, shape: tuple[int, ...]) -> None:
    x = np.full(shape, 3, np.float32)
    y = reduce(compiler, "ReduceSumSquare", x, None, keepdims=0)
    np.testing.assert_array_equal(y, np.float32(9))
    assert y.shape == ()


def test_no_axes_mean_all_or_none(compiler: Compiler) -> None:
    x = np.random.default_rng(6).uniform(0, 1, (2, 3)).astype(np.float32)
    assert_close(reduce(compiler, "ReduceSum", x, (), keepdims=0), x.sum())
    np.testing.assert_array_equal(reduce(compiler, "ReduceSum", x, (), noop_with_empty_axes=1), x)


def test_infinite_exponents_do_not_turn_into_nan(compiler: Compiler) -> None:
    x = np.array([[-np.inf, -np.inf], [np.inf, 0], [1000, 1000]], np.float32)
    want = np.array([-np.inf, np.inf, 1000 + np.log(2)], np.float32)
    np.testing.assert_allclose(reduce(compiler, "ReduceLogSumExp", x, (1,), keepdims=0), want)
    np.testing.assert_allclose(reduce(compiler, "ReduceLogSumExp", x.T.copy(), (0,), keepdims=0), want)


@pytest.mark.parametrize("width", [2, 6, 37, 300])
@pytest.mark.parametrize("count", [1, 7, 60])
def test_exponents_of_short_rows_are_added_several_rows_at_a_time(
    compiler: Compiler, width: int, count: int
) -> None:
    x = np.random.default_rng(8).uniform(-30, 30, (2, count, width)).astype(np.float32)
    x[0, :, 1], x[1, 0, 0] = -np.inf, np.inf
    with np.errstate(divide="ignore"):
        want = np.logaddexp.reduce(x.astype(np.float64), 1)
    assert_close(reduce(compiler, "ReduceLogSumExp", x, (1,), keepdims=0), want.astype(np.float32), 2e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("order", [1, 3, 8])
def test_global_norms_have_any_order(compiler: Compiler, order: int, dtype: str) -> None:
    x = np.random.default_rng(3).standard_normal((2, 5, 70, 7)).astype(dtype)
    (found,) = run_text(compiler, "reduce.GlobalLpPool", f"GlobalLpPool <p = {order}> (x)", {"x": x})
    expected = (np.abs(x.astype(np.float64)) ** order).sum((2, 3), keepdims=True) ** (1 / order)
    assert_close(found, expected.astype(dtype))


@pytest.mark.parametrize(
    ("row", "op", "oracle"),
    [
        ("reduce.GlobalAveragePool", "GlobalAveragePool", lambda x, a: x.mean(a, keepdims=True)),
        ("reduce.GlobalMaxPool", "GlobalMaxPool", lambda x, a: x.max(a, keepdims=True)),
        ("reduce.GlobalLpPool", "GlobalLpPool", lambda x, a: np.sqrt((x * x).sum(a, keepdims=True))),
    ],
)
@pytest.mark.parametrize("shape", [(2, 5, 49), (2, 5, 7, 7), (1, 3, 3, 4, 5)])
def test_global_pools_of_any_rank(
    compiler: Compiler, row: str, op: str, oracle: Any, shape: tuple[int, ...]
) -> None:
    x = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    (y,) = run_node(compiler, row, node_group(op, {"X": x}, {"Y": x.dtype}, opset=22), {"X": x}, threads=2)
    assert_close(y, oracle(x.astype(np.float64), tuple(range(2, x.ndim))).astype(np.float32), 1e-6)


def test_axes_that_only_a_run_knows_are_refused() -> None:
    x, axes = np.zeros((2, 3), np.float32), np.array([0], np.int64)
    group = node_group("ReduceSum", {"X": x, "A": axes}, {"Y": x.dtype}, keepdims=1)
    assert rejection_of("reduce.ReduceSum", group) is not None


def test_neighbouring_axes_of_a_kind_become_one() -> None:
    found = collapse((2, 3, 1, 5, 7), (0, 1, 4))
    assert found.reduced == ((6, 35), (7, 1))
    assert found.kept == ((5, 7),)
    assert found.inner_reduced
    assert (found.outputs, found.count) == (5, 42)
