"""Data movement as copies between parts of tensors."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Call, View
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.model.shape_inference import tensor_rules
from app.engine.operators.operands import data, itemsize
from app.engine.operators.strides import StridedCopy, strides_of
from app.engine.types.layout import Layout

Copies: TypeAlias = tuple[tuple[StridedCopy, ir.Value, ir.Value], ...]  # (copy, from, to)


@dataclass(frozen=True, slots=True)
class Part:
    """A value that equals a box of another: these indices along each axis."""

    whole: ir.Value
    part: ir.Value
    taken: tuple[range, ...]


Parts: TypeAlias = Callable[[ir.Node], tuple[Part, ...]]


def permutation(node: ir.Node) -> tuple[int, ...]:
    """The axes of a Transpose; reversed where the attribute is left out."""
    rank = len(graph.static_shape(data(node)))
    return tuple(graph.attribute(node, "perm", tuple(reversed(range(rank)))))


def _transpose(node: ir.Node) -> Copies:
    x, y = data(node), node.outputs[0]
    sx = strides_of(graph.static_shape(x))
    shape = graph.static_shape(y)
    return ((StridedCopy(shape, tuple(sx[a] for a in permutation(node)), strides_of(shape)), x, y),)


def _expand(node: ir.Node) -> Copies:
    x, y = data(node), node.outputs[0]
    shape = graph.static_shape(y)
    sizes = graph.static_shape(x)
    sizes = (1,) * (len(shape) - len(sizes)) + sizes
    sx = tuple(0 if n == 1 else s for n, s in zip(sizes, strides_of(sizes)))
    return ((StridedCopy(shape, sx, strides_of(shape)), x, y),)


def _tile(node: ir.Node) -> Copies:
    x, y = data(node), node.outputs[0]
    inner, shape = graph.static_shape(x), graph.static_shape(y)
    sizes, sx, sy = [], [], []
    for n, m, stride_x, stride_y in zip(inner, shape, strides_of(inner), strides_of(shape)):
        sizes += [m // max(n, 1), n]
        sx += [0, stride_x]
        sy += [n * stride_y, stride_y]
    return ((StridedCopy(tuple(sizes), tuple(sx), tuple(sy)), x, y),)


def _depth_to_space(node: ir.Node) -> Copies:
    x, y = data(node), node.outputs[0]
    n, c, height, width = graph.static_shape(x)
    block = graph.attribute(node, "blocksize", 1)
    deep = c // (block * block)
    if graph.attribute(node, "mode", "DCR") == "DCR":
        s_n, s_bh, s_bw, s_c, s_h, s_w = strides_of((n, block, block, deep, height, width))
    else:
        s_n, s_c, s_bh, s_bw, s_h, s_w = strides_of((n, deep, block, block, height, width))
    sizes = (n, deep, height, block, width, block)
    return ((StridedCopy(sizes, (s_n, s_c, s_h, s_bh, s_w, s_bw), strides_of(sizes)), x, y),)


def _space_to_depth(node: ir.Node) -> Copies:
    x, y = data(node), node.outputs[0]
    n, c, height, width = graph.static_shape(x)
    block = graph.attribute(node, "blocksize", 1)
    s_n, s_c, s_h, s_bh, s_w, s_bw = strides_of((n, c, height // block, block, width // block, block))
    if graph.attribute(node, "mode", "DCR") == "DCR":
        sizes = (n, block, block, c, height // block, width // block)
        return ((StridedCopy(sizes, (s_n, s_bh, s_bw, s_c, s_h, s_w), strides_of(sizes)), x, y),)
    sizes = (n, c, block, block, height // block, width // block)
    return ((StridedCopy(sizes, (s_n, s_c, s_bh, s_bw, s_h, s_w), strides_of(sizes)), x, y),)


def _whole(node: ir.Node) -> Copies:
    size = graph.elements(data(node))
    return ((StridedCopy((size,), (1,), (1,)), data(node), node.outputs[0]),)


def is_view(node: ir.Node) -> bool:
    """True if a Transpose leaves the order of the axes that are longer than one."""
    shape = graph.static_shape(data(node))
    long = [a for a in permutation(node) if shape[a] != 1]
    return long == sorted(long) or math.prod(shape) == 0


def _chunks(whole: ir.Value, parts: Sequence[ir.Value], axis: int) -> tuple[Part, ...]:
    """Parts that lie one after another along an axis."""
    shape = graph.static_shape(whole)
    axis %= max(len(shape), 1)
    found, start = [], 0
    for part in parts:
        taken = [range(n) for n in shape]
        taken[axis] = range(start, start + graph.static_shape(part)[axis])
        start = taken[axis].stop
        found.append(Part(whole, part, tuple(taken)))
    return tuple(found)


def concat_parts(node: ir.Node) -> tuple[Part, ...]:
    """The inputs of a Concat in its output."""
    return _chunks(node.outputs[0], graph.operands(node), graph.attribute(node, "axis", 0))


def split_parts(node: ir.Node) -> tuple[Part, ...]:
    """The outputs of a Split in its input."""
    return _chunks(data(node), node.outputs, graph.attribute(node, "axis", 0))


def slice_parts(node: ir.Node) -> tuple[Part, ...]:
    """The output of a Slice in its input."""
    return (Part(data(node), node.outputs[0], taken_ranges(node)),)


def gather_parts(node: ir.Node) -> tuple[Part, ...]:
    """One part where the indices count up; none else."""
    x = data(node)
    shape = graph.static_shape(x)
    axis = graph.attribute(node, "axis", 0) % max(len(shape), 1)
    indices = graph.array(node.inputs[1])
    rows = np.where(indices < 0, indices + shape[axis], indices).ravel()
    if not rows.size or np.any(np.diff(rows) != 1) or rows[0] < 0 or rows[-1] >= shape[axis]:
        return ()
    taken = [range(n) for n in shape]
    taken[axis] = range(int(rows[0]), int(rows[-1]) + 1)
    return (Part(x, node.outputs[0], tuple(taken)),)


def first_element(part: Part, layout: Layout) -> int | str:
    """The physical element of the whole where a part begins; why not, where it does not lie in one piece.

    Both have the same layout. In the last block of a part there may be lanes of the next one: to who
    reads it they are padding.
    """
    shape = graph.static_shape(part.whole)
    taken = []
    for axis in layout.order:
        r, n = part.taken[axis], layout.lanes(axis)
        if len(r) > 1 and r.step != 1:
            return f"{part.part.name!r} takes every {r.step}th element of {part.whole.name!r}"
        if r.start % n:
            return f"{part.part.name!r} begins within a block of {part.whole.name!r}"
        taken.append(range(r.start // n, -(-(r.start + len(r)) // n)))
    taken += [range(n) for _, n in layout.blocks]
    extents = layout.physical_shape(shape)
    outer = next((i for i, r in enumerate(taken) if len(r) != 1), len(taken))
    if any(len(r) != n for r, n in list(zip(taken, extents))[outer + 1 :]):
        return f"{part.part.name!r} lies in several pieces of {part.whole.name!r}"
    return sum(r.start * math.prod(extents[i + 1 :]) for i, r in enumerate(taken))


def box(part: Part, strides: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Strides of a part and its first element, in the whole that has these strides."""
    pairs = list(zip(strides, part.taken))
    return tuple(s * r.step for s, r in pairs), sum(s * r.start for s, r in pairs)


