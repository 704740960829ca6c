"""Operators that rearrange elements and compute nothing."""

from app.engine.core.registry import Operator

OPERATORS = (
    Operator("Reshape", "shape", 4, "follows", views=True),
    Operator("Flatten", "shape", None, "follows", views=True),
    Operator("Squeeze", "shape", None, "follows", views=True),
    Operator("Unsqueeze", "shape", None, "follows", views=True),
    Operator("Identity", "shape", 0, "follows", "any", views=True),
    Operator("Transpose", "shape", 4, "follows", "permutes"),
    Operator("Concat", "shape", 4, "densifies", "axis"),
    Operator("Split", "shape", 4, "densifies", "axis"),
    Operator("Slice", "shape", 4, "densifies", "axis"),
    Operator("Expand", "shape", 4),
    Operator("Tile", "shape", 4),
    Operator("DepthToSpace", "shape"),
    Operator("SpaceToDepth", "shape"),
    Operator("Pad", "shape", 3, "densifies", "axis"),
    Operator("CenterCropPad", "shape", None, "densifies", "axis"),
    Operator("ReverseSequence", "shape"),
    Operator("Trilu", "shape"),
    Operator("EyeLike", "shape"),
)
