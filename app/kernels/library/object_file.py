"""Kernels, driver, runtime and tables of a program as position-independent object files.

Kernels for this architecture lie in the cache. Those for another are made of the optimized modules that lie
beside them; only machine code is generated again.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import llvmlite.binding as binding

from app.kernels.cpu.codegen.machine_code import parsed, target_machine
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


class Emitter:
    """Object files for a processor."""

    def __init__(self, processor: Processor) -> None:
        self.processor = processor

    def of_assembly(self, text: str) -> bytes:
        """An object of LLVM assembly, whose triple and data layout are the processor's."""
        return self._emitted(parsed(text, self.processor))

    def of_bitcode(self, content: bytes) -> bytes:
        """An object of a module that was compiled on this machine.

        Raises:
            LinkError: it has instructions that the processor's architecture has not.
        """
        return self._emitted(self._translated(binding.parse_bitcode(content)))

    def stack_of_bitcode(self, content: bytes, symbol: str) -> StackUse:
        """Stack of the function that `of_bitcode` makes an object of.

        Raises:
            LinkError: as there, or its depth is not fixed.
        """
        return self._stack(self._translated(binding.parse_bitcode(content)), symbol)

    def stack_of_assembly(self, text: str, entry: str) -> StackUse:
        """Stack of a function of LLVM assembly."""
        return self._stack(parsed(text, self.processor), entry)

    def _emitted(self, module: Any) -> bytes:
        return bytes(target_machine(self.processor).emit_object(module))

    def _stack(self, module: Any, entry: str) -> StackUse:
        assembly = str(target_machine(self.processor).emit_assembly(module))
        return stack_use(assembly, entry, self.processor.architecture)

    def _translated(self, module: Any) -> Any:
        """A module for the processor, whose architecture may be another."""
        if self.processor.architecture == ARCHITECTURE:
            return module
        text = str(module)
        for ours, theirs in _TRANSLATED.items():
            text = text.replace(ours, theirs)
        left = re.search(r"@llvm\.x86\.[\w.]+", text)
        if left:
            raise LinkError(f"{self.processor.architecture} has no instruction for {left[0]}")
        return parsed(text, self.processor)
