"""Searches and scans along one axis: extremum positions, largest k, running sums and products."""

import math

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.axis_kernels import (
    COLUMNS,
    FLOATS,
    HALVES,
    NUMBERS,
    ORDERED,
    blocks_of,
    columns_of,
    computed,
    first_over_first,
    rows_or_columns,
    takes,
    type_name,
)
from app.engine.backends.cpu.calls import Operand, Operands, kernel_call, of_values, typed_call
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, Excess, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext, no_pairs
from app.engine.operators.axes import along_axis, first_input, first_output, split
from app.engine.types.errors import InputError
from app.kernels.cpu import radix
from app.kernels.cpu.search import LANES

_EXTREMA = {"ArgMax": "max", "ArgMin": "min"}
_SCANS = {"CumSum": "sum", "CumProd": "prod"}
SCANNED = 1024  # neighbours of a scan: it goes through rows one after the other, of pages as long as that
CACHE_LINE = 64  # bytes that a vector of a scan takes
LINES = 1024  # cache lines of steps that a scan goes through several times, some neighbours at a time
BRIEF = 128  # steps of a scan whose totals, as wide as elements, lose no more than other sums do
_takes_ordered = takes(*ORDERED, *HALVES)


@after(_takes_ordered)
def _arg_rejection(group: Group, _context: PlanningContext) -> str | None:
    return "the axis is empty" if along_axis(group, 0)[1] == 0 else None