def box_copies(parts: Parts) -> Callable[[ir.Node], Copies]:
    """The copies of parts of row-major tensors, in order: out of the whole, or into that of a Concat."""

    def copies(node: ir.Node) -> Copies:
        found = []
        for p in parts(node):
            shape = graph.static_shape(p.part)
            own, (steps, first) = strides_of(shape), box(p, strides_of(graph.static_shape(p.whole)))
            if node.op_type == "Concat":
                found.append((StridedCopy(shape, own, steps, y0=first), p.part, p.whole))
            else:
                found.append((StridedCopy(shape, steps, own, x0=first), p.whole, p.part))
        return tuple(found)

    return copies


def part_view(part: Part, layout: Layout, group: Group) -> View | str:
    """A part as a view of the whole, both of this layout, or why it is none."""
    for value in (part.whole, part.part):
        if graph.is_constant(value):
            return f"{value.name!r} is constant"
    if graph.elements(part.part) == 0:
        return f"{part.part.name!r} has no elements"
    if part.part not in (*group.inputs, *group.outputs):
        return f"nothing reads {part.part.name!r}"
    first = first_element(part, layout)
    return first if isinstance(first, str) else View(part.whole, part.part, first * itemsize(part.whole))


def whole_view(group: Group, _context: PlanningContext) -> tuple[View, ...]:
    """The first output as the first input with another shape."""
    return (View(data(group.anchor), group.anchor.outputs[0]),)


def no_calls(_group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    """Nothing is to be done."""
    return ()


def taken_ranges(node: ir.Node) -> tuple[range, ...]:
    """The indices that a Slice with constant operands takes of every axis."""
    starts, ends = (graph.array(graph.input_at(node, i)) for i in (1, 2))
    axes, steps = (graph.constant(graph.input_at(node, i)) for i in (3, 4))
    return tensor_rules.taken_ranges(graph.static_shape(data(node)), starts, ends, axes, steps)


# Operators whose values are boxes of others, and the inputs that must be constant.
PARTS: tuple[tuple[str, Parts, tuple[int, ...]], ...] = (
    ("Concat", concat_parts, ()),
    ("Split", split_parts, (1,)),
    ("Slice", slice_parts, (1, 2, 3, 4)),
    ("Gather", gather_parts, (1,)),
)
# Operators whose output may lie where the input does; a Transpose if `is_view`.
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose")
# (name, operator, inputs that must be constant, its copies)
COPIES: tuple[tuple[str, str, tuple[int, ...], Callable[[ir.Node], Copies]], ...] = (
    ("transpose.strided", "Transpose", (), _transpose),
    ("slice.strided", "Slice", (1, 2, 3, 4), box_copies(slice_parts)),
    ("concat.blocks", "Concat", (), box_copies(concat_parts)),
    ("split.blocks", "Split", (), box_copies(split_parts)),
    ("expand.strided", "Expand", (), _expand),
    ("tile.strided", "Tile", (), _tile),
    ("depth_to_space.strided", "DepthToSpace", (), _depth_to_space),
    ("space_to_depth.strided", "SpaceToDepth", (), _space_to_depth),
    ("reshape.copy", "Reshape", (), _whole),
    ("flatten.copy", "Flatten", (), _whole),
    ("squeeze.copy", "Squeeze", (), _whole),
    ("unsqueeze.copy", "Unsqueeze", (), _whole),
    ("identity.copy", "Identity", (), _whole),
)
