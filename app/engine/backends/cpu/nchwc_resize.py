"""Rows of Resize along the height and width of channel-blocked images."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import nchwc, strips
from app.engine.backends.cpu.calls import Operands, kernel_call, of_type, of_values, typed_call
from app.engine.backends.cpu.resize import extrapolation, nearest_inplace
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import LANEWISE, Cost, Implementation, PlanningContext, no_pairs
from app.engine.core.streams.strips import CallOf, RowMaps, RowsPlace, Strip, StripRow
from app.engine.memory.rows.geometry import ROW
from app.engine.operators.operands import data
from app.engine.operators.resize_geometry import (
    addends,
    nearest_indices,
    nearest_rejection,
    resized_axes,
    taps_along,
    taps_rejection,
)
from app.engine.operators.row_maps import resized_rows
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


def _nearest_tables(group: Group) -> Operands:
    """Places of rows and columns, and the value outside."""
    rows, columns = (Constant(np.ascontiguousarray(i)) for i in nearest_indices(group.anchor)[2:])
    return (*of_type("int64*", rows, columns), ("float32*", extrapolation(group.anchor)))


def _nearest_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    x, y = data(group.anchor), group.outputs[0]
    planes, sizes = _sizes(group, context)
    more = addends(group)
    operands: Operands = (*of_values(x, *more, y), *_nearest_tables(group), *sizes)
    static = context.target.vector_lanes, len(more)
    return (kernel_call("app.kernels.cpu.nchwc_resize:emit_nearest", operands, planes * sizes[2], static),)


def _taps_tables(group: Group) -> tuple[Operands, tuple[int, int]]:
    """Places and weights of rows and columns with the value outside; taps along both."""
    tables = []
    for axis in resized_axes(group.anchor)[2:]:
        index, weight = taps_along(group.anchor, axis)
        tables.append((Constant(np.ascontiguousarray(index)), Constant(weight.astype(np.float32))))
    operands: Operands = (
        *(operand for table in tables for operand in zip(("int64*", "float32*"), table)),
        ("float32*", extrapolation(group.anchor)),
    )
    down, along = (index.array.shape[1] for index, _ in tables)
    return operands, (down, along)


def _taps_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    x, y = data(group.anchor), group.outputs[0]
    planes, sizes = _sizes(group, context)
    lanes, (tables, taps) = context.target.vector_lanes, _taps_tables(group)
    row = Workspace(sizes[1] * lanes * 4, per_thread=True)
    operands: Operands = (*of_values(x, y), *tables, ("float32*", row), *sizes)
    kernel = "app.kernels.cpu.nchwc_resize:emit_taps"
    return (typed_call(kernel, operands, planes * sizes[2], (lanes, *taps)),)


def _strip_rejection(group: Group, context: PlanningContext) -> str | None:
    """Reason why an image is not resized in strips."""
    if data(group.anchor) in addends(group):
        return "the input is read at the place of the output too"
    return strips.batch_rejection(group, context)


def _strip_reads(group: Group, _context: PlanningContext) -> RowMaps:
    """Rows of the input, and of what is added."""
    own = data(group.anchor), resized_rows(group.anchor)
    return (own, *((v, ROW) for v in addends(group) if not graph.is_constant(v)))


def _strip(
    kernel: str, group: Group, context: PlanningContext, strip: Strip, tables: Operands,
    taps: tuple[int, ...], after: Operands = (),
) -> CallOf:  # fmt: skip
    x, y, more = data(group.anchor), group.outputs[0], addends(group)
    planes, (_, w, oh, ow) = _sizes(group, context)
    nothing = RowsPlace(y, 0, oh, False, 0, 0)
    beside = strip.places.get(more[0], nothing) if more else nothing
    rings = strips.rings_of(strip, strip.places[x], strip.places[y], beside)
    images = strips.in_places(of_type("float32*", x, *more, y), strip)
    before: Operands = (*images, *tables, *(planes, w, oh, ow))
    static = context.target.vector_lanes, *taps
    return strips.calls_of(f"app.kernels.cpu.nchwc_resize:{kernel}", before, strip, rings, after, static)


def _nearest_strip(group: Group, context: PlanningContext, strip: Strip) -> CallOf:
    tables, addend = _nearest_tables(group), (len(addends(group)),)
    return _strip("emit_nearest_strip", group, context, strip, tables, addend)


def _taps_strip(group: Group, context: PlanningContext, strip: Strip) -> CallOf:
    tables, taps = _taps_tables(group)
    line = of_type("float32*", strip.memory)
    return _strip("emit_taps_strip", group, context, strip, tables, taps, line)


def _taps_scratch(group: Group, context: PlanningContext, _rows: int) -> int:
    _, (_, w, _, _) = _sizes(group, context)
    return w * context.target.vector_lanes * strips.ELEMENT * context.threads


def _cost(flops: float) -> Cost:
    """`flops`: operations for an element of the output."""

    def cost(group: Group, context: PlanningContext) -> float:
        layout = nchwc.layout_of(context)
        x, y = (layout.elements(graph.static_shape(v)) for v in (data(group.anchor), group.outputs[0]))
        return group_roofline(group, context, flops * y, 0.3, 4.0 * (x + y * (1 + len(addends(group)))))

    return cost


STRIP_ROWS = tuple(
    StripRow(f"{op.lower()}.blocked_{name}", _strip_rejection, _strip_reads, scratch, lower, shared=True)
    for op in ("Resize", "Upsample")
    for name, scratch, lower in (
        ("nearest", strips.no_scratch, _nearest_strip),
        ("taps", _taps_scratch, _taps_strip),
    )
)

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
