"""Rules for graphs that arrive quantized: what dequantizes, computes and quantizes again stays in integers.

A product of dequantized operands is the integer product, times both scales: exact sums take the
place of rounded ones. Quantization commutes with whatever moves elements or picks the largest.
"""

from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine import graph
from app.engine.rewrite import Replacement, Row, constant, sole_reader

Array = np.ndarray[Any, Any]

BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
LOWEST = {ir.DataType.INT8: -128, ir.DataType.UINT8: 0}
# f(c x) = c f(x) for c > 0.
HOMOGENEOUS = ("Relu", "LeakyRelu")
# Inputs that hold elements; the others say how they move. MaxPool has no pads to move: -inf never wins.
MOVES = ("Concat", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "MaxPool")
SHRINKING = ("Slice", "MaxPool")  # worth it only where nothing is left to quantize


class _Dequantized:
    """A DequantizeLinear of 8-bit elements whose scale and zero point are constants."""

    def __init__(self, value: ir.Value | None) -> None:
        node = None if value is None else value.producer()
        self.ok = False
        if node is None or node.op_type != "DequantizeLinear" or node.domain not in ("", "ai.onnx"):
            return
        source, scale = node.inputs[0], graph.constant(node.inputs[1])
        self.zero = graph.input_at(node, 2)
        zero = graph.constant(self.zero)
        if source is None or scale is None or source.dtype not in BYTES:
            return
        if (self.zero is not None and zero is None) or graph.attribute(node, "block_size", 0):
            return
        if scale.dtype != np.float32 or scale.ndim > 1:
            return
        self.x, self.scale, self.axis = source, scale.reshape(-1), graph.attribute(node, "axis", 1)
        self.origin = np.zeros(1, np.int64) if zero is None else zero.reshape(-1).astype(np.int64)
        self.ok = self.scale.size == 1 or graph.shape(source) is not None

    def along(self, axis: int) -> bool:
        """Whether there is one scale, or one for each position along this axis."""
        if self.scale.size == 1:
            return True
        rank = len(graph.static_shape(self.x))
        return bool(self.axis % rank == axis % rank)


def integer_product(node: ir.Node) -> Replacement | None:
    """Conv, MatMul or Gemm of dequantized operands = the integer product * scales + bias."""
    a, b = _Dequantized(node.inputs[0]), _Dequantized(node.inputs[1])
    output = node.outputs[0]
    if not a.ok or not b.ok or a.scale.size != 1 or output.dtype != ir.DataType.FLOAT:
        return None
    if graph.shape(a.x) is None or graph.shape(b.x) is None or graph.shape(output) is None:
        return None
    rank = len(graph.static_shape(output))
    is_conv, turned = node.op_type == "Conv", bool(graph.attribute(node, "transB", 0))
    weights, zero = graph.constant(b.x), b.zero
    if (is_conv or b.scale.size > 1) and weights is None:
        return None
    if min(len(graph.static_shape(a.x)), len(graph.static_shape(b.x))) < 2:
        return None
    if not b.along(0 if is_conv or turned else -1):
        return None
    second: ir.Value = b.x
    if node.op_type == "Gemm":
        factors = [graph.attribute(node, name, 1.0) for name in ("alpha", "beta")]
        if factors != [1.0, 1.0] or graph.attribute(node, "transA", 0) or weights is None:
            return None
        if turned:
            second = constant(np.ascontiguousarray(weights.T), f"{b.x.name}.turned")
    inputs = [a.x, second]
    if a.zero is not None or zero is not None:
        kind = graph.dtype(a.x)
        inputs.append(constant(a.origin.astype(kind).reshape(()), f"{a.x.name}.zero"))
    if zero is not None:
        many = b.origin.size > 1 and bool(np.any(b.origin != b.origin[0]))
        origin = b.origin if many else b.origin[:1].reshape(())
        inputs.append(constant(origin.astype(graph.dtype(b.x)), f"{b.x.name}.zero"))
    op = "ConvInteger" if is_conv else "MatMulInteger"
    attributes = list(node.attributes.values()) if is_conv else []
    sums = ir.Node("", op, inputs, attributes)
    _typed(sums, output, "sums", ir.DataType.INT32)
    cast = ir.Node("", "Cast", list(sums.outputs), [ir.AttrInt64("to", int(ir.DataType.FLOAT))])
    _typed(cast, output, "real", ir.DataType.FLOAT)
    scales = (a.scale.astype(np.float64) * b.scale).astype(np.float32)
    if scales.size > 1:
        scales = scales.reshape(-1, *(1,) * (rank - 2)) if is_conv else scales
    scaled = ir.Node("", "Mul", [cast.outputs[0], constant(scales, f"{output.name}.scale")])
    nodes = [sums, cast, scaled]
    bias = graph.input_at(node, 2)
    if bias is not None:
        _typed(scaled, output, "scaled", ir.DataType.FLOAT)
        known = _constant_bias(bias)
        addend: ir.Value = bias
        if known is not None:
            addend = constant(
                known.reshape(-1, *(1,) * (rank - 2)) if is_conv else known, f"{bias.name}.bias"
            )
        elif is_conv:
            return None
        nodes.append(ir.Node("", "Add", [scaled.outputs[0], addend]))
    return Replacement(nodes[-1].outputs, nodes)


