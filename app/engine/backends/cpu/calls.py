"""Calls of compiled kernels from their operands, each with its C type."""

from collections.abc import Sequence
from typing import TypeAlias

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Argument, Constant, KernelCall
from app.kernels.cpu.codegen.sizes import SizeTable

Operand: TypeAlias = tuple[str, Argument]  # a type such as "float32*", and the argument of this type
Operands: TypeAlias = tuple[Operand | int, ...]  # a number needs no type: it is passed as int64


def kernel_call(
    kernel: str,
    operands: Sequence[Operand | int],
    units: int,
    static: tuple[object, ...] | None = None,
    *,
    takes_thread: bool = False,
) -> KernelCall:
    """Call of a kernel, see `KernelCall`."""
    types, arguments = zip(*(("int64", o) if isinstance(o, int) else o for o in operands))
    return KernelCall(kernel, types, arguments, units, static, takes_thread)


def typed_call(
    kernel: str, operands: Sequence[Operand | int], units: int, static: tuple[object, ...] = ()
) -> KernelCall:
    """Call of a generated kernel that takes its thread's number, for workspace of its own."""
    return kernel_call(kernel, operands, units, static, takes_thread=True)


def of_type(kind: str, *arguments: Argument) -> tuple[Operand, ...]:
    """Operands of one type."""
    return tuple((kind, argument) for argument in arguments)


def of_values(*values: ir.Value) -> tuple[Operand, ...]:
    """Values as operands, each with a pointer to its own element type."""
    return tuple((f"{graph.element_type(value).name}*", value) for value in values)


def size_operand(sizes: SizeTable) -> Operand:
    """The table of sizes of a kernel."""
    return "int64*", Constant(sizes.array())
