"""Groups of a single node whose kernels work along an axis: what their rows ask and compute."""

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.calls import Operand, Operands, kernel_call
from app.engine.backends.cpu.rows import after, single_rejection
from app.engine.core import graph
from app.engine.core.calls import KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext, Rejection
from app.engine.operators.axes import first_input, first_output, output_at

FLOATS = ("float32", "float64")
HALVES = ("float16", "bfloat16")  # in memory; float32 once they are loaded
NUMBERS = (*FLOATS, "int32", "int64")
ORDERED = (*NUMBERS, "int8", "int16", "uint8", "uint16", "uint32", "uint64")
COLUMNS = 512  # neighbours side by side: with float64 sums beside them a fifth of a 32 KiB cache


def takes(*dtypes: str) -> Rejection:
    """Rejection of what is not one node on static tensors, its first input of one of these element types."""

    @after(single_rejection)
    def rejection(group: Group, _context: PlanningContext) -> str | None:
        source = first_input(group)
        if type_name(source) not in dtypes:
            return f"input {source.name!r} is {type_name(source)}; the kernel takes {', '.join(dtypes)}"
        return "nothing reads the first output" if output_at(group, 0) is None else None

    return rejection


takes_floats = takes(*FLOATS)


@after(takes(*FLOATS, *HALVES))
def takes_mixed(group: Group, _context: PlanningContext) -> str | None:
    """As `takes_floats`, where 16-bit floats may stand for float32 in any operand and result."""
    kind = computed(first_input(group))
    for value in (*group.anchor.inputs, *group.outputs):
        if value is not None and value.name and type_name(value) in HALVES and kind != "float32":
            return f"{value.name!r} is {type_name(value)}, the input {kind}"
    return None


def computed(value: ir.Value) -> str:
    """Name of the type that elements have in registers."""
    name = type_name(value)
    return "float32" if name in HALVES else name


def type_name(value: ir.Value) -> str:
    """NumPy's name of the element type of a tensor."""
    dtype = graph.element_type(value)
    return str(dtype.name)


def pointer(value: ir.Value) -> str:
    """The kernel argument type of a tensor's address."""
    return f"{type_name(value)}*"


def first_over_first(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """In place: the first output over the first input of its type, unless the node reads that twice."""
    x, y = first_input(group), first_output(group)
    return ((x, y),) if group.anchor.inputs.count(x) == 1 and type_name(x) == type_name(y) else ()


def blocks_of(inner: int, columns: int = COLUMNS) -> int:
    """Blocks of so many neighbours that an innermost axis has."""
    return -(-inner // columns)


def columns_of(dtype: str, columns: int = COLUMNS) -> Operand:
    """Scratch for one block of columns per thread."""
    return f"{dtype}*", Workspace(columns * np.dtype(dtype).itemsize, per_thread=True)


def rows_or_columns(
    kernels: tuple[str, str],
    operands: tuple[Operand, ...],
    shape: tuple[int, int, int],
    scratch: tuple[str, ...],
    *numbers: int,
    static: tuple[object, ...] | None = None,
    takes_thread: bool = False,
) -> KernelCall:
    """The call of the first kernel where the middle axis of (outer, n, inner) is contiguous, else the second.

    Only the second has scratch, a block of columns of each of these element types; `numbers` come last.
    `takes_thread` tells whether the first has a parameter for the number of its thread.
    """
    outer, n, inner = shape
    if inner == 1:
        return kernel_call(kernels[0], (*operands, n, *numbers), outer, static, takes_thread=takes_thread)
    blocks = blocks_of(inner)
    columns: Operands = (*operands, *map(columns_of, scratch), COLUMNS, n, inner, blocks, *numbers)
    return kernel_call(kernels[1], columns, outer * blocks, static, takes_thread=True)
