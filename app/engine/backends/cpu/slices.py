"""Rows of Concat, Split, Slice and Gather that move nothing: the part lies in the whole.

What makes an input of a Concat writes it into the output; what reads an output of a Split reads it in
the input. A part that cannot lie there, because memory planning refuses it, is copied.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import onnx_ir as ir

from app.engine.backends.cpu import nchwc
from app.engine.backends.cpu.nchwc_movement import (
    Boxes,
    box_calls,
    boxes_layouts,
    boxes_rejection,
    concat_boxes,
    slice_boxes,
    split_boxes,
)
from app.engine.backends.cpu.rows import after
from app.engine.backends.cpu.strided import calls
from app.engine.core import graph
from app.engine.core.calls import Call, View
from app.engine.core.group import Group
from app.engine.core.registry import (
    LANEWISE,
    UNDEFINED,
    Implementation,
    Layouts,
    Padding,
    PlanningContext,
    Rejection,
    all_plain,
)
from app.engine.cost.roofline import roofline
from app.engine.operators.movement import PARTS, Parts, box_copies, part_view
from app.engine.operators.operands import data, fixed_inputs, group_rejection, itemsize
from app.engine.types.layout import Layout, plain

# Copies of each part, in their order; None where a row has one part and is rejected without it.
Copying: TypeAlias = Callable[[Group, PlanningContext], tuple[tuple[Call, ...], ...]]


def _row(
    name: str,
    op: str,
    parts: Parts,
    rejection: Rejection,
    copying: Copying | None,
    layout: Callable[[ir.Value, PlanningContext], Layout],
    layouts: Layouts = all_plain,
    padding: Padding = UNDEFINED,
) -> Implementation:
    def found(group: Group, context: PlanningContext) -> tuple[View | str, ...]:
        return tuple(part_view(p, layout(p.whole, context), group) for p in parts(group.anchor))

    @after(rejection)
    def slice_rejection(group: Group, context: PlanningContext) -> str | None:
        reasons = found(group, context)
        if any(isinstance(r, View) for r in reasons):
            return None
        return next(map(str, reasons), f"{op} takes no range")

    def views(group: Group, context: PlanningContext) -> tuple[View, ...]:
        return tuple(v for v in found(group, context) if isinstance(v, View))

    def moved(group: Group, context: PlanningContext) -> tuple[int, ...]:
        """Places of the parts that are copied."""
        return tuple(
            i
            for i, view in enumerate(found(group, context))
            if isinstance(view, str) or (context.granted is not None and view not in context.granted)
        )

    def lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
        places = moved(group, context)
        if copying is None or not places:
            return ()
        calls = copying(group, context)
        return tuple(call for i in places for call in calls[i])

    def cost(group: Group, context: PlanningContext) -> float:
        every = parts(group.anchor)
        nbytes = 2 * sum(graph.nbytes(every[i].part) for i in moved(group, context))
        return roofline(context.target, flops=0.0, nbytes=nbytes, threads=context.threads) if nbytes else 0.0

    return Implementation(
        name, op, "numba-cpu", slice_rejection, lower, cost,
        views=views, partial=copying is not None, layouts=layouts, padding=padding,
    )  # fmt: skip


def _plain_row(op: str, parts: Parts, constants: tuple[int, ...]) -> Implementation:
    def rejection(group: Group, _context: PlanningContext) -> str | None:
        return group_rejection(group) or fixed_inputs(group.anchor, constants)

    def copying(group: Group, _context: PlanningContext) -> tuple[tuple[Call, ...], ...]:
        size, found = itemsize(data(group.anchor)), box_copies(parts)(group.anchor)
        return tuple(calls(c, size, x, y) if y in group.outputs else () for c, x, y in found)

    def layout(value: ir.Value, _context: PlanningContext) -> Layout:
        return plain(len(graph.static_shape(value)))

    partial = op in ("Concat", "Split")  # the others have one part
    return _row(f"{op.lower()}.view", op, parts, rejection, copying if partial else None, layout)


def _blocked_row(
    op: str, parts: Parts, constants: tuple[int, ...], boxes: Boxes, padding: Padding = UNDEFINED
) -> Implementation:
    def rejection(group: Group, context: PlanningContext) -> str | None:
        return boxes_rejection(group, constants, boxes, nchwc.layout_of(context))

    def copying(group: Group, context: PlanningContext) -> tuple[tuple[Call, ...], ...]:
        layout = nchwc.layout_of(context)
        return tuple(box_calls(b, layout) if b.target in group.outputs else () for b in boxes(group.anchor))

    def layout(_value: ir.Value, context: PlanningContext) -> Layout:
        return nchwc.layout_of(context)

    def layouts(group: Group, context: PlanningContext) -> Mapping[ir.Value, Layout]:
        return boxes_layouts(group, boxes, nchwc.layout_of(context))

    return _row(f"{op.lower()}.view.blocked", op, parts, rejection, copying, layout, layouts, padding)


_BOXES = (concat_boxes, split_boxes, slice_boxes)
IMPLEMENTATIONS = (
    *(_plain_row(*entry) for entry in PARTS),
    *(
        _blocked_row(*entry, boxes, LANEWISE if boxes is concat_boxes else UNDEFINED)
        for entry, boxes in zip(PARTS, _BOXES)
    ),
)
