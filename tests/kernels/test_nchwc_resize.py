"""Resampling of channel-blocked images against the rows for row-major ones, which the standard tests."""

from typing import Any

import numpy as np
import pytest

from app.engine.core.registry import load
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness
from tests.kernels.single_node import node_group, reference, rejection_of

REGISTRY = load()

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
    assert "resizes axes [1] beside the pixels" in str(rejection_of("resize.blocked_nearest", group))


HEAD = '<ir_version: 10, opset_import: ["": 21]> g '


@pytest.mark.parametrize("alias", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize("row", ["resize.nearest", "resize.blocked_nearest"])
@pytest.mark.parametrize("start", [0.0, -0.4], ids=["inside", "outside"])
@pytest.mark.parametrize(("shape", "size"), [((2, 20, 5, 7), (10, 14)), ((1, 3, 8, 6), (5, 13))])
def test_copies_are_added_to_a_value(
    compiler: Compiler, shape: tuple[int, ...], size: tuple[int, int], start: float, row: str, alias: bool
) -> None:
    random = np.random.default_rng(7)
    x = random.standard_normal(shape).astype(np.float32)
    r = random.standard_normal((*shape[:2], *size)).astype(np.float32)
    constants = {
        "roi": np.array([0, 0, start, 0, 1, 1, 1, 1], np.float32),
        "sizes": np.array(r.shape),
    }
    declared = f"float{list(shape)} x, float{list(r.shape)} r, float[8] roi, int64[4] sizes"
    resize = """Resize <mode = "nearest", coordinate_transformation_mode = "tf_crop_and_resize",
                        extrapolation_value = 3.0> (x, roi, , sizes)"""
    model = harness.model_of(
        f"{HEAD} ({declared}) => (float{list(r.shape)} y) {{ a = {resize} y = Add (r, a) }}", constants
    )
    group, chosen = harness.group_of(model, REGISTRY), harness.implementation(row)
    pairs = chosen.inplace(group, harness.context())
    assert [(a.name, b.name) for a, b in pairs] == [("r", "y")]
    (y,) = harness.run_group(
        chosen, group, {"x": x, "r": r}, compiler, threads=2, alias=pairs if alias else ()
    )
    (copied,) = reference(resize, {"x": x, **constants})
    assert (copied == 3).any() == (start < 0)
    harness.assert_close(y, r.astype(np.float64) + copied, 1e-6)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("y = Add (a, a)", "adds 'a' to itself"),
        ("y = Add (a, c)", "adds 'c' of shape"),
        ("y = Mul (a, r)", "['Mul'] follow"),
        ("b = Add (a, r) y = Relu (b)", "['Add', 'Relu'] follow"),
    ],
)
def test_only_one_value_is_added(what: str, reason: str) -> None:
    declared = "float[1,4,3,3] x, float[1,4,6,6] r, float[1,4,1,1] c, float[4] scales"
    text = f'{HEAD} ({declared}) => (y) {{ a = Resize <mode = "nearest"> (x, , scales) {what} }}'
    model = harness.model_of(text, {"scales": np.array([1, 1, 2, 2], np.float32)})
    group = harness.group_of(model, REGISTRY)
    for row in ("resize.nearest", "resize.blocked_nearest"):
        assert reason in str(harness.implementation(row).rejection(group, harness.context()))
