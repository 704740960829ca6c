"""Operators each of whose output elements depends on one element of every input."""

from app.engine.registry import Operator, StorageRule

_KEEP_ZERO = frozenset(  # f(0) = 0: what is zero stays zero, so a sparse input may stay sparse
    [
        "Abs",
        "Neg",
        "Sign",
        "Floor",
        "Ceil",
        "Round",
        "Sqrt",
        "Sin",
        "Tan",
        "Asin",
        "Atan",
        "Sinh",
        "Asinh",
        "Atanh",
        "Tanh",
        "Erf",
        "Relu",
        "LeakyRelu",
        "PRelu",
        "Elu",
        "Selu",
        "Celu",
        "ThresholdedRelu",
        "HardSwish",
        "Softsign",
        "Mish",
        "Swish",
        "Gelu",
        "Shrink",
        "Mul",
        "Cast",
        "Identity",
    ]
)
_FAMILIES = {
    "unary": "Abs Neg Sign Floor Ceil Round Sqrt Reciprocal Exp Log Sin Cos Tan Asin Acos Atan Sinh "
    "Cosh Asinh Acosh Atanh Erf Not IsNaN IsInf BitwiseNot",
    "activation": "Tanh Sigmoid Relu LeakyRelu PRelu Elu Selu Celu ThresholdedRelu HardSigmoid HardSwish "
    "Softplus Softsign Mish Swish Gelu Shrink Clip Dropout",
    "binary": "Add Sub Mul Div Mod Pow Min Max Sum Mean And Or Xor Equal Less LessOrEqual Greater "
    "GreaterOrEqual BitShift BitwiseAnd BitwiseOr BitwiseXor Where",
    "cast": "Cast CastLike",
    "quantization": "QuantizeLinear DequantizeLinear",
}


def _storage(op: str) -> StorageRule:
    return "keeps_zero" if op in _KEEP_ZERO else "densifies"


OPERATORS = tuple(
    Operator(op, family, 1, _storage(op), "elementwise", elementwise=True)
    for family, ops in _FAMILIES.items()
    for op in ops.split()
)
