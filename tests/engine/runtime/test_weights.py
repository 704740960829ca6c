"""Memory for constants that programs share."""

from collections.abc import Callable
from typing import Any

import numpy as np

from app.engine.core.calls import Constant
from app.engine.runtime.cpu.memory import MIN_READ, Weights

Array = np.ndarray[Any, Any]
ARRAY = np.random.default_rng(0).standard_normal((64, MIN_READ // 128), np.float32)


def scaled(array: Array, factor: float, made: list[float]) -> Callable[[], Array]:
    """A function that packs weights and notes that it did."""

    def packed() -> Array:
        made.append(factor)
        return array * np.float32(factor)

    return packed


def test_weights_that_are_packed_in_the_same_way_are_packed_once() -> None:
    weights, made = Weights(), list[float]()
    one = weights.packed(Constant(scaled(ARRAY, 2, made), "w"))
    two = weights.packed(Constant(scaled(ARRAY, 2, made), "w"))
    assert two is one
    assert made == [2]
    assert np.array_equal(one.view(np.float32).reshape(ARRAY.shape), ARRAY * 2)


def test_weights_that_are_packed_otherwise_are_their_own() -> None:
    weights, made = Weights(), list[float]()
    other = ARRAY + np.float32(1)
    found = [
        weights.packed(Constant(scaled(array, factor, made), "w"))
        for array, factor in ((ARRAY, 2), (ARRAY, 3), (other, 2))
    ]
    assert made == [2, 3, 2]
    expected = [ARRAY * 2, ARRAY * 3, other * 2]
    assert all(np.array_equal(f.view(np.float32), e.reshape(-1)) for f, e in zip(found, expected))


def test_equal_arrays_are_kept_once() -> None:
    weights = Weights()
    kept = weights.packed(Constant(ARRAY, "w"))
    assert weights.keep(ARRAY.copy()) is kept
    assert weights.keep(ARRAY + np.float32(1)) is not kept


def test_equal_tables_are_kept_once():
    weights = Weights()
    one, same, other = (
        weights.packed(Constant(np.array(numbers, np.int64))) for numbers in ([1, 2], [1, 2], [1, 3])
    )
    assert one.ctypes.data == same.ctypes.data != other.ctypes.data
    assert other.view(np.int64).tolist() == [1, 3]
