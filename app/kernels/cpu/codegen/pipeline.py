"""numba's compiler without what kernels do not need.

Kernels have no arrays, no closures and no objects that end: rewrites of the former, and the search for the
places where the latter do, take a tenth of numba's time.
"""

from collections.abc import Callable
from typing import Any

from numba.core.compiler import CompilerBase, DefaultPassBuilder, Flags, compile_extra
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.typed_passes import NativeLowering

from app.kernels.cpu.codegen.lowering import FunctionLibrary, KernelLowering
from app.kernels.signatures import Remembered

# Expressions of arrays; closures; ends of variables.
_SKIPPED = frozenset({"nopython_rewrites", "inline_closure_likes", "ir_legalization"})
_SIGNATURES: dict[tuple[Any, ...], Any] = {}


class KernelCompiler(CompilerBase):
    """`pipeline_class` of kernels and of the functions that they call."""

    def define_pipelines(self) -> list[Any]:
        """Passes, in order."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [
            (KernelLowering if made is NativeLowering else made, text)
            for made, text in passes.passes
            if made.name() not in _SKIPPED
        ]
        passes.finalize()
        self.state.typingctx = Remembered(self.state.typingctx, _SIGNATURES)
        return [passes]


@global_compiler_lock
def module_of(signature: Any, function: Callable[..., Any], symbol: str) -> Any:
    """LLVM's module of a function that C calls by a symbol, with all that it calls; nothing is optimized."""
    flags = Flags()
    options = {"nopython": True, "error_model": "numpy", "boundscheck": False}
    cpu_target.options.parse_as_flags(flags, options)
    flags.no_cpython_wrapper, flags.no_cfunc_wrapper, flags.no_compile = True, False, True
    typing, target = cpu_target.typing_context, cpu_target.target_context
    library = FunctionLibrary(target.codegen(), symbol)
    kinds = signature.args, signature.return_type
    compile_extra(typing, target, function, *kinds, flags, {}, library, KernelCompiler)
    return library.linked()
