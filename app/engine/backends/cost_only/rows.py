"""Rows of accelerators that are only a model: costs by the roofline, no kernels."""

from collections.abc import Callable

from app.engine.core import graph
from app.engine.core.calls import Call
from app.engine.core.group import ELEMENTWISE, Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import predicted

# No recurrence, nothing data-dependent.
OPERATORS = (
    ELEMENTWISE,
    "Conv",
    "ConvTranspose",
    "MatMul",
    "Gemm",
    "MaxPool",
    "AveragePool",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "ReduceMean",
    "ReduceSum",
    "ReduceMax",
    "Softmax",
    "LayerNormalization",
    "Concat",
    "Split",
    "Slice",
    "Pad",
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
    "Gather",
    "Resize",
    "DepthToSpace",
    "SpaceToDepth",
)


def rows(backend: str, dtypes: tuple[str, ...], more: tuple[str, ...] = ()) -> tuple[Implementation, ...]:
    """One row per operator, those in `more` among them, for static tensors of these dtypes."""
    return tuple(
        Implementation(f"{backend}.{op.lower()}", op, backend, _rejection(dtypes), _no_calls, _predicted)
        for op in (*OPERATORS, *more)
    )


def _rejection(dtypes: tuple[str, ...]) -> Callable[[Group, PlanningContext], str | None]:
    def rejection(group: Group, _context: PlanningContext) -> str | None:
        for value in (*group.inputs, *group.outputs):
            if graph.is_dynamic(value):
                return f"value {value.name!r} has no static shape"
            kind = graph.dtype(value)
            if kind is None or kind.name not in dtypes:
                return f"value {value.name!r} is {kind}; the device has {', '.join(dtypes)}"
        return None

    return rejection


def _no_calls(_group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    return ()


def _predicted(group: Group, context: PlanningContext) -> float:
    return predicted(group, context.target)
