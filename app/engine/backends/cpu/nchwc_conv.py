"""Rows of dense and grouped convolutions over blocked images, in float32 and with products of bfloat16."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import bfloat, blocking, half_weights, nchwc
from app.engine.backends.cpu.calls import Operands, of_type, size_operand, typed_call
from app.engine.backends.cpu.nchwc_geometry import Cut, Geometry, chunks_of, geometry, packed_weights
from app.engine.backends.cpu.rows import after, group_roofline, total_bytes
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import flops
from app.engine.operators import conv_geometry, epilogues
from app.engine.types.layout import Layout
from app.engine.types.saturation import VNNI
from app.engine.types.target import Target
from app.kernels.cpu import matrix_tiles
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.nchwc_conv import NchwcConvSizes

Array = np.ndarray[Any, Any]

DEPTH = 320  # steps of the reduction whose panel of two vectors stays in the first cache
OUTPUTS = 16 * 1024  # byte of a strip's output of one block that stay in the first cache
INPUTS = 192 * 1024  # byte of a strip's input in a chunk that stay in the second
PEAK = 1.0  # operations of float32 that take as long as looking for the largest element takes for each
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
    form: Form, group: Group, shape: Geometry, parts: Cut, ends: nchwc.Ends, lanes: int, tap_count: int,
    held: int = 0,
) -> NchwcConvSizes:  # fmt: skip
    """Sizes of a convolution; the workspace of a thread holds a copied strip and the recipe's buffer.

    The strip holds so many blocks at a time, or planes; all of them for 0.
    """
    window = shape.window
    # Of the input as it lies in memory, whose blocks hold channels and not pairs of them.
    source_lanes, channels = 1 if form.plain_input else lanes, conv_geometry.of_conv(group).channels
    x_block = shape.h * shape.w * source_lanes
    planes = shape.x_lanes == 1
    tail = len(shape.along) if shape.side_by_side else 1 if planes else window.channels % shape.x_lanes
    strip = shape.strip(parts.rows) if shape.copied else 0
    strip = strip // shape.blocks * held if held else strip
    strip += -strip % (blocking.LINE // 4)
    work = strip + ends.buffer
    work += -work % (blocking.LINE // 4) + (FACTORS if form.scaled else 0)
    return NchwcConvSizes(
        groups=window.groups,
        x_image=-(-channels // source_lanes) * x_block,
        x_block=x_block,
        x_blocks=shape.blocks,
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
        depth=window.depth + (len(chunks_of(shape, parts)) if form.scaled else 0),
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
        rate = scaled_rate(context) if form.scaled else bfloat.rate(context)
        rounding = bfloat.ROUNDING + (PEAK if form.scaled else 0.0)
        products = products * padded / rate + rounding * graph.elements(x)
    moved = total_bytes(group)
    if form.half:
        products *= half_weights.CONVERSION
        moved -= graph.nbytes(graph.operand(group.anchor, 1)) // 2
    return group_roofline(group, context, products, 0.95, moved)


def scaled_rate(context: PlanningContext) -> float:
    """Products of integers of 16 bits a second over those of float32; without VNNI by two instructions."""
    return 2.0 if VNNI & set(context.target.isa) else 1.3


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
