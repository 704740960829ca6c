"""Operators of ONNX in MXNet's spelling: one row an operator, from its name to a function that adds nodes."""

from collections.abc import Mapping

from app.engine.report.mxnet.operators import (
    control_flow,
    elementwise,
    indexing,
    layers,
    movement,
    recurrent,
    transforms,
)
from app.engine.report.mxnet.operators.elementwise import Row

ROWS: Mapping[str, Row] = {
    **elementwise.ROWS,
    **layers.ROWS,
    **movement.ROWS,
    **indexing.ROWS,
    **recurrent.ROWS,
    **control_flow.ROWS,
    **transforms.ROWS,
}
# Operators that MXNet does not compute in float16 on CPUs ("FP16 gemm on cpu not implemented"), or whose sums
# it rounds: float32 is taken, and the result is rounded.
WIDENED = frozenset(
    {
        *layers.ROWS,
        *recurrent.ROWS,
        *(op for op in indexing.ROWS if op.startswith(("Reduce", "Arg"))),
        "Resize",
    }
)
