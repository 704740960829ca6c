"""Operators of which each output element depends on one element of every input, broadcast."""

from app.engine.core.registry import Operator

_POINTWISE = (
    "Abs Neg Sign Floor Ceil Round Sqrt Exp Log Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Tanh "
    "Erf Not IsNaN Reciprocal IsInf BitwiseNot Add Sub Mul Div Mod Pow Min Max And Or Xor Equal Less Greater "
    "LessOrEqual GreaterOrEqual Where BitwiseAnd BitwiseOr BitwiseXor Sum Mean BitShift Relu LeakyRelu "
    "Sigmoid Clip PRelu Elu Selu Celu ThresholdedRelu HardSigmoid HardSwish Softplus Softsign Mish Swish "
    "Gelu Shrink Dropout Cast CastLike"
)
OPERATORS = (
    *(Operator(op, elementwise=True) for op in _POINTWISE.split()),
    Operator("QuantizeLinear", elementwise=True, per_axis=True),
    Operator("DequantizeLinear", elementwise=True, per_axis=True),
)
