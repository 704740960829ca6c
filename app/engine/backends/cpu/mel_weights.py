"""MelWeightMatrix of edges that change between runs, as elementwise operators in double precision.

Source: ONNX operator specification of MelWeightMatrix-17.
"""

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import Replacement, RewriteRule
from app.engine.rewrites.contrib import Nodes

EXACT = 2**20  # bins below which float32 holds corners, also those beyond the spectrum
_MEL, _HERTZ = 2595.0, 700.0  # of a scale that is 2595 log10(1 + f / 700)


def mel_weights(node: ir.Node) -> Replacement | None:
    """Triangles over bins of a spectrum, whose corners are computed from the edges of the spectrum."""
    sizes = [graph.constant(v) for v in node.inputs[:3]]
    edges = node.inputs[3:5]
    if any(s is None or s.size != 1 for s in sizes) or any(e is None or e.dtype is None for e in edges):
        return None
    bins, length, rate = (int(s.item()) for s in sizes if s is not None)
    if bins < 1 or length < 0 or rate < 1:
        return None
    n = Nodes(node)
    kind = graph.attribute(node, "output_datatype", int(ir.DataType.FLOAT))
    narrow = kind == ir.DataType.FLOAT and length < EXACT
    dtype, real = (np.float32, ir.DataType.FLOAT) if narrow else (np.float64, ir.DataType.DOUBLE)
    corners = n("Cast", _corners(n, edges, bins, length, rate), to=int(real))
    lower, center, higher = (n("Slice", corners, n.constant([i]), n.constant([i + bins])) for i in range(3))
    j, zero = n.constant(np.arange(length // 2 + 1)[:, None], dtype), n.constant(0, dtype)
    rise, fall = n("Sub", center, lower), n("Sub", higher, center)
    within = n("And", n("GreaterOrEqual", j, lower), n("LessOrEqual", j, center))
    rising = n("Where", within, n("Div", n("Sub", j, lower), rise), zero)
    peak = n("Cast", n("Equal", j, center), to=int(real))
    rising = n("Where", n("Equal", rise, zero), peak, rising)
    falls = n("And", n("GreaterOrEqual", j, center), n("Less", j, higher))
    weights = n("Where", falls, n("Div", n("Sub", higher, j), fall), rising)
    return Replacement([n("Cast", weights, to=kind)], n.made)


def _corners(n: Nodes, edges: Any, bins: int, length: int, rate: int) -> Any:
    """float64[bins + 2]: bins of the spectrum, at equal distances on the scale of mel."""

    def real(number: float) -> ir.Value:
        return n.constant(number, np.float64)

    low, high = (
        n("Mul", n("Log", n("Add", n("Div", hertz, real(_HERTZ)), real(1.0))), real(_MEL / math.log(10)))
        for hertz in (n("Reshape", n("Cast", e, to=int(ir.DataType.DOUBLE)), n.constant([1])) for e in edges)
    )
    step = n("Div", n("Sub", high, low), real(bins + 2))
    mel = n("Add", n("Mul", n.constant(np.arange(bins + 2), np.float64), step), low)
    hertz = n("Mul", n("Sub", n("Exp", n("Mul", mel, real(math.log(10) / _MEL))), real(1.0)), real(_HERTZ))
    return n("Floor", n("Div", n("Mul", hertz, real(length + 1)), real(rate)))


REWRITES = (RewriteRule(mel_weights, ("MelWeightMatrix",), backends=("numba-cpu",)),)
