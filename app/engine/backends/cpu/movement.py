"""Rows of data movement that is one strided copy per operand: Transpose, Slice, Concat and kin."""

from collections.abc import Callable

import onnx_ir as ir

from app.engine.backends.cpu.rows import after, single_rejection
from app.engine.backends.cpu.strided import calls
from app.engine.core import graph
from app.engine.core.calls import Call
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.movement import (
    COPIES,
    VIEWS,
    Copies,
    is_view,
    no_calls,
    permutation,
    whole_view,
)
from app.engine.operators.operands import data, fixed_inputs, group_rejection, itemsize, moved_seconds


def _row(
    name: str, op: str, constants: tuple[int, ...], copies: Callable[[ir.Node], Copies]
) -> Implementation:
    def rejection(group: Group, _context: PlanningContext) -> str | None:
        return group_rejection(group) or fixed_inputs(group.anchor, constants)

    def lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
        size = itemsize(data(group.anchor))
        return tuple(
            call
            for copy, x, y in copies(group.anchor)
            if y in group.outputs
            for call in calls(copy, size, x, y)
        )

    return Implementation(name, op, "numba-cpu", rejection, lower, cost=moved_seconds, rank=1)


@after(single_rejection)
def _view_rejection(group: Group, _context: PlanningContext) -> str | None:
    if group.op != "Transpose" or is_view(group.anchor):
        return None
    axes = permutation(group.anchor)
    return f"Transpose {axes} of {list(graph.static_shape(data(group.anchor)))} moves elements"


IMPLEMENTATIONS = (
    *(
        Implementation(f"{op.lower()}.view", op, "numba-cpu", _view_rejection, no_calls, views=whole_view)
        for op in VIEWS
    ),
    *(_row(*entry) for entry in COPIES),
)
