"""Rows of transposed convolutions over channel-blocked images whose taps do not overlap."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import nchwc
from app.engine.backends.cpu.calls import Operands, of_type, typed_call
from app.engine.backends.cpu.rows import after, group_roofline, total_bytes
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext, no_pairs
from app.engine.cost.roofline import flops
from app.engine.operators import conv_geometry, epilogues
from app.engine.types.layout import Layout
from app.kernels.cpu.codegen.tiles import CLAMP, COLUMN_BIAS
from app.kernels.cpu.nchwc_conv_transpose import ACCUMULATORS, pixels_of

Array = np.ndarray[Any, Any]


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


def _blocked_lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    lanes, taps, ends = context.target.vector_lanes, _taps(group), nchwc.ends(group, context)
    channels, outputs, rows, columns = taps.shape
    blocks = nchwc.blocks_of(outputs, context)
    wide = np.zeros((channels, blocks * lanes, rows, columns), np.float32)
    wide[:, :outputs] = taps
    packed = wide.reshape(channels, blocks, lanes, rows, columns).transpose(1, 3, 0, 4, 2)
    operands: Operands = _operands(group, packed, ends.with_bias(blocks * lanes), blocks, ends.buffer)
    batch, _, h, w = graph.static_shape(graph.operand(group.anchor, 0))
    static = (
        lanes,
        pixels_of(lanes, columns, w),
        rows,
        columns,
        ends.flags & ~COLUMN_BIAS,
        ends.epilogue.recipe,
        ends.places,
    )
    kernel = "app.kernels.cpu.nchwc_conv_transpose:emit_blocked"
    return (typed_call(kernel, operands, batch * blocks * h, static),)


def _operands(group: Group, packed: Array, ends: nchwc.Ends, outputs: int, buffer: int) -> Operands:
    x, weights = graph.operand(group.anchor, 0), graph.operand(group.anchor, 1)
    _, channels, h, w = graph.static_shape(x)
    constant = Constant(np.ascontiguousarray(packed), weights.name or "")
    return (
        *of_type("float32*", x, constant, group.outputs[0]),
        *ends.addends,
        *(channels, outputs, h, w),
        nchwc.scratch(buffer),
        buffer,
        *ends.operands,
    )


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


def _few_lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
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
    batch, _, h, w = graph.static_shape(graph.operand(group.anchor, 0))
    buffer = w * vectors * lanes + ends.buffer
    operands: Operands = _operands(group, packed, replace(ends, bias=Constant(bias)), outputs, buffer)
    static = (
        lanes,
        pixels_of(lanes, vectors, w),
        vectors,
        rows,
        columns,
        ends.flags & CLAMP,
        ends.epilogue.recipe,
        places,
    )
    return (typed_call("app.kernels.cpu.nchwc_conv_transpose:emit_few", operands, batch * h, static),)


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
        ("blocked", _blocked_rejection, _blocked_lower, _blocked_cost, nchwc.inplace, nchwc.layouts),
        ("blocked_few", _few_rejection, _few_lower, _few_cost, no_pairs, _few_layouts),
    )
)  # fmt: skip
