"""Strips of rows of convolutions and of pooling over blocked images, in float32.

Rows lie in rings, see `app.kernels.cpu.strips`. Sums and roundings are those of the implementations that the
rows of `STRIP_ROWS` are named after: results are equal bit by bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import blocking, nchwc, nchwc_conv, nchwc_depthwise, nchwc_geometry, winograd
from app.engine.backends.cpu.calls import Operand, Operands, of_type, size_operand, typed_call
from app.engine.backends.cpu.nchwc_conv import Form
from app.engine.backends.cpu.nchwc_geometry import Cut, Geometry
from app.engine.backends.cpu.nchwc_pool import WHOLE, stored_channels, window_sizes
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.core.streams.strips import CallOf, RowMaps, RowsPlace, Strip, StripRow
from app.engine.memory.rows.geometry import ROW, RowMap, window
from app.engine.operators import conv_geometry, epilogues
from app.engine.operators.pool_geometry import windows
from app.kernels.cpu.nchwc_conv import NchwcConvSizes
from app.kernels.cpu.nchwc_pool import LINE
from app.kernels.cpu.strips import RingSizes
from app.kernels.cpu.winograd import WinogradSizes

ELEMENT = 4  # byte of a float32
CONVOLUTIONS = "Conv", "ConvTranspose"  # may read an image at the place of their output


def images_beside(group: Group) -> tuple[ir.Value, ...]:
    """Images that are read at the place of the output: the residual, and operands of the recipe."""
    epilogue = epilogues.read(group, 1)
    assert not isinstance(epilogue, str)
    images = [epilogue.residual, *(v for v, place in epilogue.operands if place == "same")]
    return tuple(dict.fromkeys(v for v in images if v is not None))


def conv_rejection(group: Group, context: PlanningContext) -> str | None:
    """Reason why a convolution is not computed in strips."""
    if (reason := batch_rejection(group, context)) is not None:
        return reason
    images = images_beside(group)
    if len(images) > 1:
        return f"{len(images)} images are read beside the sums; a strip reads one"
    if group.anchor.inputs[0] in images:
        return "the input is read at the place of the output too"
    return None


def _conv_reads(group: Group, _context: PlanningContext) -> RowMaps:
    """Rows of the input under the window, and of what is read beside the sums."""
    axes = conv_geometry.of_conv(group)
    down, x = axes.offsets[1], graph.operand(group.anchor, 0)
    own = RowMap(axes.stride[1], 1, down[0], down[-1])
    return ((x, own), *((v, ROW) for v in images_beside(group) if not graph.is_constant(v)))


@dataclass(frozen=True, slots=True)
class _Lines:
    """A convolution by rows: how it lies in memory and is cut, for strips of at most so many rows."""

    shape: Geometry
    parts: Cut

    @classmethod
    def of(cls, form: Form, group: Group, context: PlanningContext, rows: int) -> "_Lines":
        """Chunks and tiles are those of all rows at once, so sums have the same order."""
        follows = bool(nchwc.ends(group, context).epilogue.recipe)
        parts = nchwc_conv.cut(form.geometry(group, context), context, follows)
        lanes = 1 if form.plain_input else context.target.vector_lanes
        shape = nchwc_geometry.geometry(group, lanes, flat=False)
        # Rows of a ring that a window reads do not lie side by side, nor planes of it as far apart as those
        # of the image.
        if len(shape.down) > 1 or shape.x_lanes == 1:
            shape = replace(shape, copied=True)
        blocks = nchwc.blocks_of(shape.window.outputs, context)
        return cls(shape, replace(parts, rows=min(rows, shape.rows), part=blocks, step=1))

    def sizes(self, form: Form, group: Group, context: PlanningContext, taps: int) -> NchwcConvSizes:
        """Sizes of the kernel, which copies the blocks of a chunk, and the tail with the last of them."""
        shape, ends, lanes = self.shape, nchwc.ends(group, context), context.target.vector_lanes
        tail = shape.window.channels % shape.x_lanes > 0
        held = shape.blocks if shape.x_lanes == 1 else min(self.parts.chunk + tail, shape.blocks)
        return nchwc_conv.sizes_of(form, group, shape, self.parts, ends, lanes, taps, held)


def _conv_scratch(form: Form, group: Group, context: PlanningContext, rows: int) -> int:
    """Bytes of copied rows and of the recipe's buffer."""
    lines = _Lines.of(form, group, context, rows)
    taps = lines.shape.places(1)[1].size
    return lines.sizes(form, group, context, taps).work_step * ELEMENT * context.threads


