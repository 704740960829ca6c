"""Constants that depend on the shape: found from samples, right at points that were no samples."""

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.planning.regions.extents import formulas_at
from app.engine.planning.regions.varying_constants import varying_constant
from app.engine.types.errors import RegionError
from app.engine.types.regions.region import Point, bound
from tests.harness import Array

_, REGION = bound({"x": ["N<=9", "L:1..40"]})
assert REGION is not None
LARGEST = 9 * 40


def indices(point: Point) -> Array:
    """Row-major places of the elements of [N, 1, L]."""
    return np.arange(point["N"] * point["L"]).reshape(point["N"], 1, point["L"])


def tensors(points: tuple[Point, ...], make: object) -> list[ir.TensorProtocol]:
    assert callable(make)
    return [ir.Tensor(make(p)) for p in points]


def test_a_ramp_is_right_at_every_point() -> None:
    assert REGION is not None
    points = REGION.samples()
    found = varying_constant(("node", 1), tensors(points, indices), formulas_at(REGION, points))
    assert found is not None
    assert found.ramp is not None
    for point in REGION.points():
        array = found.at(point)
        assert array.dtype == np.int64
        np.testing.assert_array_equal(array, indices(point))


@pytest.mark.parametrize("at", [(0, 0, 1), (8, 0, 39)])
def test_one_element_that_differs_is_no_ramp(at: tuple[int, int, int]) -> None:
    assert REGION is not None
    points = REGION.samples()

    def broken(point: Point) -> Array:
        array = indices(point)
        if array.size == LARGEST:
            array[at] += 1
        return array

    with pytest.raises(RegionError, match="nor integers that grow by the same number along each axis"):
        varying_constant(("node", 1), tensors(points, broken), formulas_at(REGION, points))
