"""GridSample and DeformConv against the reference evaluator and sums in float64."""

from typing import Any

import numpy as np
import pytest

from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import Array, assert_close, implementation, run_group
from tests.kernels.single_node import reference, rejection_of, run_text, text_group

PADDINGS = ("zeros", "border", "reflection")


def sampled(
    compiler: Compiler, x: Array, grid: Array, threads: int = 2, **attributes: Any
) -> tuple[Array, Array]:
    written = ", ".join(f"{n} = {v!r}".replace("'", '"') for n, v in attributes.items())
    body = f"GridSample <{written}> (x, grid)"
    inputs = {"x": x, "grid": grid}
    (found,) = run_text(compiler, "grid_sample.tables", body, inputs, threads=threads, opset=20)
    return found, reference(body, inputs, opset=20)[0]


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_images_are_sampled(compiler: Compiler, mode: str, padding: str, align: int) -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((2, 3, 5, 7)).astype(np.float32)
    grid = random.uniform(-1.6, 1.6, (2, 11, 13, 2)).astype(np.float32)
    found, expected = sampled(compiler, x, grid, mode=mode, padding_mode=padding, align_corners=align)
    assert_close(found, expected, 2e-5)


@pytest.mark.parametrize(
    ("mode", "padding"), [("linear", "zeros"), ("nearest", "border"), ("linear", "reflection")]
)
def test_volumes_are_sampled(compiler: Compiler, mode: str, padding: str) -> None:
    random = np.random.default_rng(2)
    x = random.standard_normal((1, 2, 3, 4, 5)).astype(np.float32)
    grid = random.uniform(-1.3, 1.3, (1, 3, 5, 5, 3)).astype(np.float32)
    found, expected = sampled(compiler, x, grid, mode=mode, padding_mode=padding, align_corners=0)
    assert_close(found, expected, 2e-5)


@pytest.mark.parametrize("padding", PADDINGS)
def test_float64_and_lines(compiler: Compiler, padding: str) -> None:
    random = np.random.default_rng(3)
    x, grid = random.standard_normal((2, 3, 9)), random.uniform(-1.5, 1.5, (2, 70, 1))
    found, _ = sampled(compiler, x, grid, mode="linear", padding_mode=padding, align_corners=1)
    places = (grid[..., 0] + 1) / 2 * 8
    if padding == "border":
        places = np.clip(places, 0, 8)
    if padding == "reflection":
        places = 8 - np.abs(np.abs(places) - 8)
    expected = np.zeros((2, 3, 70))
    for n, c, p in np.ndindex(expected.shape):
        low = int(np.floor(places[n, p]))
        for i, w in ((low, low + 1 - places[n, p]), (low + 1, places[n, p] - low)):
            expected[n, c, p] += w * x[n, c, i] if 0 <= i < 9 else 0.0
    assert_close(found, expected, 1e-12)


@pytest.mark.parametrize("padding", PADDINGS)
def test_points_without_a_place_read_no_foreign_memory(compiler: Compiler, padding: str) -> None:
    x = np.ones((1, 2, 3, 3), np.float32)
    grid = np.full((1, 2, 3, 2), np.inf, np.float32)
    grid[0, 0] = [[np.nan, 0], [-np.inf, 1e30], [1e20, -1e20]]
    body = f'GridSample <mode = "nearest", padding_mode = "{padding}"> (x, grid)'
    (found,) = run_text(compiler, "grid_sample.tables", body, {"x": x, "grid": grid}, opset=20)
    assert set(np.unique(found)) <= {0.0, 1.0}


def test_what_lies_outside_is_not_multiplied(compiler: Compiler) -> None:
    x = np.full((1, 1, 2, 2), np.inf, np.float32)
    found, _ = sampled(
        compiler, x, np.full((1, 1, 1, 2), 3.0, np.float32), mode="linear", padding_mode="zeros"
    )
    assert found.item() == 0.0