def places_of(group: Group, strip: Strip, rows: int) -> tuple[RowsPlace, RowsPlace, RowsPlace]:
    """Places of the input, the output, and what is read beside it: of nothing, or of a constant, all rows."""
    x, (y,) = graph.operand(group.anchor, 0), group.outputs
    images = [
        v for v in (images_beside(group) if group.op in CONVOLUTIONS else ()) if not graph.is_constant(v)
    ]
    at_output = strip.places[images[0]] if images else RowsPlace(y, 0, rows, False, 0, 0)
    return strip.places[x], strip.places[y], at_output


def rings_of(strip: Strip, x: RowsPlace, y: RowsPlace, beside: RowsPlace) -> RingSizes:
    """Rings of the input, the output, and what is read beside it, for one operator of a stream."""
    return RingSizes(
        operator=strip.operator,
        work_at=strip.scratch // ELEMENT,
        x_at=x.offset // ELEMENT,
        x_ring=x.rows,
        x_moves=x.moves,
        y_at=y.offset // ELEMENT,
        y_ring=y.rows,
        y_moves=y.moves,
        r_at=beside.offset // ELEMENT,
        r_ring=beside.rows,
        r_moves=beside.moves,
        shares=strip.shares,
    )


def in_places(operands: Sequence[Operand], strip: Strip) -> tuple[Operand, ...]:
    """Operands, images of the stream by what they lie in."""
    found = []
    for kind, argument in operands:
        place = strip.places.get(argument) if isinstance(argument, ir.Value) else None
        found.append((kind, argument if place is None else place.argument))
    return tuple(found)


def calls_of(
    kernel: str, before: Operands, strip: Strip, rings: RingSizes, after: Operands, static: tuple[object, ...]
) -> CallOf:
    """The call for a number of rows: operands, rings, cursors, the number, further operands."""
    turning: Operands = (size_operand(rings), ("int64*", strip.cursors))

    def of(rows: int) -> KernelCall:
        return typed_call(kernel, (*before, *turning, rows, *after), rings.shares, static)

    return of


