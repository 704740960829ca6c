"""1x1 convolutions before and after a resize: what is computed where, and that the outputs stay the same."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from app.engine.backends.cpu.resized_conv import REWRITES
from app.engine.core import graph
from app.engine.core.rewriter import RewriteRule
from tests.engine.canonical import Array, assert_same_outputs, canonical, saved

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
RANDOM = np.random.default_rng(5)


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def convolved(
    signature: str,
    body: str,
    folder: Path,
    rewrites: Sequence[RewriteRule] = REWRITES,
    **weights: Array,
) -> list[tuple[int, ...]]:
    """Shapes of what convolutions read in the rewritten graph, which computes the same as before."""
    constants = {"double": np.array([1, 1, 2, 2], np.float32), "whole": np.array([2, 64, 8, 8])}
    path = saved(f"{HEAD} g {signature} {{ {body} }}", folder, {**constants, **weights})
    compilation = canonical(path, rewrites=tuple(rewrites))
    assert_same_outputs(path, compilation)
    return [graph.static_shape(graph.operand(n, 0)) for n in compilation.graph if n.op_type == "Conv"]


@pytest.mark.parametrize(
    "resize",
    [
        'Resize<mode = "linear">(x, , double)',
        'Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , , whole)',
        'Resize<mode = "linear", axes = [2, 3], antialias = 1>(x, , , sides)',
        'Resize<mode = "cubic", cubic_coeff_a = -0.5>(x, , , whole)',
        'Resize<mode = "cubic", exclude_outside = 1>(x, , double)',
        'Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric">(x, , double)',
    ],
)
def test_channels_are_mixed_before_an_image_is_enlarged(resize: str, tmp_path: Path) -> None:
    signature = "(float[2,64,4,4] x) => (float[2,48,8,8] y)"
    weights = {"w": normal(48, 64, 1, 1), "b": normal(48), "sides": np.array([8, 8])}
    read = convolved(signature, f"r = {resize}\n y = Conv(r, w, b)", tmp_path, **weights)
    assert read == [(2, 64, 4, 4)]


def test_only_enlarged_operands_of_a_concatenation_move(tmp_path: Path) -> None:
    signature = (
        "(float[2,64,4,4] x, float[2,32,8,8] a, float[2,64,2,2] z, float[2,8,8,8] c) => (float[2,64,8,8] y)"
    )
    body = """
        s = Resize<mode = "linear">(x, , double)
        t = Resize<mode = "linear">(z, , , whole)
        j = Concat<axis = 1>(s, a, t, c)
        p = Conv(j, w, b)
        y = Relu(p)
    """
    read = convolved(signature, body, tmp_path, w=normal(64, 168, 1, 1), b=normal(64))
    assert sorted(read) == [(2, 40, 8, 8), (2, 64, 2, 2), (2, 64, 4, 4)]


def test_regions_of_shapes_move_what_is_enlarged_by_a_constant(tmp_path: Path) -> None:
    signature = "(float[2,64,4,4] x, float[2,64,2,2] z) => (float[2,64,8,8] y)"
    body = """
        s = Resize<mode = "linear">(x, , double)
        t = Resize<mode = "linear">(z, , , whole)
        j = Concat<axis = 1>(s, t)
        y = Conv(j, w)
    """
    rows = [row for row in REWRITES if not row.by_extents]
    read = convolved(signature, body, tmp_path, rows, w=normal(64, 128, 1, 1))
    assert read == [(2, 64, 8, 8), (2, 64, 4, 4)]


def test_a_concatenation_of_enlarged_images_only_keeps_the_bias_once(tmp_path: Path) -> None:
    body = """
        s = Resize<mode = "linear">(x, , double)
        t = Resize<mode = "nearest">(z, , double)
        j = Concat<axis = -3>(s, t)
        y = Conv(j, w, b)
    """
    signature = "(float[1,64,4,4] x, float[1,96,4,4] z) => (float[1,64,8,8] y)"
    assert convolved(signature, body, tmp_path, w=normal(64, 160, 1, 1), b=normal(64)) == [
        (1, 64, 4, 4),
        (1, 96, 4, 4),
    ]


@pytest.mark.parametrize(
    ("resize", "convolution", "size"),
    [
        # Many more channels than before would be interpolated.
        ('Resize<mode = "linear">(x, , double)', "Conv(r, w, b)", (1024, 16, 1, 1)),
        # A reduced image has fewer pixels after the resize.
        ('Resize<mode = "linear">(x, , half)', "Conv(r, w, b)", (16, 16, 1, 1)),
        ('Resize<mode = "linear">(x, , double)', "Conv<pads = [1, 1, 1, 1]>(r, w, b)", (16, 16, 3, 3)),
        ('Resize<mode = "linear">(x, , double)', "Conv<pads = [1, 1, 1, 1]>(r, w, b)", (16, 16, 1, 1)),
        ('Resize<mode = "linear">(x, , double)', "Conv<group = 2>(r, w, b)", (16, 8, 1, 1)),
        ('Resize<mode = "nearest">(x, , channels)', "Conv(r, w, b)", (16, 32, 1, 1)),
        (
            'Resize<mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize">(x, roi, double)',
            "Conv(r, w, b)",
            (16, 16, 1, 1),
        ),
    ],
)
def test_a_convolution_stays_where_it_would_not_pay_or_not_be_the_same(
    resize: str, convolution: str, size: tuple[int, ...], tmp_path: Path
) -> None:
    weights = {
        "w": normal(*size),
        "b": normal(size[0]),
        "half": np.array([1, 1, 0.5, 0.5], np.float32),
        "channels": np.array([1, 2, 2, 2], np.float32),
        "roi": np.array([0, 0, -0.5, 0.1, 1, 1, 1.4, 0.9], np.float32),
    }
    rank = f"(float[1,16,4,4] x) => (float[1,{size[0]},p,q] y)"
    (read,) = convolved(rank, f"r = {resize}\n y = {convolution}", tmp_path, **weights)
    assert read[2:] != (4, 4)


def test_a_resized_image_that_something_else_reads_stays(tmp_path: Path) -> None:
    signature = "(float[1,16,4,4] x) => (float[1,16,8,8] y, float[1,16,8,8] z)"
    body = 'r = Resize<mode = "linear">(x, , double)\n y = Conv(r, w)\n z = Relu(r)'
    assert convolved(signature, body, tmp_path, w=normal(16, 16, 1, 1)) == [(1, 16, 8, 8)]
