"""Normalization rows against NumPy in float64."""

from typing import Any

import numpy as np
import pytest

from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import assert_close, context, implementation
from tests.kernels.single_node import REGISTRY, node_group, rejection_of, run_node

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
    assert "does not repeat" in str(rejection_of("normalize.layer_norm", group))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("operand", [(65,), (7, 65), ()])
def test_rms_normalization(compiler: Compiler, operand: tuple[int, ...], dtype: Any) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((5, 7, 65)).astype(dtype)
    inputs = {"X": x, "S": rng.standard_normal(operand).astype(dtype)}
    group = node_group("RMSNormalization", inputs, {"Y": dtype}, axis=1)
    (y,) = run_node(compiler, "normalize.rms_norm", group, inputs, threads=2, inplace=True)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide * wide).mean((1, 2), keepdims=True) + 1e-5) * inputs["S"]
    assert_close(y, want.astype(dtype), 1e-6 if dtype == np.float32 else 1e-14)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(("op", "groups"), [("GroupNormalization", 3), ("InstanceNormalization", 6)])
@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (3, 6, 11)])
def test_groups_of_channels(
    compiler: Compiler, shape: tuple[int, ...], op: str, groups: int, inplace: bool
) -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(shape) + 5).astype(np.float32)
    inputs = {
        "X": x,
        "S": rng.standard_normal(6).astype(np.float32),
        "B": rng.standard_normal(6).astype(np.float32),
    }
    attributes = {"num_groups": groups} if op == "GroupNormalization" else {}
    group = node_group(op, inputs, {"Y": x}, epsilon=1e-2, **attributes)
    row = {"GroupNormalization": "group_norm", "InstanceNormalization": "instance_norm"}[op]
    (y,) = run_node(compiler, f"normalize.{row}", group, inputs, threads=2, inplace=inplace)
    z = standardized(x.reshape(shape[0], groups, -1), 2, 1e-2)[0].reshape(shape[0], 6, -1)
    want = (z * inputs["S"][:, None] + inputs["B"][:, None]).reshape(shape)
    assert_close(y, want.astype(np.float32), 2e-6)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("shape", [(2, 5, 4, 9), (7, 33), (2, 3, 1)])
@pytest.mark.parametrize("statistics", [np.float32, np.float64])
def test_batch_normalization(
    compiler: Compiler, shape: tuple[int, ...], statistics: Any, inplace: bool
) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal(shape).astype(np.float32)
    c = shape[1]
    inputs = {
        "X": x,
        "S": rng.standard_normal(c).astype(np.float32),
        "B": rng.standard_normal(c).astype(np.float32),
        "M": rng.standard_normal(c).astype(statistics),
        "V": rng.uniform(0.1, 2, c).astype(statistics),
    }
    group = node_group("BatchNormalization", inputs, {"Y": x.dtype}, epsilon=1e-3)
    (y,) = run_node(compiler, "normalize.batch_norm", group, inputs, threads=2, inplace=inplace)
    s, b, m, v = (inputs[k].astype(np.float64).reshape(c, *(1,) * (x.ndim - 2)) for k in "SBMV")
    assert_close(y, ((x - m) / np.sqrt(v + 1e-3) * s + b).astype(np.float32), 1e-6)


def test_statistics_that_the_batch_gives_are_refused() -> None:
    inputs = {"X": np.zeros((2, 3, 4), np.float32), **{k: np.ones(3, np.float32) for k in "SBMV"}}
    group = node_group("BatchNormalization", inputs, {"Y": inputs["X"]}, training_mode=1)
    assert "training mode" in str(rejection_of("normalize.batch_norm", group))


@pytest.mark.parametrize(("size", "beta"), [(5, 0.75), (4, 0.75), (3, 0.6)])
@pytest.mark.parametrize("shape", [(2, 7, 3, 5), (1, 4, 700)])
def test_local_response_normalization(
    compiler: Compiler, shape: tuple[int, ...], size: int, beta: float
) -> None:
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    attributes = {"size": size, "alpha": 0.5, "beta": beta, "bias": 2.0}
    group = node_group("LRN", {"X": x}, {"Y": x.dtype}, **attributes)
    (y,) = run_node(compiler, "normalize.local_response", group, {"X": x}, threads=2)
    squares = x.astype(np.float64) ** 2
    total = np.zeros_like(squares)
    for c in range(shape[1]):
        total[:, c] = squares[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].sum(1)
    assert_close(y, (x / (2 + 0.5 / size * total) ** beta).astype(np.float32), 1e-6)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize(("shape", "axis"), [((4, 5, 33), -1), ((4, 5, 33), 1), ((6,), 0)])
def test_lp_normalization_leaves_zeros(
    compiler: Compiler, shape: tuple[int, ...], axis: int, p: int, inplace: bool
) -> None:
    x = np.random.default_rng(6).standard_normal(shape).astype(np.float32)
    if x.ndim > 1:
        np.moveaxis(x, axis, 0)[:, 1] = 0
    group = node_group("LpNormalization", {"X": x}, {"Y": x.dtype}, axis=axis, p=p)
    (y,) = run_node(compiler, "normalize.lp_norm", group, {"X": x}, threads=2, inplace=inplace)
    norm = np.linalg.norm(x.astype(np.float64), p, axis, keepdims=True)
    assert_close(y, (x / np.where(norm == 0, 1, norm)).astype(np.float32), 1e-6)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("axes", [(0, 2, 3), (1, 2, 3), (3,), (0, 1, 2), (0, 2)])
def test_mean_variance_normalization(compiler: Compiler, axes: tuple[int, ...], inplace: bool) -> None:
    x = (np.random.default_rng(7).standard_normal((3, 4, 5, 6)) * 2 + 3).astype(np.float32)
    group = node_group("MeanVarianceNormalization", {"X": x}, {"Y": x.dtype}, axes=list(axes))
    (y,) = run_node(compiler, "normalize.mean_variance", group, {"X": x}, threads=2, inplace=inplace)
    assert_close(y, standardized(x, axes, 0)[0].astype(np.float32), 2e-6)


def test_an_input_that_is_also_the_scale_is_not_overwritten() -> None:
    x = np.ones((1, 4), np.float32)
    group = node_group("RMSNormalization", {"X": x}, {"Y": x.dtype}, repeat=("X",))
    assert implementation("normalize.rms_norm", REGISTRY).inplace(group, context()) == ()
