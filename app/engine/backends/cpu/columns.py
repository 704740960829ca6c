"""Rows of Col2Im and MaxUnpool, which put images together."""

import math

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.axis_kernels import FLOATS, NUMBERS, takes
from app.engine.backends.cpu.calls import Operands, kernel_call, of_values
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.backends.cpu.strided import calls
from app.engine.core import graph
from app.engine.core.calls import Call, Constant
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.operands import data, fixed_inputs, itemsize, moved_seconds
from app.engine.operators.strides import StridedCopy, strides_of


@after(takes(*NUMBERS))
def _columns_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = fixed_inputs(group.anchor, (1, 2))
    if reason is not None:
        return reason
    rank = len(_block(group.anchor))
    return None if 1 <= rank <= 3 else f"{rank} spatial axes; this one has 1 to 3"


def _block(node: ir.Node) -> tuple[int, ...]:
    return tuple(int(n) for n in graph.array(graph.operand(node, 2)))


def _columns_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    x, y = data(node), node.outputs[0]
    batch, channels, *image = graph.static_shape(y)
    rank = len(image)
    block = _block(node)
    ones = (1,) * rank
    strides, dilations = (tuple(graph.attribute(node, n, ones)) for n in ("strides", "dilations"))
    pads = tuple(graph.attribute(node, "pads", (0,) * (2 * rank)))
    out = tuple(
        (n + pads[a] + pads[a + rank] - (block[a] - 1) * dilations[a] - 1) // strides[a] + 1
        for a, n in enumerate(image)
    )
    if all(o * s == n and s == k for o, s, k, n in zip(out, strides, block, image)) and not any(pads):
        return _tiled(x, y, (batch * channels, *block, *out))
    fills = ((image, 1), (out, 1), (block, 1), (strides, 1), (pads[:rank], 0), (dilations, 1))
    numbers = [n for axes, fill in fills for n in ((fill,) * (3 - rank) + tuple(axes))]
    operands: Operands = (*of_values(x, y), *numbers)
    units = batch * channels if math.prod(image) else 0
    return (kernel_call("app.kernels.cpu.columns:columns_to_image", operands, units),)


def _tiled(x: ir.Value, y: ir.Value, sizes: tuple[int, ...]) -> tuple[Call, ...]:
    """Calls that put windows side by side that neither overlap nor leave anything out.

    sizes: planes, extents of a window, windows along each axis, as x lies in memory.
    """
    _, plane, *taps = strides_of(graph.static_shape(y))
    block = sizes[1 : 1 + len(taps)]
    steps = (plane, *taps, *(n * k for n, k in zip(taps, block)))
    return calls(StridedCopy(sizes, strides_of(sizes), steps), itemsize(x), x, y)


def _columns_cost(group: Group, context: PlanningContext) -> float:
    return group_roofline(group, context, float(graph.elements(data(group.anchor))), 0.05)


def _inferred(node: ir.Node) -> tuple[int, ...]:
    """The shape that indices of a MaxUnpool are places in."""
    shape = graph.static_shape(data(node))
    kernel = graph.attribute(node, "kernel_shape", ())
    rank = len(shape) - 2
    strides = graph.attribute(node, "strides", (1,) * rank)
    pads = graph.attribute(node, "pads", (0,) * (2 * rank))
    sizes = ((shape[a + 2] - 1) * strides[a] - pads[a] - pads[a + rank] + kernel[a] for a in range(rank))
    return (*shape[:2], *sizes)


@after(takes(*FLOATS))
def _unpool_rejection(group: Group, _context: PlanningContext) -> str | None:
    inferred, shape = _inferred(group.anchor), graph.static_shape(group.anchor.outputs[0])
    if any(n < m for n, m in zip(shape, inferred, strict=True)):
        return f"the output {shape} is smaller than {inferred}, in which indices are places"
    return None


def _unpool_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    x, y = data(node), node.outputs[0]
    inferred, shape = _inferred(node), graph.static_shape(y)
    rows = [] if inferred == shape else list(zip(inferred, strides_of(shape)))
    operands: Operands = (
        *of_values(x, graph.operand(node, 1), y),
        ("int64*", Constant(np.array(rows or [(1, 0)], np.int64))),
        *(len(rows), graph.elements(x), math.prod(inferred), graph.elements(y)),
    )
    return (kernel_call("app.kernels.cpu.columns:unpool", operands, 1),)


IMPLEMENTATIONS = (
    Implementation(
        "col2im.windows", "Col2Im", "numba-cpu", _columns_rejection, _columns_lower, _columns_cost
    ),
    Implementation(
        "max_unpool.places", "MaxUnpool", "numba-cpu", _unpool_rejection, _unpool_lower, moved_seconds
    ),
)