def _lower_arg(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    static = (_EXTREMA[group.op], bool(graph.attribute(group.anchor, "select_last_index", 0)))
    return (_positions(group, ("int64*", first_output(group)), static, along_axis(group, 0)),)


def _positions(
    group: Group, y: Operand, static: tuple[object, ...], shape: tuple[int, int, int]
) -> KernelCall:
    """The call that finds the extrema of the first input along the middle axis."""
    x = first_input(group)
    kernels = "app.kernels.cpu.search:arg_rows", "app.kernels.cpu.search:arg_columns"
    return rows_or_columns(kernels, (*of_values(x), y), shape, (computed(x),), static=static)


@after(takes(*NUMBERS, *HALVES))
def _scan_rejection(group: Group, _context: PlanningContext) -> str | None:
    axis = graph.operand(group.anchor, 1)
    return None if graph.elements(axis) == 1 else f"{graph.elements(axis)} axes"


def _lower_scan(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    x, y, axis = first_input(group), first_output(group), graph.operand(group.anchor, 1)
    wide = "float64" if computed(x).startswith("float") else type_name(x)
    flags = tuple(int(graph.attribute(group.anchor, name, 0)) for name in ("exclusive", "reverse"))
    shape, fixed = graph.static_shape(x), graph.constant(axis)
    if fixed is None:
        return (_scan_along(x, y, axis, wide, flags, group),)
    outer, n, inner = split(shape, int(fixed.reshape(())))
    if inner == 1:
        operands: Operands = (*of_values(x, y), n, *flags)
        return (kernel_call("app.kernels.cpu.scan:scan_rows", operands, outer, (_SCANS[group.op], wide)),)
    wide = computed(x) if n <= BRIEF else wide
    lanes = CACHE_LINE // np.dtype(wide).itemsize
    if wide == computed(x) and n * inner <= LINES * lanes:
        blocks = blocks_of(inner, 4 * lanes)
        operands = (*of_values(x, y), n, inner, blocks, *flags)
        static = (_SCANS[group.op], lanes)
        return (kernel_call("app.kernels.cpu.scan:scan_lines", operands, outer * blocks, static),)
    columns = SCANNED if outer * blocks_of(inner, SCANNED) >= context.threads else COLUMNS
    blocks = blocks_of(inner, columns)
    operands = (*of_values(x, y), columns_of(wide, columns), columns, n, inner, blocks, *flags)
    return (typed_call("app.kernels.cpu.scan:scan", operands, outer * blocks, (_SCANS[group.op],)),)


def _scan_along(
    x: ir.Value, y: ir.Value, axis: ir.Value, wide: str, flags: tuple[int, ...], group: Group
) -> KernelCall:
    """The call of the kernel that reads its axis, on one thread."""
    shape = graph.static_shape(x)
    beyond = Excess(
        f"{group.op} {group.name!r}: axis ", f" is out of range for rank {len(shape)}",
        f"node:{group.name}", InputError,
    )  # fmt: skip
    operands: Operands = (
        *of_values(x, y, axis),
        ("int64*", Constant(np.array(shape, np.int64))),
        ("int64*", beyond),
        columns_of(wide, SCANNED),
        *(SCANNED, len(shape), *flags),
    )
    return typed_call("app.kernels.cpu.scan:scan_along", operands, 1, (_SCANS[group.op],))


@after(_takes_ordered)
def _radix_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why the digits of elements are not those of the result."""
    x, y = first_input(group), first_output(group)
    is_same = type_name(x) == type_name(y)
    return None if is_same else f"{y.name!r} is {type_name(y)}, the input {type_name(x)}"


@after(_takes_ordered)
def _top_rejection(group: Group, context: PlanningContext) -> str | None:
    """Reason why a heap in the result, which compares what is rounded there, finds another order."""
    is_exact = type_name(first_output(group)) == computed(first_input(group))
    return None if is_exact else _radix_rejection(group, context)


def _lower_top(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    outer, n, inner = along_axis(group)
    k = split(graph.static_shape(y), graph.attribute(group.anchor, "axis", -1))[1]
    is_largest = int(graph.attribute(group.anchor, "largest", 1))
    operands: Operands = (*of_values(x, y), ("int64*", group.anchor.outputs[1]), n, k)
    if inner == 1:
        return (kernel_call("app.kernels.cpu.search:top_k", (*operands, is_largest), outer),)
    units = outer * blocks_of(inner, LANES)
    return (kernel_call("app.kernels.cpu.search:top_k_columns", (*operands, inner, is_largest), units),)


def _lower_top_radix(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    outer, n, inner = along_axis(group)
    k = split(graph.static_shape(y), graph.attribute(group.anchor, "axis", -1))[1]
    if k == 0:
        return ()
    kind = graph.element_type(x)
    bits = 8 * kind.itemsize
    word = f"uint{bits}*"
    keys, spare_keys = (Workspace(n * kind.itemsize, per_thread=True) for _ in range(2))
    places, spare_places = (Workspace(4 * n, per_thread=True) for _ in range(2))
    operands: Operands = (
        *((word, x), (word, y), ("int64*", group.anchor.outputs[1])),
        *((word, keys), ("int32*", places), (word, spare_keys), ("int32*", spare_places)),
        ("int64*", Workspace(8 * radix.BUCKETS, per_thread=True)),
        *(n, k, inner, int(graph.attribute(group.anchor, "largest", 1))),
    )
    static = kind.kind == "i", computed(x) in FLOATS, bits
    return (typed_call("app.kernels.cpu.radix:top_k", operands, outer * inner, static),)


def _top_size(group: Group) -> tuple[int, int, int]:
    """Columns, elements of each, and how many of them are taken."""
    outer, n, inner = along_axis(group)
    k = split(graph.static_shape(first_output(group)), graph.attribute(group.anchor, "axis", -1))[1]
    return outer * inner, n, k


def _heap_cost(group: Group, context: PlanningContext) -> float:
    # An element is compared; those of the first k, and a share of the others, go down the heap. Zen 4.
    units, n, k = _top_size(group)
    replaced = k * (1.0 + math.log(max(n / max(k, 1), 1.0)))
    seconds = units * (0.3e-9 * n + 4e-9 * replaced * math.log2(k + 1))
    return seconds / min(context.threads, max(units, 1))


def _radix_cost(group: Group, context: PlanningContext) -> float:
    units, n, k = _top_size(group)
    return units * (2.5e-9 * n + 10e-9 * k + 1e-6) / min(context.threads, max(units, 1))


def _lower_hardmax(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    """The positions of the maxima, then ones there."""
    outer, n, inner = along_axis(group)
    if n == 0:
        return ()
    where = Workspace(8 * outer * inner)
    found = _positions(group, ("int64*", where), ("max", False), (outer, n, inner))
    operands: Operands = (("int64*", where), *of_values(first_output(group)), n)
    if inner == 1:
        return (found, kernel_call("app.kernels.cpu.search:hardmax_rows", operands, outer))
    return (found, kernel_call("app.kernels.cpu.search:hardmax", (*operands, inner), outer))


def _cost(group: Group, context: PlanningContext) -> float:
    return group_roofline(group, context, 2 * graph.elements(first_input(group)), 0.02)


# Name, operator, rejection, calls, cost, pairs that may share memory.
_ROWS = (
    *((f"arg_{e}", op, _arg_rejection, _lower_arg, _cost, no_pairs) for op, e in _EXTREMA.items()),
    *((f"cum_{s}", op, _scan_rejection, _lower_scan, _cost, first_over_first) for op, s in _SCANS.items()),
    ("top_k", "TopK", _top_rejection, _lower_top, _heap_cost, no_pairs),
    ("top_k_radix", "TopK", _radix_rejection, _lower_top_radix, _radix_cost, no_pairs),
    ("hardmax", "Hardmax", _takes_ordered, _lower_hardmax, _cost, first_over_first),
)

IMPLEMENTATIONS = tuple(
    Implementation(f"search.{name}", op, "numba-cpu", rejection, lower, cost, inplace)
    for name, op, rejection, lower, cost, inplace in _ROWS
)
