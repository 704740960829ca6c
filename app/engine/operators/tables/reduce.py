"""Operators that reduce, scan or search along axes."""

from app.engine.core.registry import Operator

_CORE = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ArgMax", "CumSum", "TopK")
_COMPOSED = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
    "ArgMin",
    "CumProd",
    "Hardmax",
)

OPERATORS = (
    *(Operator(op, "reduce", level=4, storage_rule="contracts", layout_rule="axis") for op in _CORE),
    *(Operator(op, "reduce", storage_rule="contracts", layout_rule="axis") for op in _COMPOSED),
)
