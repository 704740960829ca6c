"""Rows of Pad and CenterCropPad: index lookups with a fill value."""

import numpy as np

from app.engine.backends.cpu.lookup import lookup_calls
from app.engine.backends.cpu.rows import single_rejection
from app.engine.core import graph
from app.engine.core.calls import Call
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.operands import data, itemsize, moved_seconds
from app.engine.operators.pad_geometry import pad_axes, pad_rejection, padded_indices
from app.engine.operators.strides import Indices


def centered_indices(size: int, target: int) -> Indices:
    """Cropped or padded around the middle; the odd element is cut or added at the end."""
    if target <= size:
        start = (size - target) // 2
        return np.arange(start, start + target, dtype=np.int64)
    before = (target - size) // 2
    return padded_indices(size, before, target - size - before, "constant")


def _pad_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    x = data(node)
    shape = graph.static_shape(x)
    fill = graph.input_at(node, 2)
    return lookup_calls(pad_axes(node), shape, itemsize(x), x, node.outputs[0], fill)


def _center_lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    x, y = data(group.anchor), group.anchor.outputs[0]
    shape = graph.static_shape(x)
    axes = [centered_indices(n, m) for n, m in zip(shape, graph.static_shape(y))]
    return lookup_calls(axes, shape, itemsize(x), x, y)


IMPLEMENTATIONS = tuple(
    Implementation(name, op, "numba-cpu", rejection, lower, cost=moved_seconds)
    for name, op, rejection, lower in (
        ("pad.lookup", "Pad", pad_rejection, _pad_lower),
        ("center_crop_pad.lookup", "CenterCropPad", single_rejection, _center_lower),
    )
)