def _conv_lower(form: Form, group: Group, context: PlanningContext, strip: Strip) -> CallOf:
    lanes = context.target.vector_lanes
    lines, ends = _Lines.of(form, group, context, strip.rows), nchwc.ends(group, context)
    shape, parts = lines.shape, lines.parts
    x, y, beside = places_of(group, strip, shape.rows)
    pixels, taps = shape.places(parts.rows)
    sizes = lines.sizes(form, group, context, taps.size)
    x_block = sizes.x_block // shape.h * x.rows
    sizes = replace(sizes, x_block=x_block, x_image=sizes.x_image // shape.h * x.rows)
    before: Operands = (
        ("float32*", x.argument),
        ("float32*", nchwc_geometry.packed_weights(group, shape, parts, lanes, "float32")),
        ("float32*", y.argument),
        *in_places(ends.addends, strip),
        *of_type("int64*", Constant(pixels.astype(np.int64)), Constant(taps)),
        size_operand(sizes),
    )
    widths = nchwc_conv.widths_of(sizes.out_blocks, parts)
    return calls_of(
        "app.kernels.cpu.strip_conv:emit",
        before,
        strip,
        rings_of(strip, x, y, beside),
        (("float32*", strip.memory), *in_places(ends.operands, strip)),
        (lanes, parts.wide, widths, *ends.static),
    )


def _depthwise_scratch(group: Group, context: PlanningContext, _rows: int) -> int:
    return nchwc.ends(group, context).buffer * ELEMENT * context.threads


def _depthwise_lower(group: Group, context: PlanningContext, strip: Strip) -> CallOf:
    lanes, axes = context.target.vector_lanes, conv_geometry.of_conv(group)
    ends, blocks = nchwc.ends(group, context), nchwc.blocks_of(axes.groups, context)
    sizes = nchwc_depthwise.sizes_of(axes, blocks, ends.buffer, context)
    x, y, beside = places_of(group, strip, sizes.rows)
    before: Operands = (
        ("float32*", x.argument),
        ("float32*", nchwc_depthwise.packed_weights(group, lanes)),
        ("float32*", y.argument),
        *in_places(ends.with_bias(blocks * lanes).addends, strip),
        size_operand(sizes),
    )
    return calls_of(
        "app.kernels.cpu.nchwc_depthwise:emit_strip",
        before,
        strip,
        rings_of(strip, x, y, beside),
        (("float32*", strip.memory), *in_places(ends.operands, strip)),
        (*nchwc_depthwise.unrolled(axes, lanes, ends), *ends.static),
    )


def _winograd_cut(form: winograd.Form, group: Group, context: PlanningContext, rows: int) -> WinogradSizes:
    """Sizes of a strip of so many rows at most, whose tiles threads share; work is that of a thread."""
    axes, ends, lanes = conv_geometry.of_conv(group), nchwc.ends(group, context), context.target.vector_lanes
    strips = -(-min(rows, axes.out[1]) // form.m)
    tiling = winograd.cut_tiles(axes, form, context, strips * -(-axes.out[2] // form.m), context.threads)
    lines = form.n * max(axes.size[2], axes.out[2]) * lanes
    work = tiling.m_size + form.n * lanes + _winograd_buffer(form, ends, lanes) + lines + tiling.v_size
    work += -work % (blocking.LINE // ELEMENT)
    return winograd.sizes_of(form, axes, tiling, work, ends.flags, context)


def _winograd_buffer(form: winograd.Form, ends: nchwc.Ends, lanes: int) -> int:
    return max(form.n**2 * lanes, ends.buffer)


def _winograd_scratch(form: winograd.Form, group: Group, context: PlanningContext, rows: int) -> int:
    return _winograd_cut(form, group, context, rows).work_step * ELEMENT * context.threads


def _winograd_lower(form: winograd.Form, group: Group, context: PlanningContext, strip: Strip) -> CallOf:
    lanes, ends = context.target.vector_lanes, nchwc.ends(group, context)
    sizes = _winograd_cut(form, group, context, strip.rows)
    x, y, beside = places_of(group, strip, sizes.rows)
    before: Operands = (
        ("float32*", x.argument),
        ("float32*", winograd.packed_weights(form, group, context)),
        ("float32*", y.argument),
        *in_places(ends.with_bias(sizes.filters * lanes).addends, strip),
        size_operand(sizes),
    )
    buffer = _winograd_buffer(form, ends, lanes)
    return calls_of(
        "app.kernels.cpu.strip_winograd:emit",
        before,
        strip,
        rings_of(strip, x, y, beside),
        (("float32*", strip.memory), *in_places(ends.operands, strip)),
        (lanes, form.m, form.taps, min(sizes.filters, 2), buffer, *ends.static, form.dtype(context)),
    )


def batch_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why a group without other images than its input is not computed in strips."""
    batch = graph.static_shape(group.anchor.outputs[0])[0]
    return f"a batch of {batch} images; strips are of one" if batch != 1 else None


def _pool_reads(group: Group, _context: PlanningContext) -> RowMaps:
    g = windows(group.anchor)
    own = window(g.kernel[1], g.strides[1], g.dilations[1], g.before[1])
    return ((graph.operand(group.anchor, 0), own),)


def no_scratch(_group: Group, _context: PlanningContext, _rows: int) -> int:
    """Zero bytes for a call of any number of rows."""
    return 0


def _pool_lower(group: Group, context: PlanningContext, strip: Strip) -> CallOf:
    lanes, g, found = context.target.vector_lanes, windows(group.anchor), window_sizes(group, context)
    x, y, beside = places_of(group, strip, g.out[1])
    channels = graph.static_shape(graph.operand(group.anchor, 0))[1]
    blocks = nchwc.blocks_of(channels, context)
    before: Operands = (
        *of_type("float32*", x.argument, y.argument),
        *found.tables,
        *(blocks, g.size[2], g.out[1], g.out[2], *found.whole, g.dilations[1], g.dilations[2] * lanes),
    )
    kernel = "app.kernels.cpu.nchwc_pool:emit_strip"
    return calls_of(kernel, before, strip, rings_of(strip, x, y, beside), (), found.static)


def _whole_rejection(group: Group, context: PlanningContext) -> str | None:
    """Reason why a whole image is not reduced row by row."""
    _, _, _, w = graph.static_shape(graph.operand(group.anchor, 0))
    if w < LINE:
        return f"rows of {w} pixels, several of which are added up at once; strips take {LINE} or more"
    return batch_rejection(group, context)


def _whole_reads(group: Group, _context: PlanningContext) -> RowMaps:
    return ((graph.operand(group.anchor, 0), ROW),)


def _whole_scratch(_group: Group, context: PlanningContext, _rows: int) -> int:
    return context.target.vector_lanes * ELEMENT * context.threads


def _whole_lower(group: Group, context: PlanningContext, strip: Strip) -> CallOf:
    x, y, beside = places_of(group, strip, 1)
    channels, h, w = graph.static_shape(graph.operand(group.anchor, 0))[1:]
    lanes, blocks = context.target.vector_lanes, nchwc.blocks_of(channels, context)
    sizes = blocks, stored_channels(group, context), h, w
    before: Operands = (*of_type("float32*", x.argument, y.argument), *sizes)
    rings, after = rings_of(strip, x, y, beside), of_type("float32*", strip.memory)
    kernel = "app.kernels.cpu.nchwc_pool:emit_whole_strip"
    return calls_of(kernel, before, strip, rings, after, (WHOLE[group.op][1], lanes))


STRIP_ROWS = (
    *(
        StripRow(
            name,
            conv_rejection,
            _conv_reads,
            partial(_conv_scratch, nchwc_conv.FORMS[name]),
            partial(_conv_lower, nchwc_conv.FORMS[name]),
            shared=True,
        )
        for name in ("conv.blocked", "conv.blocked_stem")
    ),
    *(
        StripRow(
            form.name,
            conv_rejection,
            _conv_reads,
            partial(_winograd_scratch, form),
            partial(_winograd_lower, form),
            step=form.m,
            shared=True,
            expansion=form.n**2 / form.taps**2 * form.nbytes / ELEMENT,
        )
        for form in winograd.FORMS
        if not form.paired
    ),
    StripRow(
        "conv.depthwise_blocked",
        conv_rejection,
        _conv_reads,
        _depthwise_scratch,
        _depthwise_lower,
        shared=True,
    ),
    *(
        StripRow(f"{name}.blocked", batch_rejection, _pool_reads, no_scratch, _pool_lower, shared=True)
        for name in ("max_pool", "average_pool")
    ),
    *(
        StripRow(
            f"{name}.blocked",
            _whole_rejection,
            _whole_reads,
            _whole_scratch,
            _whole_lower,
            shared=True,
            sums=True,
        )
        for name, _ in WHOLE.values()
    ),
)
