"""Operators of ONNX said in core operators, and those that are not.

A formula is an expression: calls and arithmetic signs are core operators (operands in order, attributes by
name), `a @ b` is `matmul`, `-a` `neg`, `a < b` `less`. Other names are operands, attributes, and constants
that follow from shapes and attributes: `places` are index grids, `shape` extents, `row` and `column` indices.
A test computes every formula with the reference evaluator's core operators.
"""

from app.engine.types.core_operator import Expressed, Outside

_QUANTIZED = "quantize({0}(dequantize(a, a_scale, a_zero), dequantize(b, b_scale, b_zero)), scale, zero)"
_INTEGER = "cast({0}(cast(a, to=double) - a_zero, cast(b, to=double) - b_zero), to=int32)"
_BLOCKS = "reshape(transpose(reshape(x, split), perm=order), shape)"
_LP = "sum(abs(x) ** p, axes) ** (1 / p)"

_FORMULAS = {
    "CastLike": "cast(x, to=dtype)",
    "Col2Im": "reshape(scatter_nd(zeros, places, reshape(x, flat), reduction='add'), shape)",
    "Compress": "take(x, reshape(nonzero(condition), flat), axis=axis)",
    "ConvInteger": _INTEGER.format("conv"),
    "CumProd": "prod(where(row < column, ones, x), axes, keepdims=0)",
    "DFT": "concat(cosines @ x, sines @ x, axis=axis)",
    "DeformConv": "reshape(w @ reshape(grid_sample(x, places, align_corners=1), columns), shape)",
    "DepthToSpace": _BLOCKS,
    "Dropout": "copy(x)",
    "Einsum": "sum(reshape(a, a_shape) * reshape(b, b_shape), axes, keepdims=0)",
    "EyeLike": "cast(equal(row, column), to=dtype)",
    "Flatten": "reshape(x, shape)",
    "Gemm": "alpha * (transpose(a) @ transpose(b)) + beta * c",
    "GlobalAveragePool": "mean(x, axes)",
    "GlobalLpPool": _LP,
    "GlobalMaxPool": "max(x, axes)",
    "ArgMin": "argmax(-x, axis=axis)",
    "Greater": "b < a",
    "Hardmax": "cast(equal(places, argmax(x, axis=axis)), to=dtype)",
    "InstanceNormalization": "group_norm(x, scale, bias, num_groups=channels, epsilon=epsilon)",
    "LpNormalization": f"x / {_LP}",
    "LpPool": "(avg_pool(abs(x) ** p, kernel_shape=kernel) * elements) ** (1 / p)",
    "MatMulInteger": _INTEGER.format("matmul"),
    "MaxRoiPool": "max(slice(x, starts, ends, sliced), axes)",
    "MaxUnpool": "reshape(put_along_axis(zeros, indices, flat, axis=0), shape)",
    "Mean": "(a + b + c) / count",
    "MelWeightMatrix": "maximum(minimum((places - left) / rise, (right - places) / fall), zero)",
    "OneHot": "where(equal(places, indices), on, off)",
    "QLinearConv": _QUANTIZED.format("conv"),
    "QLinearMatMul": _QUANTIZED.format("matmul"),
    "RNN": "reshape(scan(tanh(x @ w + h @ r + bias)), shape)",
    "Reciprocal": "1 / x",
    "ReverseSequence": "take_along_axis(x, places, axis=axis)",
    "RotaryEmbedding": "concat(a * cos - b * sin, a * sin + b * cos, axis=axis)",
    "STFT": "reshape((take(signal, places) * window) @ waves, shape)",
    "Size": "prod(shape_of(x), keepdims=0)",
    "SpaceToDepth": _BLOCKS,
    "Split": "slice(x, begin, end, axes)",
    "Squeeze": "reshape(x, shape)",
    "Sum": "a + b + c",
    "TensorScatter": "scatter_nd(past, places, update)",
    "Trilu": "where(column < row, zero, x)",
    "Unsqueeze": "reshape(x, shape)",
}  # fmt: skip
# Their function bodies in the specification are the rule; a test finds nothing in them that is not expressed.
_BODIES = (
    "AffineGrid BlackmanWindow Celu CenterCropPad DynamicQuantizeLinear Elu Gelu GreaterOrEqual "
    "HammingWindow HannWindow HardSigmoid HardSwish LessOrEqual LogSoftmax MeanVarianceNormalization Mish "
    "NegativeLogLikelihoodLoss PRelu RMSNormalization ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
    "ReduceSumSquare Selu Shrink SoftmaxCrossEntropyLoss Softplus Softsign SwiGLU Swish "
    "ThresholdedRelu"
)

EXPRESSED = (
    *(Expressed(op, formula) for op, formula in _FORMULAS.items()),
    *(Expressed(op) for op in _BODIES.split()),
)
OUTSIDE = tuple(
    Outside(tuple(ops.split()), reason)
    for ops, reason in (
        (
            "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer",
            "it computes strings, which core operators have none of",
        ),
        (
            "SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength "
            "SequenceMap SplitToSequence ConcatFromSequence Optional OptionalGetElement OptionalHasElement",
            "its values are sequences or optional, core operators know tensors only",
        ),
        (
            "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
            "it is random, results of core operators follow from their operands",
        ),
        ("ImageDecoder", "it decodes files"),
        ("Det", "a determinant needs elimination with pivots, for which there is no core operator"),
        ("BitCast", "it reads the bits of one element type as another"),
        ("Unique", "the extents of several of its results depend on the data in the same way"),
        (
            "CausalConvWithState LinearAttention",
            "it is a recurrence of its own, newer than the core operators",
        ),
    )
)
