"""Operators that read or write at indices given by a tensor."""

from app.engine.core.registry import Operator

OPERATORS = (
    Operator("Gather", "gather", 4, "densifies", "axis"),
    Operator("GatherElements", "gather", 4, "densifies", "axis"),
    Operator("GatherND", "gather", 4),
    Operator("ScatterElements", "gather", 4, "densifies", "axis"),
    Operator("ScatterND", "gather", 4),
    Operator("TensorScatter", "gather"),
    Operator("OneHot", "gather"),
)
