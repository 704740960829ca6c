"""Resampling of channel-blocked images against the rows for row-major ones, which the standard tests."""

from typing import Any

import numpy as np
import pytest

from app.kernels.cpu.compiler import Compiler
from tests import harness
from tests.kernels.single import node_group, refusal_of

CASES: list[tuple[tuple[int, ...], list[float], dict[str, Any]]] = [
    ((2, 20, 5, 7), [1, 1, 2, 2], {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}),
    ((1, 3, 8, 6), [1, 1, 0.5, 1.7], {"mode": "nearest"}),
    ((1, 33, 5, 7), [1, 1, 2, 2], {"mode": "linear"}),
    ((2, 8, 6, 5), [1, 1, 1, 3], {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    ((1, 20, 9, 8), [1, 1, 0.4, 0.6], {"mode": "linear", "antialias": 1}),
    ((1, 20, 5, 7), [1, 1, 2.5, 2], {"mode": "cubic"}),
]


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(("shape", "scales", "attributes"), CASES)
def test_pixels_are_those_of_row_major_images(
    compiler: Compiler, shape: Any, scales: list[float], attributes: dict[str, Any], lanes: int
) -> None:
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    inputs = {"X": x, "roi": None, "scales": np.array(scales, np.float32)}
    group = node_group("Resize", inputs, {"Y": x.dtype}, constants=("scales",), **attributes)
    kind = "nearest" if attributes["mode"] == "nearest" else "taps"
    (expected,) = harness.run_group(harness.implementation(f"resize.{kind}"), group, {"X": x}, compiler)
    row = harness.implementation(f"resize.blocked_{kind}")
    (y,) = harness.run_group(row, group, {"X": x}, compiler, threads=2, lanes=lanes)
    harness.assert_close(y, expected, 1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_pixels_outside_take_the_fill_value(compiler: Compiler, mode: str) -> None:
    x = np.random.default_rng(6).standard_normal((1, 8, 4, 5)).astype(np.float32)
    roi = np.array([0, 0, -0.5, 0.2, 1, 1, 1.2, 1.6], np.float32)
    inputs = {"X": x, "roi": roi, "scales": None, "sizes": np.array([1, 8, 7, 6])}
    group = node_group(
        "Resize", inputs, {"Y": x.dtype}, constants=("roi", "sizes"), mode=mode, extrapolation_value=9.0,
        coordinate_transformation_mode="tf_crop_and_resize",
    )  # fmt: skip
    kind = "nearest" if mode == "nearest" else "taps"
    (expected,) = harness.run_group(harness.implementation(f"resize.{kind}"), group, {"X": x}, compiler)
    assert (expected == 9).any()
    row = harness.implementation(f"resize.blocked_{kind}")
    (y,) = harness.run_group(row, group, {"X": x}, compiler)
    harness.assert_close(y, expected, 1e-6)


def test_resized_channels_are_refused() -> None:
    x = np.zeros((1, 8, 4, 4), np.float32)
    inputs = {"X": x, "roi": None, "scales": np.array([1, 2, 1, 1], np.float32)}
    group = node_group("Resize", inputs, {"Y": x.dtype}, constants=("scales",))
    assert "resizes axes [1] beside the pixels" in str(refusal_of("resize.blocked_nearest", group))