def _constant_bias(value: ir.Value) -> Array | None:
    """A constant, also one that is dequantized from 32 bits."""
    found = graph.constant(value)
    node = value.producer()
    if found is not None or node is None or node.op_type != "DequantizeLinear":
        return found
    integers, scale = graph.constant(node.inputs[0]), graph.constant(node.inputs[1])
    zero = graph.constant(graph.input_at(node, 2))
    if integers is None or scale is None or integers.ndim != 1 or (zero is not None and zero.any()):
        return None
    bias: Array = (integers.astype(np.float64) * scale.reshape(-1)).astype(np.float32)
    return bias


def _typed(node: ir.Node, like: ir.Value, name: str, dtype: ir.DataType) -> None:
    """State name, type and shape of an inner value."""
    (value,) = node.outputs
    value.name, value.shape, value.type = f"{like.name}.{name}", like.shape, ir.TensorType(dtype)


def _levels(node: ir.Node) -> tuple[float, int] | None:
    """Scale and zero point of a QuantizeLinear or DequantizeLinear, where they are one constant each."""
    scale, zero = graph.constant(node.inputs[1]), graph.input_at(node, 2)
    origin = graph.constant(zero)
    if scale is None or scale.size != 1 or (zero is not None and (origin is None or origin.size != 1)):
        return None
    return float(scale.reshape(())), 0 if origin is None else int(origin.reshape(()))


def scale_before_quantization(node: ir.Node) -> Replacement | None:
    """Q(sums * s + b, scale) = Q(sums * (s / scale) + b / scale, 1), for the sums of an integer product.

    Also through functions with f(c x) = c f(x). As onnxruntime does; in the rare case that a quotient
    is a tie the other neighbour may come out.
    """
    levels, x = _levels(node), node.inputs[0]
    if levels is None or levels[0] == 1.0 or x is None or x.dtype != ir.DataType.FLOAT:
        return None
    chain: list[ir.Node] = []
    value: ir.Value | None = x
    while value is not None and sole_reader(value) is not None:
        producer = value.producer()
        if producer is None or producer.op_type not in (*HOMOGENEOUS, "Add", "Mul"):
            return None
        chain.append(producer)
        if producer.op_type == "Mul":
            break
        value = producer.inputs[0]
    if not chain or chain[-1].op_type != "Mul":
        return None
    if sum(n.op_type == "Add" for n in chain) > 1:
        return None
    cast = None if chain[-1].inputs[0] is None else chain[-1].inputs[0].producer()
    if cast is None or cast.op_type != "Cast" or cast.inputs[0] is None:
        return None
    product = cast.inputs[0].producer()
    if product is None or product.op_type not in ("MatMulInteger", "ConvInteger"):
        return None
    if any(n.op_type in ("Add", "Mul") and graph.constant(n.inputs[1]) is None for n in chain):
        return None
    nodes: list[ir.Node] = []
    current = chain[-1].inputs[0]
    for old in reversed(chain):
        inputs = [current, *old.inputs[1:]]
        if old.op_type in ("Add", "Mul"):
            array = graph.constant(old.inputs[1])
            assert array is not None
            scaled = (array.astype(np.float64) / levels[0]).astype(np.float32)
            inputs[1] = constant(scaled, f"{old.inputs[1].name}.scaled")  # type: ignore[union-attr]  # constant
        new = ir.Node("", old.op_type, inputs, list(old.attributes.values()))
        _typed(new, old.outputs[0], "scaled", ir.DataType.FLOAT)
        nodes.append(new)
        current = new.outputs[0]
    one = constant(np.ones((), np.float32), "one")
    nodes.append(
        ir.Node("", "QuantizeLinear", [current, one, *node.inputs[2:]], list(node.attributes.values()))
    )
    return Replacement(nodes[-1].outputs, nodes)


