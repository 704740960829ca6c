"""Bounds of a described accelerator: what one step, and one dispatch of it, may be."""

import math
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from app.engine.backends.cost_only.operands import Bound, Demand
from app.engine.core import graph
from app.engine.types.accelerator import Limits

WEIGHTED = ("Conv", "ConvInteger", "ConvTranspose")  # operators whose window is that of their second operand
INTEGER_PRODUCTS = ("ConvInteger", "MatMulInteger")


def rejection(bound: Bound, limits: Limits) -> str | None:
    """Reason why a step is too large, or has an attribute that the device has not; or None."""
    return next((reason for reason in _rejections(bound, limits) if reason is not None), None)


def dispatches(bound: Bound, limits: Limits) -> int:
    """Dispatches that a step takes: tiles of its first result."""
    result = bound.result
    if result is None or not limits.tile:
        return 1
    extents = result.padded[-len(limits.tile) :]
    tile = limits.tile[-len(extents) :] if extents else ()
    return max(math.prod(-(-extent // size) for extent, size in zip(extents, tile)), 1)


def _rejections(bound: Bound, limits: Limits) -> Iterator[str | None]:
    node = bound.group.anchor
    for demand in bound.demands:
        if not demand.parameter:
            yield _above(len(demand.shape), limits.rank, f"axes of {demand.value.name!r}")
    yield _above(max(_kernel(node), default=0), limits.kernel, f"a kernel of {node.op_type}")
    for name, most in (("strides", limits.stride), ("dilations", limits.dilation)):
        yield _above(max(graph.attribute(node, name, ()), default=0), most, name)
    for end in (bound.operand, bound.result):
        if end is not None and end.shape:
            yield _above(_channels(end), limits.channels, f"channels of {end.value.name!r}")
    yield _above(
        sum(d.nbytes for d in bound.demands if not d.parameter), limits.nbytes, "byte of operands and results"
    )
    yield _above(dispatches(bound, limits), limits.dispatches, f"dispatches of tiles of {list(limits.tile)}")
    yield _attributes(node, limits)
    if limits.depthwise is not None and node.op_type in WEIGHTED and _is_depthwise(node) != limits.depthwise:
        yield (
            "it takes only depthwise convolutions"
            if limits.depthwise
            else "it takes no depthwise convolution"
        )
    if not limits.zero_points:
        yield next((reason for n in bound.group.nodes if (reason := _zero_points(n))), None)


def _above(found: int, most: int | None, what: str) -> str | None:
    return None if most is None or found <= most else f"{found} {what}, at most {most}"


def _kernel(node: ir.Node) -> Sequence[int]:
    if node.op_type in WEIGHTED:
        return graph.static_shape(graph.operand(node, 1))[2:]
    return graph.attribute(node, "kernel_shape", ())


def _channels(demand: Demand) -> int:
    """Extent of the second axis of an image, of the last axis of others."""
    return demand.shape[1 if len(demand.shape) > 3 else -1]


def _attributes(node: ir.Node, limits: Limits) -> str | None:
    for name, known in limits.attributes.items():
        found: object = graph.attribute(node, name, None)
        values: Sequence[object] = (found,)
        if found is None or isinstance(found, list | tuple):
            values = found or ()
        unknown = next((v for v in values if v not in known), None)
        if unknown is not None:
            return f"attribute {name!r} is {unknown!r}; the row takes {', '.join(map(str, known))}"
    return None


def _is_depthwise(node: ir.Node) -> bool:
    channels = graph.static_shape(graph.operand(node, 0))[1]
    return channels > 1 and graph.attribute(node, "group", 1) == channels


def _zero_points(node: ir.Node) -> str | None:
    if node.op_type not in INTEGER_PRODUCTS:
        return None
    for index in (2, 3):
        value = graph.input_at(node, index)
        found = graph.constant(value)
        if value is not None and (found is None or found.any()):
            return f"zero point {value.name!r} is not 0"
    return None
