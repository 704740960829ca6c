"""Softmax and its logarithm along any axis."""

from app.engine.backends.cpu.axis_kernels import (
    first_over_first,
    rows_or_columns,
    takes_floats,
    type_name,
)
from app.engine.backends.cpu.calls import of_type
from app.engine.backends.cpu.rows import group_roofline
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, KernelCall
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.axes import along_axis, first_input, first_output

_KERNELS = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}


def _lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    return (along(_KERNELS[group.op], type_name(x), x, y, along_axis(group)),)


def along(kernel: str, dtype: str, x: Argument, y: Argument, shape: tuple[int, int, int]) -> KernelCall:
    """The call of a softmax kernel along the middle axis of (outer, n, inner)."""
    kernels = f"app.kernels.cpu.softmax:{kernel}_rows", f"app.kernels.cpu.softmax:{kernel}_columns"
    return rows_or_columns(kernels, of_type(f"{dtype}*", x, y), shape, ("float64", dtype))


def _cost(group: Group, context: PlanningContext) -> float:
    return group_roofline(group, context, 25 * graph.elements(first_output(group)), 0.3)


IMPLEMENTATIONS = tuple(
    Implementation(f"softmax.{kernel}", op, "numba-cpu", takes_floats, _lower, _cost, first_over_first)
    for op, kernel in _KERNELS.items()
)
