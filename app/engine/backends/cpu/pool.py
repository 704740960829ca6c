"""Pooling on one to three spatial axes of row-major tensors."""

import math

import numpy as np

from app.engine.backends.cpu.axis_kernels import FLOATS, axis_rejection, pointer, total_bytes, type_name
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators.axes import first_input, first_output, output_at
from app.engine.operators.pool_geometry import windows

BACKEND = "numba-cpu"
VECTOR = 32  # byte; a machine with longer registers uses half of one
BAND, ROWS = 8192, 16  # byte, rows; scratch that stays in the first cache beside the input
UNROLLED = (2, 3)  # heights and widths of windows without a loop

_OPERATIONS = {"MaxPool": "max", "AveragePool": "average"}


def _rejection(dtypes: tuple[str, ...], group: Group) -> str | None:
    reason = axis_rejection(group, dtypes)
    if reason is not None:
        return reason
    rank = len(graph.static_shape(first_input(group)))
    if not 3 <= rank <= 5:
        return f"pools 1 to 3 spatial axes, the input has rank {rank}"
    if min(graph.attribute(group.anchor, "pads", (0,)), default=0) < 0:
        return "padding must not be negative"
    return None


def _max_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = _rejection((*FLOATS, "int8", "uint8"), group)
    return reason or ("the indices are read" if output_at(group, 1) is not None else None)


def _indices_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = _rejection((*FLOATS, "int8", "uint8"), group)
    return reason or (None if output_at(group, 1) is not None else "nothing reads the indices")


def _float_rejection(group: Group, _context: PlanningContext) -> str | None:
    return _rejection(FLOATS, group)


def _lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node, x, y = group.anchor, first_input(group), first_output(group)
    op = _OPERATIONS.get(node.op_type) or f"lp{graph.attribute(node, 'p', 2)}"
    g = windows(node)
    dtype = np.dtype(type_name(x))
    lanes = VECTOR // dtype.itemsize
    include_pad = bool(graph.attribute(node, "count_include_pad", 0))
    counts = [g.counted(axis, include_pad).astype(dtype) for axis in range(3)]
    counts[2] = np.pad(counts[2], (0, lanes), constant_values=1)
    _, h, w = g.size
    reach = (g.out[2] - 1) * g.strides[2] + (g.kernel[2] - 1) * g.dilations[2] + 1
    span = -(-(max(g.before[2] + w, reach) + 2 * lanes) // lanes) * lanes
    rows = min(max(BAND // (span * dtype.itemsize), 1), ROWS)
    taps = g.kernel[2] if g.dilations[2] == 1 and g.kernel[2] in UNROLLED else 0
    stride = g.strides[2] if g.strides[2] <= 2 else 0
    return (
        KernelCall(
            "app.kernels.cpu.pool:window",
            (*(pointer(x),) * 3, "int64*", "int64*", *(pointer(x),) * 3, *("int64",) * 15),
            (
                x,
                y,
                Workspace((lanes + rows * span) * dtype.itemsize, per_thread=True),
                Constant(g.inside(0)),
                Constant(g.inside(1)),
                *(Constant(c) for c in counts),
                graph.elements(x),
                *g.size,
                *g.out,
                g.kernel[2],
                g.strides[2],
                g.before[2],
                g.dilations[0] * h * w,
                g.dilations[1] * w,
                g.dilations[2],
                span,
                rows,
            ),
            units=g.planes * g.out[0] * g.out[1],
            static=(op, dtype.name, min(g.kernel[1], UNROLLED[-1]), taps, stride, lanes),
            takes_thread=True,
        ),
    )


def _lower_indices(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node, x, y = group.anchor, first_input(group), first_output(group)
    g = windows(node)
    return (
        KernelCall(
            "app.kernels.cpu.pool:max_with_indices",
            (pointer(x), pointer(x), "int64*") + ("int64",) * 19,
            (x, y, node.outputs[1], *g.numbers, graph.attribute(node, "storage_order", 0)),
            units=g.planes * g.out[0] * g.out[1],
        ),
    )


def _cost(group: Group, context: PlanningContext) -> float:
    g = windows(group.anchor)
    # Rows over depth and height in unit stride, then along the width: both count once a tap.
    along = math.prod(g.out) * g.kernel[2]
    across = math.prod(g.out[:2]) * g.size[2] * g.kernel[0] * g.kernel[1]
    return roofline(
        context.target,
        flops=g.planes * (along + across),
        nbytes=total_bytes(group),
        efficiency=0.05,  # Zen 4: rows of 14 and 28 elements reach 3 to 5 % of the peak
        threads=context.threads,
    )


def _indices_cost(group: Group, context: PlanningContext) -> float:
    g = windows(group.anchor)
    flops = g.planes * math.prod(g.out) * math.prod(g.kernel)
    return roofline(
        context.target, flops=flops, nbytes=total_bytes(group), efficiency=0.02, threads=context.threads
    )


IMPLEMENTATIONS = (
    Implementation("pool.max", "MaxPool", BACKEND, _max_rejection, _lower, _cost),
    Implementation(
        "pool.max_with_indices", "MaxPool", BACKEND, _indices_rejection, _lower_indices, _indices_cost
    ),
    Implementation("pool.average", "AveragePool", BACKEND, _float_rejection, _lower, _cost),
    Implementation("pool.lp", "LpPool", BACKEND, _float_rejection, _lower, _cost),
)
