"""Kernels, driver, runtime and tables of a program as position-independent object files.

The kernels are the optimized bitcode that the cache keeps; only machine code is generated again, once for
all programs. Every function is local to its object, but for the entries.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import llvmlite.binding as binding

from app.kernels.cpu.codegen.callback import bitcode
from app.kernels.cpu.runtime.processor import ARCHITECTURE, Processor
from app.kernels.library.elf import LinkError
from app.kernels.library.stack_depth import StackUse, stack_use

HERE = Path(__file__).parent
# runtime.c by architecture, compiled by `make library-runtime`.
RUNTIMES: Mapping[str, Path] = {"x86_64": HERE / "runtime.ll", "aarch64": HERE / "runtime_aarch64.ll"}
ERROR_PATH, MEMORY_FUNCTIONS = HERE / "error_path.ll", HERE / "memory_functions.ll"  # for any
API = (
    *(
        "stowplan_check",
        "stowplan_metadata",
        "stowplan_input_count",
        "stowplan_output_count",
        "stowplan_input",
        "stowplan_output",
    ),
    *("stowplan_create", "stowplan_destroy", "stowplan_input_memory", "stowplan_output_memory"),
    *("stowplan_output_shape", "stowplan_output_bytes"),
    *("stowplan_run", "stowplan_run_buffers", "stowplan_message"),
    "RegisterCustomOps",  # for onnxruntime
)


# Intrinsics that numba's modules for x86-64 call, as another architecture has them.
_TRANSLATED: Mapping[str, str] = {
    "call void @llvm.x86.sse2.pause()": "call void @llvm.aarch64.hint(i32 1)",
    "declare void @llvm.x86.sse2.pause()": "declare void @llvm.aarch64.hint(i32)",
    "@llvm.x86.avx2.vpdpbssd.128(": "@llvm.aarch64.neon.sdot.v4i32.v16i8(",
    "@llvm.readcyclecounter()": "@llvm.readsteadycounter()",  # the counter of cycles is the system's alone
}
# The call by address in numba's error path, which makes the arguments of an exception; kernels have no other.
_ARGUMENTS = re.compile(r"^(\s+%\S+ = )(?:tail )?call ptr %\S+\(ptr %\S+\)", re.M)


class Emitter:
    """Object files for a processor."""

    def __init__(self, processor: Processor) -> None:
        self.processor = processor

    def of_assembly(self, text: str) -> bytes:
        """An object of LLVM assembly, whose triple and data layout are the processor's."""
        return bytes(self._machine.emit_object(self._parsed(text)))

    def of_callback(self, callback: Any, symbol: str) -> bytes:
        """An object of a numba callback, which is called by a symbol.

        Raises:
            LinkError: it has instructions that the processor's architecture has not.
        """
        return bytes(self._machine.emit_object(self._called(callback, symbol)))

    def stack_of_callback(self, callback: Any, symbol: str) -> StackUse:
        """Stack of the function that `of_callback` makes an object of.

        Raises:
            LinkError: as there, or its depth is not fixed.
        """
        return self._stack(self._called(callback, symbol), symbol)

    def stack_of_assembly(self, text: str, entry: str) -> StackUse:
        """Stack of a function of LLVM assembly."""
        return self._stack(self._parsed(text), entry)

    def _stack(self, module: Any, entry: str) -> StackUse:
        assembly = str(self._machine.emit_assembly(module))
        return stack_use(assembly, entry, self.processor.architecture)

    def _called(self, callback: Any, symbol: str) -> Any:
        """The module of a numba callback, all of it internal but for the symbol.

        What is internal is named by its number: names of numba count the functions of a process.
        """
        module = self._without_arguments(self._translated(binding.parse_bitcode(bitcode(callback))))
        for number, function in enumerate(list(module.functions)):
            if function.name == callback.native_name:
                function.name = symbol
                function.linkage, function.visibility = "external", "hidden"
            elif not function.is_declaration:
                function.linkage, function.name = "internal", f"f{number}"
        for number, variable in enumerate(list(module.global_variables)):
            if not variable.is_declaration:
                variable.linkage, variable.name = "internal", f"d{number}"
        self._drop_unused(module)
        module.verify()
        return module

    def _without_arguments(self, module: Any) -> Any:
        """A module whose error path makes no arguments of exceptions, which nobody would read."""
        if not any(function.name == "numba_gil_ensure" for function in module.functions):
            return module
        return self._parsed(_ARGUMENTS.sub(r"\1select i1 true, ptr null, ptr null", str(module)))

    def _parsed(self, text: str) -> Any:
        module = binding.parse_assembly(text)
        machine = self._machine
        module.triple, module.data_layout = machine.triple, str(machine.target_data)
        module.verify()
        return module

    def _translated(self, module: Any) -> Any:
        """A module of numba's for the processor, whose architecture may be another."""
        if self.processor.architecture == ARCHITECTURE:
            return module
        text = str(module)
        for ours, theirs in _TRANSLATED.items():
            text = text.replace(ours, theirs)
        left = re.search(r"@llvm\.x86\.[\w.]+", text)
        if left:
            raise LinkError(f"{self.processor.architecture} has no instruction for {left[0]}")
        return self._parsed(text)

    @cached_property
    def _machine(self) -> Any:
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
        binding.initialize_native_asmparser()  # for the inline assembly of the runtime
        processor = self.processor
        return binding.Target.from_triple(processor.triple).create_target_machine(
            cpu=processor.name, features=processor.features, opt=3, reloc="pic", codemodel="small"
        )

    def _drop_unused(self, module: Any) -> None:
        """Drop numba's wrappers and their error path, where no kernel can raise."""
        tuning = binding.create_pipeline_tuning_options(speed_level=3)
        builder = binding.create_pass_builder(self._machine, tuning)
        passes = binding.create_new_module_pass_manager()
        passes.add_ipsccp_pass()
        passes.add_simplify_cfg_pass()
        passes.add_global_dead_code_eliminate_pass()
        passes.add_strip_dead_prototype_pass()
        passes.run(module, builder)
