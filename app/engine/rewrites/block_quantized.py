"""Rules that bring products with weights of 4 or 8 bits in blocks to one operator, MatMulNBits.

Its weights stay as small as they are, where a DequantizeLinear would be folded to float32.
"""

from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import Made, Replacement, RewriteRule, constant
from app.engine.model.runtime_operators import MICROSOFT
from app.engine.operators.block_quantized import BIAS, BLOCKS, packed

Array = np.ndarray[Any, Any]

NARROW = {  # element types: bits, and what makes them unsigned
    ir.DataType.INT4: (4, 8),
    ir.DataType.UINT4: (4, 0),
    ir.DataType.INT8: (8, 128),
    ir.DataType.UINT8: (8, 0),
}


def bias_apart(node: ir.Node) -> Replacement | None:
    """MatMulNBits with a bias = MatMulNBits + Add."""
    bias, output = graph.input_at(node, BIAS), node.outputs[0]
    if bias is None:
        return None
    product = ir.Node(MICROSOFT, node.op_type, list(node.inputs[:BIAS]), list(node.attributes.values()))
    (sums,) = product.outputs
    sums.name, sums.shape, sums.type = f"{output.name}.sums", output.shape, output.type
    total = ir.Node("", "Add", [sums, bias])
    return Replacement(total.outputs, [product, total])


def product_of_blocks(node: ir.Node) -> Replacement | None:
    """MatMul or Gemm with a dequantized constant = MatMulNBits (+ C)."""
    found = _blocks(node)
    if found is None:
        return None
    q, scales, zeros, bits, block = found
    n, x, output = scales.shape[0], graph.operand(node, 0), node.outputs[0]
    k = graph.static_shape(x)[-1]
    name = node.inputs[1].name if node.inputs[1] is not None else ""
    operands = [x, constant(packed(q, bits), f"{name}.blocks"), constant(scales, f"{name}.scales")]
    if zeros is not None:
        operands.append(constant(packed(zeros, bits), f"{name}.zeros"))
    sizes = {"K": k, "N": n, "bits": bits, "block_size": block}
    product = ir.Node(MICROSOFT, "MatMulNBits", operands, [ir.AttrInt64(a, v) for a, v in sizes.items()])
    addend = graph.input_at(node, 2)
    if addend is None:
        return Replacement(product.outputs, [product])
    (sums,) = product.outputs
    sums.name, sums.shape, sums.type = f"{output.name}.sums", output.shape, output.type
    total = ir.Node("", "Add", [sums, addend])
    return Replacement(total.outputs, [product, total])


def feeds_products(node: ir.Node) -> bool:
    """True if all that reads a DequantizeLinear are products whose weights stay in blocks."""
    (value,) = node.outputs
    readers = {use.node for use in value.uses()}
    return bool(readers) and not value.is_graph_output() and all(_blocks(r) is not None for r in readers)


def _blocks(node: ir.Node) -> tuple[Array, Array, Array | None, int, int] | None:
    """uint8[n, blocks, block], scales, zero points, bits and block of a product's weights; or None."""
    if node.op_type not in ("MatMul", "Gemm") or node.domain not in ("", "ai.onnx"):
        return None
    second = graph.input_at(node, 1)
    source = None if second is None else second.producer()
    x = graph.input_at(node, 0)
    if source is None or source.op_type != "DequantizeLinear" or x is None or x.dtype != ir.DataType.FLOAT:
        return None
    if graph.shape(x) is None or not graph.static_shape(x):
        return None
    turned = bool(graph.attribute(node, "transB", 0))
    if graph.attribute(node, "transA", 0) or any(
        graph.attribute(node, a, 1.0) != 1.0 for a in ("alpha", "beta")
    ):
        return None
    return _of_dequantized(source, turned)


