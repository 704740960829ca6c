"""Kernels, driver, runtime and tables of a program as one position-independent object file.

The kernels are the optimized bitcode that the cache keeps; only machine code is generated again. Every
function is local to the object before modules are joined, but for the entries of kernels: numba's names carry
a counter of the process that compiled them, and could meet.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import llvmlite.binding as binding
import numba
from numba.core.codegen import get_host_cpu_features

from app.kernels.cpu.codegen import linking
from app.kernels.cpu.codegen.callback import bitcode
from app.kernels.cpu.runtime import driver

HERE = Path(__file__).parent
RUNTIME = HERE / "runtime.ll"  # runtime.c, compiled by `make library-runtime`
API = (
    *(
        "stowplan_metadata",
        "stowplan_input_count",
        "stowplan_output_count",
        "stowplan_input",
        "stowplan_output",
    ),
    *("stowplan_create", "stowplan_destroy", "stowplan_input_memory", "stowplan_output_memory"),
    *("stowplan_run", "stowplan_run_buffers", "stowplan_message"),
    "RegisterCustomOps",  # for onnxruntime
)


def object_file(kernels: Mapping[str, Any], tables: str) -> bytes:
    """An ELF object of kernels with the driver and the runtime.

    Args:
        kernels: numba callbacks by the symbol that the tables call them by.
        tables: LLVM assembly that defines `stowplan_program` (`program.h`).
    """
    _initialize()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=processor(), features=features(), opt=3, reloc="pic", codemodel="small"
    )
    whole = binding.parse_assembly(tables)
    whole.triple, whole.data_layout = machine.triple, str(machine.target_data)
    for module in _modules({**kernels, **driver.entries()}):
        whole.link_in(module)
    runtime = binding.parse_assembly(RUNTIME.read_text(encoding="utf-8"))
    runtime.triple, runtime.data_layout = whole.triple, whole.data_layout
    whole.link_in(runtime)
    for function in whole.functions:
        if not function.is_declaration and function.name not in API:
            function.linkage = "internal"
    _drop_unused(whole, machine)
    whole.verify()
    return bytes(machine.emit_object(whole))


def processor() -> str:
    """LLVM's name of the processor that kernels are compiled for."""
    return str(numba.config.CPU_NAME or binding.get_host_cpu_name())


def features() -> str:
    """LLVM's features of that processor."""
    return str(numba.config.CPU_FEATURES or get_host_cpu_features())


def _initialize() -> None:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()  # for the inline assembly of the runtime


def _modules(entries: Mapping[str, Any]) -> Iterable[Any]:
    """The module of every entry, and those of the functions that several kernels share."""
    todo, seen = dict(entries), set(entries)
    while todo:
        symbol, callback = todo.popitem()
        module = binding.parse_bitcode(bitcode(callback))
        for function in list(module.functions):
            if function.is_declaration:
                other = linking.linked(function.name)
                if other is not None and function.name not in seen:
                    seen.add(function.name)
                    todo[function.name] = other
            elif function.name == callback.native_name:
                function.name = symbol
                function.linkage, function.visibility = "external", "hidden"
            else:
                function.linkage = "internal"
        for variable in module.global_variables:
            if not variable.is_declaration:
                variable.linkage = "internal"
        yield module


def _drop_unused(module: Any, machine: Any) -> None:
    """Drop numba's wrappers and their error path, where no kernel can raise."""
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=3))
    passes = binding.create_new_module_pass_manager()
    passes.add_ipsccp_pass()
    passes.add_simplify_cfg_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    passes.run(module, builder)
