"""Operators on blocked images that onnxruntime's optimizer writes into files, in those of ONNX.

An image of blocked channels is taken for one of all channels of its blocks, in their plain order: operators
of ONNX between these compute the same of both. Weights are brought back to the order of ONNX.

Source: nchwc_transformer.cc, reorder.cpp and snchwc.cpp of onnxruntime.
"""

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.model.runtime_operators import BLOCKED, block_of_channels
from app.engine.rewrites.contrib import (
    CHANNELS_LAST,
    CHANNELS_SECOND,
    Build,
    Nodes,
    fused_conv,
    of_onnx,
    others,
    rows,
)


def reorder_input(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """Channels, zeros up to whole blocks behind them."""
    x, shape = graph.operand(node, 0), graph.shape(graph.operand(node, 0))
    if shape is None or len(shape) != 4:
        return None
    last = graph.attribute(node, "channels_last", 0)
    channels = shape[3 if last else 1]
    image = n("Transpose", x, perm=CHANNELS_SECOND) if last else x
    if added := -channels % block_of_channels():
        image = n("Pad", image, n.constant([0, 0, 0, 0, 0, added, 0, 0]))
    return [image if image is not x else n("Identity", x)]


def reorder_output(n: Nodes, node: ir.Node) -> list[ir.Value | None]:
    """The first channels."""
    limits = (n.constant([i]) for i in (0, graph.attribute(node, "channels", 0), 1))
    image = n("Slice", node.inputs[0], *limits)
    return [n("Transpose", image, perm=CHANNELS_LAST) if graph.attribute(node, "channels_last", 0) else image]


def conv(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """Conv, a sum, an activation; input channels of weights lie in blocks where there is a whole one."""
    w, block = graph.operand(node, 1), block_of_channels()
    shape = graph.shape(w)
    if shape is None or len(shape) != 4 or shape[0] % block or (shape[1] > block and shape[1] % block):
        return None
    inner = block if shape[1] % block == 0 else 1
    blocks = n("Reshape", w, n.constant([shape[0] // block, shape[1] // inner, *shape[2:], inner, block]))
    plain = n("Reshape", n("Transpose", blocks, perm=[0, 5, 1, 4, 2, 3]), n.constant(shape))
    return fused_conv(n, node, plain)


def upsample(n: Nodes, node: ir.Node) -> list[ir.Value | None]:
    """Resize by whole factors."""
    scales = n.constant(graph.attribute(node, "scales", ()), np.float32)
    told = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"} | others(node, "scales")
    return [n("Resize", node.inputs[0], None, scales, **told)]


BUILDS: tuple[tuple[str, Build, str], ...] = (
    ("ReorderInput", reorder_input, BLOCKED),
    ("ReorderOutput", reorder_output, BLOCKED),
    ("Conv", conv, BLOCKED),
    ("Upsample", upsample, BLOCKED),
    *((op, of_onnx(), BLOCKED) for op in ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")),
)
ROWS = rows(BUILDS)
