"""Operators that slide a window over spatial axes."""

from app.engine.core.registry import Operator

OPERATORS = (
    Operator("MaxPool", "pool", level=3, layout_rule="channels"),
    Operator("AveragePool", "pool", level=3, layout_rule="channels"),
    Operator("LpPool", "pool", layout_rule="channels"),
    Operator("GlobalAveragePool", "pool", level=3, layout_rule="channels"),
    Operator("GlobalMaxPool", "pool", level=3, layout_rule="channels"),
    Operator("GlobalLpPool", "pool", layout_rule="channels"),
)
