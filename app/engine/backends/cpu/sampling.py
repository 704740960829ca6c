"""Rows of GridSample and DeformConv, which read images between pixels, and of AffineGrid."""

import math

import numpy as np

from app.engine.backends.cpu import conv, matmul, nchwc
from app.engine.backends.cpu.axis_kernels import computed, takes_floats, takes_mixed
from app.engine.backends.cpu.calls import Operand, Operands, kernel_call, of_type, of_values, typed_call
from app.engine.backends.cpu.nchwc import LayoutOf
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import LANEWISE, Cost, Implementation, Layouts, Lower, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators import conv_geometry, epilogues
from app.engine.operators.conv_geometry import Window
from app.engine.operators.matmul_geometry import Array, Product
from app.engine.operators.operands import data
from app.kernels.cpu import sampling

MODES = {"bilinear": "linear", "bicubic": "cubic"}  # of GridSample before version 20
PADDINGS = ("zeros", "border", "reflection")
LARGEST_PLANE = 2**31  # elements; tables hold offsets in int32


def _mode(group: Group) -> str:
    mode = graph.attribute(group.anchor, "mode", "linear")
    return MODES.get(mode, mode)


@after(takes_floats)
def _grid_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    shape, grid = graph.static_shape(data(node)), graph.operand(node, 1)
    padding = graph.attribute(node, "padding_mode", "zeros")
    if _mode(group) not in sampling.TAPS or padding not in PADDINGS:
        return f"mode {_mode(group)!r} or padding {padding!r} is unknown"
    if not 3 <= len(shape) <= 5:
        return f"samples 1 to 3 spatial axes, the input has rank {len(shape)}"
    if graph.dtype(grid) != graph.dtype(data(node)):
        return f"the grid is {graph.dtype(grid)}, the image {graph.dtype(data(node))}"
    return _plane_rejection(shape, graph.elements(node.outputs[0]))


def _plane_rejection(shape: tuple[int, ...], outputs: int) -> str | None:
    plane = math.prod(shape[2:])
    if plane == 0 and outputs:
        return "an empty image has no values"
    return (
        f"a plane has {plane} elements, at most {LARGEST_PLANE} are supported"
        if plane > LARGEST_PLANE
        else None
    )


def _tables(kind: str, taps: int, lanes: int = 0) -> tuple[Operand, ...]:
    """Scratch of a thread for the table of a block of points."""
    entries = sampling.table_size(taps, lanes)
    size = entries * np.dtype(kind).itemsize
    return ("int32*", Workspace(entries * 4, per_thread=True)), (f"{kind}*", Workspace(size, per_thread=True))


