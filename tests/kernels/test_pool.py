"""Pooling rows against windows walked one by one in float64."""

import itertools
from typing import Any

import numpy as np
import pytest

from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import assert_close
from tests.kernels.single_node import node_group, rejection_of, run_node

Array = np.ndarray[Any, Any]


def pooled(x: Array, out: tuple[int, ...], kernel: Any, strides: Any, pads: Any, dilations: Any) -> Any:
    """Yield output index, indices of the window inside x, number of taps inside x and its padding."""
    rank = len(kernel)
    for at in itertools.product(*(range(n) for n in out)):
        inside, padded = [], 0
        for tap in itertools.product(*(range(k) for k in kernel)):
            p = [a * s - b + t * d for a, s, b, t, d in zip(at, strides, pads[:rank], tap, dilations)]
            if all(0 <= q < n for q, n in zip(p, x.shape[2:])):
                inside.append(tuple(p))
            if all(-b <= q < n + e for q, n, b, e in zip(p, x.shape[2:], pads[:rank], pads[rank:])):
                padded += 1
        yield at, inside, padded


def expected(x: Array, y: Array, op: str, **a: Any) -> Array:
    """The result of a pooling node, of the extents of y."""
    rank = x.ndim - 2
    kernel, pads = a["kernel_shape"], a.get("pads", [0] * 2 * rank)
    found = np.zeros(y.shape)
    for at, inside, padded in pooled(
        x, y.shape[2:], kernel, a.get("strides", [1] * rank), pads, a.get("dilations", [1] * rank)
    ):
        values = np.stack([x[(slice(None), slice(None), *i)] for i in inside], -1).astype(np.float64)
        if op == "MaxPool":
            result = values.max(-1)
        elif op == "AveragePool":
            result = values.sum(-1) / (padded if a.get("count_include_pad") else len(inside))
        else:
            p = a.get("p", 2)
            result = (np.abs(values) ** p).sum(-1) ** (1 / p)
        found[(slice(None), slice(None), *at)] = result
    return found.astype(y.dtype)


CASES = [
    ((2, 3, 9, 11), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 2, 7, 37), {"kernel_shape": [3, 3], "pads": [1, 0, 0, 1]}),
    ((1, 2, 8, 34), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((1, 2, 10, 9), {"kernel_shape": [5, 4], "strides": [1, 3], "pads": [2, 1, 1, 2]}),
    ((1, 2, 10, 12), {"kernel_shape": [3, 3], "dilations": [2, 3], "strides": [2, 1], "pads": [1, 2, 1, 2]}),
    ((1, 1, 6, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ((1, 1, 8, 8), {"kernel_shape": [3, 2], "strides": [3, 3], "ceil_mode": 1, "pads": [1, 1, 1, 1]}),
    ((2, 2, 19), {"kernel_shape": [3], "strides": [2], "pads": [0, 1]}),
    ((1, 2, 4, 5, 6), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2], "pads": [1, 1, 0, 0, 1, 1]}),
    ((0, 2, 8, 34), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ((1, 3, 75), {"kernel_shape": [4], "strides": [4], "pads": [1, 2]}),
    ((1, 2, 9, 90), {"kernel_shape": [5, 5], "strides": [1, 4], "pads": [2, 2, 2, 2]}),
    ((1, 2, 9, 131), {"kernel_shape": [3, 1], "strides": [2, 1], "pads": [1, 0, 1, 0], "dilations": [2, 1]}),
    ((2, 1, 6, 7, 93), {"kernel_shape": [3, 2, 1], "strides": [2, 3, 1], "pads": [1, 0, 0, 1, 1, 0]}),
    ((1, 2, 7, 150), {"kernel_shape": [4, 9], "strides": [2, 8], "pads": [0, 1, 2, 3]}),
]


def check(
    compiler: Compiler, row: str, op: str, x: Array, attributes: dict[str, Any], threads: int = 1
) -> None:
    group = node_group(op, {"X": x}, {"Y": x.dtype}, **attributes)
    (y,) = run_node(compiler, row, group, {"X": x}, threads=threads)
    assert_close(y, expected(x, y, op, **attributes), 1e-6)


@pytest.mark.parametrize(("shape", "attributes"), CASES)
@pytest.mark.parametrize(
    ("row", "op", "more"),
    [
        ("pool.max", "MaxPool", {}),
        ("pool.average", "AveragePool", {}),
        ("pool.average", "AveragePool", {"count_include_pad": 1}),
    ],
)
def test_windows_of_any_form(
    compiler: Compiler,
    row: str,
    op: str,
    more: dict[str, Any],
    shape: tuple[int, ...],
    attributes: dict[str, Any],
) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    check(compiler, row, op, x, {**attributes, **more}, threads=1 + len(more))


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_norms_of_windows(compiler: Compiler, p: int) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 9, 11)).astype(np.float32)
    check(compiler, "pool.lp", "LpPool", x, {"kernel_shape": [3, 3], "strides": [2, 2], "p": p}, threads=2)


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.uint8])
def test_maximum_of_other_element_types(compiler: Compiler, dtype: Any) -> None:
    x = np.random.default_rng(2).integers(-128 if dtype != np.uint8 else 0, 127, (1, 3, 9, 70)).astype(dtype)
    check(compiler, "pool.max", "MaxPool", x, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]})
    for width in (5, 16, 63, 70, 343):
        x = np.resize(x, (2, 1, 5, 6, width))
        check(compiler, "pool.max", "MaxPool", x, {"kernel_shape": [3, 2, 1], "strides": [2, 2, 1]})


