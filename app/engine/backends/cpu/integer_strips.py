"""Strips of rows of convolutions of 8-bit integers, over rows that lie anywhere.

Sums are exact, and become what is stored by the recipe of the convolution without strips: results are equal
bit by bit to those of every implementation of the same products.
"""

import itertools
from functools import partial

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import blocking, integer_depthwise
from app.engine.backends.cpu.calls import Operands, kernel_call, of_type, size_operand
from app.engine.backends.cpu.integer import (
    CONVOLUTIONS,
    FORMS,
    Form,
    Inputs,
    corrections,
    finish_of,
    window_of,
)
from app.engine.backends.cpu.integer_conv import panels
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.core.streams.strips import CallOf, RowMaps, RowsPlace, Strip, StripRow
from app.engine.memory.rows.geometry import ROW, RowMap
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.codegen.tiles import PAIRS, RIGHT_UNSIGNED
from app.kernels.cpu.strip_integer import StripConvSizes, StripDepthwiseSizes
from app.kernels.cpu.strips import RowPlaces
from app.kernels.expressions import stored

ELEMENT = 4  # byte of a sum, and of some channels
GATHERED = 4096  # byte of the pixels of a tile of several registers
TILE_ROWS = 8  # of a depthwise convolution
# Times of groups of MobileNetV2 one by one in strips of 1, 2, 4, 8 and all rows, over those of the fastest
# kernels without, which gather nothing (Zen 5): of `dot` 4.9, 4.5, 4.5, 4.5, 4.5, of `pairs` 3.1, 3.0, 3.1,
# 3.1, 3.1; depthwise 4.3, 2.9, 2.3, 1.9, 1.9 and, for vectors of 8 lanes, 3.6, 2.4, 1.8, 1.5, 1.6.
PACE, PAIRS_PACE = (4.5, 0.4), (3.1, 0.0)
DEPTHWISE_PACE = 1.4, 2.5


def _beside(group: Group) -> tuple[ir.Value, ...]:
    """Images that are read at the place of the output."""
    found = [o.argument for o in finish_of(group).operands if o.place == "same"]
    return tuple(dict.fromkeys(v for v in found if isinstance(v, ir.Value)))


def _rejection(group: Group, context: PlanningContext) -> str | None:
    """Reason why a convolution is not computed in strips."""
    if context.threads > 1:
        return f"{context.threads} threads; strips are computed by one"
    of, window = Inputs(group.anchor), window_of(group)
    if len(graph.static_shape(of.a)) != 4:
        return f"{of.a.name!r} has no lines; strips are of images"
    if window.batch != 1:
        return f"a batch of {window.batch} images; strips are of one"
    if of.a_zero is not None and not graph.is_constant(of.a_zero):
        return f"{of.a_zero.name!r} changes between runs; this one takes a constant"
    images = _beside(group)
    if len(images) > 1 or any(graph.is_constant(v) for v in images):
        return f"{len(images)} images or constants are read beside the sums; a strip reads one image"
    return "the input is read at the place of the output too" if of.a in images else None


def _reads(group: Group, _context: PlanningContext) -> RowMaps:
    """Rows of the input under the window, and of what is read beside the sums."""
    window = window_of(group)
    down = window.offsets[1]
    own = RowMap(window.stride[1], 1, down[0], down[-1])
    return ((Inputs(group.anchor).a, own), *((v, ROW) for v in _beside(group)))


def _places(group: Group, strip: Strip) -> tuple[RowPlaces, tuple[RowsPlace, RowsPlace]]:
    """The table of places of a call, and those of its input and output."""
    x, y = strip.places[Inputs(group.anchor).a], strip.places[group.outputs[0]]
    images = _beside(group)
    beside = strip.places[images[0]] if images else y
    found = RowPlaces(
        operator=strip.operator,
        work_at=strip.scratch // ELEMENT,
        x_first=x.first,
        x_plane=x.plane,
        y_first=y.first,
        y_plane=y.plane,
        r_first=beside.first,
        r_plane=beside.plane,
    )
    return found, (x, y)


def _operands(group: Group, strip: Strip) -> Operands:
    """Operands of the recipe, images by what they lie in."""
    found = []
    for operand in finish_of(group).operands:
        value, kind = operand.argument, f"{stored(operand.dtype)}*"
        place = strip.places.get(value) if isinstance(value, ir.Value) else None
        found.append((kind, value if place is None else place.argument))
    return tuple(found)


def _zero(of: Inputs) -> int:
    zero = graph.constant(of.a_zero)
    return 0 if zero is None else int(zero.reshape(-1)[0])