def _grid_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    x, grid, y = data(node), graph.operand(node, 1), node.outputs[0]
    if graph.elements(y) == 0:
        return ()
    batch, channels, *sizes = graph.static_shape(x)
    rank, points = len(sizes), math.prod(graph.static_shape(y)[2:])
    blocks = -(-points // sampling.BLOCK)
    tables = _tables(graph.element_type(x).name, sampling.taps_of(_mode(group), rank))
    operands: Operands = (*of_values(x, grid, y), *tables, channels, *sizes, points, blocks)
    align = bool(graph.attribute(node, "align_corners", 0))
    static = (_mode(group), graph.attribute(node, "padding_mode", "zeros"), rank, align)
    return (typed_call("app.kernels.cpu.sampling:grid_sample", operands, batch * blocks, static),)


@after(_grid_rejection)
def _blocked_rejection(group: Group, _context: PlanningContext) -> str | None:
    return nchwc.images_rejection(group, data(group.anchor), group.anchor.outputs[0])


@after(_blocked_rejection)
def _last_rejection(group: Group, context: PlanningContext) -> str | None:
    return nchwc.narrow_rejection(data(group.anchor), context)


def _vector_lower(layout: LayoutOf) -> Lower:
    def lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
        node, lanes = group.anchor, context.target.vector_lanes
        x, grid, y = data(node), graph.operand(node, 1), node.outputs[0]
        batch, _, *sizes = shape = graph.static_shape(x)
        images = nchwc.vectors(shape, graph.static_shape(y), layout, context)
        points = math.prod(graph.static_shape(y)[2:])
        blocks = -(-points // sampling.BLOCK)
        operands: Operands = (
            *of_values(x, grid, y),
            *_tables("float32", sampling.taps_of(_mode(group), len(sizes)), lanes),
            images.table,
            *(images.count, *images.extents, images.step, *sizes, points, blocks),
        )
        align = bool(graph.attribute(node, "align_corners", 0))
        static = (_mode(group), graph.attribute(node, "padding_mode", "zeros"), len(sizes), align, lanes)
        return (typed_call("app.kernels.cpu.sampling:grid_sample", operands, batch * blocks, static),)

    return lower


def _images(layout: LayoutOf) -> Layouts:
    """The image and the result in this layout."""
    return lambda group, context: dict.fromkeys((data(group.anchor), group.outputs[0]), layout(context))


def _vector_cost(group: Group, context: PlanningContext) -> float:
    y = graph.static_shape(group.anchor.outputs[0])
    taps = sampling.taps_of(_mode(group), len(y) - 2)
    channels = nchwc.blocks_of(y[1], context) * context.target.vector_lanes
    return group_roofline(group, context, 2.0 * taps * y[0] * (channels + 32) * math.prod(y[2:]), 0.3)


def _grid_cost(group: Group, context: PlanningContext) -> float:
    node = group.anchor
    y = graph.static_shape(node.outputs[0])
    taps = sampling.taps_of(_mode(group), len(y) - 2)
    # A tap is a load at an address of its own: 3 to 4 % of the peak on Zen 4; the table counts as 4 channels.
    work = 2.0 * taps * y[0] * (y[1] + 4) * math.prod(y[2:])
    return group_roofline(group, context, work, 0.03)


@after(takes_mixed)
def _affine_rejection(group: Group, _context: PlanningContext) -> str | None:
    size = graph.constant(graph.operand(group.anchor, 1))
    if size is None:
        return "the size changes between runs"
    if graph.attribute(group.anchor, "align_corners", 0) and 1 in size[2:]:
        return "the corners of an axis of one pixel are not apart"
    return None


def _centers(n: int, align: bool) -> Array:
    """Coordinates of the pixels of an axis that goes from -1 to 1, at its ends or between them."""
    last = np.float64(1.0 if align else 1.0 - 1.0 / max(n, 1))
    return np.linspace(-last, last, n)


def _affine_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node, theta, y = group.anchor, data(group.anchor), group.outputs[0]
    batch, *sizes, rank = graph.static_shape(y)
    if graph.elements(y) == 0:
        return ()
    align, kind = bool(graph.attribute(node, "align_corners", 0)), np.dtype(computed(theta))
    depth, height, width = sizes if rank == 3 else (1, *sizes)
    centers = (Constant(_centers(n, align).astype(kind)) for n in (width, height, depth))
    operands: Operands = (*of_values(theta, y), *of_type(f"{kind}*", *centers), rank, width, height, depth)
    return (kernel_call("app.kernels.cpu.sampling:affine_grid", operands, batch * depth * height),)


def _affine_cost(group: Group, context: PlanningContext) -> float:
    return group_roofline(group, context, 2.0 * graph.elements(group.outputs[0]), 0.1)


@after(conv.rejection)
def _deform_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    shape = graph.static_shape(data(node))
    if len(shape) != 4:
        return f"deforms images of rank 4, the input has rank {len(shape)}"
    if graph.element_type(node.outputs[0]).kind != "f":
        return f"elements are {graph.dtype(node.outputs[0])}"
    return _plane_rejection(shape, graph.elements(node.outputs[0]))


@after(_deform_rejection)
def _deform_last_rejection(group: Group, context: PlanningContext) -> str | None:
    node = group.anchor
    window = conv_geometry.of_conv(group)
    if window.groups > 1 or graph.attribute(node, "offset_group", 1) > 1:
        return "channels are in several groups"
    epilogue = epilogues.read(group, 1)
    if isinstance(epilogue, str) or epilogue.recipe or epilogue.biases or epilogue.residual is not None:
        return "what follows is no limit"
    if not graph.is_constant(graph.operand(node, 1)):
        return "weights change between runs; this one packs them offline"
    return nchwc.images_rejection(group, data(node), group.outputs[0]) or nchwc.narrow_rejection(
        data(node), context
    )


def _deform_last_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    node, y, lanes = group.anchor, group.outputs[0], context.target.vector_lanes
    offset, mask, bias = graph.operand(node, 2), graph.input_at(node, 4), graph.input_at(node, 3)
    window = conv_geometry.of_conv(group)
    rows = window.batch * window.pixels
    columns = Workspace(rows * window.depth * 4)
    images = nchwc.vectors(graph.static_shape(data(node)), graph.static_shape(y), nchwc.last_of, context)
    operands: Operands = (
        *of_values(data(node), offset),
        *of_type("float32*", mask or Constant(np.zeros(1, np.float32)), columns),
        *_tables("float32", 4, lanes),
        images.table,
        *(images.count, images.step, 1, *_geometry(group)),
    )
    units = window.batch * window.taps * -(-window.pixels // sampling.BLOCK)
    static = (mask is not None, lanes)
    sampled = typed_call("app.kernels.cpu.sampling:deformed_columns", operands, units, static)
    weights = graph.operand(node, 1)
    array = graph.array(weights)

    def matrix() -> Array:
        return array.transpose(2, 3, 1, 0).reshape(window.depth, window.outputs)

    size = (window.depth, window.outputs)
    product = Product(
        data(node), weights, rows, window.outputs, window.depth, ((0, 0),), (window.depth, 1),
        (window.outputs, 1), size,
    )  # fmt: skip
    epilogue = epilogues.read(group, 1)
    assert not isinstance(epilogue, str)
    added = matmul.Addends(columns=bias)
    return sampled, matmul.product_call(product, columns, y, context, added, epilogue, weights=matrix)


def _geometry(group: Group) -> tuple[int, ...]:
    """Numbers of the kernel: extents of image, result and filter, strides, padding, dilations, blocks."""
    window = conv_geometry.of_conv(group)
    taps, starts = [len(o) for o in window.offsets[1:]], [-o[0] for o in window.offsets[1:]]
    dilations = graph.attribute(group.anchor, "dilations", (1, 1))
    blocks = -(-window.pixels // sampling.BLOCK)
    return (*window.size[1:], *window.out[1:], *taps, *window.stride[1:], *starts, *dilations, blocks)


def _columns_window(group: Group) -> Window:
    """The convolution of the columns: of one pixel, over channels and taps."""
    window = conv_geometry.of_conv(group)
    channels, out = window.channels * window.taps, window.out
    none = ((0,), (0,), (0,))
    return Window(window.batch, window.groups, channels, window.outputs, out, out, (1, 1, 1), none).flat()


def _deform_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    x, weights, y = data(node), graph.operand(node, 1), group.outputs[0]
    if graph.elements(y) == 0:
        return ()
    kind = graph.element_type(y)
    offset, mask = graph.operand(node, 2), graph.input_at(node, 4)
    window, product = conv_geometry.of_conv(group), _columns_window(group)
    groups = graph.attribute(node, "offset_group", 1)
    columns = Workspace(window.batch * window.groups * product.channels * product.pixels * kind.itemsize)
    operands: Operands = (
        *of_values(x, offset),
        *of_type(f"{kind}*", mask or Constant(np.zeros(1, kind)), columns),
        *_tables(kind.name, 4),
        *(window.groups * window.channels // groups, groups, *_geometry(group)),
    )
    units = window.batch * groups * window.taps * -(-product.pixels // sampling.BLOCK)
    sampled = typed_call("app.kernels.cpu.sampling:deformed_columns", operands, units, (mask is not None,))
    array = graph.constant(weights)
    matrices = weights if array is None else array.reshape(window.groups, window.outputs, product.channels)
    part = conv.Part(product, matrices, weights.name or "")
    ends = conv.epilogue_arguments(group, kind, bias_at=3)
    return sampled, conv.product_call(part, kind, columns, y, ends, context)


def _deform_cost(efficiency: float) -> Cost:
    """Sampling at this share of the peak, then the product."""

    def cost(group: Group, context: PlanningContext) -> float:
        product = _columns_window(group)
        entries = 2.0 * product.batch * product.groups * product.pixels * product.channels
        sampled = roofline(
            context.target,
            flops=4 * entries,
            nbytes=4.0 * entries,
            efficiency=efficiency,
            threads=context.threads,
        )
        return sampled + group_roofline(group, context, entries * product.outputs, 0.65, 4.0 * entries)

    return cost


_GRIDS = (
    Implementation("grid_sample.tables", "GridSample", "numba-cpu", _grid_rejection, _grid_lower, _grid_cost),
    *(
        Implementation(
            name, "GridSample", "numba-cpu", rejection, _vector_lower(layout), _vector_cost,
            layouts=_images(layout), padding=LANEWISE,
        )
        for name, rejection, layout in (
            ("grid_sample.blocked", _blocked_rejection, nchwc.layout_of),
            ("grid_sample.last", _last_rejection, nchwc.last_of),
        )
    ),
)  # fmt: skip
IMPLEMENTATIONS = (
    *_GRIDS,
    Implementation(
        "affine_grid.rows", "AffineGrid", "numba-cpu", _affine_rejection, _affine_lower, _affine_cost
    ),
    Implementation(
        "deform_conv.columns", "DeformConv", "numba-cpu", _deform_rejection, _deform_lower, _deform_cost(0.03)
    ),
    Implementation(
        "deform_conv.last", "DeformConv", "numba-cpu", _deform_last_rejection, _deform_last_lower,
        _deform_cost(0.2), layouts=_images(nchwc.last_of),
    ),
)  # fmt: skip
