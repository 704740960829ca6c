"""Convolutions whose windows reach beyond the image: which products remain, and equal outputs."""

from pathlib import Path

import numpy as np
import pytest

from app.engine.backends.cpu.live_taps import REWRITES
from app.engine.core import graph
from tests.engine.canonical import Array, assert_same_outputs, canonical, saved

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
RANDOM = np.random.default_rng(6)


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def products(size: int, attributes: str, folder: Path, weights: Array) -> list[tuple[int, ...]]:
    """(rows, columns) of taps and of outputs of each convolution that remains; the outputs are the same."""
    channels = weights.shape[1]
    text = f"(float[1,{channels},{size},{size}] x) => (float[1,{weights.shape[0]},p,q] y)"
    body = f"y = Conv<{attributes}>(x, w, b)"
    path = saved(f"{HEAD} g {text} {{ {body} }}", folder, {"w": weights, "b": normal(weights.shape[0])})
    compilation = canonical(path, rewrites=REWRITES)
    assert_same_outputs(path, compilation)
    return [
        (*graph.static_shape(graph.operand(n, 1))[2:], *graph.static_shape(n.outputs[0])[2:])
        for n in compilation.graph
        if n.op_type == "Conv"
    ]


def test_a_dilated_window_larger_than_the_image_is_its_middle(tmp_path: Path) -> None:
    found = products(32, "dilations = [36, 36], pads = [36, 36, 36, 36]", tmp_path, normal(64, 64, 3, 3))
    assert found == [(1, 1, 32, 32)]


def test_each_band_has_the_taps_that_read_pixels(tmp_path: Path) -> None:
    found = products(32, "dilations = [24, 24], pads = [24, 24, 24, 24]", tmp_path, normal(96, 64, 3, 3))
    sides = [(2, 8), (1, 16), (2, 8)]
    assert sorted(found) == sorted((r, s, h, w) for r, h in sides for s, w in sides)


@pytest.mark.parametrize(
    "attributes",
    [
        "dilations = [28, 1], pads = [28, 1, 28, 1]",
        "dilations = [20, 26], pads = [20, 26, 24, 18]",
        "dilations = [24, 24], pads = [24, 24, 24, 24], strides = [2, 2]",
        "dilations = [18, 40], pads = [18, 41, 18, 39], strides = [1, 3]",
    ],
)
def test_strides_and_uneven_pads(attributes: str, tmp_path: Path) -> None:
    found = products(32, attributes, tmp_path, normal(128, 64, 3, 3))
    assert all(rows * columns < 9 for rows, columns, _, _ in found)


@pytest.mark.parametrize(
    ("size", "attributes"),
    [
        (16, "pads = [1, 1, 1, 1]"),  # nearly all taps read pixels
        (2, "pads = [1, 1, 1, 1]"),  # four convolutions would read more weights than one
        (16, "pads = [19, 19, 19, 19]"),  # the border is nothing but the bias
    ],
)
def test_a_convolution_stays_whole_where_bands_would_not_pay(
    size: int, attributes: str, tmp_path: Path
) -> None:
    assert len(products(size, attributes, tmp_path, normal(64, 64, 3, 3))) == 1
