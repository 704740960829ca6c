"""Normalization by statistics of rows, groups, channels or neighbours."""

import math

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.axis_kernels import (
    COLUMNS,
    FLOATS,
    axis_rejection,
    blocks_of,
    columns_of,
    first_over_first,
    pointer,
    total_bytes,
    type_name,
)
from app.engine.backends.cpu.reduce import Collapsed, collapse, loops
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, Constant, KernelCall
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext, no_pairs
from app.engine.cost.roofline import roofline
from app.engine.operators.axes import along_axis, first_input, first_output, output_at, split

BACKEND = "numba-cpu"
KERNELS = "app.kernels.cpu.normalize"
MEAN_VARIANCE_EPSILON = 1e-9  # of the function body of MeanVarianceNormalization


def _epsilon(group: Group) -> Constant:
    return Constant(np.array([graph.attribute(group.anchor, "epsilon", 1e-5)], np.float64))


def _operand(group: Group, index: int) -> ir.Value:
    return graph.operand(group.anchor, index)


def _mixed(group: Group) -> str | None:
    """Rejection if the operands differ from the input in element type."""
    expected = type_name(first_input(group))
    for operand in group.anchor.inputs[1:]:
        if operand is not None and type_name(operand) != expected:
            return f"operand {operand.name!r} is {type_name(operand)}, the input {expected}"
    return None


# Rows: LayerNormalization and RMSNormalization.


def _period(operand: ir.Value, row: tuple[int, ...]) -> int | None:
    """Elements after which an operand repeats along a row; None if it does not repeat so."""
    shape = graph.static_shape(operand)
    while shape and shape[0] == 1:
        shape = shape[1:]
    return math.prod(shape) if shape == row[len(row) - len(shape) :] else None


def _normalized(group: Group) -> tuple[int, tuple[int, ...]]:
    """Rows, and the shape of one."""
    shape = graph.static_shape(first_input(group))
    axis = graph.attribute(group.anchor, "axis", -1) % max(len(shape), 1)
    return math.prod(shape[:axis]), shape[axis:]


def _rows_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = axis_rejection(group, FLOATS) or _mixed(group)
    if reason is not None:
        return reason
    _, row = _normalized(group)
    if 0 in row:
        return "the rows are empty"
    for operand in group.anchor.inputs[1:]:
        if operand is not None and _period(operand, row) is None:
            return (
                f"operand {operand.name!r} of shape {graph.static_shape(operand)} does not repeat "
                f"along rows of shape {row}"
            )
    return None


