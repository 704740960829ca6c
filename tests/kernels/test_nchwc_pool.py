"""Pooling over images that are blocked or have channels last, against windows walked one by one in float64."""

from typing import Any

import numpy as np
import pytest

from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness
from tests.kernels.single_node import node_group, rejection_of
from tests.kernels.test_pool import expected

Array = np.ndarray[Any, Any]

CASES = [
    ((2, 20, 9, 11), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 3, 10, 9), {"kernel_shape": [5, 4], "strides": [1, 3], "pads": [2, 1, 1, 2]}),
    ((1, 33, 10, 12), {"kernel_shape": [3, 3], "dilations": [2, 3], "pads": [1, 2, 1, 2]}),
    ((1, 8, 8, 8), {"kernel_shape": [3, 2], "strides": [3, 3], "ceil_mode": 1, "pads": [1, 1, 1, 1]}),
    ((1, 8, 15, 17), {"kernel_shape": [9, 9], "strides": [4, 5], "pads": [4, 4, 4, 4]}),
]


@pytest.mark.parametrize(("shape", "attributes"), CASES)
@pytest.mark.parametrize(
    ("row", "op", "more", "lanes"),
    [
        ("max_pool.blocked", "MaxPool", {}, 8),
        ("average_pool.blocked", "AveragePool", {}, 16),
        ("average_pool.blocked", "AveragePool", {"count_include_pad": 1}, 16),
        ("max_pool.last", "MaxPool", {}, 8),
        ("average_pool.last", "AveragePool", {}, 16),
        ("average_pool.last", "AveragePool", {"count_include_pad": 1}, 8),
    ],
)
def test_windows_of_any_form(
    compiler: Compiler,
    row: str,
    op: str,
    more: dict[str, Any],
    lanes: int,
    shape: tuple[int, ...],
    attributes: dict[str, Any],
) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    group = node_group(op, {"X": x}, {"Y": x.dtype}, **attributes, **more)
    (y,) = harness.run_group(
        harness.implementation(row), group, {"X": x}, compiler, threads=1 + len(more), lanes=lanes
    )
    harness.assert_close(y, expected(x, y, op, **attributes, **more), 1e-6)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("shape", [(2, 20, 5, 7), (1, 33, 41, 31), (3, 8, 1, 1)])
@pytest.mark.parametrize(
    ("row", "op", "keepdims"),
    [
        ("global_average_pool.blocked", "GlobalAveragePool", None),
        ("global_max_pool.blocked", "GlobalMaxPool", None),
        ("reduce_mean.blocked", "ReduceMean", 1),
        ("reduce_mean.blocked", "ReduceMean", 0),
        ("reduce_max.blocked", "ReduceMax", 0),
        ("global_average_pool.last", "GlobalAveragePool", None),
        ("global_max_pool.last", "GlobalMaxPool", None),
        ("reduce_mean.last", "ReduceMean", 0),
    ],
)
def test_whole_images(
    compiler: Compiler, row: str, op: str, keepdims: int | None, shape: tuple[int, ...], lanes: int
) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    inputs: dict[str, Array | None] = {"X": x}
    more: dict[str, Any] = {}
    if keepdims is not None:
        inputs["axes"], more = np.array([3, -2]), {"keepdims": keepdims}
    group = node_group(op, inputs, {"Y": x.dtype}, constants=tuple(inputs)[1:], **more)
    (y,) = harness.run_group(harness.implementation(row), group, {"X": x}, compiler, threads=2, lanes=lanes)
    reduce = np.max if "max" in row else np.mean
    harness.assert_close(
        y, reduce(x.astype(np.float64), (2, 3), keepdims=keepdims != 0).astype(np.float32), 1e-6
    )


def test_other_axes_than_pixels_are_refused() -> None:
    x, axes = np.zeros((1, 8, 4, 4), np.float32), np.array([1])
    group = node_group("ReduceMean", {"X": x, "axes": axes}, {"Y": x.dtype}, constants=("axes",))
    assert "reduces axes (1,)" in str(rejection_of("reduce_mean.blocked", group))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(("shape", "attributes"), CASES)
def test_bytes_with_channels_last(
    compiler: Compiler, shape: tuple[int, ...], attributes: dict[str, Any], dtype: str
) -> None:
    limits = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)
    group = node_group("MaxPool", {"X": x}, {"Y": x.dtype}, **attributes)
    (y,) = harness.run_group(harness.implementation("max_pool.last"), group, {"X": x}, compiler, threads=2)
    np.testing.assert_array_equal(y, expected(x, y, "MaxPool", **attributes))
    assert "is for float32" in str(rejection_of("max_pool.blocked", group))


@pytest.mark.parametrize("row", ["max_pool.blocked", "max_pool.last"])
def test_a_maximum_keeps_nan(compiler: Compiler, row: str) -> None:
    x = np.zeros((1, 8, 6, 6), np.float32)
    x[0, 2, 1, 3] = np.nan
    group = node_group("MaxPool", {"X": x}, {"Y": x.dtype}, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    (y,) = harness.run_group(harness.implementation(row), group, {"X": x}, compiler)
    assert np.isnan(y[0, 2, :3, 2:5]).all()
    assert np.isnan(y).sum() == 9
