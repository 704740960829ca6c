"""Functions that are called by their address: object files in the folder of the cache, each compiled once.

numba compiles without what kernels do not need: they have no arrays, no closures, no objects that end, no
contexts, no functions that numba itself inlines and no loops over literals. The search for these, and the
lifetimes of variables that it finds each time, take an eighth of numba's time.

The module of an object lies beside it, after LLVM's optimizations: machine code for another processor's
library is made of it, and assembly, which tells registers and stack.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.compiler import CompilerBase, DefaultPassBuilder, Flags, compile_extra
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.typed_passes import NativeLowering

from app.kernels.cpu.codegen.lowering import FunctionLibrary, KernelLowering
from app.kernels.cpu.codegen.machine_code import emit, optimize
from app.kernels.signatures import Remembered

_SKIPPED = frozenset(
    {
        *("nopython_rewrites", "dump_parfor_diagnostics"),  # expressions of arrays
        *("inline_closure_likes", "make_function_op_code_to_jit_function"),  # closures
        *("ir_processing", "ir_legalization"),  # ends of variables
        *("with_lifting", "Rewrite dynamic raises"),  # contexts; arguments of exceptions
        *("inline_inlinables", "inline_overloads"),  # functions with the option `inline`
        *("find_literally", "literal_unroll", "LiteralPropagation"),
    }
)
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


def cache_folder() -> Path:
    """Folder of what is compiled from now on, which is that of numba's cache."""
    return Path(numba.config.CACHE_DIR)


def object_path(folder: Path, symbol: str) -> Path:
    """Place of the object of a symbol in the folder of a cache."""
    return folder / "objects" / f"{symbol}.o"


def compile_callback(signature: Any, function: Callable[..., Any], symbol: str) -> Path:
    """The object of a function that C calls by a symbol; it is made if the folder of the cache has none."""
    path = object_path(cache_folder(), symbol)
    if not path.exists():
        module = module_of(signature, function, symbol)
        optimize(module, symbol)
        write_whole(path.with_suffix(".bc"), module.as_bitcode())
        write_whole(path, emit(module))  # last: whoever sees it finds the module too
    return path


def bitcode(path: Path) -> bytes:
    """The module that an object was made of."""
    return path.with_suffix(".bc").read_bytes()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that others see whole or not at all; its folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)
