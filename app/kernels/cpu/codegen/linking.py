"""Functions that several kernels call, compiled once and linked by name.

A function that is called as numba knows it becomes part of every caller's machine code, which makes
the tiles of a product the larger part of each kernel's compile time. A shared one is compiled by
itself and found by the linker, also by callers that come from the disk cache.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import llvmlite.ir as ll
import numba
from numba import types
from numba.extending import intrinsic

from app.kernels.cpu.codegen.generator import spills
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.machine_code import assembly
from app.kernels.cpu.codegen.pipeline import bitcode, compile_callback

# What a generator of kernels returns: libraries, each perhaps with alternatives, then the kernel.
Sources: TypeAlias = tuple[str | tuple[str, ...], ...]

_OBJECTS: dict[str, Path] = {}  # of shared functions, by symbol


def shared(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: the function as an external one of this signature, for other compiled code."""

    def link(function: Callable[..., Any]) -> Any:
        symbol = f"{function.__module__}.{function.__qualname__}"
        _OBJECTS[symbol] = compile_callback(signature, function, symbol)
        return types.ExternalFunction(symbol, signature)

    return link


def local(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: the function as one of its own in every kernel that calls it, never inlined there.

    Args:
        options: of `numba.njit`, beside those of all kernels.
    """

    def link(function: Callable[..., Any]) -> Any:
        compiled = njit(error_model="numpy", boundscheck=False, forceinline=True, **options)(function)

        def typed(typing: Any, *arguments: Any) -> Any:
            dispatcher = numba.typeof(compiled)  # which does not keep what it is the type of
            signature = dispatcher.get_call_type(typing, arguments, {})
            kinds = signature.return_type, signature.args

            def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
                convention = context.call_conv
                kind = convention.get_function_type(*kinds)
                name = builder.module.get_unique_name(function.__name__)
                own = ll.Function(builder.module, kind, name)
                own.linkage = "internal"
                own.attributes.add("noinline")
                inside = ll.IRBuilder(own.append_basic_block("entry"))
                passed = convention.get_arguments(own)
                convention.return_value(inside, context.get_function(dispatcher, signature)(inside, passed))
                return convention.call_function(builder, own, *kinds, values)[1]

            return signature, generate

        names = inspect.signature(function).parameters.values()
        first = inspect.Parameter("typing", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        typed.__signature__ = inspect.Signature([first, *names])  # type: ignore[attr-defined]
        return intrinsic(typed)

    return link


def shared_objects(module: str) -> list[Path]:
    """Objects of the shared functions of a module."""
    return [path for symbol, path in _OBJECTS.items() if symbol.startswith(f"{module}.")]


def spilled(module: str, tile: str) -> int:
    """Registers that the innermost loops of a tile in a module's shared functions keep on the stack."""
    return sum(spills(assembly(bitcode(path), tile), tile) for path in shared_objects(module))
