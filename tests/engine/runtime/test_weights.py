"""Memory for constants that programs share."""

import ctypes
import mmap
from collections.abc import Callable

import numpy as np
import pytest

from app.engine.core.calls import Constant
from app.engine.runtime.cpu.memory import (
    ALIGNMENT,
    MAPPED,
    MIN_READ,
    Array,
    Weights,
    aligned,
    side_by_side,
    written,
)

ARRAY = np.random.default_rng(0).standard_normal((64, MIN_READ // 128), np.float32)


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


def test_equal_tables_are_kept_once():
    weights = Weights()
    one, same, other = (
        weights.packed(Constant(np.array(numbers, np.int64))) for numbers in ([1, 2], [1, 2], [1, 3])
    )
    assert one.ctypes.data == same.ctypes.data != other.ctypes.data
    assert other.view(np.int64).tolist() == [1, 3]


def _pages_there(array: Array) -> list[bool]:
    """True for each whole page of an array that lies in memory."""
    first = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    count = (array.ctypes.data + array.nbytes - first) // mmap.PAGESIZE
    told = (ctypes.c_ubyte * count)()
    mincore = ctypes.CDLL(None).mincore
    assert mincore(ctypes.c_void_p(first), ctypes.c_size_t(count * mmap.PAGESIZE), told) == 0
    return [bool(page & 1) for page in told]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mincore"), reason="the system tells no page")
def test_written_memory_has_all_its_pages_before_the_first_run() -> None:
    size = 9 << 20
    assert not all(_pages_there(aligned(size)))
    found = written(size)
    assert all(_pages_there(found))
    assert not found.any()


def test_arrays_side_by_side_are_copies_in_one_block() -> None:
    arrays = [
        np.arange(n, dtype=kind)
        for n, kind in ((3, np.int64), (0, np.int64), (70, np.uint8), (5, np.float32))
    ]
    copies = side_by_side(arrays)
    assert [copy.tobytes() for copy in copies] == [array.tobytes() for array in arrays]
    assert all(copy.ctypes.data % ALIGNMENT == 0 for copy in copies)
    arrays[0][:] = 0
    assert copies[0].tobytes() == np.arange(3).tobytes()
    assert copies[-1].ctypes.data - copies[0].ctypes.data == 3 * ALIGNMENT  # 24, 0 and 70 byte lie before it
