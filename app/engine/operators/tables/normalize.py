"""Operators that normalize along axes or across channels."""

from app.engine.core.registry import Operator

OPERATORS = (
    Operator("Softmax", "normalize", level=3, layout_rule="axis"),
    Operator("LogSoftmax", "normalize", layout_rule="axis"),
    Operator("LayerNormalization", "normalize", level=3, layout_rule="axis"),
    Operator("RMSNormalization", "normalize", layout_rule="axis"),
    Operator("GroupNormalization", "normalize", level=3, layout_rule="barrier"),
    Operator("InstanceNormalization", "normalize", layout_rule="channels"),
    Operator("BatchNormalization", "normalize", level=3, layout_rule="channels"),
    Operator("LRN", "normalize", level=3, layout_rule="channels"),
    Operator("LpNormalization", "normalize", layout_rule="axis"),
    Operator("MeanVarianceNormalization", "normalize", layout_rule="axis"),
)
