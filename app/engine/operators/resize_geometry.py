"""Sample positions and weights of Resize."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.operators.interpolation import COORDINATES, ROUNDINGS, Floats, ResizedAxis, nearest, taps
from app.engine.operators.operands import data, fixed_inputs, group_rejection
from app.engine.operators.strides import Indices

INTERPOLATED = ("float32", "float64")
HALVES = ("float16", "bfloat16")  # that are float32 once they are loaded
WHOLE = ("uint8", "int8", "uint16", "int16", "int32", "int64")  # computed in floats


def resized_axes(node: ir.Node) -> tuple[ResizedAxis, ...]:
    """Every axis of the data with its scale, from `scales` or `sizes`, `axes` and the aspect policy."""
    shape, target = graph.static_shape(data(node)), graph.static_shape(node.outputs[0])
    roi, scales = (graph.constant(graph.input_at(node, i)) for i in (1, 2))
    if node.op_type == "Upsample":
        roi, scales = None, roi
    rank = len(shape)
    of = [a % rank for a in graph.attribute(node, "axes", tuple(range(rank)))]
    found = [ResizedAxis(n, m, 1.0) for n, m in zip(shape, target)]
    if scales is not None and scales.size:
        factors = [float(s) for s in scales]
    else:
        sizes = graph.array(graph.input_at(node, 3))
        factors = [int(n) / shape[axis] if shape[axis] else 1.0 for axis, n in zip(of, sizes)]
        policy = graph.attribute(node, "keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factors = [min(factors) if policy == "not_larger" else max(factors)] * len(factors)
    for i, (axis, factor) in enumerate(zip(of, factors)):
        found[axis] = replace(found[axis], scale=factor)
        if roi is not None and roi.size:
            found[axis] = replace(found[axis], start=float(roi[i]), end=float(roi[len(of) + i]))
    return tuple(found)


def _rejection(group: Group, nodes: int = 1) -> str | None:
    node = group.anchor
    reason = group_rejection(group, nodes) or fixed_inputs(node, (1, 2, 3))
    if reason:
        return reason
    if transformation(node) not in COORDINATES:
        return f"coordinate_transformation_mode {transformation(node)!r} is unknown"
    if graph.elements(data(node)) == 0 and graph.elements(node.outputs[0]):
        return "an empty tensor has nothing to resample"
    return None


def nearest_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why a node is no copy of nearest elements."""
    if _mode(group.anchor) != "nearest":
        return f"mode {_mode(group.anchor)!r}, this is for 'nearest'"
    rounding = graph.attribute(group.anchor, "nearest_mode", "round_prefer_floor")
    if rounding not in ROUNDINGS:
        return f"nearest_mode {rounding!r} is unknown"
    return _follows_rejection(group) or _rejection(group, nodes=2) or _converted(group.anchor)


def _converted(node: ir.Node) -> str | None:
    """Reason why elements that are only moved keep no type."""
    x, y = data(node), node.outputs[0]
    return None if x.dtype == y.dtype else f"elements of {graph.dtype(x)} become {graph.dtype(y)}"


def _follows_rejection(group: Group) -> str | None:
    """Reason why the epilogue is no sum with one more value."""
    if not group.epilogue:
        return None
    node, value = group.epilogue[0], group.anchor.outputs[0]
    if node.op_type != "Add" or len(group.epilogue) > 1:
        return f"{[n.op_type for n in group.epilogue]} follow; this one adds one value"
    others = addends(group)
    if not others:
        return f"adds {value.name!r} to itself"
    if graph.shape(others[0]) != graph.shape(value):
        found = f"{others[0].name!r} of shape {graph.shape(others[0])}"
        return f"adds {found}, expected another of {graph.shape(value)}"
    if str(graph.dtype(value)) not in INTERPOLATED:
        return f"adds elements of {graph.dtype(value)}; this one adds {', '.join(INTERPOLATED)}"
    return None


def nearest_indices(node: ir.Node) -> list[Indices]:
    """For each axis the index that every element is copied from; negative where it lies outside."""
    default = "floor" if node.op_type == "Upsample" else "round_prefer_floor"
    rounding = graph.attribute(node, "nearest_mode", default)
    return [nearest(axis, transformation(node), rounding) for axis in resized_axes(node)]


def taps_along(node: ir.Node, axis: ResizedAxis) -> tuple[Indices, Floats]:
    """Indices and weights, [target, taps] each, of a node that interpolates."""
    return taps(
        axis,
        transformation(node),
        _mode(node),
        cubic_a=graph.attribute(node, "cubic_coeff_a", -0.75),
        exclude_outside=bool(graph.attribute(node, "exclude_outside", 0)),
        antialias=bool(graph.attribute(node, "antialias", 0)),
    )


def keeps_constants(node: ir.Node) -> bool:
    """True if an image of one number is resized to an image of that number."""
    if transformation(node) not in COORDINATES or transformation(node) == "tf_crop_and_resize":
        return False
    if _mode(node) == "nearest":
        return True
    sums = (taps_along(node, axis)[1].sum(axis=1) for axis in resized_axes(node))
    return all(np.allclose(total, 1.0, rtol=0, atol=1e-6) for total in sums)


def taps_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why a node is no interpolation along its axes."""
    if _mode(group.anchor) not in ("linear", "cubic"):
        return f"mode {_mode(group.anchor)!r}, this is for 'linear' and 'cubic'"
    kind = str(graph.dtype(data(group.anchor)))
    if kind not in (*INTERPOLATED, *HALVES, *WHOLE):
        return f"interpolation of {kind} has no kernel"
    return _rejection(group)


def is_whole(node: ir.Node) -> bool:
    """True if the elements that are interpolated are integers."""
    return str(graph.dtype(data(node))) in WHOLE


def cuts_off(node: ir.Node) -> bool:
    """True if integers are cut off, as onnxruntime does; else rounded, as the reference evaluator does.

    The standard leaves it open. onnxruntime refuses cubic interpolation of integers.
    """
    return _mode(node) == "linear" and not graph.attribute(node, "antialias", 0)


def transformation(node: ir.Node) -> str:
    """How coordinates of the result become coordinates of the operand."""
    default = "asymmetric" if node.op_type == "Upsample" else "half_pixel"
    return graph.attribute(node, "coordinate_transformation_mode", default)


def _mode(node: ir.Node) -> str:
    return graph.attribute(node, "mode", "nearest")


def addends(group: Group) -> tuple[ir.Value, ...]:
    """Value that a copy of nearest elements is added to, if any."""
    return tuple(
        v for n in group.epilogue for v in n.inputs if v is not None and v is not group.anchor.outputs[0]
    )
