"""Rows of dense and grouped convolutions over blocked images, in float32 and with products of bfloat16."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import bfloat, blocking, half_weights, nchwc
from app.engine.backends.cpu.calls import Operands, of_type, size_operand, typed_call
from app.engine.backends.cpu.rows import after, group_roofline, total_bytes
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import flops
from app.engine.operators import conv_geometry, epilogues
from app.engine.operators.conv_geometry import Window
from app.engine.types.layout import Layout
from app.engine.types.target import Target
from app.kernels.cpu import matrix_tiles
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.nchwc_conv import NchwcConvSizes

Array = np.ndarray[Any, Any]

DEPTH = 320  # steps of the reduction whose panel of two vectors stays in the first cache
OUTPUTS = 16 * 1024  # byte of a strip's output of one block that stay in the first cache
INPUTS = 192 * 1024  # byte of a strip's input in a chunk that stay in the second
FACTORS = 16  # elements of a thread's workspace for the scale of a strip and the limits of results
TILED_INPUTS, TILED_OUTPUTS = 512 * 1024, 64 * 1024  # the same where tile registers multiply

# Vectors of a tile, first as it is and then another number that is worth measuring, by lanes: 8 x 3 loads
# less for each product than 12 x 2, and fewer pixels than a tile still hide the latency of a product.
VECTORS = {8: (2, 3), 16: (3, 2)}
TILED_VECTORS = 2, 3

# Ways to cut that are worth measuring: as is, tiles of as many vectors, strips of more or fewer rows.
OTHER, STRIPS = "other", {"tall": 2.0, "short": 0.5}
TUNINGS = ("", OTHER, *STRIPS)


@after(nchwc.packed_rejection)
def rejection(group: Group, context: PlanningContext) -> str | None:
    """Rejection of what no direct convolution over blocked outputs computes."""
    window, lanes = conv_geometry.of_conv(group), context.target.vector_lanes
    if window.groups > 1 and (window.channels % lanes or window.outputs % lanes):
        return f"{window.channels} to {window.outputs} channels per group, not whole blocks of {lanes}"
    return None


@after(rejection)
def stem_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Rejection of what no direct convolution from planes to blocked outputs computes."""
    if conv_geometry.of_conv(group).groups > 1:
        return "groups of channels; a stem has one"
    epilogue = epilogues.read(group, 1)
    assert not isinstance(epilogue, str)
    x = group.anchor.inputs[0]
    if x is epilogue.residual or any(v is x for v, _ in epilogue.operands):
        return "the input is an operand of what follows, which reads blocks"
    return None


def stem_layouts(group: Group, context: PlanningContext) -> Mapping[ir.Value, Layout]:
    """Those of the others: the input is plain."""
    return {v: at for v, at in nchwc.layouts(group, context).items() if v is not group.anchor.inputs[0]}


