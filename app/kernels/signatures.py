"""Signatures of functions, which numba's type inference looks up once in a process.

The text of kernels is mostly arithmetic on few types: which function adds two int64 is asked very often, and
so is what an intrinsic returns. numba keeps the implementation of a signature with the type of the function,
which is one object for as long as it is a key here.
"""

from typing import Any

from numba import types


class Remembered:
    """A typing context that looks up the signature of a builtin function, an intrinsic or an overload once.

    Args:
        context: numba's.
        signatures: those that were looked up; of the process, as numba's context is.
    """

    def __init__(self, context: Any, signatures: dict[tuple[Any, ...], Any]) -> None:
        self._context = context
        self._signatures = signatures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, function: Any, args: tuple[Any, ...], kws: Any) -> Any:
        """The signature of a call, None if there is none."""
        if not isinstance(function, types.Function | types.NumberClass) or kws:
            return self._context.resolve_function_type(function, args, kws)
        key = (function, tuple(args))
        found = self._signatures.get(key)
        if found is None:
            found = self._context.resolve_function_type(function, args, kws)
            if found is not None:
                self._signatures[key] = found
        return found
