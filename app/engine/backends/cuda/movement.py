"""Rows that move elements or only rename them: views, strided copies, changes of layout, padding."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import onnx_ir as ir

from app.engine.backends.cuda import tensor_views
from app.engine.backends.cuda.launch_calls import BACKEND, blocks_of, calls, moved_by, numbered, seconds
from app.engine.core import graph
from app.engine.core.calls import Call, View
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext, Rejection
from app.engine.operators.movement import (
    COPIES,
    PARTS,
    VIEWS,
    Copies,
    Part,
    Parts,
    box,
    is_view,
    no_calls,
    part_view,
    permutation,
    whole_view,
)
from app.engine.operators.operands import data, fixed_inputs
from app.engine.types.layout import Layout, plain
from app.kernels.cuda.elementwise import copy
from app.kernels.cuda.geometry import Strided
from app.kernels.cuda.kernel import Launches
from app.kernels.cuda.transpose import moved

ALIGNED = 16  # byte that a view begins at a multiple of: the widest access

Move: TypeAlias = tuple[ir.Value, ir.Value, Launches]  # (from, to, roles x0 and y0)


def _calls(moves: tuple[Move, ...], group: Group) -> tuple[Call, ...]:
    return tuple(
        call for x, y, launches in moves if y in group.outputs for call in calls(launches, numbered([x], [y]))
    )


def _seconds(group: Group, context: PlanningContext, moves: tuple[Move, ...]) -> float:
    total = 0.0
    for _, _, launches in moves:
        share = 2 * sum(graph.nbytes(v) for v in group.outputs) / max(len(moves), 1)
        total += seconds(context, nbytes=share, blocks=blocks_of(launches)) if launches.steps else 0.0
    return total


def _moving(
    name: str, op: str, rejection: Rejection, moves: Callable[[Group], tuple[Move, ...]], **more: Any
) -> Implementation:
    """A row whose calls are moves; `more` are other columns."""
    return Implementation(
        name,
        op,
        BACKEND,
        rejection,
        lambda group, _context: _calls(moves(group), group),
        lambda group, context: _seconds(group, context, moves(group)),
        **more,
    )


# Views.


def _view_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = tensor_views.group_rejection(group)
    if reason is None and group.op == "Transpose" and not is_view(group.anchor):
        return f"Transpose {permutation(group.anchor)} moves elements"
    return reason


def _part_view(part: Part, group: Group) -> View | str:
    """A part as a view of the whole that kernels can read, or why it is none."""
    view = part_view(part, plain(len(graph.static_shape(part.whole))), group)
    if isinstance(view, View) and view.offset % ALIGNED:
        name, whole = part.part.name, part.whole.name
        return f"{name!r} begins at byte {view.offset} of {whole!r}, no multiple of {ALIGNED}"
    return view


def _parts_view(op: str, parts: Parts, constants: tuple[int, ...]) -> Implementation:
    def found(group: Group) -> tuple[View | str, ...]:
        return tuple(_part_view(p, group) for p in parts(group.anchor))

    def rejection(group: Group, _context: PlanningContext) -> str | None:
        reason = tensor_views.group_rejection(group) or fixed_inputs(group.anchor, constants)
        if reason is not None:
            return reason
        views = found(group)
        return next((v for v in views if isinstance(v, str)), None if views else f"{op} takes no range")

    def views(group: Group, _context: PlanningContext) -> tuple[View, ...]:
        return tuple(v for v in found(group) if isinstance(v, View))

    return Implementation(f"cuda.{op.lower()}_view", op, BACKEND, rejection, no_calls, views=views)


# Boxes of images with their channels last.


def _part_moves(op: str, parts: tuple[Part, ...]) -> tuple[Move, ...]:
    moves = []
    for part in parts:
        own = tensor_views.strided(part.part, last=True)
        taken = Strided(own.dtype, *box(part, tensor_views.last_strides(graph.static_shape(part.whole))))
        last = tensor_views.last_of(part.part)
        shape = last.physical_shape(graph.static_shape(part.part))
        taken, own = (tensor_views.in_memory_order(t, last) for t in (taken, own))
        if op == "Concat":
            moves.append((part.part, part.whole, copy(shape, own, taken, "concat")))
        else:
            moves.append((part.whole, part.part, copy(shape, taken, own, op.lower())))
    return tuple(moves)


def _images(*values: ir.Value) -> str | None:
    return next(filter(None, map(tensor_views.not_image, values)), None)


def _parts_last(op: str, parts: Parts, constants: tuple[int, ...]) -> Implementation:
    def ends(group: Group) -> tuple[ir.Value, ...]:
        found = parts(group.anchor)
        return tuple(dict.fromkeys(v for p in found for v in (p.whole, p.part) if v.name))

    def rejection(group: Group, _context: PlanningContext) -> str | None:
        reason = tensor_views.group_rejection(group) or fixed_inputs(group.anchor, constants)
        if reason:  # the parts of a dynamic value are not known
            return reason
        fixed = next((v for v in ends(group) if graph.is_constant(v)), None)
        reason = None if fixed is None else f"{fixed.name!r} is constant, and row-major"
        return _images(*ends(group)) or reason

    def layouts(group: Group, _context: PlanningContext) -> Mapping[ir.Value, Layout]:
        return tensor_views.lasts(v for v in ends(group) if v in (*group.inputs, *group.outputs))

    def moves(group: Group) -> tuple[Move, ...]:
        return _part_moves(op, parts(group.anchor))

    return _moving(f"cuda.{op.lower()}_last", op, rejection, moves, layouts=layouts, rank=2)


# Copies by strides, row-major.


def _copy_row(op: str, constants: tuple[int, ...], copies: Callable[[ir.Node], Copies]) -> Implementation:
    def rejection(group: Group, _context: PlanningContext) -> str | None:
        return tensor_views.group_rejection(group) or fixed_inputs(group.anchor, constants)

    def moves(group: Group) -> tuple[Move, ...]:
        return tuple((x, y, moved_by(c, tensor_views.element(x))) for c, x, y in copies(group.anchor))

    return _moving(f"cuda.{op.lower()}", op, rejection, moves, rank=1)


# Blocks of pixels as channels and back, channels last.


def _depth_moves(node: ir.Node) -> tuple[Move, ...]:
    x, y = data(node), node.outputs[0]
    deep, wide = (y, x) if node.op_type == "SpaceToDepth" else (x, y)
    block = graph.attribute(node, "blocksize", 1)
    n, c, height, width = graph.static_shape(deep)
    channels = c // (block * block)
    # Where an element (image, row, row of the block, column, column of the block, channel) lies.
    row, pixel = width * c, c
    if node.op_type == "SpaceToDepth" or graph.attribute(node, "mode", "DCR") == "DCR":
        inside = (block * channels, channels, 1)
    else:
        inside = (block, 1, block * block)
    source = Strided(tensor_views.element(x), (height * row, row, inside[0], pixel, inside[1], inside[2]))
    s = tensor_views.last_strides(graph.static_shape(wide))
    target = Strided(tensor_views.element(x), (s[0], block * s[2], s[2], block * s[3], s[3], s[1]))
    box = (n, height, block, width, block, channels)
    if wide is x:
        source, target = target, source
    return ((x, y, copy(box, source, target, node.op_type.lower())),)


def _depth_row(op: str) -> Implementation:
    def rejection(group: Group, _context: PlanningContext) -> str | None:
        return tensor_views.group_rejection(group) or _images(*group.inputs, *group.outputs)

    def layouts(group: Group, _context: PlanningContext) -> Mapping[ir.Value, Layout]:
        return tensor_views.lasts((*group.inputs, *group.outputs))

    name = f"cuda.{op.lower()}_last"
    return _moving(name, op, rejection, lambda group: _depth_moves(group.anchor), layouts=layouts, rank=2)


# Changes of layout.


def _change_moves(group: Group, side: int) -> tuple[Move, ...]:
    """A copy between row-major and channels last; side 0: the input lies so, side 1: the output."""
    x, y = graph.operand(group.anchor, 0), group.anchor.outputs[0]
    order = plain(len(graph.static_shape(x))) if side == 0 else tensor_views.last_of(x)
    source = tensor_views.in_memory_order(tensor_views.strided(x, last=side == 0), order)
    target = tensor_views.in_memory_order(tensor_views.strided(y, last=side == 1), order)
    shape = order.physical_shape(graph.static_shape(x))
    return ((x, y, moved(shape, source, target)),)


def _change_rows(side: int) -> tuple[Implementation, ...]:
    def ends(group: Group) -> tuple[ir.Value, ir.Value]:
        return graph.operand(group.anchor, 0), group.anchor.outputs[0]

    def rejection(group: Group, _context: PlanningContext) -> str | None:
        return tensor_views.group_rejection(group) or _images(*ends(group))

    def view_rejection(group: Group, context: PlanningContext) -> str | None:
        reason = rejection(group, context)
        shape = graph.static_shape(ends(group)[0]) if reason is None else ()
        if reason is None and not tensor_views.last_of(ends(group)[0]).is_same_bytes(shape):
            return f"the layouts of {list(shape)} differ; a view is the same bytes"
        return reason

    def layouts(group: Group, _context: PlanningContext) -> Mapping[ir.Value, Layout]:
        return tensor_views.lasts((ends(group)[side],))

    name, op = f"cuda.{('to_plain', 'to_last')[side]}", "ChangeLayout"
    change: dict[str, Any] = {"layouts": layouts, "domain": "stowplan"}
    view = Implementation(f"{name}_view", op, BACKEND, view_rejection, no_calls, views=whole_view, **change)
    return view, _moving(name, op, rejection, lambda group: _change_moves(group, side), rank=1, **change)


IMPLEMENTATIONS = (
    *(
        Implementation(f"cuda.{op.lower()}_as_is", op, BACKEND, _view_rejection, no_calls, views=whole_view)
        for op in VIEWS
    ),
    *(_parts_view(*row) for row in PARTS),
    *(_parts_last(*row) for row in PARTS[:3]),
    *(_copy_row(op, constants, copies) for _, op, constants, copies in COPIES),
    *(_depth_row(op) for op in ("DepthToSpace", "SpaceToDepth")),
    *_change_rows(0),
    *_change_rows(1),
)
