"""Lowering of kernels: functions within them, variables, and what is left of both in the compiled library."""

import ctypes
from pathlib import Path
from typing import Any

import llvmlite.binding as binding
import numba
import pytest
from numba import types

from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.machine_code import address_of
from app.kernels.cpu.codegen.pipeline import bitcode, compile_callback


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))


def compiled(function: Any) -> Path:
    return compile_callback(types.int64(types.int64), function, function.__name__)


def called(path: Path, n: int) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address_of(path))(n))


def text(path: Path) -> str:
    return str(binding.parse_bitcode(bitcode(path)))


@njit
def _triple(n):
    return 3 * n


@njit
def _nine_times(n):
    return _triple(_triple(n))


def _calling(n):
    total = 0
    for i in range(n):
        total += _nine_times(i)
    return total


_nowhere = types.ExternalFunction("nowhere_defined", types.int64(types.int64))


def _calls_nothing(n):
    return _nowhere(n)


def _of_every_kind(n):
    last = -1
    found = (0, 1)
    for i in range(n):
        if i % 3 == 0:
            continue
        last = i  # assigned in a branch, read behind the loop
        found = found[1], found[0] + found[1]
    while last > 4:
        last -= 2
    return 100 * last + found[1]


def _raising(n):
    total = 0
    for i in range(0, 6, n):
        total += i
    return total


@pytest.mark.parametrize("n", [0, 1, 2, 7, 12])
def test_variables_of_loops_and_branches_have_the_values_of_python(n: int) -> None:
    assert called(compiled(_of_every_kind), n) == _of_every_kind(n)


def test_functions_within_a_kernel_are_its_code_and_have_none_of_their_own() -> None:
    kernel = compiled(_calling)
    assert called(kernel, 10) == 9 * 45
    assert [line for line in text(kernel).splitlines() if line.startswith("declare")] == []
    assert "_triple" not in text(kernel)
    for function in (_triple, _nine_times):
        (result,) = function.overloads.values()
        assert result.library.get_pointer_to_function(result.fndesc.llvm_func_name) == 0


def test_a_kernel_has_machine_code_that_is_optimized() -> None:
    assert text(compiled(_calling)).count("alloca") == 1  # of the result, which C takes from its place


def test_an_object_that_is_there_is_not_made_again() -> None:
    path = compiled(_calling)
    made = path.stat().st_mtime_ns
    assert compiled(_calling) == path
    assert path.stat().st_mtime_ns == made


def test_an_object_that_calls_what_nobody_defines_is_refused() -> None:
    path = compiled(_calls_nothing)
    with pytest.raises(LookupError, match="calls 'nowhere_defined', which is not defined"):
        address_of(path)


def test_a_kernel_that_raises_is_told_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    kernel = compiled(_raising)
    assert called(kernel, 2) == 6
    assert capfd.readouterr().err == ""
    called(kernel, 0)
    assert capfd.readouterr().err == "stowplan: a kernel raised an error\n"
