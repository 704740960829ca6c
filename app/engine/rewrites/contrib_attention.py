"""Attention and MultiHeadAttention of onnxruntime as Attention of ONNX, opset 23.

Source: docs/ContribOperators.md of onnxruntime.
"""

from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.model.runtime_operators import MICROSOFT
from app.engine.rewrites.contrib import Nodes, first_of, is_used, rows

HIDDEN = -10000.0  # what is added to the scores of keys that a mask hides, if no attribute tells


def _additive(n: Nodes, node: ir.Node, mask: ir.Value, sizes: tuple[int, int, int]) -> Any:
    """A mask of keys as what is added to scores [batch, 1, rows, keys]; None for other forms."""
    shape = graph.shape(mask)
    batch, length, keys = sizes
    if shape is None:
        return None
    if shape in ((batch,), (2 * batch,)) and batch > 0:  # where each sequence ends, and where it begins
        ends = n("Cast", mask, to=int(ir.DataType.INT64))
        places = n.constant(np.arange(keys)[None])
        last, first = ends, None
        if shape == (2 * batch,) and shape != (batch,):
            last, first = n("Split", ends, n.constant([batch, batch]), axis=0, outputs=2)
        seen = n("Less", places, n("Reshape", last, n.constant([batch, 1])))
        if first is not None:
            begun = n("GreaterOrEqual", places, n("Reshape", first, n.constant([batch, 1])))
            seen = n("And", seen, begun)
        shape, seen = (batch, keys), n("Cast", seen, to=int(ir.DataType.FLOAT))
    elif len(shape) in (2, 3) and shape[0] in (1, batch) and shape[-1] == keys:
        seen = n("Cast", mask, to=int(ir.DataType.FLOAT))
    else:
        return None
    level = graph.attribute(node, "mask_filter_value", HIDDEN)
    hidden = n("Mul", n("Sub", n.constant(1, np.float32), seen), n.constant(level, np.float32))
    if len(shape) == 3:
        return n("Unsqueeze", hidden, n.constant([1]))
    # onnxruntime does not broadcast masks along rows.
    line = n("Reshape", hidden, n.constant([shape[0], 1, 1, keys]))
    return n("Expand", line, n.constant([shape[0], 1, length, keys]))


def _mask(n: Nodes, node: ir.Node, given: tuple[ir.Value | None, ...], sizes: tuple[int, int, int]) -> Any:
    """What a mask and a bias add to scores of these sizes: (value or None, whether it can be told)."""
    mask, bias = given
    added = None
    if mask is not None:
        added = _additive(n, node, mask, sizes)
        if added is None:
            return None, False
    if bias is not None:
        added = bias if added is None else n("Add", added, bias)
    return added, True


def _attributes(node: ir.Node) -> dict[str, Any]:
    heads = graph.attribute(node, "num_heads", 0)
    found: dict[str, Any] = {"is_causal": int(graph.attribute(node, "unidirectional", 0))}
    scale = graph.attribute(node, "scale", 0.0)
    if scale:
        found["scale"] = scale
    return {**found, "q_num_heads": heads, "kv_num_heads": heads}


