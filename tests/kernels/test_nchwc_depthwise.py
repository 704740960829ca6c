"""Depthwise convolutions over channel-blocked images against a direct sum in double precision."""

from typing import Any

import numpy as np
import pytest

from app.engine.backends.cpu.nchwc_depthwise import bands_of
from app.engine.core.group import Group
from app.engine.core.registry import load
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness
from tests.kernels.test_conv import convolve

Array = np.ndarray[Any, Any]
REGISTRY = load()
ROW = harness.implementation("conv.depthwise_blocked", REGISTRY)


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


CASES = [
    # x, taps, strides, pads, dilations
    ((2, 20, 9, 19), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    ((1, 33, 14, 14), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    ((1, 8, 7, 7), (5, 5), (1, 1), (2, 2, 2, 2), (1, 1)),
    ((1, 3, 12, 30), (5, 5), (2, 2), (2, 1, 1, 2), (1, 1)),
    ((1, 20, 10, 26), (7, 7), (1, 1), (3, 3, 3, 3), (1, 1)),
    ((1, 8, 13, 17), (3, 2), (3, 1), (0, 4, 5, 3), (2, 3)),
    ((1, 8, 2, 2), (3, 3), (1, 1), (4, 4, 4, 4), (1, 1)),
    ((2, 5, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
]


def group_of(case: Any, more: str = "", bias: str = "", tail: str = "", **constants: Array) -> Group:
    """A depthwise convolution `s` of x and w; `tail` computes y of it."""
    x, taps, strides, pads, dilations = case
    attributes = f"group = {x[1]}, strides = {[*strides]}, pads = {[*pads]}, dilations = {[*dilations]}"
    text = (
        f'<ir_version: 10, opset_import: ["": 21]> g (float[{",".join(map(str, x))}] x, '
        f"float[{x[1]},1,{taps[0]},{taps[1]}] w{more}) => (float[] y) "
        f"{{ {'s' if tail else 'y'} = Conv <{attributes}> (x, w{bias}) {tail} }}"
    )
    return harness.group_of(harness.model_of(text, constants), REGISTRY)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("case", CASES)
def test_windows_of_any_form(compiler: Compiler, case: Any, lanes: int) -> None:
    shape, taps, strides, pads, dilations = case
    x, w = random(*shape), random(shape[1], 1, *taps)
    group = group_of(case, w=w)
    (y,) = harness.run_group(ROW, group, {"x": x}, compiler, threads=2, lanes=lanes)
    harness.assert_close(y, convolve(x, w, strides, pads, dilations, shape[1]).astype(np.float32))


SAME = ((2, 20, 9, 19), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1))


@pytest.mark.parametrize("inplace", [False, True])
def test_bias_residual_and_limits_follow_in_registers(compiler: Compiler, inplace: bool) -> None:
    x, w, b, r = random(*SAME[0]), random(20, 1, 3, 3), random(20), random(*SAME[0], seed=1)
    tail = "t = Add(s, r) y = Relu(t)"
    group = group_of(SAME, ", float[20] b, float[2,20,9,19] r", ", b", tail, w=w, b=b)
    alias = ROW.inplace(group, harness.context()) if inplace else ()
    assert [source.name for source, _ in alias] == ["r"] * inplace
    (y,) = harness.run_group(ROW, group, {"x": x, "r": r}, compiler, alias=alias)
    expected = convolve(x, w, *SAME[2:], 20) + b[:, None, None] + r
    harness.assert_close(y, np.maximum(expected, 0).astype(np.float32))


def test_a_recipe_follows_strip_by_strip(compiler: Compiler) -> None:
    x, w, r = random(*SAME[0]), random(20, 1, 3, 3), random(*SAME[0], seed=1)
    gate, slope = random(2, 20, 1, 1), random(1, 20, 1, 1)
    more = ", float[2,20,9,19] r, float[2,20,1,1] gate, float[1,20,1,1] slope"
    tail = "a = HardSwish(s) t = Mul(a, gate) u = PRelu(t, slope) y = Mul(u, r)"
    group = group_of(SAME, more, "", tail, w=w, slope=slope)
    assert ROW.inplace(group, harness.context()) == ()
    (y,) = harness.run_group(ROW, group, {"x": x, "r": r, "gate": gate}, compiler, threads=2)
    s = convolve(x, w, *SAME[2:], 20)
    u = s * np.clip(s / 6 + 0.5, 0, 1) * gate
    harness.assert_close(y, (np.where(u < 0, u * slope, u) * r).astype(np.float32))


@pytest.mark.parametrize(
    ("shape", "channels", "reason"),
    [
        ((1, 8, 5, 5), 2, "2 channels in and 2 out per group"),
        ((1, 8, 5), 1, "layouts of images have 4"),
    ],
)
def test_what_is_no_depthwise_image_is_refused(shape: Any, channels: int, reason: str) -> None:
    rank = len(shape) - 2
    text = (
        f'<ir_version: 10, opset_import: ["": 21]> g (float[{",".join(map(str, shape))}] x, '
        f"float[8,{channels}{',1' * rank}] w) => (float[] y) {{ y = Conv <group = {8 // channels}> (x, w) }}"
    )
    group = harness.group_of(harness.model_of(text, {"w": random(8, channels, *[1] * rank)}), REGISTRY)
    assert reason in str(ROW.rejection(group, harness.context()))


def test_bands_share_the_rows_of_few_images_evenly() -> None:
    assert bands_of(planes=4, rows=56, threads=2) == 1
    assert bands_of(planes=3, rows=56, threads=2) == 2
    assert bands_of(planes=1, rows=1, threads=2) == 1
