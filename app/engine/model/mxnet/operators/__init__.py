"""Operators of MXNet in ONNX: one row an operator, from its name to a function that adds nodes."""

from collections.abc import Mapping

from app.engine.model.mxnet.operators import (
    control_flow,
    elementwise,
    indexing,
    linalg,
    neural,
    numpy,
    quantized,
    recurrent,
    shapes,
    special,
    vision,
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
    **special.ROWS,
    **linalg.ROWS,
    **vision.ROWS,
    **numpy.ROWS,
}
OPERANDS = neural.OPERANDS
