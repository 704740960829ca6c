"""Depthwise convolutions over channel-blocked images against a direct sum in double precision."""

from typing import Any

import numpy as np
import pytest

from app.engine.registry import load
from app.kernels.cpu.compiler import Compiler
from tests import harness
from tests.kernels.test_conv import convolve

Array = np.ndarray[Any, Any]
REGISTRY = load()
ROW = "conv.depthwise_blocked"
HEAD = '<ir_version: 10, opset_import: ["": 21]> g'


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


def conv_text(x: tuple[int, ...], taps: Any, strides: Any, pads: Any, dilations: Any, tail: str = "") -> str:
    c, shape = x[1], ",".join(map(str, x))
    w = f"float[{c},1,{taps[0]},{taps[1]}] w"
    return (
        f"{HEAD} (float[{shape}] x, {w}{{more}}) => (float[] y) {{ {'s' if tail else 'y'} = "
        f"Conv<group={c}, strides={list(strides)}, pads={list(pads)}, dilations={list(dilations)}>(x, w{{bias}}) {tail} }}"
    )


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("case", CASES)
def test_windows_of_any_form(compiler: Compiler, case: Any, lanes: int) -> None:
    shape, taps, strides, pads, dilations = case
    x, w = random(*shape), random(shape[1], 1, *taps)
    text = conv_text(*case).replace("{more}", "").replace("{bias}", "").replace("{{", "{").replace("}}", "}")
    group = harness.group_of(harness.model_of(text, {"w": w}), REGISTRY)
    row = harness.implementation(ROW, REGISTRY)
    (y,) = harness.run_group(row, group, {"x": x}, compiler, threads=2, lanes=lanes)
    harness.assert_close(y, convolve(x, w, strides, pads, dilations, shape[1]).astype(np.float32))
