"""Operators that these kernels compute better as several."""

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import Replacement, RewriteRule, constant
from app.engine.rewrites import block_quantized, bounded, conv1d_as_2d
from app.engine.rewrites.quantization import dequantize_weights, integer_rows


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


REWRITES = (
    *integer_rows("numba-cpu"),
    *block_quantized.rows("numba-cpu"),
    RewriteRule(dequantize_weights, ("DequantizeLinear",), backends=("numba-cpu",)),
    RewriteRule(block_quantized.dequantize_blocks, ("DequantizeLinear",), backends=("numba-cpu",)),
    RewriteRule(block_quantized.quantize_blocks, ("QuantizeLinear",), backends=("numba-cpu",)),
    *conv1d_as_2d.rows("numba-cpu"),
    RewriteRule(bias_apart, ("Conv",), nested=False, backends=("numba-cpu",)),
    *bounded.rows("numba-cpu"),
)
