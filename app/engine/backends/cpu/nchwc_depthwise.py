"""The row of depthwise convolutions over channel-blocked images."""

from app.engine.backends.cpu import nchwc
from app.engine.backends.cpu.blocking import longest_share
from app.engine.backends.cpu.calls import Operands, of_type, size_operand, typed_call
from app.engine.backends.cpu.rows import after, group_roofline, total_bytes
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall
from app.engine.core.group import Group
from app.engine.core.registry import LANEWISE, Implementation, PlanningContext
from app.engine.cost.roofline import flops
from app.engine.operators import conv_geometry
from app.engine.operators.conv_geometry import Window
from app.engine.types.layout import blocked as blocked_layout
from app.engine.types.layout import to_physical
from app.kernels.cpu.codegen.tiles import COLUMN_BIAS
from app.kernels.cpu.nchwc_depthwise import NchwcDepthwiseSizes

PIXELS = 8  # accumulators of a tile, beside which a row of taps fits 16 registers
MOST_COLUMNS = 256  # products in a tile's row of taps; the code is unrolled
STRIP = 16 * 1024  # byte of output that stay in the first cache until the recipe has followed


@after(nchwc.packed_rejection)
def depthwise_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Rejection of what no depthwise convolution over images in a layout of their own computes."""
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


def unrolled(window: Window, lanes: int, ends: nchwc.Ends) -> tuple[int, ...]:
    """First arguments of the generators: lanes, sizes of the unrolled tile, flags beside the bias."""
    along = window.offsets[2]
    tile = pixels_of(window), len(along), window.stride[2], spacing(along)
    return lanes, *tile, ends.flags & ~COLUMN_BIAS


def overhead(group: Group) -> float:
    """Time over that of the products: sums are loaded and stored, tiles at the ends of a row are slower."""
    window = conv_geometry.of_conv(group)
    return 1.0 + 3.0 / window.taps + 2.0 / max(window.out[2], 1)


def sizes_of(window: Window, blocks: int, buffer: int, context: PlanningContext) -> NchwcDepthwiseSizes:
    """Sizes of the kernel; `buffer` are elements of scratch per thread."""
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


def packed_weights(group: Group, lanes: int) -> Constant:
    """Weights[channels, 1, taps, taps] in blocks, as an image of one channel per group."""
    weights = graph.operand(group.anchor, 1)
    packed = to_physical(graph.array(weights).transpose(1, 0, 2, 3), blocked_layout(4, lanes))
    return Constant(packed, weights.name or "")


def _lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    x = graph.operand(group.anchor, 0)
    (y,) = group.outputs
    window = conv_geometry.of_conv(group)
    lanes = context.target.vector_lanes
    blocks = nchwc.blocks_of(window.groups, context)
    ends = nchwc.ends(group, context)
    sizes = sizes_of(window, blocks, ends.buffer, context)
    operands: Operands = (
        *of_type("float32*", x, packed_weights(group, lanes), y),
        *ends.with_bias(blocks * lanes).addends,
        size_operand(sizes),
        nchwc.scratch(ends.buffer),
        *ends.operands,
    )
    static = (*unrolled(window, lanes, ends), ends.epilogue.recipe, ends.places)
    units = window.batch * blocks * sizes.bands
    return (typed_call("app.kernels.cpu.nchwc_depthwise:emit", operands, units, static),)


def _cost(group: Group, context: PlanningContext) -> float:
    channels = conv_geometry.of_conv(group).groups
    wide = nchwc.blocks_of(channels, context) * context.target.vector_lanes / channels
    return group_roofline(
        group, context, flops(group) * wide * overhead(group), 0.75, wide * total_bytes(group)
    )


IMPLEMENTATIONS = (
    Implementation(
        "conv.depthwise_blocked",
        "Conv",
        "numba-cpu",
        depthwise_rejection,
        _lower,
        cost=_cost,
        inplace=nchwc.inplace,
        layouts=nchwc.layouts,
        padding=LANEWISE,
        rank=nchwc.RANK,
    ),
)
