"""numba's compiler without what kernels do not need.

Kernels have no arrays, no closures and no objects that end: rewrites of the former, and the search for the
places where the latter do, take a tenth of numba's time.
"""

from typing import Any

from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.typed_passes import NativeLowering

from app.kernels.cpu.codegen.lowering import InnerLowering, KernelLowering
from app.kernels.signatures import Remembered

# Expressions of arrays; closures; ends of variables.
_SKIPPED = frozenset({"nopython_rewrites", "inline_closure_likes", "ir_legalization"})
_SIGNATURES: dict[tuple[Any, ...], Any] = {}


class KernelCompiler(CompilerBase):
    """`pipeline_class` of functions that are called by their address."""

    lowering: type[KernelLowering] = KernelLowering

    def define_pipelines(self) -> list[Any]:
        """Passes, in order."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [
            (self.lowering if made is NativeLowering else made, text)
            for made, text in passes.passes
            if made.name() not in _SKIPPED
        ]
        passes.finalize()
        self.state.typingctx = Remembered(self.state.typingctx, _SIGNATURES)
        return [passes]


class InnerCompiler(KernelCompiler):
    """`pipeline_class` of functions that only compiled code calls."""

    lowering = InnerLowering
