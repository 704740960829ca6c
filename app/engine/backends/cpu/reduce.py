"""Reductions over any set of axes, global pooling among them."""

import math
from dataclasses import dataclass

from app.engine.backends.cpu.axis_kernels import (
    COLUMNS,
    FLOATS,
    HALVES,
    NUMBERS,
    ORDERED,
    blocks_of,
    columns_of,
    computed,
    takes,
    takes_mixed,
    type_name,
)
from app.engine.backends.cpu.calls import Operands, kernel_call, of_values
from app.engine.backends.cpu.rows import group_roofline
from app.engine.core import graph
from app.engine.core.calls import Call
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.axes import first_input, first_output, reduced_axes, static_reduced_axes

EXTREMA = (*ORDERED, "bool")

HIGHEST_ORDER = 8  # of a norm, whose powers are written as products

# Operator: operation of the kernels, element types.
_REDUCTIONS = {
    "ReduceSum": ("sum", NUMBERS),
    "ReduceMean": ("mean", NUMBERS),
    "ReduceMax": ("max", EXTREMA),
    "ReduceMin": ("min", EXTREMA),
    "ReduceProd": ("prod", NUMBERS),
    "ReduceL1": ("l1", NUMBERS),
    "ReduceL2": ("l2", NUMBERS),
    "ReduceLogSum": ("log_sum", FLOATS),
    "ReduceSumSquare": ("sum_square", NUMBERS),
    "ReduceLogSumExp": ("log_sum_exp", FLOATS),
    "GlobalAveragePool": ("mean", FLOATS),
    "GlobalMaxPool": ("max", FLOATS),
    "GlobalLpPool": ("lp", FLOATS),
}


@dataclass(frozen=True, slots=True)
class Collapsed:
    """A row-major shape whose neighbouring axes of one kind are merged; axes of extent 1 are gone.

    `kept` and `reduced` are (extent, stride in elements), outermost first.
    """

    kept: tuple[tuple[int, int], ...]
    reduced: tuple[tuple[int, int], ...]
    inner_reduced: bool

    @property
    def outputs(self) -> int:
        """Elements of the result."""
        return math.prod(n for n, _ in self.kept)

    @property
    def count(self) -> int:
        """Elements that an output is made of."""
        return math.prod(n for n, _ in self.reduced)


def collapse(shape: tuple[int, ...], axes: tuple[int, ...]) -> Collapsed:
    """Merge neighbouring axes that are all reduced, or all kept."""
    merged: list[tuple[int, bool]] = []
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        is_reduced = axis in axes
        if merged and merged[-1][1] == is_reduced:
            merged[-1] = (merged[-1][0] * extent, is_reduced)
        else:
            merged.append((extent, is_reduced))
    strided = [
        (extent, math.prod(n for n, _ in merged[i + 1 :]), is_reduced)
        for i, (extent, is_reduced) in enumerate(merged)
    ]
    return Collapsed(
        tuple((n, stride) for n, stride, is_reduced in strided if not is_reduced),
        tuple((n, stride) for n, stride, is_reduced in strided if is_reduced),
        bool(merged) and merged[-1][1],
    )


def _collapsed(group: Group) -> Collapsed:
    return collapse(graph.static_shape(first_input(group)), static_reduced_axes(group))


def _rejection(group: Group, context: PlanningContext) -> str | None:
    op, dtypes = _REDUCTIONS[group.op]
    mixed = any(type_name(v) in HALVES for v in (first_input(group), first_output(group)))
    reason = (takes_mixed if mixed else takes(*dtypes))(group, context)
    if reason is not None:
        return reason
    if reduced_axes(group) is None:
        return "the axes are computed at run time"
    found = _collapsed(group)
    if (loops(found) if found.inner_reduced else lines(found)) is None:
        return (
            f"walks 3 groups of neighbouring axes of a kind, found {len(found.kept)} kept, "
            f"{len(found.reduced)} reduced"
        )
    order = graph.attribute(group.anchor, "p", 2)
    if op == "lp" and not 0 < order <= HIGHEST_ORDER:
        return f"computes norms of order 1 to {HIGHEST_ORDER}, the node asks for {order}"
    return None


