"""Rows of ReverseSequence, Trilu, EyeLike, OneHot, Range and ConstantOfShape."""

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.calls import Operands, kernel_call, of_type, of_values
from app.engine.backends.cpu.rows import after, single_rejection
from app.engine.backends.cpu.strided import calls, element_type
from app.engine.core import graph
from app.engine.core.calls import Call, Constant
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.operands import data, fixed_inputs, itemsize, moved_seconds
from app.engine.operators.strides import StridedCopy

_INDICES = (*("int8", "int16", "int32", "int64"), *("uint8", "uint16", "uint32"), *("float32", "float64"))
_RAMPS = ("float32", "float64", "int16", "int32", "int64")


def _raw(values: Any, value: ir.Value) -> Constant:
    """Numbers in the dtype of a value, for kernels that see element sizes only."""
    return Constant(np.array(values).astype(graph.dtype(value)))


@after(single_rejection)
def _reverse_rejection(group: Group, _context: PlanningContext) -> str | None:
    axes = (graph.attribute(group.anchor, "time_axis", 0), graph.attribute(group.anchor, "batch_axis", 1))
    return None if sorted(axes) == [0, 1] else f"time and batch axes {axes}, expected 0 and 1"


def _reverse_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = data(group.anchor), group.anchor.outputs[0]
    lengths = graph.operand(group.anchor, 1)
    outer, middle, *rest = graph.static_shape(x)
    address = element_type(itemsize(x))
    time_first = int(graph.attribute(group.anchor, "time_axis", 0) == 0)
    operands: Operands = ((address, x), ("int64*", lengths), (address, y))
    inner = math.prod(rest)
    if not time_first and inner == 1:
        return (kernel_call("app.kernels.cpu.sequence:reverse_rows", (*operands, middle), outer),)
    operands = (*operands, outer, middle, inner, time_first)
    return (kernel_call("app.kernels.cpu.sequence:reverse_sequence", operands, outer * middle),)


@after(single_rejection)
def _trilu_rejection(group: Group, _context: PlanningContext) -> str | None:
    shape, shift = graph.static_shape(data(group.anchor)), graph.input_at(group.anchor, 1)
    return "the operand is no matrix" if len(shape) < 2 else _wrong_shift(shift)


def _wrong_shift(shift: ir.Value | None) -> str | None:
    found = shift is None or (graph.element_type(shift) == np.int64 and graph.elements(shift) == 1)
    return None if found else "the diagonal is no int64"


def _trilu_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = data(group.anchor), group.anchor.outputs[0]
    *batch, height, width = graph.static_shape(x)
    shift = graph.input_at(group.anchor, 1) or Constant(np.zeros(1, np.int64))
    address = element_type(itemsize(x))
    upper = graph.attribute(group.anchor, "upper", 1)
    operands: Operands = (
        *of_type(address, x, _raw([0], x)),
        ("int64*", shift),
        (address, y),
        height,
        width,
        upper,
    )
    return (kernel_call("app.kernels.cpu.sequence:triangle", operands, math.prod(batch) * height),)


def _eye_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    y = group.anchor.outputs[0]
    height, width = graph.static_shape(y)
    address = element_type(itemsize(y))
    shift = min(max(graph.attribute(group.anchor, "k", 0), -height), width)
    operands: Operands = (*of_type(address, _raw([0, 1], y), y), width, shift)
    return (kernel_call("app.kernels.cpu.sequence:identity_matrix", operands, height),)


@after(single_rejection)
def _one_hot_rejection(group: Group, _context: PlanningContext) -> str | None:
    kind = str(graph.dtype(data(group.anchor)))
    return None if kind in _INDICES else f"OneHot has no kernel for indices of dtype {kind}"


def _one_hot_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    indices, y = data(group.anchor), group.anchor.outputs[0]
    off_on = graph.operand(group.anchor, 2)
    shape = graph.static_shape(y)
    axis = graph.attribute(group.anchor, "axis", -1) % len(shape)
    address = element_type(itemsize(y))
    sizes = shape[axis], math.prod(shape[axis + 1 :])
    operands: Operands = (*of_values(indices), *of_type(address, off_on, y), *sizes)
    return (kernel_call("app.kernels.cpu.sequence:one_hot", operands, math.prod(shape[:axis])),)


@after(single_rejection)
def _ramp_rejection(group: Group, _context: PlanningContext) -> str | None:
    kind = str(graph.dtype(data(group.anchor)))
    if kind not in _RAMPS:
        return f"Range has no kernel for {kind}"
    return fixed_inputs(group.anchor, (0, 1, 2))


def _ramp_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    start, delta, y = data(group.anchor), graph.operand(group.anchor, 2), group.anchor.outputs[0]
    return (kernel_call("app.kernels.cpu.sequence:ramp", of_values(start, delta, y), graph.elements(y)),)


@after(single_rejection)
def _fill_rejection(group: Group, _context: PlanningContext) -> str | None:
    return fixed_inputs(group.anchor, (0,))


def fill_value(node: ir.Node) -> Constant:
    """The element of a ConstantOfShape."""
    given = graph.attribute(node, "value", None)
    return Constant(np.zeros(1, np.float32) if given is None else given.numpy())


def _fill_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    y = group.anchor.outputs[0]
    copy = StridedCopy((graph.elements(y),), (0,), (1,))
    return calls(copy, itemsize(y), fill_value(group.anchor), y)


IMPLEMENTATIONS = tuple(
    Implementation(name, op, "numba-cpu", rejection, lower, cost=moved_seconds)
    for name, op, rejection, lower in (
        ("reverse_sequence.rows", "ReverseSequence", _reverse_rejection, _reverse_lower),
        ("trilu.rows", "Trilu", _trilu_rejection, _trilu_lower),
        ("eye_like.rows", "EyeLike", single_rejection, _eye_lower),
        ("one_hot.rows", "OneHot", _one_hot_rejection, _one_hot_lower),
        ("range.ramp", "Range", _ramp_rejection, _ramp_lower),
        ("constant_of_shape.fill", "ConstantOfShape", _fill_rejection, _fill_lower),
    )
)