def _of_dequantized(source: ir.Node, turned: bool) -> tuple[Array, Array, Array | None, int, int] | None:
    """The weights that a DequantizeLinear of constants [k, n], or [n, k] if `turned`, gives."""
    weights, scale, zero = (graph.input_at(source, i) for i in range(3))
    arrays = [graph.constant(v) for v in (weights, scale, zero)]
    if weights is None or weights.dtype not in NARROW or arrays[0] is None or arrays[1] is None:
        return None
    if (zero is not None and arrays[2] is None) or arrays[1].dtype != np.float32 or arrays[0].ndim != 2:
        return None
    bits, shift = NARROW[weights.dtype]
    block, axis = graph.attribute(source, "block_size", 0), graph.attribute(source, "axis", 1) % 2
    along_k = axis == (1 if turned else 0)
    if (bits == 8 and not block) or (block and not along_k) or (not block and arrays[1].size > 1 and along_k):
        return None
    own = next((b for b in reversed(BLOCKS) if (block or arrays[0].shape[int(turned)]) % b == 0), 0)
    own = own or (0 if block else BLOCKS[0])  # a column's one scale may be cut anywhere
    if not own:
        return None

    def unsigned(array: Array) -> Array:
        return (np.asarray(array, np.int16) + shift).astype(np.uint8)

    q = unsigned(arrays[0]) if turned else np.ascontiguousarray(unsigned(arrays[0]).T)
    n, k = q.shape
    blocks = -(-k // own)

    def spread(array: Array) -> Array:
        """One number a block of [n, blocks]."""
        if not block:
            return np.ascontiguousarray(np.broadcast_to(array.reshape(-1, 1), (n, blocks)))
        lying = array if turned else array.T
        return np.ascontiguousarray(np.repeat(lying, block // own, axis=1)[:, :blocks])

    whole = np.zeros((n, blocks * own), np.uint8)
    whole[:, :k] = q
    origin = unsigned(arrays[2]) if arrays[2] is not None else np.full(arrays[1].shape, shift, np.uint8)
    zeros = None if np.all(origin == 1 << (bits - 1)) else spread(origin)
    return whole.reshape(n, blocks, own), spread(arrays[1]), zeros, bits, own


_WHOLE = frozenset({*NARROW, ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT32})


def dequantize_blocks(node: ir.Node) -> Replacement | None:
    """(x - zero) * scale of blocks that a run computes, with an axis of blocks and one within them."""
    x, scale = graph.operand(node, 0), graph.operand(node, 1)
    zero, size = graph.input_at(node, 2), graph.attribute(node, "block_size", 0)
    shape, scales = graph.shape(x), graph.shape(scale)
    if not size or graph.is_constant(x) or shape is None or scales is None or 0 in shape:
        return None
    axis = graph.attribute(node, "axis", 1) % len(shape)
    real = node.outputs[0].dtype
    if x.dtype not in _WHOLE or real != ir.DataType.FLOAT or scale.dtype != real:
        return None
    made = Made(node)
    column = made.axes(*scales[: axis + 1], 1, *scales[axis + 1 :])
    found = _apart(made, made("Cast", x, to=int(real)), shape, axis, size)
    if zero is not None:
        found = made("Sub", found, made("Reshape", made("Cast", zero, to=int(real)), column))
    found = made("Mul", found, made("Reshape", scale, column))
    return Replacement([_joined(made, found, shape, axis, size)], made.nodes)


# Least and largest number of element types that rounded numbers are stored in.
_LIMITS = {
    kind: (np.iinfo(kind.numpy()).min, np.iinfo(kind.numpy()).max)
    for kind in (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16)
}


def quantize_blocks(node: ir.Node) -> Replacement | None:
    """Round(x / scale) + zero of blocks, with an axis of blocks and one within them."""
    x, scale, zero = graph.operand(node, 0), graph.operand(node, 1), graph.input_at(node, 2)
    size, shape, scales = graph.attribute(node, "block_size", 0), graph.shape(x), graph.shape(scale)
    kind, real = node.outputs[0].dtype, ir.DataType.FLOAT
    if not size or shape is None or scales is None or 0 in shape or kind not in _LIMITS:
        return None
    axis = graph.attribute(node, "axis", 1) % len(shape)
    if x.dtype != real or scale.dtype != real or graph.attribute(node, "precision", 0):
        return None
    made = Made(node)
    column = made.axes(*scales[: axis + 1], 1, *scales[axis + 1 :])
    apart = _apart(made, x, shape, axis, size)
    found = made("Round", made("Div", apart, made("Reshape", scale, column)))
    if zero is not None:
        found = made("Add", found, made("Reshape", made("Cast", zero, to=int(real)), column))
    least, largest = (made.number(n, x) for n in _LIMITS[kind])
    found = made("Cast", made("Clip", found, least, largest), to=int(kind))
    return Replacement([_joined(made, found, shape, axis, size)], made.nodes)


def _apart(made: Made, x: ir.Value, shape: tuple[int, ...], axis: int, size: int) -> ir.Value:
    """An axis as blocks, and an axis within them; zeros fill up the last block."""
    count, missing = -(-shape[axis] // size), -shape[axis] % size
    if missing:
        x = made("Pad", x, made.axes(*(missing * (i == len(shape) + axis) for i in range(2 * len(shape)))))
    return made("Reshape", x, made.axes(*shape[:axis], count, size, *shape[axis + 1 :]))


def _joined(made: Made, x: ir.Value, shape: tuple[int, ...], axis: int, size: int) -> ir.Value:
    """Blocks as one axis again, without what fills up the last."""
    found = made("Reshape", x, made.axes(*shape[:axis], -(-shape[axis] // size) * size, *shape[axis + 1 :]))
    if shape[axis] % size:
        found = made("Slice", found, made.axes(0), made.axes(shape[axis]), made.axes(axis))
    return found


def rows(*backends: str) -> tuple[RewriteRule, ...]:
    """The rules, for backends that compute MatMulNBits."""
    return (
        RewriteRule(bias_apart, ("MatMulNBits",), domain=MICROSOFT, backends=backends),
        RewriteRule(product_of_blocks, ("MatMul", "Gemm"), backends=backends),
    )
