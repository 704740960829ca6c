"""Rows of convolutions over images whose channels lie last (NHWC)."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import blocking, nchwc, nchwc_conv, nchwc_depthwise, nchwc_geometry
from app.engine.backends.cpu.calls import Operands, of_type, size_operand, typed_call
from app.engine.backends.cpu.nchwc_depthwise import depthwise_rejection
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext, no_pairs
from app.engine.cost.roofline import flops
from app.engine.operators import conv_geometry
from app.engine.types.layout import LAST
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.nhwc_conv import NhwcConvSizes
from app.kernels.cpu.nhwc_depthwise import NhwcDepthwiseSizes

DEPTH = 512  # steps of the reduction: a panel is read from the second cache as fast as from the first
RUN = 96  # pixels of a flat convolution that are a row


layouts = partial(nchwc.layouts, layout=LAST)  # channels last wherever a blocked row would ask for blocks


@after(nchwc.packed_rejection)
def _rejection(group: Group, _context: PlanningContext) -> str | None:
    window = conv_geometry.of_conv(group)
    if window.channels == 1 and window.groups > 1:
        return f"{window.groups} groups of one channel; products of pixels want more"
    return None


def _chunks(window: conv_geometry.Window, line: int, shift: int) -> list[tuple[int, int]]:
    """Stretches of the reduction, (where they begin, steps), for rows of `line` pixels.

    Taps side by side are one stretch where there is one group; `shift` pixels are added to every offset.
    """
    channels = window.groups * window.channels
    _, down, along = window.offsets
    joined = window.groups == 1 and along == tuple(range(along[0], along[0] + len(along)))
    stretches = [
        ((i * line + j + shift) * channels, window.channels * (len(along) if joined else 1))
        for i in down
        for j in (along[:1] if joined else along)
    ]
    chunks = []
    for start, steps in stretches:
        step = blocking.balanced(steps, DEPTH, 1)
        chunks += [(start + at, min(step, steps - at)) for at in range(0, steps, step)]
    return chunks


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows of a convolution as the kernel sees them, and how many of them are a strip.

    A `flat` convolution reads its input pixel by pixel; a row is a run of them. A unit computes `part` of the
    output channels of a group.
    """

    flat: bool
    rows: int
    columns: int
    strip_rows: int
    part: int

    @property
    def strips(self) -> int:
        """Strips of an image and group."""
        return -(-self.rows // self.strip_rows)


def cut_of(group: Group, context: PlanningContext) -> Cut:
    """Strips whose input fits the second cache, and as many as threads share evenly.

    Of a flat convolution the runs are shorter, and channels are parts, where strips are too few for that.
    """
    shape = nchwc_geometry.geometry(group, 1)
    window = shape.window
    flat = shape.columns == 1 and window.taps == 1 and shape.rows == window.pixels and not shape.copied
    cuts = [
        Cut(flat, rows, columns, _strip_rows(shape, flat, rows, columns, context), part)
        for columns in (_runs(window.pixels, context) if flat else [shape.columns])
        for rows in [-(-window.pixels // columns) if flat else shape.rows]
        for part in _parts(window.outputs, context)
    ]
    shares = [blocking.busiest(units_of(cut, window, context), context.threads) for cut in cuts]
    return blocking.first_even(cuts, shares)


def _runs(pixels: int, context: PlanningContext) -> list[int]:
    """Pixels of runs, the longest first: whole tiles where threads share them."""
    rows, longest = tiles.WIDE[context.target.vector_lanes][0], min(RUN, pixels)
    shorter = (blocking.balanced(pixels, -(-pixels // n), rows) for n in _shares(context))
    return list(dict.fromkeys((longest, *(n for n in shorter if n < longest))))


def _parts(outputs: int, context: PlanningContext) -> list[int]:
    """Channels of parts, the most first: whole panels where threads share them."""
    width = tiles.columns_of("float32", context.target.vector_lanes, tiles.WIDE)
    fewer = (blocking.balanced(outputs, -(-outputs // n), width) for n in _shares(context))
    return list(dict.fromkeys((outputs, *(n for n in fewer if n < outputs))))


def _shares(context: PlanningContext) -> range:
    """Numbers of pieces among which the threads may find even shares."""
    return range(2, 4 * context.threads + 1 if context.threads > 1 else 2)


def _strip_rows(
    shape: nchwc_geometry.Geometry, flat: bool, rows: int, columns: int, context: PlanningContext
) -> int:
    """Rows of a strip: its input fits the second cache, and there are four strips a thread if possible."""
    window, threads = shape.window, context.threads
    lines_of = (lambda n: n) if flat else shape.lines
    line = window.groups * window.channels * (columns if flat else shape.line)
    fits = nchwc_conv.INPUTS // 4 // max(line, 1)
    strip_rows = rows
    while strip_rows > 1 and (
        lines_of(strip_rows) > fits
        or (threads > 1 and window.batch * window.groups * -(-rows // strip_rows) < 4 * threads)
    ):
        strip_rows = -(-strip_rows // 2)
    return strip_rows


def units_of(cut: Cut, window: conv_geometry.Window, context: PlanningContext) -> blocking.Units:
    """Work of the units of a cut in order, in pixels times channels: whole tiles and panels."""
    small, vectors = tiles.WIDE[context.target.vector_lanes][1:3]
    lane = context.target.vector_lanes
    ends = np.minimum(np.arange(1, cut.rows + 1) * cut.columns, window.pixels)
    pixels = np.concatenate([[0], np.cumsum(-(-np.diff(ends, prepend=0) // small) * small)])
    strips = np.diff(pixels[np.arange(cut.strips + 1) * cut.rows // cut.strips])
    parts = blocking.Panels(window.outputs, vectors * lane, lane).widths(cut.part)
    return np.tile(np.outer(strips, np.tile(parts, window.groups)).reshape(-1), window.batch)


def _packed(weights: ir.Value, window: conv_geometry.Window, lanes: int) -> Constant:
    """Weights as panels of columns: [groups, taps and channels, outputs]."""
    array = graph.array(weights)

    def panels() -> np.ndarray[Any, np.dtype[np.float32]]:
        own = array.reshape(window.groups, window.outputs, window.channels, -1)
        matrices = np.moveaxis(own, 1, 3).transpose(0, 2, 1, 3)  # [groups, taps, channels, outputs]
        return tiles.pack_columns(
            matrices.reshape(window.groups, window.depth, window.outputs),
            tiles.columns_of("float32", lanes, tiles.WIDE),
        )

    return Constant(panels, weights.name or "")


def _sizes(
    shape: nchwc_geometry.Geometry, cut: Cut, chunk_count: int, flags: int, lanes: int
) -> NhwcConvSizes:
    """Sizes of a convolution, among them the workspace of a thread: a copied strip and a spare tile."""
    window, lines = shape.window, shape.lines(cut.strip_rows)
    channels = window.groups * window.channels
    line = blocking.LINE // 4
    strip = lines * shape.line * channels if shape.copied else 0
    strip += -strip % line
    spare = tiles.spare("float32", lanes, tiles.WIDE)
    return NhwcConvSizes(
        x_image=channels * window.size[1] * window.size[2],
        x_row=(cut.columns if cut.flat else window.size[2]) * channels,
        x_group=window.channels,
        x_pixel=channels * (1 if cut.flat else shape.stride_w),
        h=window.size[1],
        w=window.size[2],
        channels=channels,
        rows=cut.rows,
        columns=cut.columns,
        pixels=window.pixels,
        strip_rows=cut.strip_rows,
        stride=shape.stride_h,
        copied=shape.copied,
        top=shape.top,
        left=shape.left,
        line=shape.line,
        lines=lines,
        groups=window.groups,
        outputs=window.outputs,
        part=cut.part,
        depth=window.depth,
        chunk_count=chunk_count,
        strip_size=strip,
        spare_size=spare,
        work_step=strip + spare + -(strip + spare) % line,
        flags=flags,
    )


def _lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    lanes = context.target.vector_lanes
    shape = nchwc_geometry.geometry(group, 1)
    window, ends = shape.window, nchwc.ends(group, context, LAST)
    cut = cut_of(group, context)
    chunks = _chunks(window, shape.line, shape.top * shape.line + shape.left)
    sizes = _sizes(shape, cut, len(chunks), ends.flags, lanes)
    weights = _packed(graph.operand(group.anchor, 1), window, lanes)
    operands: Operands = (
        *of_type("float32*", graph.operand(group.anchor, 0), weights, group.outputs[0]),
        *ends.addends,
        ("int64*", Constant(np.array(chunks, np.int64))),
        size_operand(sizes),
        ("float32*", Workspace(sizes.work_step * 4, per_thread=True)),
        *ends.operands,
    )
    units = window.batch * window.groups * cut.strips * -(-window.outputs // cut.part)
    return (typed_call("app.kernels.cpu.nhwc_conv:emit", operands, units, ("float32", lanes, *ends.static)),)


def _cost(group: Group, context: PlanningContext) -> float:
    lanes = context.target.vector_lanes
    window = conv_geometry.of_conv(group)
    width = tiles.columns_of("float32", lanes, tiles.WIDE)
    # Whole tiles are computed; each starts anew for every row of the window, at the price of some steps.
    wasted = -(-window.outputs // width) * width / window.outputs
    wasted *= 1.0 + 12.0 / (len(window.offsets[2]) * window.channels)
    run = window.pixels if window.taps == 1 else window.out[2]
    wasted *= -(-run // 4) * 4 / run * (1.0 + 4.0 / run)
    units = units_of(cut_of(group, context), window, context)
    wasted *= blocking.busiest(units, context.threads) * context.threads / units.sum()
    return group_roofline(group, context, flops(group) * wasted, 0.95)


@after(depthwise_rejection)
def _depthwise_rejection(group: Group, context: PlanningContext) -> str | None:
    lanes, channels = context.target.vector_lanes, conv_geometry.of_conv(group).groups
    return f"{channels} channels do not fill a vector of {lanes}" if channels < lanes else None


def _depthwise_sizes(window: conv_geometry.Window, bands: int, buffer: int) -> NhwcDepthwiseSizes:
    _, down, along = window.offsets
    return NhwcDepthwiseSizes(
        channels=window.groups,
        h=window.size[1],
        w=window.size[2],
        rows=window.out[1],
        columns=window.out[2],
        bands=bands,
        band=-(-window.out[1] // bands),
        stride_h=window.stride[1],
        dilation_h=nchwc_depthwise.spacing(down),
        top=-down[0],
        left=-along[0],
        taps=len(down),
        buffer_step=buffer,
    )


def _depthwise_lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    value = graph.operand(group.anchor, 1)
    window, lanes = conv_geometry.of_conv(group), context.target.vector_lanes
    ends = nchwc.ends(group, context, LAST)
    channels = window.groups
    # Vectors of channels; the last one overlaps the one before where they do not fill it.
    firsts = [min(c, channels - lanes) for c in range(0, channels, lanes)]
    taps = graph.array(value).reshape(channels, -1)
    packed = np.concatenate([taps[c : c + lanes].T.reshape(-1) for c in firsts])
    total = ends.with_bias(channels).bias
    assert isinstance(total, Constant)
    array = total.array
    bias = Constant(np.concatenate([array[c : c + lanes] for c in firsts]))
    buffer = tiles.spare("float32", lanes, tiles.WIDE) if ends.epilogue.recipe else 0
    bands = nchwc_depthwise.bands_of(window.batch, window.out[1], context.threads)
    weights = Constant(packed, value.name or "")
    operands: Operands = (
        *of_type("float32*", graph.operand(group.anchor, 0), weights, group.outputs[0]),
        *replace(ends, bias=bias).addends,
        size_operand(_depthwise_sizes(window, bands, buffer)),
        nchwc.scratch(buffer),
        *ends.operands,
    )
    static = (*nchwc_depthwise.unrolled(window, lanes, ends), *ends.static)
    return (typed_call("app.kernels.cpu.nhwc_depthwise:emit", operands, window.batch * bands, static),)


def _depthwise_cost(group: Group, context: PlanningContext) -> float:
    return group_roofline(group, context, flops(group) * nchwc_depthwise.overhead(group), 0.55)


IMPLEMENTATIONS = tuple(
    Implementation(name, "Conv", "numba-cpu", rejection, lower, cost, inplace, layouts=layouts, rank=2)
    for name, rejection, lower, cost, inplace in (
        ("conv.last", _rejection, _lower, _cost, nchwc.inplace),
        ("conv.depthwise_last", _depthwise_rejection, _depthwise_lower, _depthwise_cost, no_pairs),
    )
)
