"""Operators that these kernels compute better as several."""

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.token_images import FROM_TOKENS, POINTWISE, TO_TOKENS
from app.engine.core import graph
from app.engine.core.rewriter import Replacement, RewriteRule, constant, reshape, sole_reader, typed
from app.engine.operators.operands import data
from app.engine.rewrites import block_quantized, bounded
from app.engine.rewrites.as_images import conv1d, conv3d
from app.engine.rewrites.quantization import dequantize_weights, integer_rows
from app.engine.rewrites.transpose_sinking import permutation


def bias_apart(node: ir.Node) -> Replacement | None:
    """Conv with a bias that changes between runs = Conv + Add; kernels over blocks pack theirs offline."""
    bias, output = graph.input_at(node, 2), node.outputs[0]
    if bias is None or graph.is_constant(bias) or graph.constant(node.inputs[1]) is None:
        return None
    shape = graph.shape(output)
    if shape is None or len(shape) != 4:
        return None
    convolution = ir.Node("", "Conv", list(node.inputs[:2]), list(node.attributes.values()))
    (sums,) = convolution.outputs
    sums.name, sums.shape, sums.type = f"{output.name}.sums", output.shape, output.type
    along = constant(np.array([1, -1, 1, 1]), f"{bias.name}.along")
    image = ir.Node("", "Reshape", [bias, along])
    (addend,) = image.outputs
    addend.name, addend.shape, addend.type = f"{bias.name}.image", ir.Shape([1, shape[1], 1, 1]), bias.type
    total = ir.Node("", "Add", [sums, addend])
    return Replacement(total.outputs, [convolution, image, total])


def scaled_apart(node: ir.Node) -> Replacement | None:
    """Gemm that scales a column or number that changes between runs = Gemm with the scaled one."""
    c, beta, shape = graph.input_at(node, 2), graph.attribute(node, "beta", 1.0), graph.shape(node.outputs[0])
    if c is None or beta in (0.0, 1.0) or graph.is_constant(c) or shape is None:
        return None
    kind, own = graph.dtype(c), graph.shape(c)
    if kind is None or own is None or own[-1:] == shape[-1:] or kind.kind != "f":
        return None
    scale = constant(np.array(beta, kind), f"{c.name}.beta")
    column = typed(ir.Node("", "Mul", [c, scale]), c, own, f"{node.outputs[0].name}.scaled")
    kept = [a for name, a in node.attributes.items() if name != "beta"]
    product = ir.Node("", "Gemm", [*node.inputs[:2], *column.outputs], kept)
    return Replacement(product.outputs, [column, product])


def pool_of_last_channels(node: ir.Node) -> Replacement | None:
    """MaxPool of bytes between transposes from and to channels last = MaxPool of volumes [n, 1, h, w, c].

    Windows of one channel then lie beside each other; images in float32 have layouts for that.
    """
    pool = data(node).producer()
    if permutation(node) != TO_TOKENS or pool is None or pool.op_type != "MaxPool":
        return None
    swap, output = data(pool).producer(), node.outputs[0]
    if swap is None or permutation(swap) != FROM_TOKENS or sole_reader(data(node)) is not node:
        return None
    x = data(swap)
    if graph.shape(x) is None or output.dtype not in (ir.DataType.INT8, ir.DataType.UINT8):
        return None
    if len(pool.outputs) > 1 and pool.outputs[1].uses():
        return None
    pads = tuple(graph.attribute(pool, "pads", (0, 0, 0, 0)))
    extents = {name: graph.attribute(pool, name, (1, 1)) for name in ("kernel_shape", "strides", "dilations")}
    lists: dict[str, tuple[int, ...]] = {name: (*numbers, 1) for name, numbers in extents.items()}
    if graph.attribute(pool, "auto_pad", "NOTSET") == "NOTSET":
        lists["pads"] = (*pads[:2], 0, *pads[2:], 0)
    attributes = [ir.AttrInt64s(name, list(numbers)) for name, numbers in lists.items()]
    attributes += [a for name, a in pool.attributes.items() if name in ("auto_pad", "ceil_mode")]
    n, *image = graph.static_shape(x)
    volume = reshape(x, (n, 1, *image), f"{output.name}.volume")
    shape = graph.static_shape(output)
    largest = typed(
        ir.Node("", "MaxPool", volume.outputs, attributes),
        output, (n, 1, *shape[1:]), f"{output.name}.largest",
    )  # fmt: skip
    new = reshape(largest.outputs[0], shape, f"{output.name}.last")
    return Replacement(new.outputs, [volume, largest, new])