def _lower_layer(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, scale, bias = first_input(group), _operand(group, 1), graph.input_at(group.anchor, 2)
    rows, row = _normalized(group)
    statistics = output_at(group, 1), output_at(group, 2)
    t = pointer(x)
    absent: Argument = 0  # never read or written
    return (
        KernelCall(
            f"{KERNELS}:layer_norm",
            (t, t, t, "float64*", t, *(pointer(v) if v else t for v in statistics), *("int64",) * 5),
            (
                x,
                scale,
                bias or absent,
                _epsilon(group),
                first_output(group),
                *(v or absent for v in statistics),
                math.prod(row),
                _period(scale, row) or 0,
                (_period(bias, row) or 0) if bias else 0,
                *(int(v is not None) for v in statistics),
            ),
            units=rows,
        ),
    )


def _lower_rms(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, scale = first_input(group), _operand(group, 1)
    rows, row = _normalized(group)
    t = pointer(x)
    return (
        KernelCall(
            f"{KERNELS}:rms_norm",
            (t, t, "float64*", t, "int64", "int64"),
            (x, scale, _epsilon(group), first_output(group), math.prod(row), _period(scale, row) or 0),
            units=rows,
        ),
    )


# Channels: GroupNormalization, InstanceNormalization, BatchNormalization, LRN.


def _channels_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = axis_rejection(group, FLOATS)
    if reason is not None:
        return reason
    shape = graph.static_shape(first_input(group))
    if len(shape) < 2:
        return f"normalizes channels, axis 1; the input has rank {len(shape)}"
    for operand in graph.operands(group.anchor)[1:]:
        if graph.static_shape(operand) != shape[1:2]:
            return (
                f"operand {operand.name!r} has the shape {graph.static_shape(operand)}, "
                f"the input {shape[1]} channels"
            )
    return None


def _group_rejection(group: Group, context: PlanningContext) -> str | None:
    reason = _channels_rejection(group, context) or _mixed(group)
    if reason is not None:
        return reason
    shape = graph.static_shape(first_input(group))
    if 0 in shape[1:]:
        return f"the groups of shape {shape[1:]} are empty"
    return None


def _lower_group(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x = first_input(group)
    batch, channels, n = split(graph.static_shape(x), 1)
    groups = graph.attribute(group.anchor, "num_groups", channels)  # a channel alone: InstanceNormalization
    t = pointer(x)
    return (
        KernelCall(
            f"{KERNELS}:group_norm",
            (t, t, t, "float64*", t, "int64", "int64", "int64"),
            (
                x,
                _operand(group, 1),
                _operand(group, 2),
                _epsilon(group),
                first_output(group),
                groups,
                channels // groups,
                n,
            ),
            units=batch * groups,
        ),
    )


def _batch_rejection(group: Group, context: PlanningContext) -> str | None:
    reason = _channels_rejection(group, context)
    if reason is not None:
        return reason
    if graph.attribute(group.anchor, "training_mode", 0):
        return "normalizes with given statistics, the node is in training mode"
    if any(type_name(v) not in FLOATS for v in group.anchor.inputs[1:] if v is not None):
        return "an operand is neither float32 nor float64"
    return None


def _lower_batch(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    batch, channels, n = split(graph.static_shape(x), 1)
    operands = tuple(_operand(group, i) for i in range(1, 5))
    types = (pointer(x), *(pointer(v) for v in operands), "float64*", pointer(y))
    arguments: tuple[Argument, ...] = (x, *operands, _epsilon(group), y)
    if n == 1:
        return (
            KernelCall(f"{KERNELS}:batch_norm_rows", (*types, "int64"), (*arguments, channels), units=batch),
        )
    return (
        KernelCall(
            f"{KERNELS}:batch_norm",
            (*types, "int64", "int64"),
            (*arguments, channels, n),
            units=batch * channels,
        ),
    )


def _lower_response(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x = first_input(group)
    batch, channels, n = split(graph.static_shape(x), 1)
    node = group.anchor
    size = graph.attribute(node, "size", 1)
    weight = graph.attribute(node, "alpha", 1e-4) / size
    factors = np.array([graph.attribute(node, "bias", 1.0), weight, graph.attribute(node, "beta", 0.75)])
    t = pointer(x)
    return (
        KernelCall(
            f"{KERNELS}:response_norm",
            (t, t, t, *("int64",) * 6, "float64*"),
            (
                x,
                first_output(group),
                columns_of(type_name(x)),
                COLUMNS,
                channels,
                n,
                blocks_of(n),
                (size - 1) // 2,
                size // 2,
                Constant(factors),
            ),
            units=batch * channels * blocks_of(n),
            takes_thread=True,
        ),
    )


# Any axes: LpNormalization, MeanVarianceNormalization.


def _lp_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = axis_rejection(group, FLOATS)
    order = graph.attribute(group.anchor, "p", 2)
    return reason or (None if order in (1, 2) else f"computes norms of order 1 and 2, not {order}")


def _lower_lp(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    order = graph.attribute(group.anchor, "p", 2)
    outer, n, inner = along_axis(group)
    t = pointer(x)
    if inner == 1:
        return (
            KernelCall(f"{KERNELS}:lp_norm_rows", (t, t, "int64", "int64"), (x, y, n, order), units=outer),
        )
    return (
        KernelCall(
            f"{KERNELS}:lp_norm_columns",
            (t, t, "float64*", *("int64",) * 5),
            (x, y, columns_of("float64"), COLUMNS, n, inner, blocks_of(inner), order),
            units=outer * blocks_of(inner),
            takes_thread=True,
        ),
    )


def _collapsed(group: Group) -> Collapsed:
    shape = graph.static_shape(first_input(group))
    axes = graph.attribute(group.anchor, "axes", (0, 2, 3))
    found = collapse(shape, tuple(a % len(shape) for a in axes) if shape else ())
    if found.inner_reduced:
        return found
    return Collapsed(found.kept, (*found.reduced, (1, 1)), True)  # runs of a single element


def _mean_variance_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = axis_rejection(group, FLOATS)
    if reason is not None:
        return reason
    found = _collapsed(group)
    if found.count == 0:
        return "there is nothing to average"
    return None if loops(found) else "the axes alternate too often between kept and reduced"


def _lower_mean_variance(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x = first_input(group)
    found = _collapsed(group)
    numbers = loops(found)
    assert numbers is not None
    t = pointer(x)
    return (
        KernelCall(
            f"{KERNELS}:mean_variance",
            (t, t, "float64*", *("int64",) * 10),
            (x, first_output(group), Constant(np.array([MEAN_VARIANCE_EPSILON])), *numbers),
            units=found.outputs,
        ),
    )


def _cost(group: Group, context: PlanningContext) -> float:
    return roofline(
        context.target,
        flops=8 * graph.elements(first_input(group)),
        nbytes=total_bytes(group),
        efficiency=0.3,
        threads=context.threads,
    )


# Implementation, operator, reason why not, calls, what it may overwrite.
_ROWS = (
    ("layer_norm", "LayerNormalization", _rows_rejection, _lower_layer, first_over_first),
    ("rms_norm", "RMSNormalization", _rows_rejection, _lower_rms, first_over_first),
    ("group_norm", "GroupNormalization", _group_rejection, _lower_group, first_over_first),
    ("instance_norm", "InstanceNormalization", _group_rejection, _lower_group, first_over_first),
    ("batch_norm", "BatchNormalization", _batch_rejection, _lower_batch, first_over_first),
    ("local_response", "LRN", _channels_rejection, _lower_response, no_pairs),
    ("lp_norm", "LpNormalization", _lp_rejection, _lower_lp, first_over_first),
    (
        "mean_variance",
        "MeanVarianceNormalization",
        _mean_variance_rejection,
        _lower_mean_variance,
        first_over_first,
    ),
)

IMPLEMENTATIONS = tuple(
    Implementation(f"normalize.{name}", op, BACKEND, rejection, lower, _cost, inplace)
    for name, op, rejection, lower, inplace in _ROWS
)
