"""Rows of GridSample and DeformConv, which read images between pixels."""

import math

import numpy as np

from app.engine.backends.cpu import conv
from app.engine.backends.cpu.axis_kernels import takes_floats
from app.engine.backends.cpu.calls import Operand, Operands, of_type, of_values, typed_call
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators import conv_geometry
from app.engine.operators.conv_geometry import Window
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
    return f"a plane has {plane} elements, at most {LARGEST_PLANE} are supported" if plane > LARGEST_PLANE else None


def _tables(kind: str, taps: int) -> tuple[Operand, ...]:
    """Scratch of a thread for the table of a block of points."""
    entries = taps * sampling.BLOCK
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


def _grid_cost(group: Group, context: PlanningContext) -> float:
    node = group.anchor
    y = graph.static_shape(node.outputs[0])
    taps = sampling.taps_of(_mode(group), len(y) - 2)
    # A tap is a load at an address of its own: 3 to 4 % of the peak on Zen 4; the table counts as 4 channels.
    work = 2.0 * taps * y[0] * (y[1] + 4) * math.prod(y[2:])
    return group_roofline(group, context, work, 0.03)


@after(conv.rejection)
def _deform_rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    shape = graph.static_shape(data(node))
    if len(shape) != 4:
        return f"deforms images of rank 4, the input has rank {len(shape)}"
    if graph.element_type(node.outputs[0]).kind != "f":
        return f"elements are {graph.dtype(node.outputs[0])}"
    return _plane_rejection(shape, graph.elements(node.outputs[0]))


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
    _, height, width = window.out
    columns = Workspace(window.batch * window.groups * product.channels * product.pixels * kind.itemsize)
    taps, starts = [len(o) for o in window.offsets[1:]], [-o[0] for o in window.offsets[1:]]
    dilations = graph.attribute(node, "dilations", (1, 1))
    blocks = -(-product.pixels // sampling.BLOCK)
    operands: Operands = (
        *of_values(x, offset),
        *of_type(f"{kind}*", mask or Constant(np.zeros(1, kind)), columns),
        *_tables(kind.name, 4),
        *(groups, window.groups * window.channels // groups, *window.size[1:], height, width),
        *(*taps, *window.stride[1:], *starts, *dilations, blocks),
    )
    units = window.batch * groups * window.taps * blocks
    sampled = typed_call("app.kernels.cpu.sampling:deformed_columns", operands, units, (mask is not None,))
    array = graph.constant(weights)
    matrices = weights if array is None else array.reshape(window.groups, window.outputs, product.channels)
    part = conv.Part(product, matrices, weights.name or "")
    ends = conv.epilogue_arguments(group, kind, bias_at=3)
    return sampled, conv.product_call(part, kind, columns, y, ends, context)


def _deform_cost(group: Group, context: PlanningContext) -> float:
    product = _columns_window(group)
    outputs = 2.0 * product.batch * product.groups * product.pixels * product.channels
    column_bytes = 4.0 * outputs
    sampled = roofline(
        context.target, flops=4 * outputs, nbytes=column_bytes, efficiency=0.03, threads=context.threads
    )
    return sampled + group_roofline(group, context, outputs * product.outputs, 0.65, column_bytes)


IMPLEMENTATIONS = (
    Implementation("grid_sample.tables", "GridSample", "numba-cpu", _grid_rejection, _grid_lower, _grid_cost),
    Implementation("deform_conv.columns", "DeformConv", "numba-cpu", _deform_rejection, _deform_lower, _deform_cost),
)
