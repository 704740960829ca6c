"""A small accelerator that is only a model: costs, no kernels.

It stands for the class of devices with one SRAM, a fixed set of operators and 16 lanes. A plan
for it tells what fits and what it would cost; it cannot be run, so its timings are predicted.
"""

from app.engine import graph
from app.engine.cost import predicted
from app.engine.plan import ELEMENTWISE, Call, Group
from app.engine.registry import Backend, Implementation, Known

BACKENDS = (Backend("edge-npu", devices=("model",), runs_here=False),)

# What such devices offer: no control flow, no recurrence, nothing data-dependent.
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
_DTYPES = ("float32", "int8", "uint8", "int32", "int64", "bool")


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
    Implementation(f"edge_npu.{op.lower()}", op, "edge-npu", _unless, _lower, _cost) for op in _OPERATORS
)
