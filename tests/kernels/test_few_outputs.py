"""Convolutions to few channels against a direct sum in double precision."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.engine.core.registry import PlanningContext, load
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness
from tests.kernels import test_conv
from tests.kernels.test_conv import attributes, close, convolve, declaration, operands, run

lanes = test_conv.lanes  # a fixture: registers of 8 and of 16 float32
NAME = "conv.few_outputs"
CASES = [
    # x, w, strides, pads, dilations, groups
    ((1, 32, 30, 70), (3, 32, 9, 9), (1, 1), (4, 4, 4, 4), (1, 1), 1),
    ((2, 5, 17, 33), (1, 5, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((1, 40, 9, 130), (2, 40, 5, 3), (1, 1), (2, 0, 1, 5), (1, 1), 1),
    ((3, 7, 16, 24), (4, 7, 3, 3), (2, 1), (1, 1, 1, 1), (1, 1), 1),
    ((1, 6, 12, 50), (3, 6, 3, 3), (3, 1), (0, 2, 0, 2), (1, 2), 1),
    ((1, 200, 6, 20), (4, 200, 2, 2), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((1, 16, 700), (1, 16, 7), (1,), (3, 3), (1,), 1),
    ((2, 4, 3), (2, 4, 5), (1,), (4, 4), (1,), 1),
    ((1, 3, 2, 1), (3, 3, 5, 5), (1, 1), (4, 4, 4, 4), (1, 1), 1),
    ((1, 300, 40, 64), (3, 300, 3, 1), (1, 1), (1, 0, 1, 0), (1, 1), 1),
    ((0, 3, 5, 5), (4, 3, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv_equals_its_definition(
    compiler: Compiler, case: tuple[Any, ...], threads: int, lanes: int
) -> None:
    values, expected = operands(case)
    node = f"y = Conv <{attributes(case)}> (x, w, b)"
    found = run(compiler, NAME, node, values, expected.shape, threads=threads)
    close(found, expected, values["w"][0].size)


@pytest.mark.parametrize("outputs", [5, 6, 7, 8])
def test_wide_registers_take_more_channels(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, outputs: int
) -> None:
    monkeypatch.setattr(
        harness,
        "context",
        lambda threads=1, lanes=0: PlanningContext(replace(host(), vector_lanes=16), threads),
    )
    values, expected = operands(((1, 20, 11, 100), (outputs, 20, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1))
    node = "y = Conv <pads = [1, 1, 1, 1]> (x, w, b)"
    close(run(compiler, NAME, node, values, expected.shape), expected, 180)


def test_conv_of_float64(compiler: Compiler) -> None:
    case = CASES[2]
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s) for s in case[:2])
    expected = convolve(x, w, *case[2:])
    found = run(compiler, NAME, f"y = Conv <{attributes(case)}> (x, w)", {"x": x, "w": w}, expected.shape)
    harness.assert_close(found, expected, 1e-13)


def test_nan_and_infinity_stay_in_their_windows(compiler: Compiler) -> None:
    """What lies beside a row in the strip is read by tiles, and dropped."""
    values, expected = operands(((1, 4, 12, 45), (3, 4, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1))
    values["x"][0, 1, 5, 44], values["x"][0, 2, 0, 0] = np.nan, np.inf
    found = run(compiler, NAME, "y = Conv <pads = [1, 1, 1, 1]> (x, w, b)", values, expected.shape)
    reached = np.zeros(expected.shape[2:], bool)
    reached[4:7, 43:], reached[:2, :2] = True, True
    assert not np.isfinite(found[:, :, reached]).any()
    close(found[:, :, ~reached], expected[:, :, ~reached], 36)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (((1, 8, 9, 9), (40, 8, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1), "1 x 40 channels of the output"),
        (((1, 8, 9, 9), (2, 4, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 2), "2 x 1 channels of the output"),
        (((1, 8, 9, 9), (2, 8, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1), "one tap"),
        (((1, 8, 9, 9), (2, 8, 3, 3), (1, 2), (0, 0, 0, 0), (1, 1), 1), "strides along the width"),
        (((1, 8, 9, 9), (2, 8, 3, 3), (1, 1), (0, 0, 0, 0), (2, 1), 1), "down the height"),
        (((1, 2, 5, 5, 5), (2, 2, 3, 3, 3), (1, 1, 1), (0,) * 6, (1, 1, 1), 1), "three spatial axes"),
        (((1, 9000, 9, 99), (2, 9000, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1), "byte of lines"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_does_not_compute_is_refused_with_a_reason(case: tuple[Any, ...], reason: str) -> None:
    registry = load()
    x, w = case[:2]
    text = f"""<ir_version: 10, opset_import: ["": 21]> g ({declaration("x", x)}, {declaration("w", w)})
        => (float[] y) {{ y = Conv <{attributes(case)}> (x, w) }}"""
    shape = (
        x[0],
        w[0],
        *((i - (k - 1) * d - 1) // s + 1 for i, k, s, d in zip(x[2:], w[2:], case[2], case[4])),
    )
    text = text.replace("float[] y", declaration("y", shape))
    group = harness.group_of(harness.model_of(text, {"w": np.ones(w, np.float32)}), registry)
    assert reason in (harness.implementation(NAME, registry).rejection(group, harness.context()) or "")