@dataclass(frozen=True, slots=True)
class Cut:
    """How a convolution is cut into units.

    Attributes:
        rows: output rows of a strip at most; strips differ by no more than `step`.
        chunk: whole input blocks of a chunk.
        wide: blocks of output channels of a tile.
        part: blocks of output channels of a unit.
        step: what the rows of a strip are a multiple of.
    """

    rows: int
    chunk: int
    wide: int
    part: int
    step: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution as the kernel sees it.

    Attributes:
        rows, columns: of the output; a pointwise convolution has pixels as rows of one column.
        h, w: of the input in the same sense.
        stride_h, stride_w: in pixels of the input.
        down, along: offsets of taps along the axes.
        x_lanes: elements of a block of the input, each a channel or a pair of them; 1 for planes.
        copied: whether strips are copied with their padding, or rounded to pairs.
    """

    tiled: ClassVar[bool] = False  # whether tile registers multiply, see `tiled_conv`

    window: Window
    rows: int
    columns: int
    h: int
    w: int
    stride_h: int
    stride_w: int
    down: tuple[int, ...]
    along: tuple[int, ...]
    x_lanes: int
    copied: bool

    @property
    def top(self) -> int:
        """Rows before the first of the input."""
        return max(-self.down[0], 0) if self.copied else 0

    @property
    def left(self) -> int:
        """Pixels before the first of a row of the input."""
        return max(-self.along[0], 0) if self.copied else 0

    @property
    def line(self) -> int:
        """Pixels of a row as a strip has it."""
        if not self.copied:
            return self.w
        reach = (self.columns - 1) * self.stride_w + self.along[-1] + self.left + 1
        return max(reach, self.left + 1)

    def lines(self, rows: int) -> int:
        """Input rows of a strip of `rows` output rows."""
        return (rows - 1) * self.stride_h + self.down[-1] + self.top + 1

    @property
    def phases(self) -> tuple[int, int]:
        """How many phases of the strides along the axes a strip has apart."""
        return 1, 1

    def strip(self, rows: int) -> int:
        """Elements of a strip of `rows` output rows."""
        return -(-self.window.channels // self.x_lanes) * self.lines(rows) * self.line * self.x_lanes

    def places(self, rows: int) -> tuple[Array, Array]:
        """Where output pixels of a strip and taps read it, as offsets of elements.

        Those of taps count from the pixel where the window begins, which is in the strip.
        """
        row, pixel = self.x_lanes * self.stride_h * self.line, self.x_lanes * self.stride_w
        pixels = np.add.outer(np.arange(rows) * row, np.arange(self.columns) * pixel)
        plane = self.lines(rows) * self.line if self.copied else self.h * self.w
        planes = range(self.window.channels if self.x_lanes == 1 else 1)
        down = [(i + self.top) * self.line * self.x_lanes for i in self.down]
        along = [(j + self.left) * self.x_lanes for j in self.along[: 1 if self.side_by_side else None]]
        return pixels, np.array([c * plane + i + j for c in planes for i in down for j in along], np.int64)

    def without_sizes(self) -> "Geometry":
        """The same for any size of the image: what packed weights depend on."""
        window = replace(self.window, batch=0, size=(0, 0, 0), out=(0, 0, 0))
        return replace(self, window=window, rows=0, columns=0, h=0, w=0, copied=False)

    def weights(self, array: Array, *, paired: bool) -> Array:
        """Weights[outputs, channels, taps], or pairs of their channels."""
        flat = array.reshape(*array.shape[:2], -1)
        return tiles.pack_bfloats(flat) if paired else flat

    def row_bytes(self, blocks: int) -> int:
        """Bytes that so many blocks of a row of the input take in a strip."""
        return (blocks * self.x_lanes if self.x_lanes > 1 else self.window.channels) * 4 * self.w

    @property
    def static(self) -> tuple[object, ...]:
        """Further arguments of the generator."""
        return ()

    @property
    def side_by_side(self) -> bool:
        """True if the taps of a row are steps of the reduction: planes without dilation."""
        steps = {b - a for a, b in itertools.pairwise(self.along)}
        return self.x_lanes == 1 and steps <= {1}


def geometry(group: Group, lanes: int, *, paired: bool = False, flat: bool = True) -> Geometry:
    """The geometry of a convolution whose input has blocks of this many channels.

    One of pairs of channels has half as many: those of its window are pairs. With `flat` a pointwise one has
    no rows.
    """
    window = conv_geometry.of_conv(group)
    if paired:
        window, lanes = replace(window, channels=-(-window.channels // 2)), max(lanes // 2, 1)
    if flat and window.flat() is not window:
        return Geometry(window, window.pixels, 1, window.pixels, 1, 1, 1, (0,), (0,), lanes, paired)
    (_, rows, columns), (_, h, w), (_, down, along) = window.out, window.size, window.offsets
    (_, stride_h, stride_w) = window.stride
    outside = paired or down[0] < 0 or along[0] < 0
    outside |= (rows - 1) * stride_h + down[-1] >= h or (columns - 1) * stride_w + along[-1] >= w
    return Geometry(window, rows, columns, h, w, stride_h, stride_w, down, along, lanes, outside)


def cut(shape: Geometry, context: PlanningContext, follows: bool) -> Cut:
    """Blocks that fit the caches, units that threads share evenly.

    `follows` tells whether a recipe runs over the outputs of a tile's strip, which then are in the
    first cache. The tuning of `context` asks for other strips or tiles, see TUNINGS.
    """
    window, lanes = shape.window, context.target.vector_lanes
    out_blocks = -(-window.outputs // lanes)
    usual, other = TILED_VECTORS if shape.tiled else VECTORS[16 if lanes > 8 else 8]
    wide = 4 if shape.rows * shape.columns <= 2 and out_blocks >= 4 and not shape.tiled else usual
    if context.tuning == OTHER:
        wide = other
    whole = window.channels // shape.x_lanes if shape.x_lanes > 1 else 0
    chunk = blocking.balanced(max(whole, 1), max(DEPTH * 2 // wide // (shape.x_lanes * window.taps), 1), 1)
    inputs, outputs, tile = INPUTS, OUTPUTS, 1  # a kernel shares any number of pixels evenly by tiles
    if shape.tiled:  # products are so fast that reading weights again for another strip takes longer
        chunk, tile = max(whole, 1), matrix_tiles.BEHIND
        inputs, outputs = TILED_INPUTS, TILED_OUTPUTS
    row = shape.row_bytes(chunk) * shape.stride_h
    rows = max(min(inputs // row - (len(shape.down) - 1 if shape.copied else 0), shape.rows), 1)
    if follows:
        rows = max(min(rows, outputs // (shape.columns * lanes * 4)), 1)
    rows = min(round(rows * STRIPS.get(context.tuning, 1.0)) or 1, shape.rows)
    step = min(tile, shape.rows) if shape.columns == 1 else 1
    rows = blocking.balanced(shape.rows, rows, step)
    best, seconds = Cut(rows, chunk, wide, out_blocks, step), float("inf")
    fewest = -(-shape.rows // rows)
    counts = dict.fromkeys((fewest, -(-fewest // context.threads) * context.threads, 2 * fewest))
    for part, count in itertools.product(_parts(out_blocks, wide, context.threads), counts):
        own = -(-shape.rows // (min(count, shape.rows) * step)) * step
        strips = -(-shape.rows // own)
        units = window.batch * window.groups * strips * -(-out_blocks // part)
        took = -(-units // context.threads) * _unit_seconds(shape, strips, own, part, context.target)
        if took < seconds * (1 - 1e-9):
            best, seconds = Cut(own, chunk, wide, part, step), took
    return best


def _parts(out_blocks: int, wide: int, threads: int) -> list[int]:
    """Blocks of output channels that a unit may have: all; a half or a quarter, then in whole tiles too."""
    even = [-(-out_blocks // split) for split in (2, 4)] if threads > 1 else []
    whole = [part + -part % wide for part in even if part > wide]
    return [out_blocks, *(part for part in (*whole, *even) if part < out_blocks)]


def _unit_seconds(shape: Geometry, strips: int, rows: int, part: int, target: Target) -> float:
    """Seconds of a unit, to compare cuts: arithmetic, and reading weights and `rows` of the input at most.

    Halving the rows has all weights read twice, halving the outputs all of the input.
    """
    channels, outputs = shape.window.channels, part * target.vector_lanes  # channels, or pairs of them
    depth = channels * shape.window.taps
    moved = outputs * depth + channels * shape.lines(rows) * shape.line
    seconds = 2 * outputs * depth * shape.rows / strips * shape.columns / target.flops
    return seconds + 4 * moved / target.memories[0].bandwidth


def packed_weights(group: Group, shape: Geometry, parts: Cut, lanes: int, dtype: str) -> Constant:
    """Weights in the order of use."""
    weights = graph.operand(group.anchor, 1)
    array, paired = graph.array(weights), dtype in tiles.BFLOAT_PAIRS
    scaled = dtype == tiles.SCALED_PAIRS
    # Equal operands are packed once, for any number of shapes.
    unsized, blocks = shape.without_sizes(), replace(parts, rows=0, step=0)

    def packed() -> Array:
        flat = unsized.weights(array, paired=paired)
        panels = _scaled_panels if scaled else _panels
        return tiles.in_right_element(dtype, panels(flat, unsized, blocks, lanes))

    return Constant(packed, weights.name or "")


def _panels(array: Array, shape: Geometry, parts: Cut, lanes: int, ends: Array | None = None) -> Array:
    """Weights[outputs, channels, taps] in the order of use; `ends`[outputs, chunks] follow each chunk."""
    window = shape.window
    matrices = array.reshape(window.groups, window.outputs, window.channels, -1)
    chunks = _chunks(shape, parts)
    if shape.side_by_side:
        along = len(shape.along)
        matrices = np.moveaxis(matrices.reshape(*matrices.shape[:2], -1, along), 3, 2)
    elif shape.x_lanes == 1:
        matrices = matrices.reshape(*matrices.shape[:2], 1, -1)
    tails = [None] * window.groups if ends is None else ends.reshape(window.groups, window.outputs, -1)
    packed = [
        tiles.pack_blocks(m, lanes, parts.wide, parts.part, chunks, tail) for m, tail in zip(matrices, tails)
    ]
    return np.concatenate(packed)


def _scaled_panels(array: Array, shape: Geometry, parts: Cut, lanes: int) -> Array:
    """Weights[outputs, channels, taps] as pairs of integers, whose scales follow each chunk."""
    chunks = [(0, array.shape[1])] if shape.x_lanes == 1 else [(2 * f, 2 * n) for f, n in _chunks(shape, parts)]
    found = [tiles.scaled_integers(array[:, first : first + count]) for first, count in chunks]
    integers = np.concatenate([whole for whole, _ in found], axis=1)
    return _panels(tiles.pack_shorts(integers), shape, parts, lanes, np.stack([own for _, own in found], axis=1))


def _chunks(shape: Geometry, parts: Cut) -> list[tuple[int, int]]:
    """(first, count) steps of each chunk of the reduction: channels, or taps of planes side by side."""
    if shape.side_by_side:
        return [(0, len(shape.along))]
    if shape.x_lanes == 1:
        return [(0, 1)]
    firsts = list(range(0, max(shape.window.channels // shape.x_lanes, 1), parts.chunk))
    ends = [*(f * shape.x_lanes for f in firsts[1:]), shape.window.channels]
    return [(f * shape.x_lanes, end - f * shape.x_lanes) for f, end in zip(firsts, ends)]


def widths_of(out_blocks: int, parts: Cut) -> tuple[int, ...]:
    """Blocks of the tiles that a convolution takes.

    Those of wide tiles with a rest have all rests, so that convolutions of a model share a kernel.
    """
    rest = out_blocks % parts.part or parts.part
    groups = (tiles.block_groups(blocks, parts.wide) for blocks in (parts.part, rest))
    found = {size for group in groups for _, size in group}
    if len(found) > 1 and parts.wide > 2:
        found |= {2, 3}
    return tuple(sorted(found, reverse=True))


@dataclass(frozen=True, slots=True)
class Form:
    """Which of the rows it is: over planes or blocks, of float32, 16-bit weights or pairs.

    Pairs are of bfloat16, or `scaled` ones of integers.
    """

    plain_input: bool = False
    paired: bool = False
    half: bool = False
    scaled: bool = False

    def geometry(self, group: Group, context: PlanningContext) -> Geometry:
        """The geometry of a convolution in this form."""
        lanes = 1 if self.plain_input else context.target.vector_lanes
        return geometry(group, lanes, paired=self.paired)

    def dtype(self, group: Group, context: PlanningContext) -> str:
        """Type of the factors."""
        if self.half:
            return half_weights.dtype_of(graph.operand(group.anchor, 1), context) or "float32"
        if self.scaled:
            return tiles.SCALED_PAIRS
        return bfloat.dtype(context) if self.paired else "float32"

    def rejection(self, group: Group, context: PlanningContext) -> str | None:
        """Reason why it does not apply."""
        reason = bfloat.rejection(context) if self.paired and not self.scaled else None
        reason = reason or (stem_rejection if self.plain_input else rejection)(group, context)
        if reason is None and self.half:
            return half_weights.rejection_of(graph.operand(group.anchor, 1), context)
        return reason


F = TypeVar("F", bound=Form)


def sizes_of(
    form: Form, group: Group, shape: Geometry, parts: Cut, ends: nchwc.Ends, lanes: int, tap_count: int
) -> NchwcConvSizes:
    """Sizes of a convolution; the workspace of a thread holds a copied strip and the recipe's buffer."""
    window = shape.window
    # Of the input as it lies in memory, whose blocks hold channels and not pairs of them.
    source_lanes, channels = 1 if form.plain_input else lanes, conv_geometry.of_conv(group).channels
    x_block = shape.h * shape.w * source_lanes
    planes = shape.x_lanes == 1
    tail = len(shape.along) if shape.side_by_side else 1 if planes else window.channels % shape.x_lanes
    strip = shape.strip(parts.rows) if shape.copied else 0
    strip += -strip % (blocking.LINE // 4)
    work = strip + ends.buffer
    work += -work % (blocking.LINE // 4) + (FACTORS if form.scaled else 0)
    return NchwcConvSizes(
        groups=window.groups,
        x_image=-(-channels // source_lanes) * x_block,
        x_block=x_block,
        x_blocks=-(-window.channels // shape.x_lanes),
        x_lanes=shape.x_lanes,
        channels=channels,
        h=shape.h,
        w=shape.w,
        strip_rows=parts.rows,
        strip_step=parts.step,
        columns=shape.columns,
        rows=shape.rows,
        stride=shape.stride_h,
        stride_w=shape.stride_w,
        **dict(zip(("phases_h", "phases_w"), shape.phases)),
        copied=shape.copied,
        top=shape.top,
        left=shape.left,
        line=shape.line,
        lines=shape.lines(parts.rows),
        blocks=0 if planes else window.channels // shape.x_lanes,
        tail=tail,
        chunk=parts.chunk,
        tap_count=tap_count,
        depth=window.depth + (len(_chunks(shape, parts)) if form.scaled else 0),
        out_blocks=-(-window.outputs // lanes),
        part=parts.part,
        strip_size=strip,
        work_step=work,
        flags=ends.flags,
    )


def lower(form: Form, group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    """The call of a form that applies."""
    lanes = context.target.vector_lanes
    dtype, shape = form.dtype(group, context), form.geometry(group, context)
    window, ends = shape.window, nchwc.ends(group, context)
    parts = cut(shape, context, bool(ends.epilogue.recipe))
    pixels, taps = shape.places(parts.rows)
    sizes = sizes_of(form, group, shape, parts, ends, lanes, taps.size)
    weights = packed_weights(group, shape, parts, lanes, dtype)
    operands: Operands = (
        ("float32*", graph.operand(group.anchor, 0)),
        (f"{tiles.right_element(dtype)}*", weights),
        ("float32*", group.outputs[0]),
        *ends.addends,
        *of_type("int64*", Constant(pixels.astype(np.int64)), Constant(taps)),
        size_operand(sizes),
        ("float32*", Workspace(max(sizes.work_step, 16) * 4, per_thread=True)),
        *ends.operands,
    )
    out_blocks = sizes.out_blocks
    units = window.batch * window.groups * -(-shape.rows // parts.rows) * -(-out_blocks // parts.part)
    call = typed_call(
        "app.kernels.cpu.nchwc_conv:emit",
        operands,
        units,
        static=(dtype, lanes, parts.wide, widths_of(out_blocks, parts), *ends.static, *shape.static),
    )
    return (call,)


def _cost(form: Form, group: Group, context: PlanningContext) -> float:
    lanes, plain_input = context.target.vector_lanes, form.plain_input
    shape = form.geometry(group, context)
    window = shape.window
    out_blocks = -(-window.outputs // lanes)
    # A tile of one vector, or of few pixels, waits for its products.
    idle = sum(size * (1.3 if size == 1 else 1.0) for _, size in tiles.block_groups(out_blocks, 2))
    waste = idle * lanes / window.outputs
    pixels = window.pixels * window.batch
    waste *= 1.0 + 4.0 / pixels
    waste *= 1.0 + 3.0 / max(window.depth, 1) + (2.0 / max(window.outputs, 1) if shape.copied else 0.0)
    if plain_input:
        # Each channel is another stream of the input; the caches' prefetching follows a few.
        waste *= (1.05 if shape.side_by_side else 1.5) * (1.0 if window.channels <= lanes else 1.5)
    elif window.channels < shape.x_lanes:
        # The loop over the channels of a tap is short: 8 to 19 % above a stem with 3, 35 % with 1, AVX2.
        waste *= 1.0 + 0.5 / window.channels
    products = flops(group) * waste
    if form.paired:
        x = graph.operand(group.anchor, 0)
        padded = 2 * window.channels / max(conv_geometry.of_conv(group).channels, 1)
        products = products * padded / bfloat.rate(context) + bfloat.ROUNDING * graph.elements(x)
    moved = total_bytes(group)
    if form.half:
        products *= half_weights.CONVERSION
        moved -= graph.nbytes(graph.operand(group.anchor, 1)) // 2
    return group_roofline(group, context, products, 0.95, moved)


FORMS = {
    "conv.blocked": Form(),
    "conv.blocked_stem": Form(plain_input=True),
    "conv.blocked_bf16": Form(paired=True),
    "conv.blocked_stem_bf16": Form(plain_input=True, paired=True),
    "conv.blocked_int16": Form(paired=True, scaled=True),
    "conv.blocked_stem_int16": Form(plain_input=True, paired=True, scaled=True),
    "conv.blocked_half_weights": Form(half=True),
}


def rows(
    forms: Mapping[str, F], cost: Callable[[F, Group, PlanningContext], float], rank: int
) -> tuple[Implementation, ...]:
    """The rows of forms by name."""
    return tuple(
        Implementation(
            name,
            "Conv",
            "numba-cpu",
            form.rejection,
            partial(lower, form),
            cost=partial(cost, form),
            inplace=nchwc.inplace,
            layouts=stem_layouts if form.plain_input else nchwc.layouts,
            tunings=("",) if form.plain_input else TUNINGS,
            precision="int16" if form.scaled else "bf16" if form.paired else "f32",
            rank=rank,
        )
        for name, form in forms.items()
    )


IMPLEMENTATIONS = rows(FORMS, _cost, nchwc.RANK)
