"""Calls of compiled kernels from their operands, each with its C type."""

from collections.abc import Sequence
from typing import TypeAlias

from app.engine.core.calls import Argument, Constant, KernelCall
from app.kernels.cpu.codegen.sizes import SizeTable

Operand: TypeAlias = tuple[str, Argument]  # a type such as "float32*", and the argument of this type


def typed_call(
    kernel: str, operands: Sequence[Operand], units: int, static: tuple[object, ...] = ()
) -> KernelCall:
    """Call of a kernel that takes its thread's number, for workspace of its own."""
    types, arguments = zip(*operands)
    return KernelCall(kernel, types, arguments, units, static=static, takes_thread=True)


def size_operand(sizes: SizeTable) -> Operand:
    """The table of sizes of a kernel."""
    return "int64*", Constant(sizes.array())
