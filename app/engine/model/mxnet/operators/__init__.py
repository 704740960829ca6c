"""Operators of MXNet in ONNX: one row an operator, from its name to a function that adds nodes."""

from collections.abc import Mapping

from app.engine.model.mxnet.operators import (
    control_flow,
    elementwise,
    indexing,
    neural,
    quantized,
    recurrent,
    shapes,
)
from app.engine.model.mxnet.operators.elementwise import Translation

ROWS: Mapping[str, Translation] = {
    **elementwise.ROWS,
    **neural.ROWS,
    **shapes.ROWS,
    **indexing.ROWS,
    **recurrent.ROWS,
    **control_flow.ROWS,
    **quantized.ROWS,
}
OPERANDS = neural.OPERANDS
