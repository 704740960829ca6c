"""Rules for graphs that arrive quantized: what dequantizes, computes and quantizes again stays in integers.

A product of dequantized operands is the integer product, times both scales: exact sums take the
place of rounded ones. Quantization commutes with whatever moves elements or picks the largest.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine import reference
from app.engine.core import graph
from app.engine.core.rewriter import Replacement, RewriteRule, constant, sole_reader
from app.engine.rewrites import block_quantized
from app.engine.types.errors import KernelError

Array = np.ndarray[Any, Any]

BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
LOWEST = {ir.DataType.INT8: -128, ir.DataType.UINT8: 0}
# f(c x) = c f(x) for c > 0.
HOMOGENEOUS = ("Relu", "LeakyRelu")
# Inputs that hold elements; the others say how they move. MaxPool has no pads to move: -inf never wins.
MOVES = ("Concat", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "MaxPool")
SHRINKING = ("Slice", "MaxPool")  # worth it only where nothing is left to quantize


# Key of `meta` of a node: an integer product that stands for one of dequantized operands.
DEQUANTIZED = "stowplan.dequantized"


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
        """True if there is one scale, or one for each position along this axis."""
        if self.scale.size == 1:
            return True
        rank = len(graph.static_shape(self.x))
        return bool(self.axis % rank == axis % rank)


def integer_convolution(node: ir.Node) -> Replacement | None:
    """Conv of dequantized operands = ConvInteger * scales + bias."""
    a, b = _Dequantized(node.inputs[0]), _Dequantized(node.inputs[1])
    bias = graph.input_at(node, 2)
    if not _fits(node, a, b) or not b.along(0) or graph.constant(b.x) is None:
        return None
    if bias is not None and _constant_bias(bias) is None:
        return None
    rank = len(graph.static_shape(node.outputs[0]))

    def along_channels(vector: Array) -> Array:
        return vector.reshape(-1, *(1,) * (rank - 2))

    return _integer("ConvInteger", node, a, b, b.x, along_channels)


def integer_matmul(node: ir.Node) -> Replacement | None:
    """MatMul of dequantized operands = MatMulInteger * scales."""
    a, b = _Dequantized(node.inputs[0]), _Dequantized(node.inputs[1])
    if not _fits(node, a, b) or not b.along(-1):
        return None
    if b.scale.size > 1 and graph.constant(b.x) is None:
        return None
    return _integer("MatMulInteger", node, a, b, b.x)


def integer_gemm(node: ir.Node) -> Replacement | None:
    """Gemm of dequantized operands = MatMulInteger * scales + bias; weights are turned offline."""
    a, b = _Dequantized(node.inputs[0]), _Dequantized(node.inputs[1])
    turned = bool(graph.attribute(node, "transB", 0))
    if not _fits(node, a, b) or not b.along(0 if turned else -1) or graph.attribute(node, "transA", 0):
        return None
    weights = graph.constant(b.x)
    if weights is None or any(graph.attribute(node, name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return None
    second = constant(np.ascontiguousarray(weights.T), f"{b.x.name}.turned") if turned else b.x
    return _integer("MatMulInteger", node, a, b, second)


def _fits(node: ir.Node, a: _Dequantized, b: _Dequantized) -> bool:
    """True if operands and output of a product are static, and the first operand has one scale."""
    if not a.ok or not b.ok or a.scale.size != 1 or node.outputs[0].dtype != ir.DataType.FLOAT:
        return False
    shapes = [graph.shape(v) for v in (a.x, b.x, node.outputs[0])]
    return all(shape is not None for shape in shapes) and all(len(s) > 1 for s in shapes[:2] if s is not None)


def _integer(
    op: str,
    node: ir.Node,
    a: _Dequantized,
    b: _Dequantized,
    second: ir.Value,
    aligned: Callable[[Array], Array] = lambda vector: vector,
) -> Replacement:
    """The sums of an integer product, times both scales, plus the bias.

    `aligned` shapes a vector of one element per output channel as it is broadcast over the sums.
    """
    output = node.outputs[0]
    inputs = [a.x, second]
    if a.zero is not None or b.zero is not None:
        kind = graph.dtype(a.x)
        inputs.append(constant(a.origin.astype(kind).reshape(()), f"{a.x.name}.zero"))
    if b.zero is not None:
        many = b.origin.size > 1 and bool(np.any(b.origin != b.origin[0]))
        origin = b.origin if many else b.origin[:1].reshape(())
        inputs.append(constant(origin.astype(graph.dtype(b.x)), f"{b.x.name}.zero"))
    attributes = list(node.attributes.values()) if op == "ConvInteger" else []
    sums = ir.Node("", op, inputs, attributes)
    sums.meta[DEQUANTIZED] = True
    _typed(sums, output, "sums", ir.DataType.INT32)
    cast = ir.Node("", "Cast", list(sums.outputs), [ir.AttrInt64("to", int(ir.DataType.FLOAT))])
    _typed(cast, output, "real", ir.DataType.FLOAT)
    scales = (a.scale.astype(np.float64) * b.scale).astype(np.float32)
    scales = aligned(scales) if scales.size > 1 else scales
    scaled = ir.Node("", "Mul", [cast.outputs[0], constant(scales, f"{output.name}.scale")])
    nodes = [sums, cast, scaled]
    bias = graph.input_at(node, 2)
    if bias is not None:
        _typed(scaled, output, "scaled", ir.DataType.FLOAT)
        known = _constant_bias(bias)
        addend = bias if known is None else constant(aligned(known), f"{bias.name}.bias")
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
            scaled = (graph.array(old.inputs[1]).astype(np.float64) / levels[0]).astype(np.float32)
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
    """Q(Relu(x)) = Q(x), Q(Clip(x)) = Q(x) where what the limits cut off saturates anyway."""
    levels, x = _levels(node), node.inputs[0]
    limiting = None if x is None else x.producer()
    kind = node.outputs[0].dtype
    limits = None if limiting is None else _limits(limiting)
    if limiting is None or limits is None or levels is None or kind not in LOWEST or levels[0] <= 0:
        return None
    low, high = (np.rint(np.float32(limit) / np.float32(levels[0])) + levels[1] for limit in limits)
    if low > LOWEST[kind] or high < LOWEST[kind] + 255:
        return None
    inputs = [limiting.inputs[0], *node.inputs[1:]]
    new = ir.Node("", "QuantizeLinear", inputs, list(node.attributes.values()))
    return Replacement(new.outputs, [new])


def _limits(node: ir.Node) -> tuple[float, float] | None:
    """The least and the largest number that a Relu or Clip gives; None of other nodes."""
    if node.op_type == "Relu":
        return 0.0, math.inf
    if node.op_type != "Clip" or node.outputs[0].dtype != ir.DataType.FLOAT:
        return None
    bounds = []
    for index, absent in ((1, -math.inf), (2, math.inf)):
        given = graph.input_at(node, index)
        bound = absent if given is None else graph.scalar(given)
        if bound is None or math.isnan(bound):
            return None
        bounds.append(bound)
    return (bounds[0], bounds[1]) if bounds[0] <= bounds[1] else None


def single_scale(node: ir.Node) -> Replacement | None:
    """DequantizeLinear with equal scales and equal zero points along an axis has one of each."""
    levels = [graph.constant(v) for v in node.inputs[1:]]
    if any(a is None or a.ndim != 1 or not a.size or np.any(a != a[0]) for a in levels):
        return None
    if graph.attribute(node, "block_size", 0):
        return None
    single = [constant(a[0].reshape(()), v.name or "") for a, v in zip(levels, node.inputs[1:])]  # type: ignore[index, union-attr]  # constants
    attributes = [a for a in node.attributes.values() if a.name != "axis"]
    new = ir.Node("", node.op_type, [node.inputs[0], *single], attributes)
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


def zero_point_apart(node: ir.Node) -> Replacement | None:
    """Sum (x - z) w = sum x w + sum (0 - z) w: a product without a zero point, and a correction made offline.

    For devices whose products know none. What lies outside an image counts for nothing on both sides,
    so a convolution's correction is an image: what it computes of one that is 0 everywhere.
    """
    first, second, output = node.inputs[0], node.inputs[1], node.outputs[0]
    weights, zero, other = (graph.constant(graph.input_at(node, i)) for i in (1, 2, 3))
    shape = None if first is None or graph.is_constant(first) else graph.shape(first)
    if shape is None or weights is None or zero is None or zero.size != 1 or not zero.any():
        return None
    if other is not None and other.any():
        return None
    operands = [np.zeros(shape, zero.dtype), weights, zero, *([] if other is None else [other])]
    correction = np.asarray(reference.prepare(node)(operands)[0])
    correction = correction[:1] if node.op_type == "ConvInteger" else correction[..., :1, :]
    sums = ir.Node("", node.op_type, [first, second], list(node.attributes.values()))
    sums.meta.update(node.meta)
    _typed(sums, output, "sums", ir.DataType.INT32)
    total = ir.Node("", "Add", [sums.outputs[0], constant(correction, f"{output.name}.shift")])
    return Replacement(total.outputs, [sums, total])


# Types and forms of weights that integer products, or generated code, dequantize on the way.
_COMPUTED = (*BYTES, ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT32)


def dequantize_weights(node: ir.Node) -> Replacement | None:
    """DequantizeLinear of constants of less than a byte, or with a scale a block, is a constant of floats."""
    arrays = [graph.constant(v) for v in node.inputs]
    source = node.inputs[0]
    if any(a is None and v is not None for a, v in zip(arrays, node.inputs)) or source is None:
        return None
    if source.dtype in _COMPUTED and not graph.attribute(node, "block_size", 0):
        return None
    if block_quantized.feeds_products(node):
        return None
    try:
        (weights,) = reference.prepare(node)(arrays)
    except KernelError:
        return None  # it will be reported when the node runs
    assert isinstance(weights, np.ndarray)
    return Replacement([constant(weights, node.outputs[0].name or "weights", node.outputs[0].dtype)])


ROWS = (
    RewriteRule(single_scale, ("DequantizeLinear",)),
    RewriteRule(drop_round_trip, ("QuantizeLinear",)),
    RewriteRule(drop_limit, ("QuantizeLinear",)),
    RewriteRule(quantize_before_moving, ("QuantizeLinear",)),
)


def integer_rows(*backends: str) -> tuple[RewriteRule, ...]:
    """The rules by which dequantized operands are multiplied as integers, for backends that can."""
    return (
        RewriteRule(integer_convolution, ("Conv",), nested=False, backends=backends),
        RewriteRule(integer_matmul, ("MatMul",), nested=False, backends=backends),
        RewriteRule(integer_gemm, ("Gemm",), nested=False, backends=backends),
        RewriteRule(scale_before_quantization, ("QuantizeLinear",), backends=backends),
    )
