"""Rounding of weights: against the definition, element by element."""

import numpy as np
import pytest

from app.engine.planning.precision.candidates import BY_NAME, CANDIDATES
from app.engine.planning.precision.rounding.weights import restored, rounded
from app.engine.planning.precision.sites import Site

RANDOM = np.random.default_rng(3)


def site(array, axis, op="MatMul"):
    return Site("n", op, "x", "w", np.asarray(array, np.float32), axis, False)


def lines(array, axis, block):
    """What shares a scale, as index lists into the flat array, by the definition."""
    places = np.arange(array.size).reshape(array.shape)
    channels = np.moveaxis(places, axis, 0).reshape(array.shape[axis], -1)
    return channels.reshape(-1, block) if block else channels


CASES = [
    (row, shape, axis, op)
    for row in CANDIDATES
    if not row.half
    for shape, axis, op in [((128, 5), 1, "MatMul"), ((5, 128), 0, "Gemm"), ((6, 3, 3, 3), 0, "Conv")]
    if op in row.ops
]


@pytest.mark.parametrize(("row", "shape", "axis", "op"), CASES)
def test_each_weight_is_the_nearest_multiple_of_its_scale(row, shape, axis, op):
    array = RANDOM.standard_normal(shape).astype(np.float32)
    one = site(array, axis, op)
    found = rounded(one, row)
    assert found.integers.shape == array.shape
    assert np.abs(found.integers).max() <= row.largest
    back = restored(one, found).reshape(-1)
    flat, integers = array.reshape(-1), found.integers.reshape(-1).astype(np.int64)
    for line in lines(array, axis, row.block):
        held = integers[line] != 0
        scale = np.median(back[line][held] / integers[line][held])
        assert np.allclose(back[line], integers[line] * scale, rtol=1e-6, atol=0)
        inside = np.abs(integers[line]) < row.largest
        assert np.all(np.abs(back[line] - flat[line])[inside] <= scale / 2 * (1 + 1e-5))


@pytest.mark.parametrize(("row", "shape", "axis", "op"), CASES)
def test_scales_lose_no_more_than_those_of_the_maximum(row, shape, axis, op):
    array = RANDOM.standard_normal(shape).astype(np.float32)
    one = site(array, axis, op)
    flat, back = array.reshape(-1).astype(np.float64), restored(one, rounded(one, row)).reshape(-1)
    for line in lines(array, axis, row.block):
        step = np.abs(flat[line]).max() / row.largest
        plain = np.rint(flat[line] / step) * step
        assert np.square(back[line] - flat[line]).sum() <= np.square(plain - flat[line]).sum() * 1.001


def test_channels_of_zeros_and_subnormals_stay_finite():
    array = np.stack([np.zeros(64), np.full(64, 1e-42), RANDOM.standard_normal(64)]).astype(np.float32)
    one = site(array, 0, "Gemm")
    for name in ("int8", "w4-block32"):
        back = restored(one, rounded(one, BY_NAME[name]))
        assert np.all(np.isfinite(back))
        assert np.all(back[0] == 0)
        assert np.all(np.abs(back[1]) <= 1e-38)
