"""Searches and scans along an axis against NumPy."""

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from app.engine.backends.cpu.search import SCANNED
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.search import CHUNK
from tests.harness import assert_close
from tests.kernels.single_node import node_group, rejection_of, run_node

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(("op", "function"), [("ArgMax", np.argmax), ("ArgMin", np.argmin)])
@pytest.mark.parametrize(("shape", "axis"), [((4, 5, 37), -1), ((4, 5, 600), 1), ((9,), 0), ((3, 5000), 1)])
def test_positions_of_extrema_among_equals(
    compiler: Compiler, shape: tuple[int, ...], axis: int, op: str, function: Any, last: int
) -> None:
    x = np.random.default_rng(0).integers(0, 4, shape).astype(np.float32)
    group = node_group(op, {"X": x}, {"Y": np.int64}, axis=axis, keepdims=0, select_last_index=last)
    name = f"search.arg_{op[3:].lower()}"
    (y,) = run_node(compiler, name, group, {"X": x}, threads=2)
    want = x.shape[axis] - 1 - function(np.flip(x, axis), axis) if last else function(x, axis)
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_first_nan_is_the_extremum(compiler: Compiler, axis: int) -> None:
    x = np.zeros((6, 6), np.float32)
    x[2, 1] = x[2, 4] = x[5, 1] = np.nan
    group = node_group("ArgMax", {"X": x}, {"Y": np.int64}, axis=axis, keepdims=0)
    (y,) = run_node(compiler, "search.arg_max", group, {"X": x})
    np.testing.assert_array_equal(y, np.argmax(x, axis))


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int8, np.float16])
def test_one_extremum_at_any_place_of_a_long_row(compiler: Compiler, dtype: type, op: str, last: int) -> None:
    n = 2 * CHUNK + 19
    places = [0, 1, 15, 16, CHUNK - 1, CHUNK, n - 20, n - 19, n - 1]
    x = np.zeros((len(places), n), dtype)
    x[range(len(places)), places] = 7 if op == "ArgMax" else -7
    group = node_group(op, {"X": x}, {"Y": np.int64}, axis=1, keepdims=0, select_last_index=last)
    (y,) = run_node(compiler, f"search.arg_{op[3:].lower()}", group, {"X": x})
    np.testing.assert_array_equal(y, places)


@pytest.mark.parametrize("last", [0, 1])
def test_nan_in_a_long_row_is_the_extremum(compiler: Compiler, last: int) -> None:
    x = np.zeros((2, 3 * CHUNK), np.float32)
    x[0, [CHUNK + 3, CHUNK + 40, 2 * CHUNK]] = x[1, [5, 7]] = np.nan
    group = node_group("ArgMax", {"X": x}, {"Y": np.int64}, axis=1, keepdims=0, select_last_index=last)
    (y,) = run_node(compiler, "search.arg_max", group, {"X": x})
    np.testing.assert_array_equal(y, [2 * CHUNK, 7] if last else [CHUNK + 3, 5])


@pytest.mark.parametrize("axis", [0, 1])
def test_positions_of_unsigned_bytes(compiler: Compiler, axis: int) -> None:
    x = np.random.default_rng(1).integers(0, 255, (20, 20)).astype(np.uint8)
    group = node_group("ArgMax", {"X": x}, {"Y": np.int64}, axis=axis, keepdims=1)
    (y,) = run_node(compiler, "search.arg_max", group, {"X": x})
    np.testing.assert_array_equal(y, np.argmax(x, axis, keepdims=True))


def test_an_empty_axis_has_no_extremum() -> None:
    group = node_group("ArgMax", {"X": np.zeros((2, 0), np.float32)}, {"Y": np.int64}, axis=1)
    assert rejection_of("search.arg_max", group) == "the axis is empty"


