"""NVIDIA GPUs, for now as a model: costs, no kernels.

A plan for it tells what fits and what it would cost by the roofline of the described device; its
timings are predicted.
"""

from app.engine import graph
from app.engine.cost import predicted
from app.engine.plan import ELEMENTWISE, Call, Group
from app.engine.registry import Backend, Implementation, Known

BACKENDS = (Backend("cuda", devices=("cuda",), runs_here=False),)

# No control flow, no recurrence, nothing data-dependent.
_OPERATORS = (
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
_DTYPES = ("float32", "float16", "int8", "uint8", "int32", "int64", "bool")


def _unless(group: Group, _known: Known) -> str | None:
    for value in (*group.inputs, *group.outputs):
        if graph.is_dynamic(value):
            return f"value {value.name!r} has no static shape"
        kind = graph.dtype(value)
        if kind is None or kind.name not in _DTYPES:
            return f"value {value.name!r} is {kind}; the device has {', '.join(_DTYPES)}"
    return None


def _lower(_group: Group, _known: Known) -> tuple[Call, ...]:
    return ()


def _cost(group: Group, known: Known) -> float:
    return predicted(group, known.target)


IMPLEMENTATIONS = tuple(
    Implementation(f"cuda.{op.lower()}", op, "cuda", _unless, _lower, _cost) for op in _OPERATORS
)
