"""numba's compiler without what kernels do not need; the machine code is the same.

Kernels have no arrays and no closures, whose rewrites take a twentieth of numba's time, and their text is
mostly arithmetic on few types: which function adds two int64 is looked up once in a process.
"""

from typing import Any

from numba import types
from numba.core.compiler import CompilerBase, DefaultPassBuilder

_SKIPPED = frozenset({"nopython_rewrites", "inline_closure_likes"})  # expressions of arrays; closures
_SCALARS = (types.Number, types.Boolean, types.CPointer, types.IntegerLiteral)


class KernelCompiler(CompilerBase):
    """`pipeline_class` of all functions of kernels."""

    def define_pipelines(self) -> list[Any]:
        """Passes, in order."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [each for each in passes.passes if each[0].name() not in _SKIPPED]
        passes.finalize()
        self.state.typingctx = _Remembered(self.state.typingctx)
        return [passes]


class _Remembered:
    """A typing context that looks up the signature of a builtin function on scalars once."""

    _signatures: dict[tuple[Any, ...], Any] = {}  # noqa: RUF012  of the process, as numba's context is

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, function: Any, args: tuple[Any, ...], kws: Any) -> Any:
        """The signature of a call, None if there is none."""
        plain = isinstance(function, types.Function) and not kws
        if not plain or not all(isinstance(a, _SCALARS) for a in args):
            return self._context.resolve_function_type(function, args, kws)
        key = (function, tuple(args))
        if key in self._signatures:
            return self._signatures[key]
        found = self._context.resolve_function_type(function, args, kws)
        # Others are compiled for their callers: as Python functions, or by an intrinsic.
        if found is not None and function.get_impl_key(found) == function.typing_key:
            self._signatures[key] = found
        return found
