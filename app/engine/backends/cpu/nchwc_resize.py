"""Rows of Resize along the height and width of channel-blocked images."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import nchwc
from app.engine.backends.cpu.calls import Operands, kernel_call, of_type, of_values, typed_call
from app.engine.backends.cpu.resize import extrapolation, nearest_inplace
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import LANEWISE, Cost, Implementation, PlanningContext, no_pairs
from app.engine.operators.operands import data
from app.engine.operators.resize_geometry import (
    addends,
    nearest_indices,
    nearest_rejection,
    resized_axes,
    taps_along,
    taps_rejection,
)
from app.engine.types.layout import Layout


def _rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = nchwc.images_rejection(group, data(group.anchor))
    if reason is not None:
        return reason
    whole = [a.is_same and (a.start, a.end) == (0, 1) for a in resized_axes(group.anchor)[:2]]
    moved = [i for i, is_whole in enumerate(whole) if not is_whole]
    return f"resizes axes {moved} beside the pixels" if moved else None


def _layouts(group: Group, context: PlanningContext) -> Mapping[ir.Value, Layout]:
    return dict.fromkeys((data(group.anchor), *addends(group), group.outputs[0]), nchwc.layout_of(context))


def _sizes(group: Group, context: PlanningContext) -> tuple[int, tuple[int, int, int, int]]:
    """Planes, and (h, w, oh, ow)."""
    n, c, h, w = graph.static_shape(data(group.anchor))
    oh, ow = graph.static_shape(group.outputs[0])[2:]
    return n * nchwc.blocks_of(c, context), (h, w, oh, ow)


def _nearest_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    x, y = data(group.anchor), group.outputs[0]
    planes, sizes = _sizes(group, context)
    more = addends(group)
    rows, columns = (Constant(np.ascontiguousarray(i)) for i in nearest_indices(group.anchor)[2:])
    outside = "float32*", extrapolation(group.anchor)
    operands: Operands = (*of_values(x, *more, y), *of_type("int64*", rows, columns), outside, *sizes)
    static = context.target.vector_lanes, len(more)
    return (kernel_call("app.kernels.cpu.nchwc_resize:emit_nearest", operands, planes * sizes[2], static),)


def _taps_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    x, y = data(group.anchor), group.outputs[0]
    planes, sizes = _sizes(group, context)
    lanes = context.target.vector_lanes
    tables = []
    for axis in resized_axes(group.anchor)[2:]:
        index, weight = taps_along(group.anchor, axis)
        tables.append((Constant(np.ascontiguousarray(index)), Constant(weight.astype(np.float32))))
    row = Workspace(sizes[1] * lanes * 4, per_thread=True)
    operands: Operands = (
        *of_values(x, y),
        *(operand for table in tables for operand in zip(("int64*", "float32*"), table)),
        *of_type("float32*", extrapolation(group.anchor), row),
        *sizes,
    )
    static = (lanes, *(index.array.shape[1] for index, _ in tables))
    return (typed_call("app.kernels.cpu.nchwc_resize:emit_taps", operands, planes * sizes[2], static),)


def _cost(flops: float) -> Cost:
    """`flops`: operations for an element of the output."""

    def cost(group: Group, context: PlanningContext) -> float:
        layout = nchwc.layout_of(context)
        x, y = (layout.elements(graph.static_shape(v)) for v in (data(group.anchor), group.outputs[0]))
        return group_roofline(group, context, flops * y, 0.3, 4.0 * (x + y * (1 + len(addends(group)))))

    return cost


IMPLEMENTATIONS = tuple(
    Implementation(
        f"{op.lower()}.blocked_{name}", op, "numba-cpu", after(general)(_rejection), lower, cost, inplace,
        layouts=_layouts, padding=LANEWISE,
    )
    for op in ("Resize", "Upsample")
    for name, general, lower, cost, inplace in (
        ("nearest", nearest_rejection, _nearest_lower, _cost(1.0), nearest_inplace),
        ("taps", taps_rejection, _taps_lower, _cost(4.0), no_pairs),
    )
)  # fmt: skip