def deformed(
    x: Array, w: Array, offset: Array, b: Array, mask: Array, strides: tuple[int, int], pads: tuple[int, int],
    dilations: tuple[int, int], groups: int, offset_groups: int,
) -> Array:  # fmt: skip
    """The sum of the specification, pixel by pixel in float64."""
    n, c, h, width = x.shape
    m, per, kh, kw = w.shape
    oh, ow = offset.shape[2:]
    offset = offset.reshape(n, offset_groups, kh * kw, 2, oh, ow)
    mask = mask.reshape(n, offset_groups, kh * kw, oh, ow)
    y = np.zeros((n, m, oh, ow)) + b.reshape(1, -1, 1, 1)
    for image, out, i, j, k, channel in np.ndindex(n, m, oh, ow, kh * kw, per):
        source = out // (m // groups) * per + channel
        part = source // (c // offset_groups)
        v = i * strides[0] - pads[0] + k // kw * dilations[0] + float(offset[image, part, k, 0, i, j])
        u = j * strides[1] - pads[1] + k % kw * dilations[1] + float(offset[image, part, k, 1, i, j])
        value = 0.0
        for row in (int(np.floor(v)), int(np.floor(v)) + 1):
            for column in (int(np.floor(u)), int(np.floor(u)) + 1):
                if 0 <= row < h and 0 <= column < width:
                    value += (1 - abs(v - row)) * (1 - abs(u - column)) * float(x[image, source, row, column])
        y[image, out, i, j] += value * w[out, channel, k // kw, k % kw] * mask[image, part, k, i, j]
    return y


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("groups", "offset_groups", "masked"), [(1, 1, False), (2, 1, True), (1, 2, True), (2, 2, False)]
)
def test_deformable_convolutions(
    compiler: Compiler, groups: int, offset_groups: int, masked: bool, constant: bool
) -> None:
    random = np.random.default_rng(4)
    strides, pads, dilations, kernel = (2, 1), (1, 2), (1, 2), (3, 2)
    n, c, h, w, m = 2, 4, 9, 8, 6
    oh = (h + 2 * pads[0] - (kernel[0] - 1) * dilations[0] - 1) // strides[0] + 1
    ow = (w + 2 * pads[1] - (kernel[1] - 1) * dilations[1] - 1) // strides[1] + 1
    inputs = {
        "x": random.standard_normal((n, c, h, w)).astype(np.float32),
        "w": random.standard_normal((m, c // groups, *kernel)).astype(np.float32),
        "offset": (2 * random.standard_normal((n, offset_groups * 12, oh, ow))).astype(np.float32),
        "b": random.standard_normal(m).astype(np.float32),
    }
    mask = random.uniform(0, 1, (n, offset_groups * 6, oh, ow)).astype(np.float32)
    if masked:
        inputs["mask"] = mask
    fixed = {k: inputs.pop(k) for k in ("w", "b")} if constant else {}
    body = (
        f"DeformConv <group = {groups}, offset_group = {offset_groups}, strides = [2, 1], "
        f"pads = [1, 2, 1, 2], dilations = [1, 2]> (x, w, offset, b{', mask' if masked else ''})"
    )
    (found,) = run_text(compiler, "deform_conv.columns", body, inputs, fixed, threads=2, opset=22)
    given = {**inputs, **fixed}
    ones = np.ones_like(mask)
    expected = deformed(
        given["x"], given["w"], given["offset"], given["b"], given.get("mask", ones), strides, pads,
        dilations, groups, offset_groups,
    )  # fmt: skip
    assert_close(found, expected.astype(np.float32), 1e-5)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("channels", [16, 21])
@pytest.mark.parametrize("name", ["grid_sample.blocked", "grid_sample.last"])
def test_vectors_of_channels_are_sampled(compiler: Compiler, name: str, channels: int, lanes: int) -> None:
    random = np.random.default_rng(5)
    x = random.standard_normal((2, channels, 5, 7)).astype(np.float32)
    x[1, 3, 0, 0] = np.inf  # the pixel that taps outside point to
    grid = random.uniform(-1.6, 1.6, (2, 11, 13, 2)).astype(np.float32)
    body = 'GridSample <mode = "linear", padding_mode = "zeros"> (x, grid)'
    inputs = {"x": x, "grid": grid}
    group = text_group(body, inputs, opset=20)
    (found,) = run_group(implementation(name), group, inputs, compiler, threads=2, lanes=lanes)
    (expected,) = run_text(compiler, "grid_sample.tables", body, inputs, opset=20)
    assert_close(found, expected, 2e-6)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("masked", [False, True])
def test_deformable_convolutions_of_channels_last(compiler: Compiler, masked: bool, lanes: int) -> None:
    random = np.random.default_rng(6)
    inputs = {
        "x": random.standard_normal((2, 21, 9, 8)).astype(np.float32),
        "offset": (2 * random.standard_normal((2, 12, 5, 8))).astype(np.float32),
    }
    mask = random.uniform(0, 1, (2, 6, 5, 8)).astype(np.float32)
    if masked:
        inputs["mask"] = mask
    w = random.standard_normal((10, 21, 3, 2)).astype(np.float32)
    b = random.standard_normal(10).astype(np.float32)
    body = f"DeformConv <strides = [2, 1], pads = [1, 1, 1, 1], dilations = [1, 2]> (x, w, offset, b{', mask' * masked})"
    group = text_group(body, inputs, {"w": w, "b": b}, opset=22)
    (found,) = run_group(implementation("deform_conv.last"), group, inputs, compiler, threads=2, lanes=lanes)
    used = mask if masked else np.ones_like(mask)
    expected = deformed(inputs["x"], w, inputs["offset"], b, used, (2, 1), (1, 1), (1, 2), 1, 1)
    assert_close(found, expected.astype(np.float32), 1e-5)


def test_a_grid_of_another_type_is_rejected() -> None:
    inputs = {"x": np.zeros((1, 1, 2, 2), np.float32), "grid": np.zeros((1, 1, 1, 2))}
    assert "the grid is float64" in str(
        rejection_of("grid_sample.tables", text_group("GridSample (x, grid)", inputs))
    )


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 5, 7), (1, 1, 40, 33), (3, 2, 4, 5, 6), (0, 3, 5, 7)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_affine_grids(compiler: Compiler, size: tuple[int, ...], align: int, dtype: Any) -> None:
    rank = len(size) - 2
    theta = np.random.default_rng(7).standard_normal((size[0], rank, rank + 1)).astype(dtype)
    axes = [(2 * np.arange(n) - n + 1) / (n - align) for n in size[2:]]
    mesh = np.meshgrid(*axes, indexing="ij")
    homogeneous = np.stack([*reversed(mesh), np.ones(size[2:])], -1)  # x first, which is the last axis
    expected = np.einsum("nij,...j->n...i", theta.astype(np.float64), homogeneous)
    body = f"AffineGrid <align_corners = {align}> (t, s)"
    (found,) = run_text(
        compiler, "affine_grid.rows", body, {"t": theta}, {"s": np.array(size)}, threads=2, opset=20
    )
    assert_close(found, expected.astype(dtype), 1e-6 if dtype == np.float32 else 1e-14)


def test_affine_grids_that_are_left_to_the_evaluator() -> None:
    body, theta = "AffineGrid <align_corners = 1> (t, s)", np.zeros((1, 2, 3), np.float32)
    one = text_group(body, {"t": theta}, {"s": np.array((1, 1, 1, 4))}, opset=20)
    assert "one pixel" in str(rejection_of("affine_grid.rows", one))
    told = text_group(body, {"t": theta, "s": np.array((1, 1, 3, 4))}, opset=20)
    assert rejection_of("affine_grid.rows", told) is not None
