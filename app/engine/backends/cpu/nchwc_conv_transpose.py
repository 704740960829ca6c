"""Rows of transposed convolutions over channel-blocked images whose taps do not overlap."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import nchwc, strips
from app.engine.backends.cpu.calls import Operands, of_type, typed_call
from app.engine.backends.cpu.rows import after, group_roofline, total_bytes
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, Lower, PlanningContext, no_pairs
from app.engine.core.streams.strips import CallOf, RowMaps, Strip, StripRow
from app.engine.cost.roofline import flops
from app.engine.memory.rows.geometry import ROW, nearest
from app.engine.operators import conv_geometry, epilogues
from app.engine.types.layout import Layout
from app.kernels.cpu.codegen.tiles import CLAMP, COLUMN_BIAS
from app.kernels.cpu.nchwc_conv_transpose import ACCUMULATORS, pixels_of

Array = np.ndarray[Any, Any]
KERNELS = "app.kernels.cpu.nchwc_conv_transpose"


@after(nchwc.packed_rejection)
def _rejection(group: Group, _context: PlanningContext) -> str | None:
    for phase in conv_geometry.of_conv_transpose(group.anchor):
        window = phase.window
        if window.groups != 1:
            return f"{window.groups} groups; this one has 1"
        if window.offsets != ((0,), (0,), (0,)) or window.size != window.out:
            return "taps overlap or are padded; this one has one tap for every output pixel"
    return None


def _taps(group: Group) -> Array:
    """Weights by residue of the output position: [channels, outputs, rows, columns]."""
    weights = graph.array(group.anchor.inputs[1])
    phases = conv_geometry.of_conv_transpose(group.anchor)
    _, rows, columns = phases[0].step
    taps = np.zeros((*weights.shape[:2], rows, columns), np.float32)
    for phase in phases:
        (row,), (column,) = phase.taps[1:]
        taps[:, :, phase.first[1], phase.first[2]] = weights[:, :, row, column]
    return taps


@after(_rejection)
def _blocked_rejection(group: Group, _context: PlanningContext) -> str | None:
    columns = _taps(group).shape[3]
    if columns > ACCUMULATORS:
        return f"{columns} columns of taps; a tile has {ACCUMULATORS} accumulators"
    return None


@dataclass(frozen=True, slots=True)
class _Product:
    """Products of the pixels of an image with taps, and what follows them.

    Attributes:
        packed: weights as the kernel reads them.
        outputs: blocks of channels, or channels.
        planes: of the output, that are computed one by one.
        buffer: elements of scratch of a thread.
        static: arguments of the kernel's generator, before the places of the recipe's operands.
        places: of these, see `nchwc.Ends.places`.
    """

    packed: Array
    ends: nchwc.Ends
    outputs: int
    planes: int
    buffer: int
    static: tuple[object, ...]
    places: tuple[tuple[str, str, str], ...]


def _blocked(group: Group, context: PlanningContext) -> _Product:
    lanes, taps, ends = context.target.vector_lanes, _taps(group), nchwc.ends(group, context)
    channels, outputs, rows, columns = taps.shape
    blocks = nchwc.blocks_of(outputs, context)
    wide = np.zeros((channels, blocks * lanes, rows, columns), np.float32)
    wide[:, :outputs] = taps
    packed = wide.reshape(channels, blocks, lanes, rows, columns).transpose(1, 3, 0, 4, 2)
    pixels = pixels_of(lanes, columns, graph.static_shape(graph.operand(group.anchor, 0))[3])
    static = (lanes, pixels, rows, columns, ends.flags & ~COLUMN_BIAS, ends.epilogue.recipe)
    own = ends.with_bias(blocks * lanes)
    return _Product(packed, own, blocks, blocks, ends.buffer, static, ends.places)


@after(_rejection)
def _few_rejection(group: Group, context: PlanningContext) -> str | None:
    products = math.prod(_taps(group).shape[1:])
    if products > ACCUMULATORS * context.target.vector_lanes:
        return f"{products} products of a pixel; a tile has {ACCUMULATORS * context.target.vector_lanes}"
    epilogue = epilogues.read(group, 1)
    assert not isinstance(epilogue, str)
    if epilogue.residual is not None or any(place != "scalar" for _, place in epilogue.operands):
        return "what follows reads a tensor; taps of all channels are computed side by side"
    return None


def _few(group: Group, context: PlanningContext) -> _Product:
    lanes, taps, ends = context.target.vector_lanes, _taps(group), nchwc.ends(group, context)
    channels, outputs, rows, columns = taps.shape
    each = rows * columns
    vectors = -(-outputs * each // lanes)
    packed = np.zeros((channels, vectors * lanes), np.float32)
    packed[:, : outputs * each] = taps.reshape(channels, -1)
    bias = np.zeros(vectors * lanes, np.float32)
    if ends.flags & COLUMN_BIAS:
        assert isinstance(ends.bias, Constant)
        bias[: outputs * each] = np.repeat(ends.bias.array[:outputs], each)
    places = tuple((advance, "0", kind) for advance, _, kind in ends.places)
    w = graph.static_shape(graph.operand(group.anchor, 0))[3]
    static = (
        *(lanes, pixels_of(lanes, vectors, w), vectors, rows, columns),
        *(ends.flags & CLAMP, ends.epilogue.recipe),
    )
    own, buffer = replace(ends, bias=Constant(bias)), w * vectors * lanes + ends.buffer
    return _Product(packed, own, outputs, 1, buffer, static, places)


ProductOf: TypeAlias = Callable[[Group, PlanningContext], _Product]


def _constant(group: Group, product: _Product) -> Constant:
    return Constant(np.ascontiguousarray(product.packed), graph.operand(group.anchor, 1).name or "")


def _lower(kernel: str, product_of: ProductOf) -> Lower:
    def lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
        x, product = graph.operand(group.anchor, 0), product_of(group, context)
        batch, channels, h, w = graph.static_shape(x)
        operands: Operands = (
            *of_type("float32*", x, _constant(group, product), group.outputs[0]),
            *product.ends.addends,
            *(channels, product.outputs, h, w),
            nchwc.scratch(product.buffer),
            product.buffer,
            *product.ends.operands,
        )
        static = (*product.static, product.places)
        return (typed_call(f"{KERNELS}:{kernel}", operands, batch * product.planes * h, static),)

    return lower


def _strip_reads(group: Group, _context: PlanningContext) -> RowMaps:
    """Rows of the input, each of which becomes a row for every row of taps, and of what is read beside."""
    own = graph.operand(group.anchor, 0), nearest(_taps(group).shape[2])
    return (own, *((v, ROW) for v in strips.images_beside(group) if not graph.is_constant(v)))


def _strip_scratch(product_of: ProductOf, group: Group, context: PlanningContext, _rows: int) -> int:
    return product_of(group, context).buffer * strips.ELEMENT * context.threads


def _strip_lower(
    kernel: str, product_of: ProductOf, group: Group, context: PlanningContext, strip: Strip
) -> CallOf:
    product, rows = product_of(group, context), graph.static_shape(group.outputs[0])[2]
    _, channels, _, w = graph.static_shape(graph.operand(group.anchor, 0))
    x, y, beside = strips.places_of(group, strip, rows)
    before: Operands = (
        *of_type("float32*", x.argument, _constant(group, product), y.argument),
        *strips.in_places(product.ends.addends, strip),
        *(channels, product.outputs, rows, w, product.buffer),
    )
    after: Operands = (("float32*", strip.memory), *strips.in_places(product.ends.operands, strip))
    places = tuple(
        (way, "r_place" if at == nchwc.OFFSETS["same"] else at, kind) for way, at, kind in product.places
    )
    rings = strips.rings_of(strip, x, y, beside)
    return strips.calls_of(f"{KERNELS}:{kernel}", before, strip, rings, after, (*product.static, places))


def _few_layouts(group: Group, context: PlanningContext) -> Mapping[ir.Value, Layout]:
    return {graph.operand(group.anchor, 0): nchwc.layout_of(context)}


def _seconds(group: Group, context: PlanningContext, lanes_computed: int, nbytes: float) -> float:
    computed = flops(group) * lanes_computed / math.prod(_taps(group).shape[1:])
    return group_roofline(group, context, computed, 0.7, nbytes)


def _blocked_cost(group: Group, context: PlanningContext) -> float:
    layout = nchwc.layout_of(context)
    images = [graph.static_shape(v) for v in (group.anchor.inputs[0], group.outputs[0]) if v is not None]
    _, outputs, rows, columns = _taps(group).shape
    computed = nchwc.blocks_of(outputs, context) * context.target.vector_lanes * rows * columns
    return _seconds(group, context, computed, 4.0 * sum(map(layout.elements, images)))


def _few_cost(group: Group, context: PlanningContext) -> float:
    lanes, products = context.target.vector_lanes, math.prod(_taps(group).shape[1:])
    # Elements of the output are stored one by one.
    return _seconds(group, context, -(-products // lanes) * lanes + lanes, total_bytes(group))


IMPLEMENTATIONS = tuple(
    Implementation(
        f"conv_transpose.{name}", "ConvTranspose", "numba-cpu", rejection, lower, cost, inplace,
        layouts=layouts, rank=nchwc.RANK,
    )
    for name, rejection, lower, cost, inplace, layouts in (
        (
            "blocked", _blocked_rejection, _lower("emit_blocked", _blocked), _blocked_cost, nchwc.inplace,
            nchwc.layouts,
        ),
        ("blocked_few", _few_rejection, _lower("emit_few", _few), _few_cost, no_pairs, _few_layouts),
    )
)  # fmt: skip

STRIP_ROWS = tuple(
    StripRow(
        f"conv_transpose.{name}", strips.conv_rejection, _strip_reads, partial(_strip_scratch, product_of),
        partial(_strip_lower, kernel, product_of), shared=True, pace=pace,
    )
    for name, kernel, product_of, pace in (
        ("blocked", "emit_blocked_strip", _blocked, (1.0, 0.0)),
        # A row alone computes the products of the whole kernel, of two rows at least.
        ("blocked_few", "emit_few_strip", _few, (1.0, 0.5)),
    )
)  # fmt: skip
