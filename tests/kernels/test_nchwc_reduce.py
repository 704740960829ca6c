"""Reductions over the channels of blocked images against float64."""

from typing import Any

import numpy as np
import pytest

from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness
from tests.kernels.single_node import node_group, rejection_of
from tests.kernels.test_change_layout import change

Array = np.ndarray[Any, Any]

ORACLES = {
    "sum": ("ReduceSum", lambda x, k: x.sum(1, keepdims=k)),
    "mean": ("ReduceMean", lambda x, k: x.mean(1, keepdims=k)),
    "sumsquare": ("ReduceSumSquare", lambda x, k: (x * x).sum(1, keepdims=k)),
    "l2": ("ReduceL2", lambda x, k: np.sqrt((x * x).sum(1, keepdims=k))),
    "max": ("ReduceMax", lambda x, k: x.max(1, keepdims=k)),
    "min": ("ReduceMin", lambda x, k: x.min(1, keepdims=k)),
}


def group_of(op: str, x: Array, keepdims: int, axes: tuple[int, ...] = (-3,)) -> Any:
    inputs = {"X": x, "axes": np.array(axes)}
    return node_group(op, inputs, {"Y": x.dtype}, constants=("axes",), keepdims=keepdims)


@pytest.mark.parametrize("shape", [(2, 48, 5, 7), (1, 33, 4, 4), (3, 3, 1, 1), (1, 1600, 3, 3)])
@pytest.mark.parametrize(
    ("name", "lanes"), [("sum", 8), ("mean", 16), ("sumsquare", 8), ("l2", 16), ("max", 8), ("min", 16)]
)
def test_channels_of_any_number(name: str, shape: tuple[int, ...], lanes: int, compiler: Compiler) -> None:
    op, oracle = ORACLES[name]
    if name in ("max", "min") and shape[1] % lanes:
        shape = (shape[0], -(-shape[1] // lanes) * lanes, *shape[2:])
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    keepdims = len(name) % 2
    (y,) = harness.run_group(
        harness.implementation(f"{name}_of_channels.blocked"), group_of(op, x, keepdims), {"X": x}, compiler,
        threads=2, lanes=lanes,
    )  # fmt: skip
    harness.assert_close(y, oracle(x.astype(np.float64), keepdims != 0).astype(np.float32), 2e-6)


def test_what_zeros_would_change_is_refused() -> None:
    x = np.zeros((1, 12, 4, 4), np.float32)
    assert "zeros of padded lanes" in str(
        rejection_of("max_of_channels.blocked", group_of("ReduceMax", x, 1))
    )
    reason = rejection_of("sum_of_channels.blocked", group_of("ReduceSum", x, 1, (2, 3)))
    assert "reduces axes (2, 3)" in str(reason)
    assert rejection_of("sum_of_channels.blocked", group_of("ReduceSum", x, 1)) is None


@pytest.mark.parametrize("alias", [False, True])
def test_lanes_become_zero_and_elements_stay(alias: bool, compiler: Compiler) -> None:
    for shape, lanes in (((2, 12, 3, 5), 8), ((1, 3, 7, 2), 16)):
        x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
        group = change(*shape, op="ZeroLanes")
        row = harness.implementation("layout.zero_lanes")
        pairs = [(group.inputs[0], group.outputs[0])] if alias else []
        (y,) = harness.run_group(row, group, {"x": x}, compiler, lanes=lanes, alias=pairs, threads=2)
        np.testing.assert_array_equal(y, x)  # the bench checks the lanes