def running(x: Array, axis: int, function: Any, start: int, exclusive: int, reverse: int) -> Array:
    z = np.flip(x, axis) if reverse else x
    z = function(z, axis)
    if exclusive:
        z = np.roll(z, 1, axis)
        np.moveaxis(z, axis, 0)[0] = start
    return np.flip(z, axis) if reverse else z


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "op", "function"), [("cum_sum", "CumSum", np.cumsum), ("cum_prod", "CumProd", np.cumprod)]
)
def test_running_sums_and_products(
    compiler: Compiler,
    name: str,
    op: str,
    function: Any,
    axis: int,
    exclusive: int,
    reverse: int,
    inplace: bool,
) -> None:
    x = np.random.default_rng(2).uniform(0.8, 1.2, (5, 6, 70)).astype(np.float32)
    inputs = {"X": x, "A": np.array(axis, np.int64)}
    group = node_group(
        op, inputs, {"Y": x.dtype}, constants=("A",), opset=26, exclusive=exclusive, reverse=reverse
    )
    (y,) = run_node(compiler, f"search.{name}", group, inputs, threads=2, inplace=inplace)
    start = 0 if op == "CumSum" else 1
    want = running(x.astype(np.float64), axis, function, start, exclusive, reverse)
    assert_close(y, want.astype(np.float32), 1e-6)


def test_running_sums_of_integers_are_exact(compiler: Compiler) -> None:
    x = np.random.default_rng(3).integers(-(2**40), 2**40, (3, 50))
    inputs = {"X": x, "A": np.array(-1, np.int64)}
    group = node_group("CumSum", inputs, {"Y": x.dtype}, constants=("A",))
    (y,) = run_node(compiler, "search.cum_sum", group, inputs)
    np.testing.assert_array_equal(y, np.cumsum(x, -1))


@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
@pytest.mark.parametrize("axis", [0, 1])
def test_searches_and_scans_of_16_bit_floats(compiler: Compiler, axis: int, dtype: Any) -> None:
    x = np.random.default_rng(8).integers(-40, 40, (21, 37)).astype(dtype)
    wide, threads = x.astype(np.float64), 2
    for reverse in (0, 1):
        inputs = {"X": x, "A": np.array(axis, np.int64)}
        group = node_group("CumSum", inputs, {"Y": dtype}, constants=("A",), opset=26, reverse=reverse)
        (sums,) = run_node(compiler, "search.cum_sum", group, inputs, threads=threads)
        want = running(wide, axis, np.cumsum, 0, 0, reverse)
        np.testing.assert_array_equal(sums, want.astype(dtype))
    group = node_group("ArgMax", {"X": x}, {"Y": np.int64}, axis=axis, keepdims=0)
    (places,) = run_node(compiler, "search.arg_max", group, {"X": x}, threads=threads)
    np.testing.assert_array_equal(places, np.argmax(wide, axis))
    group = node_group("Hardmax", {"X": x}, {"Y": dtype}, axis=axis)
    (ones,) = run_node(compiler, "search.hardmax", group, {"X": x}, threads=threads)
    want = np.zeros(x.shape)
    np.put_along_axis(want, np.argmax(wide, axis, keepdims=True), 1, axis)
    np.testing.assert_array_equal(ones.astype(np.float64), want)


def test_a_long_running_sum_keeps_its_digits(compiler: Compiler) -> None:
    x = np.random.default_rng(4).uniform(0, 1, 100_000).astype(np.float32)
    inputs = {"X": x, "A": np.array(0, np.int64)}
    group = node_group("CumSum", inputs, {"Y": x.dtype}, constants=("A",))
    (y,) = run_node(compiler, "search.cum_sum", group, inputs)
    np.testing.assert_allclose(y, np.cumsum(x.astype(np.float64)), rtol=1e-7)


@pytest.mark.parametrize("name", ["search.top_k", "search.top_k_radix"])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("k", [0, 1, 2, 7, 40])
@pytest.mark.parametrize(("shape", "axis"), [((3, 40), -1), ((40, 37), 0), ((2, 40, 3), 1)])
def test_largest_and_smallest_in_order_first_of_equals(
    compiler: Compiler, shape: tuple[int, ...], axis: int, k: int, largest: int, name: str
) -> None:
    x = np.random.default_rng(5).integers(0, 12, shape).astype(np.float32)
    inputs = {"X": x, "K": np.array([k], np.int64)}
    group = node_group(
        "TopK", inputs, {"Y": x.dtype, "I": np.int64}, constants=("K",), axis=axis, largest=largest
    )
    y, indices = run_node(compiler, name, group, inputs, threads=2)
    order = np.argsort(-x if largest else x, axis, kind="stable")
    want = np.take(order, np.arange(k), axis)
    np.testing.assert_array_equal(indices, want)
    np.testing.assert_array_equal(y, np.take_along_axis(x, want, axis))


