"""Rows of Pad and CenterCropPad: index lookups with a fill value."""

import numpy as np
import onnx_ir as ir

from app.engine import graph
from app.engine.backends.numba_cpu.lookup import Indices, lookup_calls
from app.engine.backends.numba_cpu.operands import data, fixed_inputs, itemsize, moved_seconds, unsuited
from app.engine.plan import Call, Group
from app.engine.registry import Implementation, Known


def padded_indices(size: int, before: int, after: int, mode: str) -> Indices:
    """The source index of every target index of a padded axis; negative where the fill value goes.

    Negative pads crop. `size` is positive unless the mode is constant.
    """
    wanted = np.arange(-before, size + after, dtype=np.int64)
    if mode == "edge":
        return np.clip(wanted, 0, size - 1)
    if mode == "wrap":
        return wanted % size
    if mode == "reflect":
        period = max(2 * (size - 1), 1)
        folded = wanted % period
        return np.minimum(folded, period - folded) if size > 1 else np.zeros_like(wanted)
    return np.where((wanted < 0) | (wanted >= size), -1, wanted)


def centered_indices(size: int, target: int) -> Indices:
    """Cropped or padded around the middle; the odd element is cut or added at the end."""
    if target <= size:
        start = (size - target) // 2
        return np.arange(start, start + target, dtype=np.int64)
    before = (target - size) // 2
    return padded_indices(size, before, target - size - before, "constant")


def pad_axes(node: ir.Node) -> list[Indices]:
    """The source index of every target index of each axis of a Pad."""
    shape = graph.static_shape(data(node))
    pads, axes = graph.constant(node.inputs[1]), graph.constant(graph.input_at(node, 3))
    assert pads is not None
    of = range(len(shape)) if axes is None else [int(a) % len(shape) for a in axes]
    amounts = {axis: (int(b), int(e)) for axis, b, e in zip(of, pads, pads[len(pads) // 2 :])}
    mode = graph.attribute(node, "mode", "constant")
    return [padded_indices(n, *amounts.get(axis, (0, 0)), mode) for axis, n in enumerate(shape)]


def pad_unless(group: Group, _known: Known) -> str | None:
    """Why a Pad cannot be an index lookup."""
    reason = unsuited(group) or fixed_inputs(group.anchor, (1, 3))
    if reason:
        return reason
    mode = graph.attribute(group.anchor, "mode", "constant")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        return f"mode {mode!r} of Pad is unknown"
    shape = graph.static_shape(data(group.anchor))
    if mode != "constant" and 0 in shape and graph.elements(group.anchor.outputs[0]):
        return f"Pad {mode!r} has nothing to repeat in {list(shape)}"
    return None


def _pad_lower(group: Group, _known: Known) -> tuple[Call, ...]:
    node = group.anchor
    x = data(node)
    shape = graph.static_shape(x)
    fill = graph.input_at(node, 2)
    return lookup_calls(pad_axes(node), shape, itemsize(x), x, node.outputs[0], fill)


def _center_unless(group: Group, _known: Known) -> str | None:
    return unsuited(group)


def _center_lower(group: Group, _known: Known) -> tuple[Call, ...]:
    x, y = data(group.anchor), group.anchor.outputs[0]
    shape = graph.static_shape(x)
    axes = [centered_indices(n, m) for n, m in zip(shape, graph.static_shape(y))]
    return lookup_calls(axes, shape, itemsize(x), x, y)


IMPLEMENTATIONS = (
    Implementation("pad.lookup", "Pad", "numba-cpu", pad_unless, _pad_lower, cost=moved_seconds),
    Implementation(
        "center_crop_pad.lookup",
        "CenterCropPad",
        "numba-cpu",
        _center_unless,
        _center_lower,
        cost=moved_seconds,
    ),
)
