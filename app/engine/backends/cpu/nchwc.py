"""Common parts of the rows over channel-blocked activations (NCHW8c, NCHW16c).

A block holds as many channels as a register holds float32; the last one of a tensor may be padded.
Padded lanes hold anything: kernels compute lane by lane, and those that sum over channels count
only the channels there are.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.calls import Operand, of_type
from app.engine.backends.cpu.rows import after
from app.engine.core import graph
from app.engine.core.calls import Argument, Constant, Workspace
from app.engine.core.group import Group, of_group
from app.engine.core.registry import PlanningContext
from app.engine.operators import epilogues
from app.engine.operators.epilogues import Epilogue
from app.engine.types.layout import LAST, Layout, blocked, to_physical
from app.kernels.cpu.codegen.tiles import CLAMP, COLUMN_BIAS, RESIDUAL
from app.kernels.cpu.epilogue import ADVANCE, CHUNK, LANES

Array = np.ndarray[Any, Any]

# Where an operand of a recipe begins, by the place it is read at: an offset in terms of `place` (of
# the output), `block` (of channels), `plane` (image times blocks plus block).
OFFSETS = {"same": "place", "channel": "block * LANES", "plane": "plane * LANES", "scalar": "0"}

# Types of images: of blocks, and of channels last.
BLOCKED_TYPES, LAST_TYPES = ("float32",), ("float32", "uint8", "int8", "int32")
RANK = -1  # of direct kernels over blocks: of rows that cost the same they come first
LayoutOf: TypeAlias = Callable[[PlanningContext], Layout]


def last_of(_context: PlanningContext) -> Layout:
    """Channels last."""
    return LAST


def layout_of(context: PlanningContext) -> Layout:
    """The blocked layout of images on this target."""
    return blocked(4, context.target.vector_lanes)


def blocks_of(channels: int, context: PlanningContext) -> int:
    """Blocks that hold this many channels."""
    return -(-channels // context.target.vector_lanes)


def image_rejection(value: ir.Value | None, types: tuple[str, ...] = BLOCKED_TYPES) -> str | None:
    """Reason why a value is no image of one of these types: T[N, C, H, W] of a known shape."""
    if value is None:
        return "an operand is omitted"
    if graph.is_dynamic(value):
        return f"value {value.name!r} has no static shape"
    rank = len(graph.static_shape(value))
    wrong = f"{value.name!r} has {rank} axes; layouts of images have 4" if rank != 4 else None
    return type_rejection(value, types) or wrong


def images_rejection(
    group: Group, *images: ir.Value | None, types: tuple[str, ...] = BLOCKED_TYPES
) -> str | None:
    """Reason why values are no images of these types, or the group's first output has no elements."""
    for value in images:
        reason = image_rejection(value, types)
        if reason is not None:
            return reason
    y = group.outputs[0]
    return type_rejection(y, types) or (None if graph.elements(y) else "the output has no elements")


def type_rejection(value: ir.Value, types: tuple[str, ...] = BLOCKED_TYPES) -> str | None:
    """Reason why elements of a value are not those of a layout of images."""
    if str(graph.dtype(value)) in types:
        return None
    return f"{value.name!r} is {graph.dtype(value)}; this layout of images is for {', '.join(types)}"


def types_of(layout: Layout) -> tuple[str, ...]:
    """Types of images in a layout."""
    return BLOCKED_TYPES if layout.blocks else LAST_TYPES


def rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why the anchor's images or what follows it cannot be blocked."""
    return _rejection(group)


@of_group
def _rejection(group: Group) -> str | None:
    reason = images_rejection(group, group.anchor.inputs[0], *group.outputs)
    if reason is not None:
        return reason
    epilogue = epilogues.read(group, 1)
    if isinstance(epilogue, str):
        return epilogue
    for value, place in epilogue.operands:
        if place not in ADVANCE:
            return f"operand {value.name!r} varies along other axes than the channels"
        if graph.dtype(value) != np.float32:
            return f"operand {value.name!r} is {graph.dtype(value)}"
        if place != "scalar" and not graph.is_constant(value) and len(graph.static_shape(value)) != 4:
            return f"operand {value.name!r} is no image and changes between runs"
    return None


@after(rejection)
def packed_rejection(group: Group, _context: PlanningContext) -> str | None:
    """As `rejection`, or if weights or bias change between runs."""
    for value in group.anchor.inputs[1:]:
        if value is not None and not graph.is_constant(value):
            return f"{value.name!r} changes between runs; this one packs it offline"
    return None


def layouts(
    group: Group, context: PlanningContext, layout: Layout | None = None
) -> Mapping[ir.Value, Layout]:
    """Blocked, or in another layout: the anchor's first input, the residual, operands, outputs.

    Operands of one element stay as they are.
    """
    epilogue = epilogues.read(group, 1)
    assert not isinstance(epilogue, str)
    images = [group.anchor.inputs[0], epilogue.residual, *group.outputs]
    images += [v for v, place in epilogue.operands if place != "scalar"]
    asked = layout or layout_of(context)
    return {v: asked for v in images if v is not None and not graph.is_constant(v)}


