"""Normalization by statistics of rows, groups, channels or neighbours."""

import math

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.axis_kernels import (
    COLUMNS,
    FLOATS,
    HALVES,
    blocks_of,
    columns_of,
    computed,
    first_over_first,
    pointer,
    rows_or_columns,
    takes_mixed,
    type_name,
)
from app.engine.backends.cpu.calls import Operand, Operands, kernel_call, of_values
from app.engine.backends.cpu.reduce import Collapsed, collapse, loops
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, Constant
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext, no_pairs
from app.engine.operators.axes import along_axis, first_input, first_output, output_at, split

MEAN_VARIANCE_EPSILON = 1e-9  # of the function body of MeanVarianceNormalization


def _epsilon(group: Group) -> Operand:
    return "float64*", Constant(np.array([graph.attribute(group.anchor, "epsilon", 1e-5)], np.float64))


def _mixed_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Rejection if the operands differ from the input in the type that they are computed in."""
    expected = computed(first_input(group))
    for operand in group.anchor.inputs[1:]:
        if operand is not None and computed(operand) != expected:
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


@after(takes_mixed)
@after(_mixed_rejection)
def _rows_rejection(group: Group, _context: PlanningContext) -> str | None:
    _, row = _normalized(group)
    if 0 in row:
        return "the rows are empty"
    bias = graph.input_at(group.anchor, 2)
    if bias is not None and type_name(first_output(group)) in HALVES:
        scale = graph.operand(group.anchor, 1)
        if _period(scale, row) != _period(bias, row):
            return "scale and bias of different lengths are added to results that are rounded"
    for operand in group.anchor.inputs[1:]:
        if operand is not None and _period(operand, row) is None:
            return (
                f"operand {operand.name!r} of shape {graph.static_shape(operand)} does not repeat "
                f"along rows of shape {row}"
            )
    return None


def _lower_layer(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, scale, bias = first_input(group), graph.operand(group.anchor, 1), graph.input_at(group.anchor, 2)
    rows, row = _normalized(group)
    statistics = output_at(group, 1), output_at(group, 2)
    t = f"{computed(x)}*"
    absent: Argument = 0  # never read or written
    operands: Operands = (
        *(*of_values(x, scale), (pointer(bias) if bias else t, bias or absent), _epsilon(group)),
        *of_values(first_output(group)),
        *((pointer(v), v) if v else (t, absent) for v in statistics),
        *(math.prod(row), _period(scale, row) or 0, (_period(bias, row) or 0) if bias else 0),
        *(int(v is not None) for v in statistics),
    )
    return (kernel_call("app.kernels.cpu.normalize:layer_norm", operands, rows),)


def _lower_rms(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, scale = first_input(group), graph.operand(group.anchor, 1)
    rows, row = _normalized(group)
    sizes = math.prod(row), _period(scale, row) or 0
    operands: Operands = (*of_values(x, scale), _epsilon(group), *of_values(first_output(group)), *sizes)
    return (kernel_call("app.kernels.cpu.normalize:rms_norm", operands, rows),)


# Channels: GroupNormalization, InstanceNormalization, BatchNormalization, LRN.


@after(takes_mixed)
def _channels_rejection(group: Group, _context: PlanningContext) -> str | None:
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


@after(_channels_rejection)
@after(_mixed_rejection)
def _group_rejection(group: Group, _context: PlanningContext) -> str | None:
    shape = graph.static_shape(first_input(group))
    return f"the groups of shape {shape[1:]} are empty" if 0 in shape[1:] else None


def _lower_group(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x = first_input(group)
    batch, channels, n = split(graph.static_shape(x), 1)
    groups = graph.attribute(group.anchor, "num_groups", channels)  # a channel alone: InstanceNormalization
    factors = of_values(x, graph.operand(group.anchor, 1), graph.operand(group.anchor, 2))
    result = of_values(first_output(group))
    operands: Operands = (*factors, _epsilon(group), *result, groups, channels // groups, n)
    return (kernel_call("app.kernels.cpu.normalize:group_norm", operands, batch * groups),)


@after(_channels_rejection)
def _batch_rejection(group: Group, _context: PlanningContext) -> str | None:
    if graph.attribute(group.anchor, "training_mode", 0):
        return "normalizes with given statistics, the node is in training mode"
    if any(computed(v) not in FLOATS for v in group.anchor.inputs[1:] if v is not None):
        return "an operand is no float"
    return None


def _lower_batch(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    batch, channels, n = split(graph.static_shape(x), 1)
    factors = (graph.operand(group.anchor, i) for i in range(1, 5))
    operands: Operands = (*of_values(x, *factors), _epsilon(group), *of_values(y), channels)
    if n == 1:
        return (kernel_call("app.kernels.cpu.normalize:batch_norm_rows", operands, batch),)
    return (kernel_call("app.kernels.cpu.normalize:batch_norm", (*operands, n), batch * channels),)


def _lower_response(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x = first_input(group)
    batch, channels, n = split(graph.static_shape(x), 1)
    node = group.anchor
    size = graph.attribute(node, "size", 1)
    weight = graph.attribute(node, "alpha", 1e-4) / size
    factors = np.array([graph.attribute(node, "bias", 1.0), weight, graph.attribute(node, "beta", 0.75)])
    operands: Operands = (
        *(*of_values(x, first_output(group)), columns_of(computed(x))),
        *(COLUMNS, channels, n, blocks_of(n), (size - 1) // 2, size // 2),
        ("float64*", Constant(factors)),
    )
    units = batch * channels * blocks_of(n)
    return (kernel_call("app.kernels.cpu.normalize:response_norm", operands, units, takes_thread=True),)


# Any axes: LpNormalization, MeanVarianceNormalization.


@after(takes_mixed)
def _lp_rejection(group: Group, _context: PlanningContext) -> str | None:
    order = graph.attribute(group.anchor, "p", 2)
    return None if order in (1, 2) else f"computes norms of order 1 and 2, not {order}"


def _lower_lp(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    operands = of_values(first_input(group), first_output(group))
    order = graph.attribute(group.anchor, "p", 2)
    kernels = "app.kernels.cpu.normalize:lp_norm_rows", "app.kernels.cpu.normalize:lp_norm_columns"
    return (rows_or_columns(kernels, operands, along_axis(group), ("float64",), order),)


def _collapsed(group: Group) -> Collapsed:
    shape = graph.static_shape(first_input(group))
    axes = graph.attribute(group.anchor, "axes", (0, 2, 3))
    found = collapse(shape, tuple(a % len(shape) for a in axes) if shape else ())
    if found.inner_reduced:
        return found
    return Collapsed(found.kept, (*found.reduced, (1, 1)), True)  # runs of a single element


@after(takes_mixed)
def _mean_variance_rejection(group: Group, _context: PlanningContext) -> str | None:
    found = _collapsed(group)
    if found.count == 0:
        return "there is nothing to average"
    return None if loops(found) else "the axes alternate too often between kept and reduced"


def _lower_mean_variance(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    found = _collapsed(group)
    numbers = loops(found)
    assert numbers is not None
    epsilon = "float64*", Constant(np.array([MEAN_VARIANCE_EPSILON]))
    operands: Operands = (*of_values(first_input(group), first_output(group)), epsilon, *numbers)
    return (kernel_call("app.kernels.cpu.normalize:mean_variance", operands, found.outputs),)


def _cost(group: Group, context: PlanningContext) -> float:
    return group_roofline(group, context, 8 * graph.elements(first_input(group)), 0.3)


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
    Implementation(f"normalize.{name}", op, "numba-cpu", rejection, lower, _cost, inplace)
    for name, op, rejection, lower, inplace in _ROWS
)
