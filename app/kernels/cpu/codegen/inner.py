"""Functions that compiled code calls, and nothing else.

numba gives each function that it compiles two more, by which Python and C call it, and makes machine code of
all three. For a short function that is the larger part of the work, and kernels are called by their address
alone: functions that they call become part of their machine code.
"""

from typing import Any

import numba
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

from app.kernels.cpu.codegen.pipeline import KernelCompiler


class _Linked(JITCodeLibrary):
    """Optimized code of LLVM, which callers are linked with; no machine code is made of it alone."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, _name: str) -> int:
        """No address."""
        return 0

    @property
    def codegen(self) -> Any:
        """The object that is told the environment of a function."""
        return self

    def set_env(self, _name: str, _environment: Any) -> None:
        """Nothing: an environment holds Python objects, of which kernels have none."""


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    _name = "inner_lowering"

    def run_pass(self, state: Any) -> Any:
        state.library = _Linked(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().run_pass(state)


class _InnerCompiler(KernelCompiler):
    """`pipeline_class` of functions that only compiled code calls."""

    def define_pipelines(self) -> list[Any]:
        (passes,) = super().define_pipelines()
        passes.passes = [
            (_Lowering if made is NativeLowering else made, text) for made, text in passes.passes
        ]
        passes.finalize()
        return [passes]


def njit(function: Any = None, **options: Any) -> Any:
    """A decorator: `numba.njit` with these options, for functions that Python does not call."""
    decorate = numba.njit(
        pipeline_class=_InnerCompiler, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options
    )
    return decorate if function is None else decorate(function)
