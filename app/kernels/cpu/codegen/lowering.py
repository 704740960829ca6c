"""From numba's typed statements to LLVM's code.

Kernels have no Python objects and no debugger: nothing counts references, and an exception has no arguments.
LLVM optimizes nothing here: a kernel is optimized once, with all that it calls (`machine_code`).
"""

from collections.abc import Iterator
from typing import Any

import llvmlite.binding as binding
import llvmlite.ir as ll
from numba.core import cgutils
from numba.core import ir as numba_ir
from numba.core.codegen import CodeLibrary
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.runtime import rtsys
from numba.core.typed_passes import BaseNativeLowering

RAISE = "stowplan_raise"  # the function that an entry calls where its function raised


class FunctionLibrary(CodeLibrary):
    """LLVM's code of a function, as it was written, and the libraries of those that it calls."""

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        self.module = binding.parse_assembly("")
        self._called: dict[CodeLibrary, None] = {}

    @property
    def codegen(self) -> Any:
        """The object that is told the environment of a function."""
        return self

    def set_env(self, _name: str, _environment: Any) -> None:
        """Set nothing: an environment holds Python objects, of which kernels have none."""

    def add_ir_module(self, ir_module: Any) -> None:
        """Add code as it is."""
        module = binding.parse_assembly(cgutils.normalize_ir_text(str(ir_module)))
        module.verify()
        self.module.link_in(module)

    def add_linking_library(self, library: Any) -> None:
        """Add a library that this one calls; none calls numba's runtime, which counts references."""
        if library is not rtsys.library:
            self._called[library] = None

    def finalize(self) -> None:
        """Do nothing: there is no machine code."""

    def get_function(self, name: str) -> Any:
        """A function of the code."""
        return self.module.get_function(name)

    def get_llvm_str(self) -> str:
        """Text of the code."""
        return str(self.module)

    def get_asm_str(self) -> str:
        """Text of no machine code."""
        return ""

    def get_pointer_to_function(self, _name: str) -> int:
        """Address of no machine code: 0."""
        return 0

    def linked(self) -> Any:
        """One module of this code and of all that it calls, which may be dropped where it is inlined."""
        whole = binding.parse_assembly("")
        whole.link_in(self.module, preserve=True)
        for library in self._callees():
            own = isinstance(library, FunctionLibrary)
            module = (
                library.module.clone()
                if own
                else binding.parse_bitcode(library.serialize_using_bitcode()[-1])
            )
            for function in module.functions:
                if not function.is_declaration and function.linkage == binding.Linkage.external:
                    function.linkage = "linkonce_odr"
            whole.link_in(module)
        return whole

    def _callees(self) -> Iterator[Any]:
        """The libraries that this one calls, directly or not, each once."""
        todo, seen = [*self._called], set[CodeLibrary]()
        while todo:
            library = todo.pop(0)
            if library not in seen:
                seen.add(library)
                yield library
                todo += library._called if isinstance(library, FunctionLibrary) else ()


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

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:  # noqa: ARG002
        """Reserve the place of a variable."""
        return cgutils.alloca_once(self.builder, lltype, name=name, zfill=False)

    def incref(self, typ: Any, val: Any) -> None:
        """Count no reference: kernels have no Python objects."""

    def decref(self, typ: Any, val: Any) -> None:
        """Count no reference, as `incref`."""

    def create_cfunc_wrapper(self) -> None:
        """Write the entry, which has the name of the library and C's calling convention."""
        module, described = self.library.create_ir_module("entry"), self.fndesc
        kinds = [self.context.get_value_type(t) for t in (described.restype, *described.argtypes)]
        called = ll.Function(
            module,
            self.call_conv.get_function_type(described.restype, described.argtypes),
            described.llvm_func_name,
        )
        entry = ll.Function(module, ll.FunctionType(kinds[0], kinds[1:]), self.library.name)
        builder = ll.IRBuilder(entry.append_basic_block("entry"))
        status, result = self.call_conv.call_function(
            builder, called, described.restype, described.argtypes, entry.args, attrs=("noinline",)
        )
        with builder.if_then(status.is_error, likely=False):
            builder.call(ll.Function(module, ll.FunctionType(ll.VoidType(), ()), RAISE), ())
        builder.ret(result)
        self.library.add_ir_module(module)


@register_pass(mutates_CFG=True, analysis_only=False)
class KernelLowering(BaseNativeLowering):
    """LLVM's code of a function, in a library of its own if none was given."""

    _name = "kernel_lowering"

    @property
    def lowering_class(self) -> type[Lower]:
        """Class that writes the code of blocks and statements."""
        return KernelLower

    def run_pass(self, state: Any) -> bool:
        """Write the code of a function."""
        if state.library is None:
            state.library = FunctionLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        return bool(super().run_pass(state))
