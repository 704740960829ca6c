"""Padding along every axis."""

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.operators.operands import data, fixed_inputs, group_rejection
from app.engine.operators.strides import Indices


def pad_axes(node: ir.Node) -> list[Indices]:
    """The source index of every target index of each axis of a Pad."""
    mode = graph.attribute(node, "mode", "constant")
    return [padded_indices(n, before, after, mode) for n, before, after in _amounts(node)]


def _amounts(node: ir.Node) -> list[tuple[int, int, int]]:
    """Extent of each axis, and elements before and after it."""
    shape = graph.static_shape(data(node))
    pads, axes = graph.array(node.inputs[1]), graph.constant(graph.input_at(node, 3))
    of = range(len(shape)) if axes is None else [int(a) % len(shape) for a in axes]
    amounts = {axis: (int(b), int(e)) for axis, b, e in zip(of, pads, pads[len(pads) // 2 :])}
    return [(n, *amounts.get(axis, (0, 0))) for axis, n in enumerate(shape)]


def pad_rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why a Pad cannot be an index lookup."""
    reason = group_rejection(group) or fixed_inputs(group.anchor, (1, 3))
    if reason:
        return reason
    mode = graph.attribute(group.anchor, "mode", "constant")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        return f"mode {mode!r} of Pad is unknown"
    shape = graph.static_shape(data(group.anchor))
    is_empty = any(n + min(before, 0) + min(after, 0) <= 0 for n, before, after in _amounts(group.anchor))
    if mode != "constant" and is_empty and graph.elements(group.anchor.outputs[0]):
        return f"Pad {mode!r} has nothing to repeat in {list(shape)}"
    return None


def padded_indices(size: int, before: int, after: int, mode: str) -> Indices:
    """The source index of every target index of a padded axis; negative where the fill value goes.

    Negative pads crop, and what is left is repeated: something is, unless the mode is constant.
    """
    first = max(-before, 0)
    left = size - first - max(-after, 0)
    if mode == "constant":
        wanted = np.arange(-before, size + after, dtype=np.int64)
        return np.where((wanted < 0) | (wanted >= size), -1, wanted)
    wanted = np.arange(-max(before, 0), left + max(after, 0), dtype=np.int64)
    if mode == "edge":
        return first + np.clip(wanted, 0, left - 1)
    if mode == "wrap":
        return first + wanted % max(left, 1)
    period = max(2 * (left - 1), 1)
    folded = wanted % period
    return first + (np.minimum(folded, period - folded) if left > 1 else np.zeros_like(wanted))
