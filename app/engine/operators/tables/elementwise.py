"""Operators of which each output element depends on one element of every input, broadcast."""

from app.engine.core.registry import Operator, StorageRule

# The core operator set, then what it is composed into or left out of it.
_FAMILIES = {
    "unary": (
        "Abs Neg Sign Floor Ceil Round Sqrt Exp Log Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh "
        "Tanh Erf Not IsNaN",
        "Reciprocal IsInf BitwiseNot",
    ),
    "binary": (
        "Add Sub Mul Div Mod Pow Min Max And Or Xor Equal Less Greater LessOrEqual GreaterOrEqual Where "
        "BitwiseAnd BitwiseOr BitwiseXor",
        "Sum Mean BitShift",
    ),
    "activation": (
        "Relu LeakyRelu Sigmoid Clip",
        "PRelu Elu Selu Celu ThresholdedRelu HardSigmoid HardSwish Softplus Softsign Mish Swish Gelu Shrink "
        "Dropout",
    ),
}
# f(0, ..., 0) = 0: where all operands are zero the result is, so sparse operands give a sparse result.
_KEEPS_ZERO = (
    "Abs Neg Sign Floor Ceil Round Sqrt Sin Tan Asin Atan Sinh Asinh Atanh Tanh Erf "
    "Add Sub Mul Min Max And Or Xor BitwiseAnd BitwiseOr BitwiseXor Sum Mean BitShift "
    "Relu LeakyRelu PRelu Elu Selu Celu ThresholdedRelu HardSwish Softsign Mish Swish Gelu Shrink Dropout "
    "Cast CastLike"
)


def _row(op: str, family: str, level: int | None) -> Operator:
    rule: StorageRule = "keeps_zero" if op in _KEEPS_ZERO.split() else "densifies"
    return Operator(op, family, level, rule, "elementwise", elementwise=True)


OPERATORS = (
    *(
        _row(op, family, level)
        for family, names in _FAMILIES.items()
        for ops, level in zip(names, (1, None))
        for op in ops.split()
    ),
    _row("Cast", "cast", 0),
    _row("CastLike", "cast", None),
    _row("QuantizeLinear", "quantize", 5),
    _row("DequantizeLinear", "quantize", 5),
)
