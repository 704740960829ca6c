"""Lowering of kernels: functions within them, variables, and what is left of both in the compiled library."""

from typing import Any

import numba
import pytest
from numba import types

from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.pipeline import KernelCompiler


def compiled(function: Any, *arguments: types.Type) -> Any:
    return numba.cfunc(types.int64(*arguments), pipeline_class=KernelCompiler, error_model="numpy")(function)


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


@pytest.mark.parametrize("n", [0, 1, 2, 7, 12])
def test_variables_of_loops_and_branches_have_the_values_of_python(n: int) -> None:
    assert compiled(_of_every_kind, types.int64).ctypes(n) == _of_every_kind(n)


def test_functions_within_a_kernel_are_its_code_and_have_none_of_their_own() -> None:
    kernel = compiled(_calling, types.int64)
    assert kernel.ctypes(10) == 9 * 45
    code = [line for line in kernel.inspect_llvm().splitlines() if "NumbaEnv" not in line]
    assert not any("_triple" in line for line in code)
    for function in (_triple, _nine_times):
        (result,) = function.overloads.values()
        assert result.library.get_pointer_to_function(result.fndesc.llvm_func_name) == 0


def test_a_kernel_has_machine_code_that_is_optimized() -> None:
    code = compiled(_calling, types.int64).inspect_llvm()
    assert "alloca" not in code.partition("define i64 @cfunc")[0]