def _reaches_softmax(value: ir.Value, steps: int = 4) -> bool:
    """True if elementwise operators, so many at most, lead from a value to a Softmax."""
    return any(
        reader.op_type == "Softmax"
        or (steps > 0 and reader.op_type in POINTWISE and _reaches_softmax(reader.outputs[0], steps - 1))
        for reader in value.consumers()
    )


def row_times_transposed(node: ir.Node) -> Replacement | None:
    """Row times transposed matrix = matrix times column: rows of the matrix are read as they lie.

    Scores of an attention stay as they are, which is computed as a whole.
    """
    row, matrix = graph.operand(node, 0), graph.operand(node, 1)
    swap, shape = matrix.producer(), graph.shape(row)
    if swap is None or shape is None or len(shape) < 2 or shape[-2] != 1 or 0 in shape:
        return None
    own, output, axes = permutation(swap), node.outputs[0], len(shape)
    if own != (*range(axes - 2), axes - 1, axes - 2) or graph.is_constant(data(swap)):
        return None
    if output.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE) or _reaches_softmax(output):
        return None
    column = reshape(row, (*shape[:-2], shape[-1], 1), f"{output.name}.column")
    result = graph.static_shape(output)
    turned = (*result[:-2], result[-1], 1)
    product = ir.Node("", "MatMul", [data(swap), *column.outputs])
    sums = typed(product, output, turned, f"{output.name}.sums")
    new = reshape(sums.outputs[0], result, f"{output.name}.row")
    return Replacement(new.outputs, [column, sums, new])


def outer_product(node: ir.Node) -> Replacement | None:
    """Columns times rows = elementwise products."""
    column, row = graph.operand(node, 0), graph.operand(node, 1)
    first, second = graph.shape(column), graph.shape(row)
    if first is None or second is None or len(first) < 2 or len(second) < 2:
        return None
    if first[-1] != 1 or second[-2] != 1:
        return None
    product = ir.Node("", "Mul", [column, row])
    return Replacement(product.outputs, [product])


REWRITES = (
    RewriteRule(outer_product, ("MatMul",), backends=("numba-cpu",), by_extents=True),
    *integer_rows("numba-cpu"),
    *block_quantized.rows("numba-cpu"),
    RewriteRule(dequantize_weights, ("DequantizeLinear",), backends=("numba-cpu",)),
    RewriteRule(block_quantized.dequantize_blocks, ("DequantizeLinear",), backends=("numba-cpu",)),
    RewriteRule(block_quantized.quantize_blocks, ("QuantizeLinear",), backends=("numba-cpu",)),
    *conv1d.rows("numba-cpu"),
    *conv3d.rows("numba-cpu"),
    RewriteRule(
        pool_of_last_channels, ("Transpose",), nested=False, backends=("numba-cpu",), by_extents=True
    ),
    RewriteRule(row_times_transposed, ("MatMul",), nested=False, backends=("numba-cpu",), by_extents=True),
    RewriteRule(bias_apart, ("Conv",), nested=False, backends=("numba-cpu",)),
    RewriteRule(scaled_apart, ("Gemm",), backends=("numba-cpu",), by_extents=True),
    *bounded.rows("numba-cpu"),
)
