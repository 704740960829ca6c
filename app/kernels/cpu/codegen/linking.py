"""Functions that several kernels call, compiled once and linked by name.

A function that is called as numba knows it becomes part of every caller's machine code, which makes
the tiles of a product the larger part of each kernel's compile time. A shared one is compiled by
itself and found by the linker, also by callers that come from the disk cache.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import llvmlite.binding
import numba
from numba import types

from app.kernels.cpu.codegen.generator import spills

# What a generator of kernels returns: libraries, each perhaps with alternatives, then the kernel.
Sources: TypeAlias = tuple[str | tuple[str, ...], ...]

_LINKED: dict[str, Any] = {}  # by symbol; machine code must outlive its callers


def shared(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: the function as an external one of this signature, for other compiled code."""

    def link(function: Callable[..., Any]) -> Any:
        compiled = numba.cfunc(signature, cache=True, error_model="numpy", boundscheck=False)(function)
        symbol = f"{function.__module__}.{function.__qualname__}"
        llvmlite.binding.add_symbol(symbol, compiled.address)
        _LINKED[symbol] = compiled
        return types.ExternalFunction(symbol, signature)

    return link


def spilled(module: str, tile: str) -> int:
    """Registers that the innermost loops of a tile in a module's shared functions keep on the stack.

    Of freshly compiled ones only: machine code from the cache has no assembly.
    """
    functions = [c for symbol, c in _LINKED.items() if symbol.startswith(f"{module}.")]
    return sum(spills(f._library.get_asm_str(), tile) for f in functions if not f.cache_hits)
