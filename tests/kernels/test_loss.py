"""Losses against their definition in float64, and determinants against NumPy."""

from typing import Any

import numpy as np
import pytest

from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import assert_close
from tests.kernels.single_node import node_group, run_node

Array = np.ndarray[Any, Any]


def likelihood(
    scores: Array, target: Array, weight: Array | None, ignored: int | None, reduction: str
) -> Array:
    """Negative log likelihood of scores [n, c, ...] for labels [n, ...]."""
    keep = np.ones(target.shape, bool) if ignored is None else target != ignored
    label = np.where(keep, target, 0)
    picked = -np.take_along_axis(scores, label[:, None], 1)[:, 0]
    w = (np.ones(scores.shape[1]) if weight is None else weight.astype(np.float64))[label] * keep
    if reduction == "none":
        return np.asarray(picked * w)
    return np.asarray((picked * w).sum() / (w.sum() if reduction == "mean" else 1))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, -1, 2])
@pytest.mark.parametrize("inner", [(), (4, 5)])
def test_losses_of_labels(
    compiler: Compiler, inner: tuple[int, ...], ignored: int | None, weighted: bool, reduction: str
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 6, *inner)).astype(np.float32)
    target = rng.integers(0, 6, (3, *inner))
    if ignored is not None:
        target.reshape(-1)[::3] = ignored
    weight = rng.uniform(0.5, 2, 6).astype(np.float32) if weighted else None
    inputs = {"X": x, "T": target, "W": weight}
    attributes = {} if ignored is None else {"ignore_index": ignored}
    group = node_group("NegativeLogLikelihoodLoss", inputs, {"Y": x.dtype}, reduction=reduction, **attributes)
    (y,) = run_node(compiler, "loss.likelihood", group, inputs)
    wide = x.astype(np.float64)
    assert_close(y, likelihood(wide, target, weight, ignored, reduction).astype(np.float32), 1e-6)
    log = wide - wide.max(1, keepdims=True)
    log -= np.log(np.exp(log).sum(1, keepdims=True))
    want = likelihood(log, target, weight, ignored, reduction).astype(np.float32)
    for outputs in ({"Y": x.dtype}, {"Y": x.dtype, "L": x.dtype}):
        group = node_group("SoftmaxCrossEntropyLoss", inputs, outputs, reduction=reduction, **attributes)
        y, *rest = run_node(compiler, "loss.cross_entropy", group, inputs, threads=2)
        assert_close(y, want, 1e-6)
        for found in rest:
            assert_close(found, log.astype(np.float32), 1e-6)


def test_a_label_that_names_no_class_gives_nan(compiler: Compiler) -> None:
    x = np.zeros((3, 4), np.float32)
    inputs = {"X": x, "T": np.array([1, 4, -7], np.int32)}
    group = node_group("NegativeLogLikelihoodLoss", inputs, {"Y": x.dtype}, reduction="none")
    (y,) = run_node(compiler, "loss.likelihood", group, inputs)
    np.testing.assert_array_equal(y, np.array([0, np.nan, np.nan], np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 5, 5), (4, 1, 1), (2, 0, 0)])
def test_determinants(compiler: Compiler, shape: tuple[int, ...], dtype: Any) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    if x.shape == (3, 3):
        x[0, 0] = 0  # needs a pivot from another row
    (y,) = run_node(
        compiler, "loss.determinant", node_group("Det", {"X": x}, {"Y": dtype}), {"X": x}, threads=2
    )
    assert_close(y, np.asarray(np.linalg.det(x.astype(np.float64))).astype(dtype), 1e-6)


def test_a_singular_matrix_has_determinant_zero(compiler: Compiler) -> None:
    x = np.array([[1, 2], [2, 4]], np.float32)
    (y,) = run_node(compiler, "loss.determinant", node_group("Det", {"X": x}, {"Y": x.dtype}), {"X": x})
    assert y == 0
