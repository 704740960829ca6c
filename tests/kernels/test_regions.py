"""RoiAlign and MaxRoiPool against the reference evaluator and NumPy."""

import numpy as np
import pytest

from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import Array, assert_close, implementation, run_group
from tests.kernels.single_node import node_group, reference, run_node, run_text, text_group


def regions(random: np.random.Generator, count: int, extent: float) -> Array:
    first = random.uniform(-0.3 * extent, extent, (count, 2))
    return np.concatenate([first, first + random.uniform(-2, extent, (count, 2))], 1).astype(np.float32)


@pytest.mark.parametrize("place", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 1, 2, 3])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_are_aligned(compiler: Compiler, mode: str, ratio: int, place: str) -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((2, 3, 9, 7)).astype(np.float32)
    rois = regions(random, 11, 18.0)
    rois[0] = [0, 0, 40, 40]
    inputs = {"x": x, "rois": rois, "images": random.integers(0, 2, 11)}
    body = (
        f'RoiAlign <mode = "{mode}", coordinate_transformation_mode = "{place}", output_height = 3, '
        f"output_width = 2, sampling_ratio = {ratio}, spatial_scale = 0.5> (x, rois, images)"
    )
    if place == "half_pixel" and ratio == 0:
        inputs["rois"] = np.concatenate(
            [rois[:, :2], rois[:, :2] + np.abs(rois[:, 2:] - rois[:, :2]) + 0.1], 1
        )
    (found,) = run_text(compiler, "roi_align.spans", body, inputs, threads=2, opset=16)
    assert_close(found, reference(body, inputs, opset=16)[0], 1e-5)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("channels", [16, 21])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("name", ["roi_align.blocked", "roi_align.last"])
def test_vectors_of_channels_are_aligned(
    compiler: Compiler, name: str, ratio: int, mode: str, channels: int, lanes: int
) -> None:
    random = np.random.default_rng(5)
    inputs = {
        "x": random.standard_normal((2, channels, 9, 7)).astype(np.float32),
        "rois": regions(random, 6, 12.0),
        "images": random.integers(0, 2, 6),
    }
    body = (
        f'RoiAlign <output_height = 3, output_width = 2, sampling_ratio = {ratio}, mode = "{mode}"> '
        "(x, rois, images)"
    )
    group = text_group(body, inputs, opset=16)
    (found,) = run_group(implementation(name), group, inputs, compiler, threads=2, lanes=lanes)
    (expected,) = run_text(compiler, "roi_align.spans", body, inputs, opset=16)
    assert_close(found, expected, 1e-6)
    if mode == "avg":
        assert_close(found, reference(body, inputs, opset=16)[0], 1e-5)


def test_before_version_16_regions_are_not_shifted(compiler: Compiler) -> None:
    random = np.random.default_rng(2)
    inputs = {
        "x": random.standard_normal((1, 2, 6, 6)).astype(np.float32),
        "rois": regions(random, 3, 6.0),
        "images": np.zeros(3, np.int64),
    }
    body = "RoiAlign <output_height = 2, output_width = 2, sampling_ratio = 2> (x, rois, images)"
    (found,) = run_text(compiler, "roi_align.spans", body, inputs, opset=10)
    newer = body.replace("<", '<coordinate_transformation_mode = "output_half_pixel", ')
    assert_close(found, reference(newer, inputs, opset=16)[0], 1e-5)


@pytest.mark.parametrize("name", ["roi_align.spans", "roi_align.blocked"])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_without_bounds_take_no_time(compiler: Compiler, mode: str, name: str) -> None:
    x = np.random.default_rng(3).standard_normal((1, 1, 5, 5)).astype(np.float32)
    rois = np.array(
        [[-1e30, 0, 1e30, 4], [np.nan, 0, 1, 1], [0, 0, np.inf, np.inf], [2, 2, 3, 3]], np.float32
    )
    inputs = {"x": x, "rois": rois, "images": np.array([0, 0, 0, 7])}
    body = f'RoiAlign <output_height = 2, output_width = 2, mode = "{mode}"> (x, rois, images)'
    group = text_group(body, inputs, opset=16)
    (found,) = run_group(implementation(name), group, inputs, compiler)
    assert np.isnan(found[3]).all()  # of no image


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_maxima_of_regions(compiler: Compiler, dtype: type) -> None:
    random = np.random.default_rng(4)
    x = random.standard_normal((2, 3, 9, 7)).astype(dtype)
    rois = np.concatenate([random.integers(0, 2, (8, 1)), np.sort(random.uniform(-4, 22, (8, 4)))], 1)
    rois = rois[:, [0, 1, 2, 3, 4]].astype(dtype)
    inputs = {"x": x, "rois": rois}
    like = np.zeros((8, 3, 4, 3), dtype)
    group = node_group("MaxRoiPool", inputs, {"y": like}, opset=22, pooled_shape=[4, 3], spatial_scale=0.5)
    (found,) = run_node(compiler, "max_roi_pool.bins", group, inputs, threads=2)
    expected = np.zeros_like(like)
    for r, (image, *box) in enumerate(rois):
        left, top, right, bottom = (int(np.floor(v * 0.5 + 0.5)) for v in box)
        high, wide = max(bottom - top + 1, 1) / 4, max(right - left + 1, 1) / 3
        for i, j in np.ndindex(4, 3):
            rows = np.clip([int(np.floor(i * high)) + top, int(np.ceil((i + 1) * high)) + top], 0, 9)
            columns = np.clip([int(np.floor(j * wide)) + left, int(np.ceil((j + 1) * wide)) + left], 0, 7)
            part = x[int(image), :, rows[0] : rows[1], columns[0] : columns[1]]
            expected[r, :, i, j] = part.max((1, 2)) if part.size else 0
    assert_close(found, expected, 0)
