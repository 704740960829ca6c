"""Functions that several kernels call, compiled once and linked by name.

A function that is called as numba knows it becomes part of every caller's machine code, which makes
the tiles of a product the larger part of each kernel's compile time. A shared one is compiled by
itself and found by the linker, also by callers that come from the disk cache.
"""

from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numba
from numba import types

_KEEP: list[Any] = []  # machine code must outlive its callers


def shared(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: the function as an external one of this signature, for other compiled code."""

    def link(function: Callable[..., Any]) -> Any:
        compiled = numba.cfunc(signature, cache=True, error_model="numpy", boundscheck=False)(function)
        symbol = f"{function.__module__}.{function.__qualname__}"
        llvmlite.binding.add_symbol(symbol, compiled.address)
        _KEEP.append(compiled)
        return types.ExternalFunction(symbol, signature)

    return link
