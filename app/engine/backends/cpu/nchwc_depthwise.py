"""The row of depthwise convolutions over channel-blocked images."""

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import nchwc
from app.engine.backends.cpu.blocking import longest_share
from app.engine.backends.cpu.calls import Operand, size_operand, typed_call
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import LANEWISE, Implementation, PlanningContext
from app.engine.cost.roofline import flops, roofline
from app.engine.operators import conv_geometry, epilogues
from app.engine.operators.conv_geometry import Window
from app.engine.types.layout import blocked as blocked_layout
from app.engine.types.layout import to_physical
from app.kernels.cpu.codegen.tiles import COLUMN_BIAS
from app.kernels.cpu.epilogue import ADVANCE
from app.kernels.cpu.nchwc_depthwise import NchwcDepthwiseSizes

PIXELS = 8  # accumulators of a tile, beside which a row of taps fits 16 registers
MOST_COLUMNS = 256  # products in a tile's row of taps; the code is unrolled
STRIP = 16 * 1024  # byte of output that stay in the first cache until the recipe has followed


def depthwise_rejection(group: Group, context: PlanningContext) -> str | None:
    """Rejection of what no depthwise convolution over images in a layout of their own computes."""
    reason = nchwc.rejection(group, context)
    if reason is not None:
        return reason
    _, weights, bias = (*group.anchor.inputs, None)[:3]
    for value in (weights, bias):
        if value is not None and not graph.is_constant(value):
            return f"{value.name!r} changes between runs; this one packs it offline"
    window = conv_geometry.of_conv(group)
    if window.channels != 1 or window.outputs != 1:
        return f"{window.channels} channels in and {window.outputs} out per group; this one takes 1 and 1"
    taps = len(window.offsets[2])
    if taps * PIXELS > MOST_COLUMNS:
        return f"{taps} columns of taps; the unrolled code takes {MOST_COLUMNS // PIXELS}"
    return None


def bands_of(planes: int, rows: int, threads: int) -> int:
    """Parts of an image's rows, as few as let threads share `planes` images evenly."""
    fitting = range(1, min(rows, 4 * threads) + 1)
    return min(fitting, key=lambda bands: (longest_share(planes * bands, threads) > 1.05, bands))


def pixels_of(window: Window) -> int:
    """Pixels of a tile along the rows of a window's output: as even as possible."""
    columns = window.out[2]
    return -(-columns // -(-columns // PIXELS))


def spacing(offsets: tuple[int, ...]) -> int:
    """Elements between taps."""
    return offsets[1] - offsets[0] if len(offsets) > 1 else 1


def _sizes(window: Window, blocks: int, buffer: int, context: PlanningContext) -> NchwcDepthwiseSizes:
    _, down, along = window.offsets
    bands = bands_of(window.batch * blocks, window.out[1], context.threads)
    return NchwcDepthwiseSizes(
        blocks=blocks,
        h=window.size[1],
        w=window.size[2],
        rows=window.out[1],
        columns=window.out[2],
        bands=bands,
        band=-(-window.out[1] // bands),
        strip=max(STRIP // (window.out[2] * context.target.vector_lanes * 4), 1),
        stride_h=window.stride[1],
        dilation_h=spacing(down),
        top=-down[0],
        left=-along[0],
        taps=len(down),
        buffer_step=buffer,
    )


def _lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    x, weights = graph.operand(group.anchor, 0), graph.operand(group.anchor, 1)
    (y,) = group.outputs
    window = conv_geometry.of_conv(group)
    lanes = context.target.vector_lanes
    blocks = nchwc.blocks_of(window.groups, context)
    array = graph.array(weights)
    # [channels, 1, taps, taps] as an image of one channel per group.
    packed = to_physical(array.transpose(1, 0, 2, 3), blocked_layout(4, lanes))
    ends = nchwc.ends(group, context)
    bias = ends.bias if ends.flags & COLUMN_BIAS else Constant(np.zeros(blocks * lanes, np.float32))
    scratch = (
        Workspace(ends.buffer * 4, per_thread=True) if ends.buffer else Constant(np.zeros(1, np.float32))
    )
    sizes = _sizes(window, blocks, ends.buffer, context)
    operands: tuple[Operand, ...] = (
        ("float32*", x),
        ("float32*", Constant(packed, weights.name or "")),
        ("float32*", y),
        ("float32*", bias),
        ("float32*", ends.residual),
        ("float32*", ends.scalars),
        size_operand(sizes),
        ("float32*", scratch),
        *ends.operands,
    )
    _, _, along = window.offsets
    advances = tuple((ADVANCE[place], nchwc.OFFSETS[place], "float32") for _, place in ends.epilogue.operands)
    return (
        typed_call(
            "app.kernels.cpu.nchwc_depthwise:emit",
            operands,
            window.batch * blocks * sizes.bands,
            static=(
                lanes,
                pixels_of(window),
                len(along),
                window.stride[2],
                spacing(along),
                ends.flags & ~COLUMN_BIAS,
                ends.epilogue.recipe,
                advances,
            ),
        ),
    )


def _inplace(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """The residual, which is read where the sum is stored; what the recipe reads, it reads later."""
    epilogue = epilogues.read(group, 1)
    assert not isinstance(epilogue, str)
    residual = epilogue.residual
    later = [v for v, _ in epilogue.operands]
    if residual is None or graph.is_constant(residual) or residual in (*group.anchor.inputs, *later):
        return ()
    return ((residual, group.outputs[0]),)


def _cost(group: Group, context: PlanningContext) -> float:
    window = conv_geometry.of_conv(group)
    wide = nchwc.blocks_of(window.groups, context) * context.target.vector_lanes / window.groups
    # Sums are loaded and stored, and tiles at the ends of a row are slower.
    overhead = 1.0 + 3.0 / window.taps + 2.0 / max(window.out[2], 1)
    return roofline(
        context.target,
        flops=flops(group) * wide * overhead,
        nbytes=wide * sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs)),
        efficiency=0.75,
        threads=context.threads,
    )


IMPLEMENTATIONS = (
    Implementation(
        "conv.depthwise_blocked",
        "Conv",
        "numba-cpu",
        depthwise_rejection,
        _lower,
        cost=_cost,
        inplace=_inplace,
        layouts=nchwc.layouts,
        padding=LANEWISE,
    ),
)
