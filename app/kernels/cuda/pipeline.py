"""numba-cuda's compiler without what kernels do not need; the PTX is the same.

Imports numba-cuda, which is installed only where kernels for GPUs are compiled.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.cuda import compiler, lowering
from numba.cuda.core import ir
from numba.cuda.core.analysis import compute_use_defs, must_use_alloca
from numba.cuda.core.compiler_machinery import register_pass

from app.kernels.signatures import Remembered

_SKIPPED = frozenset({"nopython_rewrites", "inline_closure_likes"})  # expressions of arrays; closures
_SIGNATURES: dict[tuple[Any, ...], Any] = {}


class _Lower(lowering.CUDALower):
    """Lowering in a time that is linear in the statements of a block.

    numba-cuda compares every variable of a block with every statement of it: a sixth of the time of a kernel.
    """

    def _find_singly_assigned_variable(self) -> None:
        blocks = self.func_ir.blocks
        assigned = Counter(s.target.name for b in blocks.values() for s in b.find_insts(ir.assign_types))
        elsewhere = set().union(*compute_use_defs(blocks).usemap.values(), must_use_alloca(blocks))
        once = {name for name, count in assigned.items() if count == 1}
        self._singly_assigned_vars = once - elsewhere
        self._blk_local_varmap: dict[str, Any] = {}


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(compiler.CUDANativeLowering):
    _name = "kernel_lowering"

    @property
    def lowering_class(self) -> Any:
        return _Lower


class KernelCompiler(compiler.CUDACompiler):
    """numba-cuda's passes but those for arrays and closures."""

    def define_pipelines(self) -> list[Any]:
        """Passes, in order."""
        (passes,) = super().define_pipelines()
        kept = [each for each in passes.passes if each[0].name() not in _SKIPPED]
        lowered = compiler.CUDANativeLowering
        passes.passes = [(_Lowering if made is lowered else made, text) for made, text in kept]
        passes.finalize()
        self.state.typingctx = Remembered(self.state.typingctx, _SIGNATURES)
        return [passes]


@contextmanager
def kernel_passes() -> Iterator[None]:
    """While this lasts, numba-cuda compiles by the passes of kernels."""
    usual = compiler.CUDACompiler
    compiler.CUDACompiler = KernelCompiler
    try:
        yield
    finally:
        compiler.CUDACompiler = usual
