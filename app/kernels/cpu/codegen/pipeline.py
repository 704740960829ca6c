"""numba's compiler without what kernels do not need; the machine code is the same.

Kernels have no arrays and no closures, whose rewrites take a twentieth of numba's time.
"""

from typing import Any

from numba.core.compiler import CompilerBase, DefaultPassBuilder

from app.kernels.signatures import Remembered

_SKIPPED = frozenset({"nopython_rewrites", "inline_closure_likes"})  # expressions of arrays; closures
_SIGNATURES: dict[tuple[Any, ...], Any] = {}


class KernelCompiler(CompilerBase):
    """`pipeline_class` of all functions of kernels."""

    def define_pipelines(self) -> list[Any]:
        """Passes, in order."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [each for each in passes.passes if each[0].name() not in _SKIPPED]
        passes.finalize()
        self.state.typingctx = Remembered(self.state.typingctx, _SIGNATURES)
        return [passes]
