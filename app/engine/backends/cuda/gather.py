"""Rows of reads and writes at indices: Gather and its kin, Scatter."""

import math

from app.engine.backends.cuda import tensor_views
from app.engine.backends.cuda.launch_calls import BACKEND, blocks_of, calls, seconds
from app.engine.backends.cuda.tensor_views import element
from app.engine.core import graph
from app.engine.core.calls import Call
from app.engine.core.group import Group, of_group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.indexing import axis_of, bad_indices, indexed_axes, indices_of
from app.engine.operators.operands import data
from app.kernels.cuda.gather import gather_elements, gather_nd
from app.kernels.cuda.kernel import Launches


def _along_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = tensor_views.group_rejection(group)
    if reason is not None:
        return reason
    shape = graph.static_shape(data(group.anchor))
    if not shape:
        return f"{group.op} needs data of rank 1 or more"
    return tensor_views.empty(group) or bad_indices(group.anchor, (shape[axis_of(group.anchor)],))


def _nd_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = tensor_views.group_rejection(group) or tensor_views.empty(group)
    if reason is not None:
        return reason
    axes = indexed_axes(group.anchor, graph.attribute(group.anchor, "batch_dims", 0))
    return bad_indices(group.anchor, tuple(n for n, _ in axes))


@of_group
def _launches(group: Group) -> Launches:
    node = group.anchor
    x, indices = data(node), indices_of(node)
    shape, kind, index = graph.static_shape(x), element(x), element(indices)
    if group.op == "GatherElements":
        return gather_elements(graph.static_shape(node.outputs[0]), shape, axis_of(node), kind, index)
    if group.op == "Gather":
        axis = axis_of(node)
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        return gather_nd(outer, (shape[axis],), inner, graph.elements(indices), kind, index, shared=True)
    first = graph.attribute(node, "batch_dims", 0)
    depth = graph.static_shape(indices)[-1]
    sizes, batch = shape[first : first + depth], math.prod(shape[:first])
    count = graph.elements(indices) // (depth * batch)
    return gather_nd(batch, sizes, math.prod(shape[first + depth :]), count, kind, index)


def _lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    return calls(_launches(group), {"x": data(node), "index": indices_of(node), "y": node.outputs[0]})


def _seconds(group: Group, context: PlanningContext) -> float:
    node = group.anchor
    nbytes = 2 * graph.nbytes(node.outputs[0]) + graph.nbytes(indices_of(node))
    return seconds(context, nbytes=nbytes, blocks=blocks_of(_launches(group)))


IMPLEMENTATIONS = (
    Implementation("cuda.gather", "Gather", BACKEND, _along_rejection, _lower, _seconds, rank=1),
    Implementation("cuda.gather_elements", "GatherElements", BACKEND, _along_rejection, _lower, _seconds),
    Implementation("cuda.gather_nd", "GatherND", BACKEND, _nd_rejection, _lower, _seconds),
)
