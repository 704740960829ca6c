"""Rows of data movement between channel-blocked images: Concat, Split, Slice and Pad.

Whole blocks of channels move; what starts within a block would have to shift lanes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine import graph
from app.engine.backends.numba_cpu import blocked
from app.engine.backends.numba_cpu.lookup import lookup_calls
from app.engine.backends.numba_cpu.movement import taken_ranges
from app.engine.backends.numba_cpu.operands import data, fixed_inputs, unsuited
from app.engine.backends.numba_cpu.pad import pad_axes, pad_unless
from app.engine.backends.numba_cpu.strided import StridedCopy, calls, strides_of
from app.engine.cost import roofline
from app.engine.layout import Layout
from app.engine.plan import Call, Group
from app.engine.registry import LANEWISE, UNDEFINED, Implementation, Known, Padding

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
    """What a Concat moves, in the order of its inputs."""
    axis = graph.attribute(node, "axis", 1) % 4
    boxes, start = [], 0
    for x in node.inputs:
        assert x is not None
        first = tuple(start if a == axis else 0 for a in range(4))
        boxes.append(Box(x, node.outputs[0], _whole(x), first))
        start += graph.static_shape(x)[axis]
    return tuple(boxes)


def split_boxes(node: ir.Node) -> tuple[Box, ...]:
    """What a Split moves, in the order of its outputs."""
    axis = graph.attribute(node, "axis", 0) % 4
    boxes, start = [], 0
    for y in node.outputs:
        taken = list(_whole(y))
        taken[axis] = range(start, start + len(taken[axis]))
        boxes.append(Box(data(node), y, tuple(taken)))
        start += len(taken[axis])
    return tuple(boxes)


def slice_boxes(node: ir.Node) -> tuple[Box, ...]:
    """What a Slice with constant operands moves."""
    return (Box(data(node), node.outputs[0], taken_ranges(node)),)


def _strided(box: Box, lanes: int) -> StridedCopy:
    """The copy of physical elements."""

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


def _refusal(group: Group, constants: tuple[int, ...]) -> str | None:
    """Why operands, but those of these places, are no images that can be blocked."""
    reason = unsuited(group)
    images = [v for i, v in enumerate(group.anchor.inputs) if i not in constants]
    for value in (*images, *group.outputs):
        reason = reason or blocked.image_refusal(value)
    if reason is None and graph.elements(group.outputs[0]) == 0:
        reason = "the output has no elements"
    return reason


def _seconds(group: Group, known: Known) -> float:
    layout = blocked.layout_of(known)
    nbytes = 2 * FLOAT * sum(layout.elements(graph.static_shape(v)) for v in group.outputs)
    return roofline(known.target, flops=0.0, nbytes=nbytes, threads=known.threads)


def boxes_refusal(group: Group, known: Known, constants: tuple[int, ...], boxes: Boxes) -> str | None:
    """Why a group does not move whole blocks; the inputs at `constants` are no images."""
    reason = _refusal(group, constants) or fixed_inputs(group.anchor, constants)
    if reason is not None:
        return reason
    lanes = known.target.vector_lanes
    for box in boxes(group.anchor):
        taken = box.taken[1]
        if taken.start % lanes or box.first[1] % lanes or taken.step != 1:
            return (
                f"channels {taken.start}:{taken.stop}:{taken.step} of {box.source.name!r} become those "
                f"from {box.first[1]} of {box.target.name!r}; blocks of {lanes} must stay whole"
            )
    return None


def box_calls(box: Box, known: Known) -> tuple[Call, ...]:
    """What copies a box."""
    return calls(_strided(box, known.target.vector_lanes), FLOAT, box.source, box.target)


def boxes_layouts(group: Group, known: Known, boxes: Boxes) -> Mapping[ir.Value, Layout]:
    """Every image is blocked."""
    sources = (box.source for box in boxes(group.anchor))
    images = (v for v in (*sources, *group.outputs) if not graph.is_constant(v))
    return dict.fromkeys(images, blocked.layout_of(known))


def _row(
    name: str, op: str, constants: tuple[int, ...], boxes: Boxes, padding: Padding = UNDEFINED
) -> Implementation:
    def unless(group: Group, known: Known) -> str | None:
        return boxes_refusal(group, known, constants, boxes)

    def lower(group: Group, known: Known) -> tuple[Call, ...]:
        written = (box for box in boxes(group.anchor) if box.target in group.outputs)
        return tuple(call for box in written for call in box_calls(box, known))

    def layouts(group: Group, known: Known) -> Mapping[ir.Value, Layout]:
        return boxes_layouts(group, known, boxes)

    return Implementation(name, op, "numba-cpu", unless, lower, _seconds, layouts=layouts, padding=padding)


def _pad_unless(group: Group, known: Known) -> str | None:
    reason = _refusal(group, (1, 2, 3)) or pad_unless(group, known)
    if reason is not None:
        return reason
    indices, channels = pad_axes(group.anchor)[1], graph.static_shape(data(group.anchor))[1]
    if not np.array_equal(indices, np.arange(channels)):
        return "pads channels; blocks must stay whole"
    return None


def _pad_lower(group: Group, known: Known) -> tuple[Call, ...]:
    node = group.anchor
    x, lanes = data(node), known.target.vector_lanes
    batch, channels, *pixels = pad_axes(node)
    blocks = blocked.blocks_of(channels.size, known)
    axes = (batch, np.arange(blocks), *pixels, np.arange(lanes))
    shape = blocked.layout_of(known).physical_shape(graph.static_shape(x))
    return lookup_calls(axes, shape, FLOAT, x, node.outputs[0], graph.input_at(node, 2))


def _pad_layouts(group: Group, known: Known) -> Mapping[ir.Value, Layout]:
    return dict.fromkeys((data(group.anchor), *group.outputs), blocked.layout_of(known))


IMPLEMENTATIONS = (
    _row("concat.blocked", "Concat", (), concat_boxes, LANEWISE),
    _row("split.blocked", "Split", (1,), split_boxes),
    _row("slice.blocked", "Slice", (1, 2, 3, 4), slice_boxes),
    Implementation(
        "pad.blocked",
        "Pad",
        "numba-cpu",
        _pad_unless,
        _pad_lower,
        _seconds,
        layouts=_pad_layouts,
        padding=LANEWISE,
    ),
)
