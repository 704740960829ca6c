"""Operators of ONNX in MXNet's spelling: one row an operator, from its name to a function that adds nodes."""

from collections.abc import Mapping

from app.engine.report.mxnet.operators import elementwise, indexing, layers, movement, recurrent
from app.engine.report.mxnet.operators.elementwise import Row

ROWS: Mapping[str, Row] = {
    **elementwise.ROWS,
    **layers.ROWS,
    **movement.ROWS,
    **indexing.ROWS,
    **recurrent.ROWS,
}
