"""Rows of transposed convolutions over channel-blocked images whose taps do not overlap."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import nchwc
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import flops, roofline
from app.engine.operators import conv_geometry, epilogues
from app.engine.types.layout import Layout
from app.kernels.cpu.codegen.tiles import CLAMP, COLUMN_BIAS
from app.kernels.cpu.epilogue import ADVANCE
from app.kernels.cpu.nchwc_conv_transpose import ACCUMULATORS

Array = np.ndarray[Any, Any]
BACKEND = "numba-cpu"


def _rejection(group: Group, context: PlanningContext) -> str | None:
    reason = nchwc.rejection(group, context)
    if reason is not None:
        return reason
    for value in group.anchor.inputs[1:]:
        if value is not None and not graph.is_constant(value):
            return f"{value.name!r} changes between runs; this one packs it offline"
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


def _blocked_rejection(group: Group, context: PlanningContext) -> str | None:
    reason = _rejection(group, context)
    if reason is None and _taps(group).shape[3] > ACCUMULATORS:
        reason = f"{_taps(group).shape[3]} columns of taps; a tile has {ACCUMULATORS} accumulators"
    return reason


def _blocked_lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    lanes, taps, ends = context.target.vector_lanes, _taps(group), nchwc.ends(group, context)
    channels, outputs, rows, columns = taps.shape
    blocks = nchwc.blocks_of(outputs, context)
    wide = np.zeros((channels, blocks * lanes, rows, columns), np.float32)
    wide[:, :outputs] = taps
    packed = wide.reshape(channels, blocks, lanes, rows, columns).transpose(1, 3, 0, 4, 2)
    bias = ends.bias if ends.flags & COLUMN_BIAS else Constant(np.zeros(blocks * lanes, np.float32))
    operands = tuple(
        (advance, nchwc.OFFSETS[place], "float32")
        for (_, place), advance in zip(ends.epilogue.operands, _advances(ends.epilogue))
    )
    return _call(
        "emit_blocked", group, packed, replace(ends, bias=bias), blocks, ends.buffer,
        (lanes, rows, columns, ends.flags & ~COLUMN_BIAS, ends.epilogue.recipe, operands), blocks,
    )  # fmt: skip


def _advances(epilogue: epilogues.Epilogue) -> tuple[str, ...]:
    return tuple(ADVANCE[place] for _, place in epilogue.operands)


def _call(
    kernel: str, group: Group, packed: Array, ends: nchwc.Ends, outputs: int,
    buffer: int, static: tuple[object, ...], planes: int,
) -> tuple[KernelCall, ...]:  # fmt: skip
    x, weights = graph.operand(group.anchor, 0), graph.operand(group.anchor, 1)
    batch, channels, h, w = graph.static_shape(x)
    scratch = Workspace(buffer * 4, per_thread=True) if buffer else Constant(np.zeros(1, np.float32))
    return (
        KernelCall(
            f"app.kernels.cpu.nchwc_conv_transpose:{kernel}",
            (*("float32*",) * 6, *("int64",) * 4, "float32*", "int64", *(t for t, _ in ends.operands)),
            (
                x,
                Constant(np.ascontiguousarray(packed), weights.name or ""),
                group.outputs[0],
                *(ends.bias, ends.residual, ends.scalars),
                *(channels, outputs, h, w),
                scratch,
                buffer,
                *(a for _, a in ends.operands),
            ),
            units=batch * planes * h,
            static=static,
            takes_thread=True,
        ),
    )


def _few_rejection(group: Group, context: PlanningContext) -> str | None:
    reason = _rejection(group, context)
    if reason is not None:
        return reason
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
    operands = tuple((advance, "0", "float32") for advance in _advances(ends.epilogue))
    pixels = graph.static_shape(group.outputs[0])[3] // columns
    return _call(
        "emit_few", group, packed, replace(ends, bias=Constant(bias)), outputs,
        pixels * vectors * lanes + ends.buffer,
        (lanes, vectors, rows, columns, ends.flags & CLAMP, ends.epilogue.recipe, operands), 1,
    )  # fmt: skip


def _few_layouts(group: Group, context: PlanningContext) -> Mapping[ir.Value, Layout]:
    x = graph.operand(group.anchor, 0)
    return {x: nchwc.layout_of(context)}


def _seconds(group: Group, context: PlanningContext, lanes_computed: int, nbytes: float) -> float:
    return roofline(
        context.target,
        flops=flops(group) * lanes_computed / math.prod(_taps(group).shape[1:]),
        nbytes=nbytes,
        efficiency=0.7,
        threads=context.threads,
    )


def _blocked_cost(group: Group, context: PlanningContext) -> float:
    layout = nchwc.layout_of(context)
    images = [graph.static_shape(v) for v in (group.anchor.inputs[0], group.outputs[0]) if v is not None]
    _, outputs, rows, columns = _taps(group).shape
    computed = nchwc.blocks_of(outputs, context) * context.target.vector_lanes * rows * columns
    return _seconds(group, context, computed, 4.0 * sum(map(layout.elements, images)))


def _few_cost(group: Group, context: PlanningContext) -> float:
    lanes, products = context.target.vector_lanes, math.prod(_taps(group).shape[1:])
    nbytes = sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs))
    # Elements of the output are stored one by one.
    return _seconds(group, context, -(-products // lanes) * lanes + lanes, nbytes)


IMPLEMENTATIONS = (
    Implementation(
        "conv_transpose.blocked",
        "ConvTranspose",
        BACKEND,
        _blocked_rejection,
        _blocked_lower,
        _blocked_cost,
        inplace=nchwc.inplace,
        layouts=nchwc.layouts,
    ),
    Implementation(
        "conv_transpose.blocked_few",
        "ConvTranspose",
        BACKEND,
        _few_rejection,
        _few_lower,
        _few_cost,
        layouts=_few_layouts,
    ),
)
