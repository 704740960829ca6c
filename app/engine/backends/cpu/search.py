"""Searches and scans along one axis: extremum positions, largest k, running sums and products."""

from app.engine.backends.cpu.axis_kernels import (
    COLUMNS,
    NUMBERS,
    ORDERED,
    axis_rejection,
    blocks_of,
    columns_of,
    first_over_first,
    pointer,
    total_bytes,
    type_name,
)
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, KernelCall
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators.axes import along_axis, first_input, first_output, split

BACKEND = "numba-cpu"
KERNELS = "app.kernels.cpu.search"

_EXTREMA = {"ArgMax": "max", "ArgMin": "min"}
_SCANS = {"CumSum": "sum", "CumProd": "prod"}


def _arg_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = axis_rejection(group, ORDERED)
    if reason is not None:
        return reason
    return "the axis is empty" if along_axis(group, 0)[1] == 0 else None


def _lower_arg(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    outer, n, inner = along_axis(group, 0)
    static = (_EXTREMA[group.op], bool(graph.attribute(group.anchor, "select_last_index", 0)))
    t = pointer(x)
    if inner == 1:
        return (
            KernelCall(f"{KERNELS}:arg_rows", (t, "int64*", "int64"), (x, y, n), units=outer, static=static),
        )
    return (
        KernelCall(
            f"{KERNELS}:arg_columns",
            (t, "int64*", t, *("int64",) * 4),
            (x, y, columns_of(type_name(x)), COLUMNS, n, inner, blocks_of(inner)),
            units=outer * blocks_of(inner),
            static=static,
            takes_thread=True,
        ),
    )


def _scan_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = axis_rejection(group, NUMBERS)
    if reason is None and graph.constant(graph.input_at(group.anchor, 1)) is None:
        return "the axis is computed at run time"
    return reason


def _lower_scan(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    axis = int(graph.array(graph.operand(group.anchor, 1)).reshape(()))
    outer, n, inner = split(graph.static_shape(x), axis)
    wide = "float64" if type_name(x).startswith("float") else "int64"
    flags = tuple(int(graph.attribute(group.anchor, name, 0)) for name in ("exclusive", "reverse"))
    return (
        KernelCall(
            f"{KERNELS}:scan",
            (pointer(x), pointer(y), f"{wide}*", *("int64",) * 6),
            (x, y, columns_of(wide), COLUMNS, n, inner, blocks_of(inner), *flags),
            units=outer * blocks_of(inner),
            static=(_SCANS[group.op],),
            takes_thread=True,
        ),
    )


def _top_rejection(group: Group, _context: PlanningContext) -> str | None:
    return axis_rejection(group, ORDERED)


def _lower_top(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    outer, n, inner = along_axis(group)
    k = split(graph.static_shape(y), graph.attribute(group.anchor, "axis", -1))[1]
    indices: Argument = group.anchor.outputs[1]
    return (
        KernelCall(
            f"{KERNELS}:top_k",
            (pointer(x), pointer(y), "int64*", *("int64",) * 4),
            (x, y, indices, n, k, inner, int(graph.attribute(group.anchor, "largest", 1))),
            units=outer * inner,
        ),
    )


def _lower_hardmax(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    outer, n, inner = along_axis(group)
    return (
        KernelCall(
            f"{KERNELS}:hardmax",
            (pointer(x), pointer(y), "int64", "int64"),
            (x, y, n, inner),
            units=outer * inner if n else 0,
        ),
    )


def _cost(group: Group, context: PlanningContext) -> float:
    return roofline(
        context.target,
        flops=2 * graph.elements(first_input(group)),
        nbytes=total_bytes(group),
        efficiency=0.02,
        threads=context.threads,
    )


IMPLEMENTATIONS = (
    *(
        Implementation(f"search.arg_{e}", op, BACKEND, _arg_rejection, _lower_arg, _cost)
        for op, e in _EXTREMA.items()
    ),
    *(
        Implementation(f"search.cum_{s}", op, BACKEND, _scan_rejection, _lower_scan, _cost, first_over_first)
        for op, s in _SCANS.items()
    ),
    Implementation("search.top_k", "TopK", BACKEND, _top_rejection, _lower_top, _cost),
    Implementation(
        "search.hardmax", "Hardmax", BACKEND, _top_rejection, _lower_hardmax, _cost, first_over_first
    ),
)