@pytest.mark.parametrize("spread", [1e-3, 1e30])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("k", [3, 700])
@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, bfloat16, np.int64, np.uint8, np.int16]
)
def test_many_of_long_rows(compiler: Compiler, dtype: type, k: int, largest: int, spread: float) -> None:
    random = np.random.default_rng(7)
    x = np.clip(3 + spread * random.standard_normal((3, 5000)) ** 3, -1e30, 1e30)
    x = np.clip(x, -6e4, 6e4) if dtype == np.float16 else x
    if np.dtype(dtype).kind in "iu":
        x = (
            random.integers(0, 200, x.shape)
            if spread < 1
            else random.permutation(15000).reshape(x.shape) % 127
        )
    inputs = {"X": x.astype(dtype), "K": np.array([k], np.int64)}
    opset = 24 if dtype in (np.uint8, np.int16, bfloat16) else 23
    group = node_group(
        "TopK", inputs, {"Y": dtype, "I": np.int64}, constants=("K",), opset=opset, largest=largest
    )
    wide = inputs["X"].astype(np.float64 if dtype != np.int64 else np.int64)
    order = np.argsort(-wide if largest else wide, 1, kind="stable")[:, :k]
    for name in ("search.top_k", "search.top_k_radix"):
        y, indices = run_node(compiler, name, group, inputs, threads=2)
        np.testing.assert_array_equal(indices, order)
        np.testing.assert_array_equal(y, np.take_along_axis(inputs["X"], order, 1))


@pytest.mark.parametrize("k", [2, 6])
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("name", ["search.top_k", "search.top_k_radix"])
def test_nan_counts_as_the_largest(compiler: Compiler, name: str, columns: int, k: int) -> None:
    x = np.array([1, np.nan, 3, -np.inf, np.nan, np.inf], np.float32)
    inputs = {"X": np.stack([x] * columns, 1), "K": np.array([k], np.int64)}
    group = node_group("TopK", inputs, {"Y": x.dtype, "I": np.int64}, constants=("K",), axis=0)
    _, indices = run_node(compiler, name, group, inputs)
    np.testing.assert_array_equal(indices, np.stack([[1, 4, 5, 2, 0, 3][:k]] * columns, 1))


def test_largest_of_64_bit_integers_beyond_float_precision(compiler: Compiler) -> None:
    x = np.array([2**63 + 1, 2**63 + 2, 5, 2**64 - 1], np.uint64)
    inputs = {"X": x, "K": np.array([3], np.int64)}
    group = node_group("TopK", inputs, {"Y": x.dtype, "I": np.int64}, constants=("K",), opset=24)
    y, indices = run_node(compiler, "search.top_k", group, inputs)
    np.testing.assert_array_equal(indices, [3, 1, 0])
    np.testing.assert_array_equal(y, x[[3, 1, 0]])


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((3, 4, 9), -1), ((3, 4, 9), 0), ((5,), 0), ((3, 0), 1)])
def test_hardmax_marks_the_first_maximum(
    compiler: Compiler, shape: tuple[int, ...], axis: int, inplace: bool
) -> None:
    x = np.random.default_rng(6).integers(0, 4, shape).astype(np.float32)
    group = node_group("Hardmax", {"X": x}, {"Y": x.dtype}, axis=axis)
    (y,) = run_node(compiler, "search.hardmax", group, {"X": x}, threads=2, inplace=inplace)
    want = np.zeros(shape, np.float32)
    if x.size:
        np.put_along_axis(want, np.argmax(x, axis, keepdims=True), 1, axis)
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("outer", [1, 4])
def test_running_sums_of_more_columns_than_are_worked_on_side_by_side(
    compiler: Compiler, outer: int, threads: int
) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (outer, 6, 2 * SCANNED + 5))
    inputs = {"X": x, "A": np.array(1)}
    group = node_group("CumSum", inputs, {"Y": x.dtype}, constants=("A",))
    (y,) = run_node(compiler, "search.cum_sum", group, inputs, threads=threads)
    np.testing.assert_array_equal(y, np.cumsum(x, 1))
