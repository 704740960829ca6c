"""Operators that resample."""

from app.engine.core.registry import Operator

OPERATORS = (
    Operator("Resize", "resize", 3, layout_rule="axis"),
    Operator("Upsample", "resize", layout_rule="axis"),
)
