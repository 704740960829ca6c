"""Round trips between logical tensors and their bytes."""

import numpy as np
import pytest

from app.engine.layout import Layout, blocked, plain, to_logical, to_physical

NHWC = Layout((0, 2, 3, 1))
WEIGHTS = Layout((0, 1, 2, 3), ((0, 16), (1, 16)))


@pytest.mark.parametrize("shape", [(2, 20, 3, 5), (1, 16, 1, 1), (1, 1, 7, 2)])
@pytest.mark.parametrize("layout", [plain(4), blocked(4, 8), blocked(4, 16), NHWC, WEIGHTS])
def test_round_trip(layout: Layout, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).standard_normal(shape)
    physical = to_physical(array, layout, np.nan)
    assert physical.shape == layout.physical_shape(shape)
    assert np.isnan(physical).sum() == physical.size - array.size
    np.testing.assert_array_equal(to_logical(physical, layout, shape), array)


def test_blocked_element() -> None:
    array = np.arange(2 * 20 * 3 * 5).reshape(2, 20, 3, 5)
    physical = to_physical(array, blocked(4, 8))
    assert physical[1, 2, 1, 4, 3] == array[1, 19, 1, 4]
