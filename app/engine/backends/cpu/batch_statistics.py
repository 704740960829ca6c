"""BatchNormalization by the statistics of its batch, as reductions and elementwise operators."""

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import Replacement, RewriteRule
from app.engine.rewrites.contrib import Nodes, first_of

KINDS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def batch_statistics(node: ir.Node) -> Replacement | None:
    """Normalize by mean and variance over all axes but the channels, and average these into what is given.

    Source: ONNX operator specification of BatchNormalization-15, training mode.
    """
    x, scale, bias, mean, variance = graph.operands(node)
    shape, kind = graph.shape(x), graph.element_type(x)
    if (
        not graph.attribute(node, "training_mode", 0)
        or shape is None
        or len(shape) < 2
        or x.dtype not in KINDS
    ):
        return None
    if any(v.dtype != x.dtype for v in (scale, bias, mean, variance)):
        return None
    n = Nodes(node)
    axes = n.constant([a for a in range(len(shape)) if a != 1])
    along, flat = n.constant([-1, *[1] * (len(shape) - 2)]), n.constant([-1])
    momentum = graph.attribute(node, "momentum", 0.9)
    center = n("ReduceMean", x, axes)
    distance = n("Sub", x, center)
    spread = n("ReduceMean", n("Mul", distance, distance), axes)
    epsilon = n.constant(graph.attribute(node, "epsilon", 1e-5), kind)
    root = n("Sqrt", n("Add", spread, epsilon))
    factor = n("Div", n("Reshape", scale, along), root)
    y = n("Add", n("Mul", distance, factor), n("Reshape", bias, along))
    old, new = n.constant(momentum, kind), n.constant(1 - momentum, kind)
    averages = [
        n("Add", n("Mul", before, old), n("Mul", n("Reshape", now, flat), new))
        for before, now in ((mean, center), (variance, spread))
    ]
    return Replacement(first_of(node, y, *averages), n.made)


REWRITES = (RewriteRule(batch_statistics, ("BatchNormalization",), backends=("numba-cpu",)),)