def test_average_in_double_precision(compiler: Compiler) -> None:
    x = np.random.default_rng(3).standard_normal((1, 3, 9, 70))
    group = node_group("AveragePool", {"X": x}, {"Y": x.dtype}, kernel_shape=[3, 3])
    (y,) = run_node(compiler, "pool.average", group, {"X": x})
    assert_close(y, expected(x, y, "AveragePool", kernel_shape=[3, 3]), 1e-14)


@pytest.mark.parametrize(("automatic", "pads"), [("SAME_UPPER", [1, 0, 1, 1]), ("SAME_LOWER", [1, 1, 1, 0])])
def test_automatic_padding_is_what_the_names_say(compiler: Compiler, automatic: str, pads: list[int]) -> None:
    x = np.random.default_rng(4).standard_normal((1, 2, 7, 9)).astype(np.float32)
    attributes = {"kernel_shape": [3, 2], "strides": [2, 1]}
    group = node_group("AveragePool", {"X": x}, {"Y": x.dtype}, auto_pad=automatic, **attributes)
    (y,) = run_node(compiler, "pool.average", group, {"X": x})
    assert y.shape == (1, 2, 4, 9)
    assert_close(y, expected(x, y, "AveragePool", pads=pads, **attributes), 1e-6)


def test_a_maximum_keeps_nan(compiler: Compiler) -> None:
    x = np.zeros((1, 1, 4, 40), np.float32)
    x[0, 0, 1, 5] = np.nan
    group = node_group("MaxPool", {"X": x}, {"Y": x.dtype}, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    (y,) = run_node(compiler, "pool.max", group, {"X": x})
    assert np.isnan(y[0, 0, :3, 4:7]).all()
    assert np.isnan(y).sum() == 9


@pytest.mark.parametrize("by_column", [0, 1])
@pytest.mark.parametrize(("shape", "attributes"), [CASES[0], CASES[4], CASES[6], CASES[7], CASES[8]])
def test_indices_point_at_the_first_maximum(
    compiler: Compiler, shape: tuple[int, ...], attributes: dict[str, Any], by_column: int
) -> None:
    x = np.random.default_rng(5).integers(0, 5, shape).astype(np.float32)
    group = node_group(
        "MaxPool", {"X": x}, {"Y": x.dtype, "I": np.int64}, storage_order=by_column, **attributes
    )
    y, indices = run_node(compiler, "pool.max_with_indices", group, {"X": x}, threads=2)
    assert_close(y, expected(x, y, "MaxPool", **attributes))
    rank = x.ndim - 2
    order = "F" if by_column else "C"
    volume = int(np.prod(shape[2:]))
    for at, inside, _ in pooled(
        x,
        y.shape[2:],
        attributes["kernel_shape"],
        attributes.get("strides", [1] * rank),
        attributes.get("pads", [0] * 2 * rank),
        attributes.get("dilations", [1] * rank),
    ):
        for n, c in itertools.product(range(shape[0]), range(shape[1])):
            first = max(inside, key=lambda i: (x[(n, c, *i)], [-q for q in i]))
            position = (n * shape[1] + c) * volume + np.ravel_multi_index(first, shape[2:], order=order)
            assert indices[(n, c, *at)] == position


def test_four_spatial_axes_are_refused() -> None:
    x = np.zeros((1, 1, 2, 2, 2, 2), np.float32)
    group = node_group("MaxPool", {"X": x}, {"Y": x.dtype}, kernel_shape=[1, 1, 1, 1])
    assert "rank 6" in str(rejection_of("pool.max", group))


def test_read_indices_choose_the_implementation() -> None:
    x = np.zeros((1, 1, 4, 4), np.float32)
    plain = node_group("MaxPool", {"X": x}, {"Y": x.dtype}, kernel_shape=[2, 2])
    indexed = node_group("MaxPool", {"X": x}, {"Y": x.dtype, "I": np.int64}, kernel_shape=[2, 2])
    assert rejection_of("pool.max", plain) is None
    assert rejection_of("pool.max_with_indices", indexed) is None
    assert rejection_of("pool.max", indexed) == "the indices are read"
    assert rejection_of("pool.max_with_indices", plain) == "nothing reads the indices"
