"""Seconds of the steps of a described accelerator."""

import itertools
from collections.abc import Mapping

import onnx_ir as ir

from app.engine.backends.cost_only.limits import dispatches
from app.engine.backends.cost_only.operands import Bound
from app.engine.core.placement import Held
from app.engine.cost import roofline
from app.engine.types.accelerator import Cost, Limits
from app.engine.types.target import Target

MICRO = 1e-6


def seconds(bound: Bound, cost: Cost | None, limits: Limits, target: Target) -> float:
    """Seconds of a step, padding computed and moved; without a cost the roofline of the target."""
    if cost is None:
        return roofline.predicted(bound.group, target)
    count = dispatches(bound, limits)
    moved = sum(demand.nbytes for demand in bound.demands if not demand.parameter)
    return count * _dispatch(cost, _macs(bound) / count, moved / count)


def loading(staged: Mapping[ir.Value, Held], target: Target) -> float:
    """Seconds of bringing constants from where they live to where a step asks for them."""
    bandwidth = {memory.name: memory.bandwidth for memory in target.memories}
    store = target.store
    return sum(
        held.nbytes / min(store.bandwidth, bandwidth[held.memory])
        for held in staged.values()
        if held.memory != store.name
    )


def moving(cost: Cost, nbytes: float) -> float:
    """Seconds of a step that moves bytes and computes nothing."""
    return _dispatch(cost, 0.0, nbytes)


def _macs(bound: Bound) -> float:
    """Multiply-accumulates, those of padded channels among them."""
    ratio = 1.0
    scaled = [bound.result, *([bound.operand] if bound.group.anchor.op_type in roofline.PRODUCTS else [])]
    for demand in scaled:
        if demand is not None and demand.shape and demand.shape[demand.axis]:
            ratio *= demand.padded[demand.axis] / demand.shape[demand.axis]
    return roofline.flops(bound.group) / 2 * ratio


def _dispatch(cost: Cost, macs: float, nbytes: float) -> float:
    computing = _between(cost.points, macs) * MICRO if cost.points else 0.0
    if cost.macs_per_second is not None and not cost.points:
        computing = macs / cost.macs_per_second
    moving = 0.0 if cost.bytes_per_second is None else nbytes / cost.bytes_per_second
    return cost.fixed_us * MICRO + max(computing, moving)


def _between(points: tuple[tuple[float, float], ...], macs: float) -> float:
    """Microseconds on the straight line through the points around, or through the last two."""
    if macs <= points[0][0] or len(points) == 1:
        return points[0][1]
    pairs = tuple(itertools.pairwise(points))
    (x0, y0), (x1, y1) = next((pair for pair in pairs if macs <= pair[1][0]), pairs[-1])
    return max(y0 + (y1 - y0) * (macs - x0) / (x1 - x0), 0.0)
