"""Rows of Resize: nearest as index lookups, linear and cubic as one resampling an axis.

Whole numbers are computed in floats, along two axes of linear Resize at once.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.axis_kernels import HALVES, computed, pointer, type_name
from app.engine.backends.cpu.calls import Operands, kernel_call, of_type, of_values, typed_call
from app.engine.backends.cpu.lookup import adding_calls, lookup_calls
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.backends.cpu.strided import whole_copy
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, Constant, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext, no_pairs
from app.engine.cost.roofline import roofline
from app.engine.operators.interpolation import Floats, ResizedAxis, neighbours
from app.engine.operators.operands import data, itemsize
from app.engine.operators.resize_geometry import (
    _mode,
    addends,
    cuts_off,
    is_whole,
    nearest_indices,
    nearest_rejection,
    resized_axes,
    taps_along,
    taps_rejection,
    transformation,
)
from app.engine.operators.strides import Indices

FIXED_BITS = 10  # of the weights of bytes whose channels lie last, as onnxruntime has them


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
    """Seconds of reading what is read, where it shrinks or repeats elements, and of writing the result."""
    y = graph.nbytes(group.outputs[0])
    x = min(graph.nbytes(data(group.anchor)), y)
    nbytes = x + y + sum(graph.nbytes(v) for v in addends(group))
    return roofline(context.target, flops=0.0, nbytes=nbytes, threads=context.threads)


def _moved_axes(node: ir.Node) -> list[tuple[int, ResizedAxis]]:
    """Axes to resample, the one that shrinks the tensor most first."""
    crops = transformation(node) == "tf_crop_and_resize"
    moved = [(i, a) for i, a in enumerate(resized_axes(node)) if crops or not a.is_same]
    return sorted(moved, key=lambda entry: entry[1].target / entry[1].size)


@after(taps_rejection)
def _taps_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why interpolation does not apply: sums of more than two elements may wait in the result."""
    x, y = data(group.anchor), group.anchor.outputs[0]
    if is_whole(group.anchor):
        if x.dtype != y.dtype:
            return f"from {type_name(x)} to {type_name(y)}"
        return "whole numbers along two axes are computed at once" if _image_axes(group.anchor) else None
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


def _taps_lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    x, y = data(node), node.outputs[0]
    if graph.elements(y) == 0:
        return ()
    moved = _moved_axes(node)
    if not moved:
        return whole_copy(x, y)
    if is_whole(node):
        kind = np.dtype(np.float32 if itemsize(x) < 4 else np.float64)
        wide = Workspace(graph.elements(y) * kind.itemsize)
        limits = np.iinfo(graph.element_type(y))
        static = int(limits.min), int(limits.max), not cuts_off(node)
        operands: Operands = ((f"{kind}*", wide), *of_values(y))
        whole = kernel_call("app.kernels.cpu.resize:to_whole", operands, graph.elements(y), static)
        return (*_resampled(node, kind, wide, context.target.vector_lanes), whole)
    return _resampled(node, np.dtype(computed(x)), y, context.target.vector_lanes)