def _conv_sizes(form: Form, group: Group, context: PlanningContext, rows: int) -> StripConvSizes:
    of, window, lanes = Inputs(group.anchor), window_of(group), context.target.vector_lanes
    width, block = tiles.columns_of(PAIRS, lanes, form.shapes), form.shapes[lanes][0]
    columns, steps = window.out[2], -(-window.channels // form.together)
    if width * steps * window.taps * ELEMENT > GATHERED:
        width = lanes  # tiles of one register
    span = blocking.balanced(columns, width, 1)
    lines = max(min(width // columns, rows), 1)
    row = span * lines  # tiles read beyond it, and beyond the last row
    shift, zero = form.shift(of.a, context), _zero(of)
    blank = 0 if form.together == 2 else (zero + shift & 255) * 0x01010101
    return StripConvSizes(
        h=window.size[1],
        w=window.size[2],
        rows=window.out[1],
        columns=columns,
        stride_h=window.stride[1],
        stride_w=window.stride[2],
        tap_count=window.taps,
        groups=window.groups,
        channels=window.channels,
        outputs=window.outputs,
        steps=steps,
        span=span,
        lines=lines,
        block_m=block,
        panel_row=row,
        panel_size=steps * window.taps * row + width,
        zero=zero,
        blank=blank - (blank >> 31 << 32),
        flip=-0x7F7F7F80 if shift else 0,
    )


def _conv_scratch(form: Form, group: Group, context: PlanningContext, rows: int) -> int:
    sizes = _conv_sizes(form, group, context, rows)
    lanes = context.target.vector_lanes
    width = lanes if sizes.panel_row <= lanes else tiles.columns_of(PAIRS, lanes, form.shapes)
    return (sizes.panel_size + sizes.block_m * width) * ELEMENT


def _conv_lower(form: Form, group: Group, context: PlanningContext, strip: Strip) -> CallOf:
    of, window, finish = Inputs(group.anchor), window_of(group), finish_of(group)
    lanes, kind = context.target.vector_lanes, graph.element_type(of.a).name
    sizes = _conv_sizes(form, group, context, strip.rows)
    places, (x, y) = _places(group, strip)
    _, added = corrections(of, form, context)
    taps = np.array([*itertools.product(*window.offsets[1:])], np.int64)
    before: Operands = (
        (f"{kind}*", x.argument),
        *of_type("int32*", panels(of, window, window.outputs, sizes.block_m, lanes, form), added),
        (f"{stored(finish.result)}*", y.argument),
        ("int64*", Constant(taps)),
        ("int32*", strip.table),
        *(size_operand(sizes), size_operand(places)),
        ("int64*", strip.cursors),
    )
    after: Operands = (("int32*", strip.memory), *_operands(group, strip))
    static = (form.dtype(RIGHT_UNSIGNED, context), lanes, *finish.static)
    return _calls("app.kernels.cpu.strip_integer:emit_conv", before, after, static)


def _calls(kernel: str, before: Operands, after: Operands, static: tuple[object, ...]) -> CallOf:
    """The call for a number of rows, which comes between these operands."""

    def of(rows: int) -> KernelCall:
        return kernel_call(kernel, (*before, rows, *after), 1, static)

    return of


def _depthwise_sizes(group: Group, context: PlanningContext, rows: int) -> StripDepthwiseSizes:
    of, window, lanes = Inputs(group.anchor), window_of(group), context.target.vector_lanes
    tile = min(rows, TILE_ROWS)
    planes = integer_depthwise.planes_of(window, lanes, tile)
    down = window.offsets[1]
    row, plane = planes.line * window.stride[2], planes.phase * window.stride[2]
    return StripDepthwiseSizes(
        channels=window.groups,
        h=window.size[1],
        w=window.size[2],
        top=planes.top,
        left=planes.left,
        lines=planes.lines,
        reach=down[-1] + planes.top + 1,
        row=row,
        phase=planes.phase,
        distance=planes.distance,
        stride_h=window.stride[1],
        stride_w=window.stride[2],
        rows=window.out[1],
        columns=window.out[2],
        taps=-(-len(down) // 2) * len(window.offsets[2]),
        plane_size=plane,
        sums_size=tile * window.out[2] + lanes,
        frame_size=plane + planes.distance * row,
        zero=_zero(of),
    )


def _depthwise_scratch(group: Group, context: PlanningContext, rows: int) -> int:
    sizes = _depthwise_sizes(group, context, rows)
    return (sizes.plane_size + sizes.sums_size) * ELEMENT + sizes.frame_size


def _depthwise_lower(group: Group, context: PlanningContext, strip: Strip) -> CallOf:
    of, window, finish = Inputs(group.anchor), window_of(group), finish_of(group)
    lanes, kind = context.target.vector_lanes, graph.element_type(of.a).name
    sizes = _depthwise_sizes(group, context, strip.rows)
    tile = min(strip.rows, TILE_ROWS)
    offsets = integer_depthwise.offsets_of(window, integer_depthwise.planes_of(window, lanes, tile))
    places, (x, y) = _places(group, strip)
    before: Operands = (
        (f"{kind}*", x.argument),
        ("int32*", integer_depthwise.packed_weights(of, window)),
        (f"{stored(finish.result)}*", y.argument),
        ("int64*", Constant(np.array(offsets, np.int64))),
        ("int32*", strip.table),
        *(size_operand(sizes), size_operand(places)),
        ("int64*", strip.cursors),
    )
    after: Operands = ((f"{kind}*", strip.memory), ("int32*", strip.memory), *_operands(group, strip))
    static = (kind, lanes, tile, *finish.static)
    return _calls("app.kernels.cpu.strip_integer:emit_depthwise", before, after, static)


STRIP_ROWS = (
    *(
        StripRow(
            f"{prefix}.{name}",
            _rejection,
            _reads,
            partial(_conv_scratch, form),
            partial(_conv_lower, form),
            anywhere=True,
            pace=PAIRS_PACE if form.together == 2 else PACE,
        )
        for prefix in CONVOLUTIONS.values()
        for form in FORMS
        if not form.tiled
        for name in (form.name, f"pixels_{form.name}")
    ),
    *(
        StripRow(
            f"{prefix}.{name}",
            _rejection,
            _reads,
            _depthwise_scratch,
            _depthwise_lower,
            anywhere=True,
            pace=DEPTHWISE_PACE,
        )
        for prefix in CONVOLUTIONS.values()
        for name in ("depthwise", "depthwise_lanes")
    ),
)
