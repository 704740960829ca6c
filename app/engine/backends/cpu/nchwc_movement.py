"""Rows of data movement between images in layouts of their own: Concat, Split, Slice and Pad.

Whole blocks of channels move; what starts within a block would have to shift lanes. Channels last move
as they are.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import nchwc
from app.engine.backends.cpu.lookup import lookup_calls
from app.engine.backends.cpu.strided import calls
from app.engine.core import graph
from app.engine.core.calls import Call, Constant
from app.engine.core.group import Group
from app.engine.core.registry import LANEWISE, UNDEFINED, Implementation, Padding, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators.movement import taken_ranges
from app.engine.operators.operands import data, fixed_inputs, group_rejection
from app.engine.operators.pad_geometry import pad_axes, pad_rejection
from app.engine.operators.strides import StridedCopy, strides_of
from app.engine.types.layout import Layout, to_physical

FLOAT = 4  # byte


@dataclass(frozen=True, slots=True)
class Box:
    """A part of an image that becomes a part of another.

    Attributes:
        source, target: images.
        taken: indices of the source along each axis.
        first: of the target's elements along each axis.
    """

    source: ir.Value
    target: ir.Value
    taken: tuple[range, ...]
    first: tuple[int, ...] = (0, 0, 0, 0)


Boxes: TypeAlias = Callable[[ir.Node], tuple[Box, ...]]


def _whole(value: ir.Value) -> tuple[range, ...]:
    return tuple(range(n) for n in graph.static_shape(value))


def concat_boxes(node: ir.Node) -> tuple[Box, ...]:
    """Boxes that a Concat moves, in the order of its inputs."""
    axis = graph.attribute(node, "axis", 1) % 4
    boxes, start = [], 0
    for x in graph.operands(node):
        first = tuple(start if a == axis else 0 for a in range(4))
        boxes.append(Box(x, node.outputs[0], _whole(x), first))
        start += graph.static_shape(x)[axis]
    return tuple(boxes)


def split_boxes(node: ir.Node) -> tuple[Box, ...]:
    """Boxes that a Split moves, in the order of its outputs."""
    axis = graph.attribute(node, "axis", 0) % 4
    boxes, start = [], 0
    for y in node.outputs:
        taken = list(_whole(y))
        taken[axis] = range(start, start + len(taken[axis]))
        boxes.append(Box(data(node), y, tuple(taken)))
        start += len(taken[axis])
    return tuple(boxes)


def slice_boxes(node: ir.Node) -> tuple[Box, ...]:
    """Box that a Slice with constant operands moves."""
    return (Box(data(node), node.outputs[0], taken_ranges(node)),)


def _strided(box: Box, layout: Layout) -> StridedCopy:
    """The copy of physical elements."""
    if not layout.blocks:
        return _permuted(box, layout)
    lanes = layout.lanes(1)

    def strides(value: ir.Value) -> tuple[int, ...]:
        n, c, h, w = graph.static_shape(value)
        return strides_of((n, -(-c // lanes), h, w, lanes))

    sx, sy = strides(box.source), strides(box.target)
    batch, channels, *pixels = box.taken
    blocks = range(channels.start // lanes, -(-channels.stop // lanes))
    outer = (batch, blocks, *pixels)
    first = (box.first[0], box.first[1] // lanes, *box.first[2:])
    return StridedCopy(
        (*(len(r) for r in outer), lanes),
        (*(s * r.step for s, r in zip(sx, outer)), 1),
        (*sy[:4], 1),
        x0=sum(s * r.start for s, r in zip(sx, outer)),
        y0=sum(s * f for s, f in zip(sy, first)),
    )


def _permuted(box: Box, layout: Layout) -> StridedCopy:
    sx, sy = (strides_of(layout.physical_shape(graph.static_shape(v))) for v in (box.source, box.target))
    taken = [box.taken[axis] for axis in layout.order]
    first = [box.first[axis] for axis in layout.order]
    return StridedCopy(
        tuple(len(r) for r in taken),
        tuple(s * r.step for s, r in zip(sx, taken)),
        sy,
        x0=sum(s * r.start for s, r in zip(sx, taken)),
        y0=sum(s * f for s, f in zip(sy, first)),
    )


def _rejection(group: Group, constants: tuple[int, ...]) -> str | None:
    """Reason why operands, but those of these places, are no images that can be blocked."""
    images = [v for i, v in enumerate(group.anchor.inputs) if i not in constants]
    return group_rejection(group) or nchwc.images_rejection(group, *images, *group.outputs)


def boxes_rejection(group: Group, constants: tuple[int, ...], boxes: Boxes, layout: Layout) -> str | None:
    """Reason why a group does not move whole blocks; the inputs at `constants` are no images."""
    reason = _rejection(group, constants) or fixed_inputs(group.anchor, constants)
    if reason is not None or not layout.blocks:
        return reason
    lanes = layout.lanes(1)
    for box in boxes(group.anchor):
        taken = box.taken[1]
        if taken.start % lanes or box.first[1] % lanes or taken.step != 1:
            return (
                f"channels {taken.start}:{taken.stop}:{taken.step} of {box.source.name!r} become those "
                f"from {box.first[1]} of {box.target.name!r}; blocks of {lanes} must stay whole"
            )
    return None


def box_calls(box: Box, layout: Layout) -> tuple[Call, ...]:
    """Call that copies a box; a constant is in the layout already."""
    fixed = graph.is_constant(box.source)
    source = Constant(to_physical(graph.array(box.source), layout)) if fixed else box.source
    return calls(_strided(box, layout), FLOAT, source, box.target)


def boxes_layouts(group: Group, boxes: Boxes, layout: Layout) -> Mapping[ir.Value, Layout]:
    """Every image has the layout."""
    sources = (box.source for box in boxes(group.anchor))
    return dict.fromkeys((v for v in (*sources, *group.outputs) if not graph.is_constant(v)), layout)


def _pad_rejection(group: Group, context: PlanningContext, layout: Layout) -> str | None:
    reason = _rejection(group, (1, 2, 3)) or pad_rejection(group, context)
    if reason is not None or not layout.blocks:
        return reason
    indices, channels = pad_axes(group.anchor)[1], graph.static_shape(data(group.anchor))[1]
    return None if np.array_equal(indices, np.arange(channels)) else "pads channels; blocks must stay whole"


def _pad_lower(group: Group, layout: Layout) -> tuple[Call, ...]:
    node, axes = group.anchor, pad_axes(group.anchor)
    x = data(node)
    if layout.blocks:
        (batch, channels, *pixels), lanes = axes, layout.lanes(1)
        physical = (batch, np.arange(-(-channels.size // lanes)), *pixels, np.arange(lanes))
    else:
        physical = tuple(axes[axis] for axis in layout.order)
    shape = layout.physical_shape(graph.static_shape(x))
    return lookup_calls(physical, shape, FLOAT, x, node.outputs[0], graph.input_at(node, 2))


def _rows(layout_name: str, layout_of: nchwc.LayoutOf, rank: int) -> Iterator[Implementation]:
    """Rows over images in a layout."""

    def cost(group: Group, context: PlanningContext) -> float:
        elements = sum(layout_of(context).elements(graph.static_shape(v)) for v in group.outputs)
        return roofline(context.target, flops=0.0, nbytes=2 * FLOAT * elements, threads=context.threads)

    def boxes_row(op: str, constants: tuple[int, ...], boxes: Boxes, padding: Padding) -> Implementation:
        def lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
            written = (box for box in boxes(group.anchor) if box.target in group.outputs)
            return tuple(call for box in written for call in box_calls(box, layout_of(context)))

        return Implementation(
            f"{op.lower()}.{layout_name}",
            op,
            "numba-cpu",
            lambda group, context: boxes_rejection(group, constants, boxes, layout_of(context)),
            lower,
            cost,
            layouts=lambda group, context: boxes_layouts(group, boxes, layout_of(context)),
            padding=padding,
            rank=rank,
        )

    lanewise = LANEWISE if layout_of is nchwc.layout_of else UNDEFINED
    yield boxes_row("Concat", (), concat_boxes, lanewise)
    yield boxes_row("Split", (1,), split_boxes, UNDEFINED)
    yield boxes_row("Slice", (1, 2, 3, 4), slice_boxes, UNDEFINED)
    yield Implementation(
        f"pad.{layout_name}",
        "Pad",
        "numba-cpu",
        lambda group, context: _pad_rejection(group, context, layout_of(context)),
        lambda group, context: _pad_lower(group, layout_of(context)),
        cost,
        layouts=lambda group, context: dict.fromkeys(
            (data(group.anchor), *group.outputs), layout_of(context)
        ),
        padding=lanewise,
        rank=rank,
    )


IMPLEMENTATIONS = (*_rows("blocked", nchwc.layout_of, nchwc.RANK), *_rows("last", nchwc.last_of, rank=2))
