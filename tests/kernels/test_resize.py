"""Resize against the reference evaluator, and laws of interpolation."""

import numpy as np
import pytest

from app.engine.operators.interpolation import ResizedAxis, taps
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import Array, assert_close, context, implementation
from tests.kernels.single_node import REGISTRY, reference, run_text, text_group

COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]


def image(*shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(7).uniform(0, 200, shape).astype(dtype)


def resized(
    compiler: Compiler,
    x: Array,
    attributes: str,
    constants: dict[str, Array],
    threads: int = 1,
) -> tuple[Array, Array]:
    """What a row finds and what the reference evaluator expects; constants are roi, scales or sizes."""
    kind = "nearest" if "nearest" in attributes else "taps"
    operands = ", ".join(name if name in constants else "" for name in ("roi", "scales", "sizes"))
    body = f"Resize <{attributes}> (x, {operands.rstrip(', ')})"
    (found,) = run_text(compiler, f"resize.{kind}", body, {"x": x}, constants, threads=threads)
    return found, reference(body, {"x": x} | constants)[0]


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
@pytest.mark.parametrize("transformation", COORDINATES)
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest_copies_the_same_elements_as_the_reference(
    compiler: Compiler, dtype: str, transformation: str, rounding: str
) -> None:
    attributes = (
        f'mode = "nearest", nearest_mode = "{rounding}", coordinate_transformation_mode = "{transformation}"'
    )
    for scales in ([1, 1, 2, 4], [1, 1, 0.5, 3], [1, 1, 1.5, 2]):
        constants = {"scales": np.array(scales, np.float32)}
        found, expected = resized(compiler, image(2, 3, 4, 6, dtype=dtype), attributes, constants)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("transformation", COORDINATES)
@pytest.mark.parametrize("exclude", [0, 1])
def test_interpolation_equals_the_reference(
    compiler: Compiler, mode: str, transformation: str, exclude: int
) -> None:
    attributes = (
        f'mode = "{mode}", coordinate_transformation_mode = "{transformation}", exclude_outside = {exclude}'
    )
    for sizes in ([1, 2, 10, 9], [1, 2, 3, 14], [1, 2, 5, 2]):
        constants = {"sizes": np.array(sizes)}
        found, expected = resized(compiler, image(1, 2, 5, 7), attributes, constants, threads=2)
        assert_close(found, expected, 1e-5)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialiased_shrinking_equals_the_reference(compiler: Compiler, mode: str) -> None:
    constants = {"scales": np.array([0.6, 0.3], np.float32)}
    attributes = f'mode = "{mode}", antialias = 1, axes = [2, 1]'
    found, expected = resized(compiler, image(2, 20, 11), attributes, constants)
    assert_close(found, expected, 1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crops_take_the_extrapolation_value_outside(compiler: Compiler, mode: str) -> None:
    constants = {
        "roi": np.array([0, 0, 0.4, 0.2, 1, 1, 1.3, 0.7], np.float32),
        "sizes": np.array([1, 1, 5, 6]),
    }
    attributes = (
        f'mode = "{mode}", extrapolation_value = 10.0, coordinate_transformation_mode = "tf_crop_and_resize"'
    )
    found, expected = resized(compiler, image(1, 1, 4, 8), attributes, constants)
    assert_close(found, expected, 1e-5)
    assert (found == 10).any()


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_the_aspect_ratio_is_kept_on_request(compiler: Compiler, policy: str) -> None:
    constants = {"sizes": np.array([7, 8])}
    attributes = f'mode = "linear", axes = [1, 2], keep_aspect_ratio_policy = "{policy}"'
    found, expected = resized(compiler, image(2, 4, 3), attributes, constants)
    assert_close(found, expected, 1e-5)


def test_double_precision_is_kept(compiler: Compiler) -> None:
    constants = {"scales": np.array([2, 2], np.float32)}
    found, expected = resized(compiler, image(4, 5, dtype="float64"), 'mode = "linear"', constants)
    assert_close(found, expected, 1e-12)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("target", [1, 3, 8, 13])
def test_weights_sum_to_one_and_stay_inside(mode: str, target: int) -> None:
    for antialias in (False, True):
        axis = ResizedAxis(8, target, target / 8)
        place, weight = taps(axis, "half_pixel", mode, antialias=antialias)
        np.testing.assert_allclose(weight.sum(1), 1, atol=1e-6)
        assert place.min() >= 0
        assert place.max() < 8


def test_interpolation_of_whole_numbers_is_refused() -> None:
    constants = {"scales": np.array([2, 2], np.float32)}
    x = image(3, 4, dtype="uint8")
    group = text_group('Resize <mode = "linear"> (x, , scales)', {"x": x}, constants)
    assert "uint8" in (implementation("resize.taps", REGISTRY).rejection(group, context()) or "")
    assert "'linear'" in (implementation("resize.nearest", REGISTRY).rejection(group, context()) or "")
