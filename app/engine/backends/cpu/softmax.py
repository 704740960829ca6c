"""Softmax and its logarithm along any axis."""

from app.engine.backends.cpu.axis_kernels import (
    COLUMNS,
    HALVES,
    computed,
    first_over_first,
    rows_or_columns,
    takes_mixed,
    type_name,
)
from app.engine.backends.cpu.calls import Operand, kernel_call, of_type, of_values
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.axes import along_axis, first_input, first_output

_KERNELS = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}
MOST_SHORT = 256  # elements of a row that stays in registers, or nearly: AVX2 has a quarter of them
MOST_APART = 1 << 20  # bytes of exponentials that a thread keeps beside a result of 16-bit floats


def _is_short(n: int, inner: int) -> bool:
    return 1 < n <= MOST_SHORT and inner == 1


@after(takes_mixed)
def _rejection(group: Group, _context: PlanningContext) -> str | None:
    if _apart_bytes(group) > MOST_APART:
        return f"{_apart_bytes(group)} bytes of exponentials wait to be rounded, more than {MOST_APART}"
    return None


def _apart_bytes(group: Group) -> int:
    """Bytes of the exponentials that a result of 16-bit floats cannot hold, nor registers; 0 for others."""
    _, n, inner = along_axis(group)
    if group.op != "Softmax" or type_name(first_output(group)) not in HALVES or _is_short(n, inner):
        return 0
    return 4 * max(n, 1) * (1 if inner == 1 else COLUMNS)


def _lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    kernel, operands, shape, kind = _KERNELS[group.op], of_values(x, y), along_axis(group), computed(x)
    apart = _apart_bytes(group)
    if not apart:
        return (_along(kernel, operands, shape, kind),)
    work = "float32*", Workspace(apart, per_thread=True)
    return (_along(kernel, (*operands, work), shape, kind, "_apart"),)


def along(kernel: str, dtype: str, x: Argument, y: Argument, shape: tuple[int, int, int]) -> KernelCall:
    """The call of a softmax kernel along the middle axis of (outer, n, inner)."""
    return _along(kernel, of_type(f"{dtype}*", x, y), shape, dtype)


def _along(
    kernel: str, operands: tuple[Operand, ...], shape: tuple[int, int, int], dtype: str, variant: str = ""
) -> KernelCall:
    outer, n, inner = shape
    if _is_short(n, inner) and dtype == "float32":
        from app.kernels.cpu.softmax import SHORT_LANES  # imports numba

        static = kernel, -(-n // SHORT_LANES)
        return kernel_call("app.kernels.cpu.softmax:emit_short", (*operands, n), outer, static)
    rows, columns = (f"app.kernels.cpu.softmax:{kernel}_{axis}{variant}" for axis in ("rows", "columns"))
    return rows_or_columns((rows, columns), operands, shape, ("float64", dtype), takes_thread=bool(variant))


def _cost(group: Group, context: PlanningContext) -> float:
    return group_roofline(group, context, 25 * graph.elements(first_output(group)), 0.3)


IMPLEMENTATIONS = tuple(
    Implementation(f"softmax.{kernel}", op, "numba-cpu", _rejection, _lower, _cost, first_over_first)
    for op, kernel in _KERNELS.items()
)
