"""Groups of a single node whose kernels work along an axis: what their rows ask and compute."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Workspace
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.operators.axes import first_input, first_output, output_at
from app.engine.operators.operands import group_rejection

FLOATS = ("float32", "float64")
NUMBERS = (*FLOATS, "int32", "int64")
ORDERED = (*NUMBERS, "int8", "int16", "uint8", "uint16", "uint32", "uint64")
COLUMNS = 512  # neighbours side by side: with float64 sums beside them a fifth of a 32 KiB cache


def axis_rejection(group: Group, dtypes: Sequence[str]) -> str | None:
    """Reason why a kernel of one node and static tensors does not apply; None when it may.

    `dtypes` are the element types of the first input that the kernel is written for.
    """
    reason = group_rejection(group)
    if reason is not None:
        return reason
    source = first_input(group)
    if type_name(source) not in dtypes:
        return f"input {source.name!r} is {type_name(source)}; the kernel takes {', '.join(dtypes)}"
    if output_at(group, 0) is None:
        return "nothing reads the first output"
    return None


def type_name(value: ir.Value) -> str:
    """NumPy's name of the element type of a tensor."""
    dtype = graph.element_type(value)
    return str(dtype.name)


def pointer(value: ir.Value) -> str:
    """The kernel argument type of a tensor's address."""
    return f"{type_name(value)}*"


def first_over_first(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """In place: the first output over the first input, unless the node reads that twice."""
    x = first_input(group)
    return ((x, first_output(group)),) if group.anchor.inputs.count(x) == 1 else ()


def blocks_of(inner: int) -> int:
    """Blocks of COLUMNS neighbours that an innermost axis has."""
    return -(-inner // COLUMNS)


def columns_of(dtype: str) -> Workspace:
    """Scratch for one block of columns per thread."""
    return Workspace(COLUMNS * np.dtype(dtype).itemsize, per_thread=True)


def total_bytes(group: Group) -> int:
    """Bytes that the group reads and writes, each value once."""
    return sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs))
