"""Rows of Resize along the height and width of channel-blocked images."""

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import nchwc
from app.engine.backends.cpu.resize import extrapolation, nearest_inplace
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import LANEWISE, Implementation, PlanningContext, Rejection
from app.engine.cost.roofline import roofline
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

OPERATORS = ("Resize", "Upsample")


def _rejection(general: Rejection) -> Rejection:
    def rejection(group: Group, context: PlanningContext) -> str | None:
        reason = general(group, context) or nchwc.image_rejection(data(group.anchor))
        if reason is None and graph.elements(group.outputs[0]) == 0:
            reason = "the output has no elements"
        if reason is not None:
            return reason
        whole = [a.is_same and (a.start, a.end) == (0, 1) for a in resized_axes(group.anchor)[:2]]
        moved = [i for i, is_whole in enumerate(whole) if not is_whole]
        return f"resizes axes {moved} beside the pixels" if moved else None

    return rejection


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
    return (
        KernelCall(
            "app.kernels.cpu.nchwc_resize:emit_nearest",
            (*("float32*",) * (2 + len(more)), "int64*", "int64*", "float32*", *("int64",) * 4),
            (x, *more, y, rows, columns, extrapolation(group.anchor), *sizes),
            units=planes * sizes[2],
            static=(context.target.vector_lanes, len(more)),
        ),
    )


def _taps_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    x, y = data(group.anchor), group.outputs[0]
    planes, sizes = _sizes(group, context)
    lanes = context.target.vector_lanes
    tables = []
    for axis in resized_axes(group.anchor)[2:]:
        index, weight = taps_along(group.anchor, axis)
        tables.append((Constant(np.ascontiguousarray(index)), Constant(weight.astype(np.float32))))
    return (
        KernelCall(
            "app.kernels.cpu.nchwc_resize:emit_taps",
            (*("float32*",) * 2, *("int64*", "float32*") * 2, *("float32*",) * 2, *("int64",) * 4),
            (
                x,
                y,
                *tables[0],
                *tables[1],
                extrapolation(group.anchor),
                Workspace(sizes[1] * lanes * 4, per_thread=True),
                *sizes,
            ),
            units=planes * sizes[2],
            static=(lanes, *(index.array.shape[1] for index, _ in tables)),
            takes_thread=True,
        ),
    )


def _cost(flops: float) -> Callable[[Group, PlanningContext], float]:
    """`flops`: operations for an element of the output."""

    def cost(group: Group, context: PlanningContext) -> float:
        layout = nchwc.layout_of(context)
        x, y = (layout.elements(graph.static_shape(v)) for v in (data(group.anchor), group.outputs[0]))
        moved = x + y * (1 + len(addends(group)))
        return roofline(
            context.target, flops=flops * y, nbytes=4.0 * moved, efficiency=0.3, threads=context.threads
        )

    return cost


IMPLEMENTATIONS = (
    *(
        Implementation(
            f"{op.lower()}.blocked_nearest", op, "numba-cpu", _rejection(nearest_rejection), _nearest_lower,
            _cost(1.0), layouts=_layouts, inplace=nearest_inplace, padding=LANEWISE,
        )
        for op in OPERATORS
    ),
    *(
        Implementation(
            f"{op.lower()}.blocked_taps", op, "numba-cpu", _rejection(taps_rejection), _taps_lower,
            _cost(4.0), layouts=_layouts, padding=LANEWISE,
        )
        for op in OPERATORS
    ),
)  # fmt: skip