def drop_limit(node: ir.Node) -> Replacement | None:
    """Q(Relu(x)) = Q(x) where zero is the lowest level: what is below saturates."""
    levels, x = _levels(node), node.inputs[0]
    relu = None if x is None else x.producer()
    kind = node.outputs[0].dtype
    if relu is None or relu.op_type != "Relu" or levels is None or kind not in LOWEST:
        return None
    if levels[1] != LOWEST[kind]:
        return None
    new = ir.Node("", "QuantizeLinear", [relu.inputs[0], *node.inputs[1:]], list(node.attributes.values()))
    return Replacement(new.outputs, [new])


def drop_round_trip(node: ir.Node) -> Replacement | None:
    """Q(DQ(x)) = x for the same scale and zero point."""
    x = node.inputs[0]
    source = None if x is None else x.producer()
    if source is None or source.op_type != "DequantizeLinear" or source.inputs[0] is None:
        return None
    levels = _levels(node)
    if levels is None or levels != _levels(source) or source.inputs[0].dtype != node.outputs[0].dtype:
        return None
    return Replacement([source.inputs[0]])


def quantize_before_moving(node: ir.Node) -> Replacement | None:
    """Q(move(DQ(x))) = move(Q(DQ(x))): fewer bytes are moved, and often nothing is left to do."""
    levels, x = _levels(node), node.inputs[0]
    move = None if x is None else x.producer()
    if levels is None or move is None or x is None or sole_reader(x) is None or levels[0] <= 0:
        return None
    if move.op_type not in MOVES or move.domain not in ("", "ai.onnx") or len(move.outputs) != 1:
        return None
    count = len(move.inputs) if move.op_type == "Concat" else 1
    sources = [v for v in move.inputs[:count] if v is not None]
    producers = [v.producer() for v in sources]
    if len(sources) != count or any(
        p is None or p.op_type != "DequantizeLinear" or _levels(p) is None or p.inputs[0] is None
        or p.inputs[0].dtype not in BYTES
        for p in producers
    ):  # fmt: skip
        return None
    if move.op_type in SHRINKING and any(p is not None and _levels(p) != levels for p in producers):
        return None
    kind = node.outputs[0].dtype
    if kind not in BYTES or (move.op_type == "MaxPool" and kind == ir.DataType.INT8):
        return None
    nodes, moved = [], []
    for source in sources:
        own = ir.Node("", "QuantizeLinear", [source, *node.inputs[1:]], list(node.attributes.values()))
        own.outputs[0].name, own.outputs[0].shape = f"{source.name}.quantized", source.shape
        own.outputs[0].type = ir.TensorType(kind)
        nodes.append(own)
        moved.append(own.outputs[0])
    attributes = list(move.attributes.values())
    new = ir.Node("", move.op_type, [*moved, *move.inputs[count:]], attributes)
    return Replacement(new.outputs, [*nodes, new])


ROWS = (
    Row(drop_round_trip, ("QuantizeLinear",)),
    Row(drop_limit, ("QuantizeLinear",)),
    Row(quantize_before_moving, ("QuantizeLinear",)),
    Row(integer_product, ("Conv", "MatMul", "Gemm"), nested=False),
    Row(scale_before_quantization, ("QuantizeLinear",)),
)
