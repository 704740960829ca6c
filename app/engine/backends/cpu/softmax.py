"""Softmax and its logarithm along any axis."""

from app.engine.backends.cpu.axis_kernels import (
    COLUMNS,
    FLOATS,
    axis_rejection,
    blocks_of,
    columns_of,
    first_over_first,
    total_bytes,
    type_name,
)
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, KernelCall
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators.axes import along_axis, first_input, first_output

BACKEND = "numba-cpu"
KERNELS = "app.kernels.cpu.softmax"

_KERNELS = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}


def _rejection(group: Group, _context: PlanningContext) -> str | None:
    return axis_rejection(group, FLOATS)


def _lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    return (along(_KERNELS[group.op], type_name(x), x, y, along_axis(group)),)


def along(kernel: str, dtype: str, x: Argument, y: Argument, shape: tuple[int, int, int]) -> KernelCall:
    """The call of a softmax kernel along the middle axis of (outer, n, inner)."""
    outer, n, inner = shape
    t = f"{dtype}*"
    if inner == 1:
        return KernelCall(f"{KERNELS}:{kernel}_rows", (t, t, "int64"), (x, y, n), units=outer)
    blocks = blocks_of(inner)
    return KernelCall(
        f"{KERNELS}:{kernel}_columns",
        (t, t, "float64*", t, *("int64",) * 4),
        (x, y, columns_of("float64"), columns_of(dtype), COLUMNS, n, inner, blocks),
        units=outer * blocks,
        takes_thread=True,
    )


def _cost(group: Group, context: PlanningContext) -> float:
    elements = graph.elements(first_output(group))
    return roofline(
        context.target,
        flops=25 * elements,
        nbytes=total_bytes(group),
        efficiency=0.3,
        threads=context.threads,
    )


IMPLEMENTATIONS = tuple(
    Implementation(f"softmax.{kernel}", op, BACKEND, _rejection, _lower, _cost, first_over_first)
    for op, kernel in _KERNELS.items()
)
