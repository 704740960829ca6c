"""The promise of `read` and `write`: in place a loop stays vector code, without a check of addresses."""

import ctypes

import numba
import numpy as np
from numba import types

from app.kernels.cpu.access import read, write


def plain(x, y, n):
    for i in range(n):
        y[i] = x[i] * x[i]


def promised(x, y, n):
    for i in range(n):
        v = read(x, i)
        write(y, i, v * v)


def compiled(function):
    pointer = types.CPointer(types.float32)
    return numba.cfunc(types.void(pointer, pointer, types.int64), error_model="numpy")(function)


def test_only_the_plain_loop_asks_whether_addresses_overlap() -> None:
    # The check subtracts the addresses as numbers.
    checks = {f.__name__: "ptrtoint" in compiled(f).inspect_llvm() for f in (plain, promised)}
    assert checks == {"plain": True, "promised": False}
    assert "x float>" in compiled(promised).inspect_llvm()


def test_a_loop_in_place_computes_the_same() -> None:
    x = np.arange(1000, dtype=np.float32)
    expected = x * x
    function = compiled(promised)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(function.address)
    call(x.ctypes.data, x.ctypes.data, x.size)
    np.testing.assert_array_equal(x, expected)
