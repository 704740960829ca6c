"""LLVM's part of compilation: a module is optimized and becomes an object file, and object files are loaded.

An object defines one symbol. What else is in it is local, so that objects of any number of kernels are linked
into one library, or loaded into one process.
"""

import functools
import threading
from pathlib import Path
from typing import Any

import llvmlite.binding as binding

from app.kernels.cpu.codegen.lowering import RAISE
from app.kernels.cpu.runtime.processor import Processor, compiled_for
from app.kernels.library.elf import RelocatableObject

# A kernel that raised goes on: its error is a fault of the compiler, which standard error tells.
_TOLD = "stowplan: a kernel raised an error\n"
_RAISE = f"""
@text = private constant [{len(_TOLD)} x i8] c"{_TOLD[:-1]}\\0A"
declare i64 @write(i32, ptr, i64)
define void @{RAISE}() {{
  %written = call i64 @write(i32 2, ptr @text, i64 {len(_TOLD)})
  ret void
}}
"""


def _target_machine(processor: Processor) -> Any:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    binding.initialize_native_asmparser()  # for the inline assembly of a library's runtime
    return binding.Target.from_triple(processor.triple).create_target_machine(
        cpu=processor.name, features=processor.features, opt=3, reloc="pic", codemodel="small"
    )


@functools.cache
def target_machine(processor: Processor) -> Any:
    """LLVM's generator of position-independent code for a processor."""
    return _target_machine(processor)


def parsed(text: str, processor: Processor) -> Any:
    """The module of LLVM assembly for a processor."""
    module, machine = binding.parse_assembly(text), target_machine(processor)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    module.verify()
    return module


def optimize(module: Any, symbol: str) -> None:
    """Optimize a module; then all of it is local but for the symbol.

    What numba named is named by its number, as its names count the functions of a process.
    """
    machine = target_machine(compiled_for())
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    tuning = binding.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization, tuning.slp_vectorization = True, False
    builder = binding.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    for number, function in enumerate(list(module.functions)):
        if function.name == symbol:
            function.visibility = "hidden"
        elif not function.is_declaration:
            function.linkage = "internal"
            if function.name.startswith("_ZN"):
                function.name = f"f{number}"
    for number, variable in enumerate(list(module.global_variables)):
        if not variable.is_declaration:
            variable.linkage, variable.name = "internal", f"d{number}"
    passes = binding.create_new_module_pass_manager()  # drop numba's wrapper and errors that none can raise
    passes.add_ipsccp_pass()
    passes.add_simplify_cfg_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    passes.run(module, builder)
    module.verify()


def emit(module: Any) -> bytes:
    """The object file of a module."""
    return bytes(target_machine(compiled_for()).emit_object(module))


def assembly(bitcode: bytes, prefix: str = "") -> str:
    """Assembly of the functions of a module whose names begin so; that of all takes much longer."""
    module = binding.parse_bitcode(bitcode)
    for function in module.functions:
        if not function.is_declaration and not function.name.startswith(prefix):
            function.linkage = "available_externally"  # its definition is elsewhere: no code is made
    return str(target_machine(compiled_for()).emit_assembly(module))


def imports(content: bytes) -> list[str]:
    """Names that an object refers to and does not define."""
    found = RelocatableObject(content)
    return [found.symbols[i].name for i in found.imports]


class Loader:
    """Machine code of object files in this process; it is never given back.

    Args:
        folder: where the object that defines a symbol is found: a file of the symbol's name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        # JITLink lays an object in one piece; RuntimeDyld aborts where 2 GiB come to lie between its parts.
        self._linker = binding.create_lljit_compiler(_target_machine(compiled_for()), use_jit_link=True)
        text = (
            binding.JITLibraryBuilder()
            .add_ir(_RAISE)
            .import_symbol("write", binding.address_of_symbol("write"))
        )
        self._loaded = {RAISE: text.export_symbol(RAISE).link(self._linker, RAISE)}

    def address(self, symbol: str) -> int:
        """Address of a symbol, whose object is loaded with all that it calls.

        Raises:
            LookupError: the object calls a function that nobody defines.
        """
        with self._lock:
            return self._address(symbol)

    def _address(self, symbol: str) -> int:
        if symbol not in self._loaded:
            path = self._path(symbol)
            content = path.read_bytes()
            library = binding.JITLibraryBuilder().add_object_img(content).export_symbol(symbol)
            for name in imports(content):
                if name in self._loaded or self._path(name).exists():
                    library.import_symbol(name, self._address(name))
                elif (address := binding.address_of_symbol(name)) is not None:
                    library.import_symbol(name, address)
                else:
                    raise LookupError(f"{path} calls {name!r}, which is not defined")
            self._loaded[symbol] = library.link(self._linker, symbol)
        return int(self._loaded[symbol][symbol])

    def _path(self, symbol: str) -> Path:
        return self._folder / f"{symbol}.o"


_loader = functools.cache(Loader)  # one for a folder and the process


def address_of(path: Path) -> int:
    """Address of the symbol that an object file defines and is named after; it is loaded once."""
    return _loader(path.parent).address(path.stem)
