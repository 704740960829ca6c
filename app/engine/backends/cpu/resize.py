"""Rows of Resize: nearest as index lookups, linear and cubic as one resampling an axis."""

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.axis_kernels import HALVES, computed, pointer, type_name
from app.engine.backends.cpu.calls import Operands, kernel_call, of_type
from app.engine.backends.cpu.lookup import adding_calls, lookup_calls
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.backends.cpu.strided import whole_copy
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, Constant, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext, no_pairs
from app.engine.cost.roofline import roofline
from app.engine.operators.interpolation import ResizedAxis
from app.engine.operators.operands import data, itemsize, moved_seconds
from app.engine.operators.resize_geometry import (
    _mode,
    addends,
    nearest_indices,
    nearest_rejection,
    resized_axes,
    taps_along,
    taps_rejection,
    transformation,
)


def extrapolation(node: ir.Node) -> Constant:
    """Value of the elements outside."""
    return _extrapolation(node, graph.element_type(data(node)))


def _extrapolation(node: ir.Node, kind: np.dtype[Any]) -> Constant:
    value = graph.attribute(node, "extrapolation_value", 0.0)
    return Constant(np.array([value]).astype(kind))


def nearest_inplace(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """The sum may take the place of what is added: each element is read where it is stored."""
    return tuple(
        (value, group.outputs[0])
        for value in addends(group)
        if not graph.is_constant(value) and value not in group.anchor.inputs
    )


def _nearest_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    x = data(node)
    indices = nearest_indices(node)
    shape = graph.static_shape(x)
    if addends(group):
        return adding_calls(indices, shape, x, addends(group)[0], group.outputs[0], extrapolation(node))
    return lookup_calls(indices, shape, itemsize(x), x, node.outputs[0], extrapolation(node))


def _nearest_cost(group: Group, context: PlanningContext) -> float:
    added = sum(graph.nbytes(v) for v in addends(group))
    return moved_seconds(group, context) + roofline(
        context.target, flops=0.0, nbytes=added, threads=context.threads
    )


def _moved_axes(node: ir.Node) -> list[tuple[int, ResizedAxis]]:
    """Axes to resample, the one that shrinks the tensor most first."""
    crops = transformation(node) == "tf_crop_and_resize"
    moved = [(i, a) for i, a in enumerate(resized_axes(node)) if crops or not a.is_same]
    return sorted(moved, key=lambda entry: entry[1].target / entry[1].size)


@after(taps_rejection)
def _taps_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why interpolation does not apply: sums of more than two elements may wait in the result."""
    x, y = data(group.anchor), group.anchor.outputs[0]
    if not {type_name(x), type_name(y)} & set(HALVES):
        return None
    if computed(x) != "float32" or computed(y) != "float32":
        return f"from {type_name(x)} to {type_name(y)}"
    moved = _moved_axes(group.anchor)
    if not moved:
        return None if type_name(x) == type_name(y) else "no axis is resized, the elements are converted"
    place, axis = moved[-1]
    inner = math.prod(graph.static_shape(y)[place + 1 :])
    if type_name(y) in HALVES and inner > 1 and taps_along(group.anchor, axis)[0].shape[1] > 2:
        return f"sums wait in the result, which is {type_name(y)}"
    return None


def _taps_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    x, y = data(node), node.outputs[0]
    if graph.elements(y) == 0:
        return ()
    kind = np.dtype(computed(x))
    moved = _moved_axes(node)
    if not moved:
        return whole_copy(x, y)
    shape = list(graph.static_shape(x))
    source: Argument = x
    made: list[Call] = []
    for step, (place, axis) in enumerate(moved):
        index, weight = taps_along(node, axis)
        outer, inner = math.prod(shape[:place]), math.prod(shape[place + 1 :])
        shape[place] = axis.target
        last = step == len(moved) - 1
        target: Argument = y if last else Workspace(math.prod(shape) * kind.itemsize)
        operands: Operands = (
            *((pointer(v) if isinstance(v, ir.Value) else f"{kind}*", v) for v in (source, target)),
            ("int64*", Constant(np.ascontiguousarray(index))),
            *of_type(f"{kind}*", Constant(weight.astype(kind)), _extrapolation(node, kind)),
            *(axis.size, axis.target),
        )
        width = index.shape[1]
        if inner == 1:
            made.append(kernel_call("app.kernels.cpu.resize:resample_rows", (*operands, width), outer))
        else:
            units = outer * axis.target
            made.append(kernel_call("app.kernels.cpu.resize:resample", (*operands, inner, width), units))
        source = target
    return tuple(made)


def _taps_cost(group: Group, context: PlanningContext) -> float:
    """Every step reads and writes a tensor of the output's size, at two operations a tap."""
    node = group.anchor
    steps = max(len(_moved_axes(node)), 1)
    width = 4 if _mode(node) == "cubic" else 2
    size = graph.elements(node.outputs[0])
    moved = 2.0 * steps * graph.nbytes(node.outputs[0])
    return group_roofline(group, context, 2.0 * width * size * steps, 0.2, moved)


IMPLEMENTATIONS = tuple(
    Implementation(f"{op.lower()}.{name}", op, "numba-cpu", rejection, lower, cost, inplace)
    for op in ("Resize", "Upsample")
    for name, rejection, lower, cost, inplace in (
        ("nearest", nearest_rejection, _nearest_lower, _nearest_cost, nearest_inplace),
        ("taps", _taps_rejection, _taps_lower, _taps_cost, no_pairs),
    )
)
