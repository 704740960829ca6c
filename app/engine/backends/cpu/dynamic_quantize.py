"""Rows of DynamicQuantizeLinear, and the calls that quantize a tensor over its own range."""

import onnx_ir as ir

from app.engine.backends.cpu.calls import Operands, kernel_call, of_type
from app.engine.backends.cpu.rows import after, single_rejection
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.operands import data, moved_seconds

CHUNK = 4096  # elements of a unit


def range_call(x: Argument, size: int) -> tuple[KernelCall, Workspace]:
    """The call that finds the range of x, chunk by chunk, and where it puts what it finds."""
    units = -(-size // CHUNK)
    limits = Workspace(8 * max(units, 1))
    operands: Operands = (*of_type("float32*", x, limits), size, CHUNK)
    return kernel_call("app.kernels.cpu.quantize:ranges", operands, units), limits


def center_calls(x: Argument, rows: int, k: int) -> tuple[tuple[KernelCall, ...], Workspace, Workspace]:
    """Calls that quantize x over its own range: int16[rows, 2 ceil(k / 2)] less zero, and the scale."""
    first, limits = range_call(x, rows * k)
    pairs, scale = Workspace(max(rows * -(-k // 2), 1) * 4), Workspace(4)
    operands: Operands = (
        *of_type("float32*", x, limits),
        ("int16*", pairs),
        ("float32*", scale),
        k,
        first.units,
    )
    second = kernel_call("app.kernels.cpu.quantize:center_rows", operands, rows)
    return (first, second), pairs, scale


@after(single_rejection)
def _rejection(group: Group, _context: PlanningContext) -> str | None:
    return None if graph.elements(data(group.anchor)) else "an empty tensor has no range"


def _lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x = data(group.anchor)
    size = graph.elements(x)
    first, limits = range_call(x, size)
    y, scale, zero = (_or_scratch(v, group, n) for v, n in zip(group.anchor.outputs, (size, 4, 1)))
    results = ("uint8*", y), ("float32*", scale), ("uint8*", zero)
    operands: Operands = (*of_type("float32*", x, limits), *results, size, CHUNK, first.units)
    return first, kernel_call("app.kernels.cpu.quantize:quantize", operands, first.units)


def _or_scratch(value: ir.Value, group: Group, nbytes: int) -> Argument:
    """An output, or scratch memory in its place where nobody reads it."""
    return value if value in group.outputs else Workspace(nbytes)


IMPLEMENTATIONS = (
    Implementation(
        "dynamic_quantize_linear.chunks",
        "DynamicQuantizeLinear",
        "numba-cpu",
        _rejection,
        _lower,
        cost=moved_seconds,
    ),
)