def multi_head_attention(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """Projected queries, keys and values, their biases and a cache."""
    q, k, v, bias, mask, added, past_k, past_v, *more = (graph.input_at(node, i) for i in range(10))
    if q is None or graph.shape(q) is None or any(m is not None for m in more) or is_used(node, 3):
        return None
    if k is None or v is None:  # packed into one tensor, which onnxruntime does not compute on a CPU
        return None
    if any(graph.shape(x) is None for x in (k, v, mask, added, past_k) if x is not None):
        return None
    attributes = _attributes(node)
    heads = attributes["q_num_heads"]
    shapes = [graph.static_shape(x) for x in (q, k, v)]
    batch, length, size = shapes[0]
    split = len(shapes[1]) == 4  # keys and values have an axis of heads, which queries must have too
    keys = shapes[1][2 if split else 1]
    old = 0 if past_k is None else graph.static_shape(past_k)[2]
    values: list[Any] = [q, k, v]
    if bias is not None:
        if split:
            return None
        parts = n("Split", bias, n.constant([s[-1] for s in shapes]), axis=0, outputs=3)
        values = [n("Add", x, b) for x, b in zip(values, parts)]
    hidden, told = _mask(n, node, (mask, added), (batch, length, keys + old))
    if not told:
        return None
    if split:
        wide = n("Reshape", q, n.constant([batch, length, heads, size // heads]))
        values[0] = n("Transpose", wide, perm=[0, 2, 1, 3])
        attributes = {a: x for a, x in attributes.items() if not a.endswith("num_heads")}
    outputs = 3 if past_k is not None or is_used(node, 1, 2) else 1
    found = n("Attention", *values, hidden, past_k, past_v, outputs=outputs, **attributes)
    y, *present = found if outputs == 3 else [found]
    if split:
        width = shapes[2][3]
        y = n("Reshape", n("Transpose", y, perm=[0, 2, 1, 3]), n.constant([batch, length, heads * width]))
    return first_of(node, y, *present)


def attention(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """A projection to queries, keys and values, then attention."""
    x, weights, bias, mask, past, added, *more = (graph.input_at(node, i) for i in range(7))
    if any(m is not None for m in more):
        return None
    if weights is None or not _fits(node, x, weights, mask, past, added):
        return None
    projected = n("MatMul", x, weights)
    projected = projected if bias is None else n("Add", projected, bias)
    return _attended(n, node, projected, (mask, past, added), graph.static_shape(weights)[1])


def quantized_attention(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """The same, projected by a product of integers."""
    x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (graph.input_at(node, i) for i in range(9))
    if w is None or not _fits(node, x, w, mask, past, None):
        return None
    sums = n("MatMulInteger", x, w, x_zero, w_zero)
    real = n("Mul", n("Cast", sums, to=int(ir.DataType.FLOAT)), n("Mul", x_scale, w_scale))
    return _attended(n, node, n("Add", real, bias), (mask, past, None), graph.static_shape(w)[1])


def _fits(node: ir.Node, x: ir.Value | None, weights: ir.Value, *given: ir.Value | None) -> bool:
    """True if shapes are known and no attribute asks for more than `_attended` gives."""
    if graph.attribute(node, "do_rotary", 0) or graph.attribute(node, "past_present_share_buffer", 0):
        return False
    return x is not None and all(v is None or graph.shape(v) is not None for v in (x, weights, *given))


def _attended(
    n: Nodes, node: ir.Node, projected: ir.Value, given: tuple[ir.Value | None, ...], columns: int
) -> list[ir.Value | None] | None:
    mask, past, added = given
    batch, length, _ = graph.static_shape(graph.operand(node, 0))
    sizes = list(graph.attribute(node, "qkv_hidden_sizes", ())) or [columns // 3] * 3
    old = 0 if past is None else graph.static_shape(past)[3]
    hidden, told = _mask(n, node, (mask, added), (batch, length, length + old))
    if not told:
        return None
    parts = n("Split", projected, n.constant(sizes), axis=2, outputs=3)
    cache: list[Any] = [None, None]
    if past is not None:
        halves = n("Split", past, n.constant([1, 1]), axis=0, outputs=2)
        cache = [n("Squeeze", p, n.constant([0])) for p in halves]
    outputs = 3 if past is not None or is_used(node, 1) else 1
    found = n("Attention", *parts, hidden, *cache, outputs=outputs, **_attributes(node))
    if outputs == 1:
        return first_of(node, found)
    y, *present = found
    both = [n("Unsqueeze", p, n.constant([0])) for p in present]
    return first_of(node, y, n("Concat", *both, axis=0))


ROWS = rows(
    (
        ("MultiHeadAttention", multi_head_attention, MICROSOFT),
        ("Attention", attention, MICROSOFT),
        ("QAttention", quantized_attention, MICROSOFT),
    )
)
