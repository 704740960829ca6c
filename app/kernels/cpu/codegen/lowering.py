"""From numba's typed statements to LLVM's code, and its optimization: what kernels need of both.

numba optimizes every function alone, once by itself and twice as a module, and makes machine code of it; then
again as a part of each function that calls it. Functions that only kernels call are linked as they were
written here, and a kernel is optimized once, as a whole. Kernels have no Python objects and no debugger:
nothing counts references, ends variables or asks for the size of what debuggers show.
"""

from typing import Any

from numba.core import cgutils
from numba.core import ir as numba_ir
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import BaseNativeLowering


class KernelLibrary(JITCodeLibrary):
    """LLVM's code of a function that is called by its address, optimized once with all that it calls."""

    def add_llvm_module(self, module: Any) -> None:
        """Add code as it is."""
        module.data_layout = self._codegen._data_layout
        self._final_module.link_in(module)

    def finalize(self) -> None:
        """Add what is called, optimize, and pass to the execution engine."""
        self.link()
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)
        self._final_module.verify()
        self._finalize_final_module()

    def link(self) -> None:
        """Add the code of the libraries that this one calls."""
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)


class InnerLibrary(KernelLibrary):
    """LLVM's code of a function that only compiled code calls; it is a part of theirs, and nothing alone."""

    @property
    def codegen(self) -> Any:
        """The object that is told the environment of a function."""
        return self

    def set_env(self, _name: str, _environment: Any) -> None:
        """Set nothing: an environment holds Python objects, of which kernels have none."""

    def finalize(self) -> None:
        """Add what is called; there is no machine code."""
        self.link()
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, _name: str) -> int:
        """Address of no code: 0."""
        self._ensure_finalized()
        return 0


class KernelLower(Lower):
    """Lowering without references to Python objects and without debug information."""

    def lower_block(self, block: Any) -> None:
        """Write the code of a block."""
        for statement in block.body:
            self.loc = statement.loc
            if isinstance(statement, numba_ir.Assign):
                name = statement.target.name
                self.storevar(self.lower_assign(self.typeof(name), statement), name)
            else:
                self.lower_inst(statement)

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:  # noqa: ARG002
        """Set a variable."""
        self._alloca_var(name, self.typeof(name))
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:  # noqa: ARG002
        """Reserve the place of a variable."""
        return cgutils.alloca_once(self.builder, lltype, name=name, zfill=False)

    def incref(self, typ: Any, val: Any) -> None:
        """Count no reference: kernels have no Python objects."""

    def decref(self, typ: Any, val: Any) -> None:
        """Count no reference, as `incref`."""


@register_pass(mutates_CFG=True, analysis_only=False)
class KernelLowering(BaseNativeLowering):
    """LLVM's code of a function that is called by its address."""

    _name = "kernel_lowering"
    library: type[KernelLibrary] = KernelLibrary

    @property
    def lowering_class(self) -> type[Lower]:
        """Class that writes the code of blocks and statements."""
        return KernelLower

    def run_pass(self, state: Any) -> bool:
        """Write the code of a function into a library of its own."""
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        super().run_pass(state)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class InnerLowering(KernelLowering):
    """LLVM's code of a function that only compiled code calls."""

    _name = "inner_lowering"
    library = InnerLibrary
