"""One row an operator: gradients of operands from those of outputs."""

from app.engine.gradient.tables import (
    convolution,
    elementwise,
    indexing,
    losses,
    movement,
    normalization,
    pooling,
    products,
    reductions,
    resampling,
)

RULES = {
    op: rule
    for table in (
        elementwise,
        movement,
        indexing,
        reductions,
        products,
        convolution,
        pooling,
        normalization,
        losses,
        resampling,
    )
    for rule in table.ROWS
    for op in rule.ops
}

# Operators whose outputs do not depend on their operands, or do so by steps: their gradient is zero.
CONSTANT = frozenset({
    "And", "ArgMax", "ArgMin", "Bernoulli", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
    "BitwiseXor", "Ceil", "Constant", "ConstantOfShape", "Equal", "EyeLike", "Floor", "Greater",
    "GreaterOrEqual", "Hardmax", "IsInf", "IsNaN", "Less", "LessOrEqual", "Multinomial",
    "NonMaxSuppression", "NonZero", "Not", "Or", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike", "Range", "Round", "Shape", "Sign", "Size", "Xor",
})  # fmt: skip
