"""Resize against the reference evaluator, and laws of interpolation."""

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.operators.interpolation import ResizedAxis, taps
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import Array, assert_close, model_of
from tests.kernels.single_node import node_text, reference, rejection_of, run_text, text_group

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


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(1, 3, 21, 40), (2, 1, 8, 16), (1, 1, 5, 300)])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_rows_are_resampled_side_by_side(
    compiler: Compiler, mode: str, shape: tuple[int, ...], threads: int
) -> None:
    mirrored = f'mode = "{mode}", coordinate_transformation_mode = "half_pixel_symmetric"'
    for width in (16, 37, 2 * shape[3]):
        constants = {"sizes": np.array([*shape[:3], width])}
        found, expected = resized(compiler, image(*shape), mirrored, constants, threads)
        assert_close(found, expected)


def test_rows_side_by_side_take_the_extrapolation_value_outside(compiler: Compiler) -> None:
    crop = (
        'mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize", extrapolation_value = -3.0'
    )
    given = {
        "roi": np.array([0, 0, 0, -0.3, 1, 1, 1, 1.2], np.float32),
        "sizes": np.array([1, 2, 20, 33]),
    }
    found, expected = resized(compiler, image(1, 2, 20, 24), crop, given, threads=2)
    assert_close(found, expected)


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


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_cubic_and_antialiased_whole_numbers_are_rounded_as_by_the_reference(
    compiler: Compiler, dtype: str
) -> None:
    for attributes in ('mode = "cubic"', 'mode = "linear", antialias = 1', 'mode = "cubic", antialias = 1'):
        for sizes in ([1, 2, 10, 9], [1, 2, 3, 4]):
            x = whole_numbers(1, 2, 6, 7, dtype=dtype)
            found, expected = resized(compiler, x, attributes, {"sizes": np.array(sizes)}, threads=2)
            # A half is rounded by what single precision makes of it.
            assert np.abs(found.astype(int) - expected).max() <= (1 if x.itemsize < 4 else 0)
            assert np.mean(found != expected) < 0.02


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("transformation", COORDINATES)
def test_linear_whole_numbers_are_cut_off_as_by_onnxruntime(
    compiler: Compiler, dtype: str, transformation: str
) -> None:
    for shape, sizes in (
        ((1, 2, 6, 7), (1, 2, 12, 14)),
        ((2, 1, 6, 7), (2, 1, 9, 17)),
        ((1, 2, 6, 7), (1, 2, 6, 3)),
        ((6, 7), (13, 5)),
        ((2, 6, 7, 3), (2, 13, 11, 3)),
        ((2, 6, 7, 3), (2, 4, 7, 3)),
    ):
        x = whole_numbers(*shape, dtype=dtype)
        x.reshape(-1)[: x.size // 2] = 50  # an even area, where what is cut off shows the order of sums
        attributes = f'mode = "linear", coordinate_transformation_mode = "{transformation}"'
        body, constants = f"Resize <{attributes}> (x, , , sizes)", {"sizes": np.array(sizes)}
        (found,) = run_text(compiler, "resize.bilinear", body, {"x": x}, constants, threads=2)
        expected = in_onnxruntime(body, {"x": x}, constants)
        if transformation == "half_pixel_symmetric":  # whose places differ by a rounding
            assert np.abs(found.astype(int) - expected).max() <= 1
        else:
            np.testing.assert_array_equal(found, expected)


def test_whole_numbers_of_volumes_are_cut_off(compiler: Compiler) -> None:
    x = whole_numbers(1, 2, 4, 5, 6, dtype="uint8")
    body, constants = 'Resize <mode = "linear"> (x, , , sizes)', {"sizes": np.array([1, 2, 8, 10, 9])}
    (found,) = run_text(compiler, "resize.taps", body, {"x": x}, constants)
    expected = in_onnxruntime(body, {"x": x}, constants)
    assert np.abs(found.astype(int) - expected).max() <= 1
    assert np.mean(found != expected) < 0.02


def test_whole_numbers_are_computed_by_one_row() -> None:
    x = whole_numbers(1, 2, 3, 4, dtype="uint8")
    for attributes, row in (('mode = "linear"', "bilinear"), ('mode = "cubic"', "taps")):
        constants = {"scales": np.array([1, 1, 2, 2], np.float32)}
        group = text_group(f"Resize <{attributes}> (x, , scales)", {"x": x}, constants)
        fitting = [n for n in ("taps", "bilinear", "nearest") if rejection_of(f"resize.{n}", group) is None]
        assert fitting == [row]


def whole_numbers(*shape: int, dtype: str) -> Array:
    limits = np.iinfo(dtype)
    low, high = max(limits.min, -1000), min(limits.max, 1000) + 1
    return np.random.default_rng(7).integers(low, high, shape).astype(dtype)


def in_onnxruntime(body: str, inputs: dict[str, Array], constants: dict[str, Array]) -> Array:
    import onnxruntime

    model = ir.to_proto(model_of(node_text(body, {**inputs, **constants}), constants))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: Array = session.run(None, inputs)[0]
    return found
