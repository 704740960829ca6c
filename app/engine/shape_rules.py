"""Shape rules for operators that the inference library lacks."""

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir
from onnx_shape_inference import ShapeInferenceContext, registry

from app.engine import graph


@dataclass(frozen=True, slots=True)
class ShapeRule:
    """Sets shapes and dtypes of a node's outputs, for opsets from `since` on."""

    domain: str
    op: str
    infer: Callable[[ShapeInferenceContext, ir.Node], None]
    since: int = 1


def dynamic_quantize_lstm(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Y: [sequence, directions, batch, hidden]; Y_h and Y_c: [directions, batch, hidden]."""
    x = graph.input_at(node, 0)
    hidden = graph.attribute(node, "hidden_size", 0)
    if x is None or x.shape is None or x.shape.rank() != 3 or not hidden:
        return
    directions = 2 if graph.attribute(node, "direction", "forward") == "bidirectional" else 1
    sequence, batch, _ = x.shape
    shapes = ([sequence, directions, batch, hidden], [directions, batch, hidden], [directions, batch, hidden])
    for output, shape in zip(node.outputs, shapes):
        if x.dtype is not None:
            context.set_shape_and_dtype(output, ir.Shape(shape), x.dtype)


SHAPE_RULES = (ShapeRule("com.microsoft", "DynamicQuantizeLSTM", dynamic_quantize_lstm),)


def complete() -> None:
    """Give the inference library the rules it lacks; its own rules stay."""
    registry.collect()
    for rule in SHAPE_RULES:
        if not registry.has(rule.domain, rule.op):
            registry.register(rule.domain, rule.op, rule.since)(rule.infer)


def has_rule(domain: str, op: str) -> bool:
    """Whether anything can tell the type of the operator's outputs."""
    complete()
    return bool(registry.has(domain, op))
