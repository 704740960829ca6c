"""Signatures of functions on scalars, which numba's type inference looks up once in a process.

The text of kernels is mostly arithmetic on few types: which function adds two int64 is asked very often.
"""

from typing import Any

from numba import types

_SCALARS = (types.Number, types.Boolean, types.CPointer, types.IntegerLiteral)


class Remembered:
    """A typing context that looks up the signature of a builtin function on scalars once.

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
        plain = isinstance(function, types.Function | types.NumberClass) and not kws
        if not plain or not all(isinstance(a, _SCALARS) for a in args):
            return self._context.resolve_function_type(function, args, kws)
        key = (function, tuple(args))
        if key in self._signatures:
            return self._signatures[key]
        found = self._context.resolve_function_type(function, args, kws)
        if found is not None and self._is_builtin(function, found):
            self._signatures[key] = found
        return found

    @staticmethod
    def _is_builtin(function: Any, signature: Any) -> bool:
        """False for what is compiled for its callers: Python functions, and intrinsics."""
        if isinstance(function, types.NumberClass):
            return True
        return bool(function.get_impl_key(signature) == function.typing_key)