def _padded(axes: tuple[tuple[int, int], ...], rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents and strides of `rank` loops, the outer ones of extent 1 where there are fewer."""
    full = ((1, 0),) * (rank - len(axes)) + axes
    return tuple(n for n, _ in full), tuple(s for _, s in full)


def loops(found: Collapsed) -> tuple[int, ...] | None:
    """The numbers (n, k1, k2, a0, a1, a2, r0, r1, b0, b1) of kernels that read runs of n elements.

    Three loops over what is kept, two over runs; None where that does not suffice.
    """
    if len(found.kept) > 3 or len(found.reduced) > 3:
        return None
    kept, kept_strides = _padded(found.kept, 3)
    runs, run_strides = _padded(found.reduced[:-1], 2)
    return (found.reduced[-1][0], *kept[1:], *kept_strides, *runs, *run_strides)


def lines(found: Collapsed) -> tuple[int, ...] | None:
    """The numbers (width, blocks, k1, k2, a0, a1, a2, r0, r1, r2, b0, b1, b2) of column kernels.

    Three loops over what is kept beside the innermost axes, three over what is reduced.
    """
    if len(found.kept) > 4 or len(found.reduced) > 3:
        return None
    width = found.kept[-1][0] if found.kept else 1
    kept, kept_strides = _padded(found.kept[:-1], 3)
    reduced, strides = _padded(found.reduced, 3)
    return (width, blocks_of(width), *kept[1:], *kept_strides, *reduced, *strides)


def _repeated(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """The numbers of `lines` with that of short rows that are read as one, behind the blocks."""
    width, blocks, *others, count, b0, b1, stride = numbers
    most = COLUMNS // max(width, 1) if stride == width else 1
    repeat = next((k for k in range(min(most, count), 1, -1) if count % k == 0), 1)
    return (width, blocks, repeat, *others, count // repeat, b0, b1, stride * repeat)


def accumulators(op: str, dtype: str) -> tuple[str, str]:
    """Element types of the totals and of the partial results of an operation on `dtype`.

    float32 sums collect short runs in float32 and the runs in float64; integers are exact in 64
    bits up to the wrap-around of the output.
    """
    if op in ("max", "min"):
        kind = "uint8" if dtype == "bool" else dtype
        return kind, kind
    return ("float64", dtype) if dtype in FLOATS else ("int64", "int64")


def _lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    op, _ = _REDUCTIONS[group.op]
    if op == "lp":
        op = f"l{graph.attribute(group.anchor, 'p', 2)}"
    found = _collapsed(group)
    dtype = computed(x)
    wide, narrow = accumulators(op, dtype)
    static: tuple[object, ...] | None = (op, dtype, wide, narrow)
    rows, columns = "app.kernels.cpu.reduce:rows", "app.kernels.cpu.reduce:columns"
    if op == "log_sum_exp":
        static = None
        rows = "app.kernels.cpu.softmax:log_sum_exp_rows"
        columns = "app.kernels.cpu.softmax:log_sum_exp_columns"
    numbers = loops(found) if found.inner_reduced else lines(found)
    assert numbers is not None
    if found.inner_reduced:
        return (kernel_call(rows, (*of_values(x, y), *numbers), found.outputs, static),)
    width, blocks = numbers[:2]
    operands: Operands = (
        *of_values(x, y),
        columns_of(wide),
        columns_of(narrow),
        COLUMNS,
        *_repeated(numbers),
    )
    units = found.outputs // max(width, 1) * blocks
    return (kernel_call(columns, operands, units, static, takes_thread=True),)


def _cost(group: Group, context: PlanningContext) -> float:
    found = _collapsed(group)
    return group_roofline(group, context, 2 * found.outputs * found.count, 0.2)


IMPLEMENTATIONS = tuple(
    Implementation(f"reduce.{op}", op, "numba-cpu", _rejection, _lower, _cost) for op in _REDUCTIONS
)
