"""Memory for constants that programs share."""

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np

from app.engine.core.calls import Constant
from app.engine.runtime.cpu.memory import ALIGNMENT, MAPPED, MIN_SHARED, Weights, aligned

Array = np.ndarray[Any, Any]
ARRAY = np.random.default_rng(0).standard_normal((64, MIN_SHARED // 128), np.float32)


def scaled(array: Array, factor: float, made: list[float]) -> Callable[[], Array]:
    """A function that packs weights and notes that it did."""

    def packed() -> Array:
        made.append(factor)
        return array * np.float32(factor)

    return packed


def test_memory_takes_no_more_than_the_pages_that_are_touched() -> None:
    block = aligned(MAPPED)
    assert (block.size, block.ctypes.data % ALIGNMENT) == (MAPPED, 0)
    pages = [(block.ctypes.data + at) // mmap.PAGESIZE for at in (0, MAPPED - 1)]
    with open("/proc/self/pagemap", "rb") as file:  # noqa: PTH123  a file of the kernel
        file.seek(8 * pages[0])
        found = np.frombuffer(file.read(8 * (pages[1] - pages[0])), np.uint64)
    assert (found >> np.uint64(63)).sum() <= 2, "the margins share pages with its ends"
    block[...] = 1
    assert block.all()


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