def _resampled(node: ir.Node, kind: np.dtype[Any], y: Argument, lanes: int) -> tuple[Call, ...]:
    """One call for each axis that is resized, the last of which writes y; sums are of this type."""
    x = data(node)
    moved = _moved_axes(node)
    shape = list(graph.static_shape(x))
    source: Argument = x
    made: list[Call] = []

    def pointer_of(argument: Argument) -> str:
        return pointer(argument) if isinstance(argument, ir.Value) else f"{kind}*"

    for step, (place, axis) in enumerate(moved):
        index, weight = taps_along(node, axis)
        outer, inner = math.prod(shape[:place]), math.prod(shape[place + 1 :])
        shape[place] = axis.target
        last = step == len(moved) - 1
        target: Argument = y if last else Workspace(math.prod(shape) * kind.itemsize)
        operands: Operands = (
            *((pointer_of(v), v) for v in (source, target)),
            ("int64*", Constant(np.ascontiguousarray(index))),
            *of_type(f"{kind}*", Constant(weight.astype(kind)), _extrapolation(node, kind)),
            *(axis.size, axis.target),
        )
        width = index.shape[1]
        if inner == 1 and pointer_of(target) == "float32*" and min(axis.size, axis.target, outer) >= lanes:
            turned = Workspace((axis.size + axis.target) * lanes * kind.itemsize, per_thread=True)
            of = (*operands, width, outer, (f"{kind}*", turned))
            static = lanes, pointer_of(source).removesuffix("*")
            made.append(typed_call("app.kernels.cpu.resize:resample_turned", of, outer // lanes, static))
        elif inner == 1:
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


def _image_axes(node: ir.Node) -> tuple[int, ...]:
    """The axes of an image along which whole numbers are resized linearly: the last, or before the last."""
    axes = resized_axes(node)
    moved = [i for i, axis in enumerate(axes) if not axis.is_same]
    if not cuts_off(node) or itemsize(data(node)) > 4 or transformation(node) == "tf_crop_and_resize":
        return ()
    rank = len(axes)
    pairs = ((rank - 2, rank - 1), *((1, 2) for _ in range(rank == 4)))
    return next((pair for pair in pairs if rank > 1 and moved and set(moved) <= set(pair)), ())


@after(taps_rejection)
def _bilinear_rejection(group: Group, _context: PlanningContext) -> str | None:
    x, y = data(group.anchor), group.anchor.outputs[0]
    if not is_whole(group.anchor) or x.dtype != y.dtype:
        return f"from {type_name(x)} to {type_name(y)}; this one is for whole numbers"
    return None if _image_axes(group.anchor) else "resizes other axes than the two of images, or not linearly"


def _fixed_neighbours(axis: ResizedAxis, transformation: str) -> tuple[Indices, Indices]:
    """Indices and weights [2, target] of the two neighbours, in whole numbers of FIXED_BITS bits."""
    one = 2**FIXED_BITS
    _, x, _ = neighbours(axis, transformation)
    place = (x * np.float32(one)).astype(np.int64)
    first = np.minimum(place // one, axis.size - 1)
    index = np.stack([first, np.minimum(first + 1, axis.size - 1)])
    weight = np.where(index[0] == index[1], one // 2, np.abs(place - index[::-1] * one))
    return index, weight.astype(np.int32)


def _float_neighbours(axis: ResizedAxis, transformation: str) -> tuple[Indices, Floats]:
    index, _, weight = neighbours(axis, transformation)
    return index, weight.astype(np.float32)


def _bilinear_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    x, y = data(node), node.outputs[0]
    pair = _image_axes(node)
    axes, shape = resized_axes(node), graph.static_shape(x)
    inner = math.prod(shape[pair[1] + 1 :])
    is_fixed = pair[1] + 1 < len(shape) and itemsize(x) == 1
    table: Callable[[ResizedAxis, str], tuple[Indices, Any]] = (
        _fixed_neighbours if is_fixed else _float_neighbours
    )
    (down, down_share), (along, along_share) = (table(axes[i], transformation(node)) for i in pair)
    offsets = (along[:, :, None] * inner + np.arange(inner)).reshape(2, -1)
    kind = "int32*" if is_fixed else "float32*"
    width = offsets.shape[1]
    operands: Operands = (
        *of_values(x, y),
        ("int64*", Constant(np.ascontiguousarray(down))),
        (kind, Constant(np.ascontiguousarray(down_share))),
        ("int64*", Constant(offsets)),
        (kind, Constant(np.repeat(along_share, inner, axis=1))),
        (kind, Workspace(16 * width, per_thread=True)),
        *(shape[pair[0]], shape[pair[1]] * inner, axes[pair[0]].target, width),
    )
    units = math.prod(shape[: pair[0]]) * axes[pair[0]].target if width else 0
    return (typed_call("app.kernels.cpu.resize:bilinear", operands, units, (FIXED_BITS * is_fixed,)),)


IMPLEMENTATIONS = tuple(
    Implementation(f"{op.lower()}.{name}", op, "numba-cpu", rejection, lower, cost, inplace)
    for op in ("Resize", "Upsample")
    for name, rejection, lower, cost, inplace in (
        ("nearest", nearest_rejection, _nearest_lower, _nearest_cost, nearest_inplace),
        ("taps", _taps_rejection, _taps_lower, _taps_cost, no_pairs),
        ("bilinear", _bilinear_rejection, _bilinear_lower, _taps_cost, no_pairs),
    )
)
