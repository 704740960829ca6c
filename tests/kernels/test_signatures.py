"""Signatures that type inference looks up once: what is remembered of one function is compiled into the next."""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import pytest
from numba import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from app.kernels.cpu.codegen.inner import overload
from app.kernels.cpu.codegen.machine_code import address_of
from app.kernels.cpu.codegen.pipeline import compile_callback
from app.kernels.signatures import Remembered

TYPED: list[types.Type] = []


@intrinsic
def _plus_one(_context, x):
    TYPED.append(x)
    return x(x), lambda _context, builder, _signature, values: builder.add(values[0], values[0].type(1))


def _double(x):
    raise NotImplementedError("for compiled code")


@overload(_double)
def _double_of(x):
    TYPED.append(x)
    return lambda x: 2 * x


def _once(n):
    return _plus_one(_double(n))


def _twice(n):
    return _plus_one(_double(_plus_one(_double(n))))


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[types.Type]]:
    """Types that the functions of this file were looked up for."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    TYPED.clear()
    yield TYPED
    TYPED.clear()


def result(function: Any, kind: types.Type, n: int) -> int:
    path = compile_callback(kind(kind), function, f"{function.__name__}_{kind}")
    number = {types.int64: ctypes.c_int64, types.int32: ctypes.c_int32}[kind]
    return int(ctypes.CFUNCTYPE(number, number)(address_of(path))(n))


def test_functions_that_call_the_same_compute_what_python_does(typed: list[types.Type]) -> None:
    for n in (0, 5, -7):
        assert result(_once, types.int64, n) == 2 * n + 1
        assert result(_twice, types.int64, n) == 4 * n + 3
    first = len(typed)
    assert first > 0
    assert result(_once, types.int32, 5) == 11
    assert len(typed) > first  # another type is looked up


class Counting:
    """A typing context that counts what is looked up."""

    def __init__(self, found: Any) -> None:
        self.found, self.count = found, 0

    def resolve_function_type(self, _function: Any, _args: Any, _kws: Any) -> Any:
        self.count += 1
        return self.found


@pytest.mark.parametrize(("function", "found", "kws", "lookups"), [
    ("plus_one", types.int64(types.int64), {}, 1),
    ("plus_one", None, {}, 2),
    ("plus_one", types.int64(types.int64), {"x": types.int64}, 2),
    (types.int64, types.int64(types.int64), {}, 2),
])  # fmt: skip
def test_what_was_found_for_a_function_without_keywords_is_looked_up_once(
    function: Any, found: Any, kws: dict[str, Any], lookups: int
) -> None:
    if function == "plus_one":
        function = cpu_target.typing_context.resolve_value_type(_plus_one)
    context = Counting(found)
    remembered = Remembered(context, {})
    for _ in range(2):
        assert remembered.resolve_function_type(function, (types.int64,), kws) == found
    assert context.count == lookups