def narrow_rejection(value: ir.Value, context: PlanningContext) -> str | None:
    """Reason why the channels of an image are too few for vectors that overlap."""
    channels, lanes = graph.static_shape(value)[1], context.target.vector_lanes
    return f"{channels} channels do not fill a vector of {lanes}" if channels < lanes else None


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors of channels of two images with the same channels, blocked or channels last.

    Attributes:
        count: of vectors.
        extents: elements of an image of each.
        step: distance of pixels.
        table: int64[count, 2], offsets of each vector in the images.
    """

    count: int
    extents: tuple[int, int]
    step: int
    table: Operand


def vectors(x: tuple[int, ...], y: tuple[int, ...], layout: LayoutOf, context: PlanningContext) -> Vectors:
    """Vectors of images of these shapes; channels last, the last one overlaps the one before."""
    lanes, channels = context.target.vector_lanes, x[1]
    planes = [math.prod(shape[2:]) for shape in (x, y)]
    starts = range(0, channels, lanes)
    if layout(context) is LAST:
        step = wide = channels
        offsets = [(min(c, channels - lanes),) * 2 for c in starts]
    else:
        step, wide = lanes, len(starts) * lanes
        offsets = [(c * planes[0], c * planes[1]) for c in starts]
    table = "int64*", Constant(np.array(offsets, np.int64))
    return Vectors(len(offsets), (wide * planes[0], wide * planes[1]), step, table)


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """Bias and epilogue of a convolution: what happens to results before they are stored.

    Attributes:
        bias: one element per channel; over blocks float32[blocks * lanes].
        residual: an image like the output.
        scalars: four numbers, see `app.kernels.cpu.codegen.tiles`.
        flags: COLUMN_BIAS or ROW_BIAS, RESIDUAL, CLAMP.
        operands: of the recipe.
    """

    bias: Argument
    residual: Argument
    scalars: Argument
    flags: int
    epilogue: Epilogue
    operands: tuple[Operand, ...]

    @property
    def addends(self) -> tuple[Operand, ...]:
        """Bias, residual and scalars as operands of a kernel of float32."""
        return of_type("float32*", self.bias, self.residual, self.scalars)

    def with_bias(self, elements: int) -> "Ends":
        """These for a kernel that always adds a bias: of so many zeros where there is none."""
        if self.flags & COLUMN_BIAS:
            return self
        return replace(self, bias=Constant(np.zeros(elements, np.float32)))

    @property
    def static(self) -> tuple[object, ...]:
        """Recipe, and the place of each operand: arguments of a generator."""
        return self.epilogue.recipe, tuple(place for _, place in self.epilogue.operands)

    @property
    def places(self) -> tuple[tuple[str, str, str], ...]:
        """(how it advances, offset, element type) of each operand: an argument of a generator over blocks."""
        return tuple((ADVANCE[place], OFFSETS[place], "float32") for _, place in self.epilogue.operands)

    @property
    def buffer(self) -> int:
        """Elements of scratch that `run` needs."""
        by_lane = sum(ADVANCE[place] == LANES for _, place in self.epilogue.operands)
        return CHUNK * max(by_lane, 1) if self.epilogue.recipe else 0


def ends(group: Group, context: PlanningContext, layout: Layout | None = None) -> Ends:
    """Bias and epilogue of a group that `rejection` lets pass; the anchor's third input is a bias.

    Images are blocked unless another layout is given.
    """
    layout = layout or layout_of(context)
    epilogue = epilogues.read(group, 1)
    assert not isinstance(epilogue, str)
    channels = graph.static_shape(group.outputs[0])[1]
    kind = np.dtype(np.float32)
    own = graph.input_at(group.anchor, 2) if group.anchor.op_type.startswith("Conv") else None
    has_bias = bool(epilogue.biases) or (own is not None and graph.is_constant(own))

    def total() -> Array:
        following, array = epilogue.bias(channels, kind), graph.constant(own)
        if array is None:
            assert following is not None
            return lane_vector(following, layout)
        return lane_vector(array.astype(kind) if following is None else following + array, layout)

    nothing = Constant(np.zeros(1, kind))
    bias = Constant(total) if has_bias else nothing
    flags = COLUMN_BIAS * has_bias | CLAMP * epilogue.clamps
    flags |= RESIDUAL * (epilogue.residual is not None)
    operands = of_type("float32*", *(_operand(v, place, layout) for v, place in epilogue.operands))
    residual: Argument = epilogue.residual or nothing
    if isinstance(residual, ir.Value) and graph.is_constant(residual):
        residual = Constant(to_physical(graph.array(residual), layout))
    return Ends(bias, residual, Constant(epilogue.scalars(kind)), flags, epilogue, operands)


def scratch(elements: int) -> Operand:
    """Workspace of float32 for each thread; of no elements, something to point to."""
    space = Workspace(elements * 4, per_thread=True) if elements else Constant(np.zeros(1, np.float32))
    return "float32*", space


def lane_vector(array: Array, layout: Layout) -> Array:
    """One element per channel, filled up with zeros to whole blocks."""
    return to_physical(array.reshape(1, -1, 1, 1), layout).reshape(-1)


def _operand(value: ir.Value, place: str, layout: Layout) -> Argument:
    array = graph.constant(value)
    if array is None:
        return value
    if place == "channel":
        return Constant(lane_vector(array, layout), value.name or "")
    if place == "scalar":
        return value
    wide = array.reshape((1,) * (4 - array.ndim) + array.shape)
    return Constant(to_physical(wide, layout), value.name or "")


def inplace(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """The residual, which a tile adds before it stores; a recipe reads its operands after that."""
    epilogue = epilogues.read(group, 1)
    assert not isinstance(epilogue, str)
    later = {v for v, _ in epilogue.operands}
    return tuple(pair for pair in epilogues.inplace(group, 1) if pair[0] not in later)
