"""Transposed convolutions over channel-blocked images against their definition in double precision."""

from typing import Any

import numpy as np
import pytest

from app.engine.core.group import Group
from app.engine.core.registry import load
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness

Array = np.ndarray[Any, Any]
REGISTRY = load()
BLOCKED, FEW = (
    harness.implementation(f"conv_transpose.{name}", REGISTRY) for name in ("blocked", "blocked_few")
)


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def spread(x: Array, w: Array) -> Array:
    """Every input pixel becomes a tile of the size of the kernel."""
    y = np.einsum("nchw,coij->nohiwj", x.astype(np.float64), w.astype(np.float64))
    n, o, h, i, width, j = y.shape
    return y.reshape(n, o, h * i, width * j)


def group_of(
    x: Array, w: Array, more: str = "", tail: str = "", attributes: str = "", **constants: Array
) -> Group:
    def extents(a: Array) -> str:
        return ",".join(map(str, a.shape))

    attributes = attributes or f"strides = {[*w.shape[2:]]}"
    text = (
        f'<ir_version: 10, opset_import: ["": 21]> g (float[{extents(x)}] x, float[{extents(w)}] w, '
        f"float[{w.shape[1]}] b{more}) => (float[] y) "
        f"{{ {'s' if tail else 'y'} = ConvTranspose <{attributes}> (x, w, b) {tail} }}"
    )
    return harness.group_of(harness.model_of(text, {"w": w, **constants}), REGISTRY)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(
    ("row", "shape", "taps"),
    [
        (BLOCKED, (2, 20, 5, 13), (33, 2, 2)),
        (BLOCKED, (1, 8, 3, 4), (8, 3, 4)),
        (BLOCKED, (1, 3, 4, 5), (20, 1, 2)),
        (FEW, (2, 20, 5, 13), (1, 2, 2)),
        (FEW, (1, 33, 3, 7), (5, 2, 3)),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_sums_and_recipe(compiler: Compiler, row: Any, shape: Any, taps: Any, lanes: int) -> None:
    x, w, b = random(*shape), random(shape[1], *taps), random(taps[0], seed=1)
    group = group_of(x, w, tail="y = Sigmoid(s)", b=b)
    (y,) = harness.run_group(row, group, {"x": x}, compiler, threads=2, lanes=lanes)
    s = spread(x, w) + b[:, None, None]
    harness.assert_close(y, (1 / (1 + np.exp(-s))).astype(np.float32))


def test_residual_and_limits_follow_in_registers(compiler: Compiler) -> None:
    x, w, b = random(1, 20, 5, 7), random(20, 12, 2, 2), random(12, seed=1)
    r = random(1, 12, 10, 14, seed=2)
    group = group_of(x, w, ", float[1,12,10,14] r", "t = Add(s, r) y = Relu(t)", b=b)
    alias = BLOCKED.inplace(group, harness.context())
    assert [source.name for source, _ in alias] == ["r"]
    (y,) = harness.run_group(BLOCKED, group, {"x": x, "r": r}, compiler, alias=alias)
    harness.assert_close(y, np.maximum(spread(x, w) + b[:, None, None] + r, 0).astype(np.float32))
    assert "reads a tensor" in str(FEW.rejection(group, harness.context()))


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ("strides = [1, 2]", "taps overlap"),
        ("strides = [2, 2], pads = [1, 0, 0, 0]", "taps overlap or are padded"),
        ("strides = [3, 2]", "taps overlap"),
        ("strides = [2, 2], group = 2", "2 groups"),
    ],
)
def test_overlapping_taps_are_refused(attributes: str, reason: str) -> None:
    x, w, b = random(1, 8, 4, 4), random(8, 4, 2, 2), random(4)
    group = group_of(x, w, attributes=attributes, b=b)
    for row in (BLOCKED, FEW):
        assert reason in str(row.rejection(group, harness.context()))
