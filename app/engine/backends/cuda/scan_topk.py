"""Rows along an axis by place: extrema, running sums, the k largest; groups of channels; scatters."""

import math
from collections.abc import Callable

from app.engine.backends.cuda import tensor_views
from app.engine.backends.cuda.launch_calls import Made, streaming
from app.engine.backends.cuda.tensor_views import element
from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext, Rejection
from app.engine.operators.axes import along_axis, split
from app.engine.operators.indexing import axis_of, bad_indices, indices_of
from app.engine.operators.operands import data, fixed_inputs
from app.kernels.cuda.gather import scatter_elements, scatter_nd
from app.kernels.cuda.normalize import group_norm
from app.kernels.cuda.reduce import argument
from app.kernels.cuda.scan import cumulative_sum, top_k

ORDERED = (*tensor_views.FLOATS, "int32", "int64")


def _simple(group: Group, dtypes: tuple[str, ...], constants: tuple[int, ...] = ()) -> str | None:
    """Rejection of all but single nodes whose first input is of one of these types and not empty."""
    return (
        tensor_views.group_rejection(group)
        or tensor_views.untyped(data(group.anchor), dtypes)
        or tensor_views.empty(group)
        or fixed_inputs(group.anchor, constants)
    )


def _extremum(group: Group) -> Made:
    node = group.anchor
    outer, n, inner = along_axis(group, 0)
    last = bool(graph.attribute(node, "select_last_index", 0))
    launches = argument(group.op == "ArgMax", outer, n, inner, element(data(node)), last=last)
    return launches, {"x": data(node), "y": node.outputs[0]}


def _sum(group: Group) -> Made:
    node = group.anchor
    axis = graph.array(node.inputs[1])
    launches = cumulative_sum(
        *split(graph.static_shape(data(node)), int(axis.reshape(-1)[0])),
        element(data(node)),
        exclusive=bool(graph.attribute(node, "exclusive", 0)),
        reverse=bool(graph.attribute(node, "reverse", 0)),
    )
    return launches, {"x": data(node), "y": node.outputs[0]}


def _largest_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = _simple(group, (*ORDERED, "int8", "uint8"), (1,))
    if reason is None and len(group.outputs) < 2:
        return "one of both results is not read"
    return reason


def _largest(group: Group) -> Made:
    node = group.anchor
    outer, n, inner = along_axis(group)
    shape, axis = graph.static_shape(node.outputs[0]), graph.attribute(node, "axis", -1)
    largest = bool(graph.attribute(node, "largest", 1))
    launches = top_k(outer, n, inner, shape[axis], element(data(node)), largest=largest)
    return launches, {"x": data(node), "y": node.outputs[0], "index": node.outputs[1]}


def _groups_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = _simple(group, tensor_views.FLOATS)
    if reason is not None:
        return reason
    channels = graph.static_shape(data(group.anchor))[1]
    for value in (graph.operand(group.anchor, i) for i in (1, 2)):
        if graph.elements(value) != channels:
            return f"{value.name!r} has {graph.elements(value)} elements, not {channels}"
    return "statistics in 16 bits" if graph.attribute(group.anchor, "stash_type", 1) != 1 else None


def _groups(group: Group) -> Made:
    node = group.anchor
    batch, channels, *rest = graph.static_shape(data(node))
    groups = graph.attribute(node, "num_groups", channels)
    launches = group_norm(
        batch,
        groups,
        channels // groups,
        math.prod(rest),
        element(data(node)),
        float(graph.attribute(node, "epsilon", 1e-5)),
        element(graph.operand(node, 1)),
    )
    roles = {"scale": graph.operand(node, 1), "bias": graph.operand(node, 2)}
    return launches, {"x": data(node), "y": node.outputs[0], **roles}


def _scatter_rejection(group: Group, _context: PlanningContext) -> str | None:
    reduced = graph.attribute(group.anchor, "reduction", "none") != "none"
    reason = _simple(group, ORDERED if reduced else tensor_views.MOVED)
    shape = graph.static_shape(data(group.anchor)) if reason is None else ()
    if reason is not None or not shape:
        return reason or "data of rank 0"
    if group.op == "ScatterElements":
        return bad_indices(group.anchor, (shape[axis_of(group.anchor)],))
    if not reduced:
        return "of two updates at one place either may stay"
    return bad_indices(group.anchor, shape[: graph.static_shape(indices_of(group.anchor))[-1]])


def _scatter(group: Group) -> Made:
    node = group.anchor
    x, indices, updates = data(node), indices_of(node), graph.operand(node, 2)
    kind, index, reduction = element(x), element(indices), graph.attribute(node, "reduction", "none")
    sizes, shape = graph.static_shape(x), graph.static_shape(indices)
    if group.op == "ScatterElements":
        launches = scatter_elements(shape, sizes, axis_of(node), kind, index, reduction)
    else:
        depth = shape[-1]
        inner, count = math.prod(sizes[depth:]), math.prod(shape[:-1])
        launches = scatter_nd(sizes[:depth], inner, count, kind, index, reduction)
    return launches, {"data": x, "index": indices, "updates": updates, "y": node.outputs[0]}


ROWS: tuple[tuple[str, Rejection, Callable[[Group], Made]], ...] = (
    ("ArgMax", lambda group, _context: _simple(group, ORDERED), _extremum),
    ("ArgMin", lambda group, _context: _simple(group, ORDERED), _extremum),
    ("CumSum", lambda group, _context: _simple(group, ORDERED, (1,)), _sum),
    ("TopK", _largest_rejection, _largest),
    ("GroupNormalization", _groups_rejection, _groups),
    ("InstanceNormalization", _groups_rejection, _groups),
    ("ScatterElements", _scatter_rejection, _scatter),
    ("ScatterND", _scatter_rejection, _scatter),
)
IMPLEMENTATIONS = tuple(streaming(f"cuda.{op.lower()}", op, rejection, made) for op, rejection, made in ROWS)
