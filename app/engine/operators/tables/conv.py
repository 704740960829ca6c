"""Convolutions."""

from app.engine.core.registry import Operator

OPERATORS = (
    Operator("Conv", "conv", level=2, storage_rule="contracts", layout_rule="channels"),
    Operator("ConvTranspose", "conv", level=2, storage_rule="contracts", layout_rule="channels"),
    Operator("ConvInteger", "conv", level=5, storage_rule="contracts"),
    Operator("QLinearConv", "conv", level=5, storage_rule="contracts"),
)
