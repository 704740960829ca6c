"""Functions that several kernels call, compiled once and linked by name.

A function that is called as numba knows it becomes part of every caller's machine code, which makes
the tiles of a product the larger part of each kernel's compile time. A shared one is compiled by
itself and found by the linker, also by callers that come from the disk cache.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import llvmlite.binding
import llvmlite.ir as ll
import numba
from numba import types
from numba.extending import intrinsic

from app.kernels.cpu.codegen.callback import compile_callback
from app.kernels.cpu.codegen.generator import spills
from app.kernels.cpu.codegen.inner import njit

# What a generator of kernels returns: libraries, each perhaps with alternatives, then the kernel.
Sources: TypeAlias = tuple[str | tuple[str, ...], ...]

_LINKED: dict[str, Any] = {}  # by symbol; machine code must outlive its callers


def shared(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: the function as an external one of this signature, for other compiled code."""

    def link(function: Callable[..., Any]) -> Any:
        compiled = compile_callback(signature, function)
        symbol = f"{function.__module__}.{function.__qualname__}"
        llvmlite.binding.add_symbol(symbol, compiled.address)
        _LINKED[symbol] = compiled
        return types.ExternalFunction(symbol, signature)

    return link


def local(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: the function as a local symbol of every kernel that calls it, never inlined there.

    A function that numba compiles and LLVM does not inline is a weak symbol of the kernel's object file. A
    process that compiles the kernel has optimized the function alone before and calls that machine code; one
    that loads the kernel from the cache calls the code within, which was optimized twice. Where additions may
    be reordered or fused the two differ in the last bits, and a local symbol has one definition only.

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


def linked(symbol: str) -> Any | None:
    """The function that kernels call by a symbol, as numba's callback; None for one of the C library."""
    return _LINKED.get(symbol)


def spilled(module: str, tile: str) -> int:
    """Registers that the innermost loops of a tile in a module's shared functions keep on the stack.

    Of freshly compiled ones only: machine code from the cache has no assembly.
    """
    functions = [c for symbol, c in _LINKED.items() if symbol.startswith(f"{module}.")]
    return sum(spills(_assembly(f._library, tile), tile) for f in functions if not f.cache_hits)


def _assembly(library: Any, prefix: str) -> str:
    """Assembly of the functions of a compiled library whose names begin so; that of all takes much longer."""
    module = library._final_module.clone()
    for function in module.functions:
        if not function.is_declaration and not function.name.startswith(prefix):
            function.linkage = "available_externally"  # its definition is elsewhere: no code is made
    return str(library.codegen._tm.emit_assembly(module))
