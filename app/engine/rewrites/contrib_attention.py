"""Attention and MultiHeadAttention of onnxruntime as Attention of ONNX, opset 23.

Source: docs/ContribOperators.md of onnxruntime.
"""

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.model.runtime_operators import MICROSOFT
from app.engine.rewrites.contrib import Nodes, first_of, is_used, rotated, rows

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


# Inputs of GroupQueryAttention by place, and attributes that ask for a cache or outputs of another form.
_EXTRAS, _OTHERS = (9, 10, 11), (12, 13, 14, 15)
_OTHER_FORMS = ("qk_output", "k_quant_type", "v_quant_type", "sliding_window_cache", "kv_cache_bit_width")


def group_query_attention(n: Nodes, node: ir.Node) -> list[ir.Value | None] | None:
    """Attention to a cache with positions, a bias or sinks of its own, or that looks ahead.

    Without these it stays one node, which writes the cache in place.
    """
    given = [graph.input_at(node, i) for i in range(16)]
    extras = any(given[i] is not None for i in _EXTRAS) or graph.attribute(node, "smooth_softmax", 0) == 1
    if not extras and graph.attribute(node, "causal", 1):
        return None
    if any(graph.attribute(node, a, 0) not in (0, "", "NONE", -1) for a in _OTHER_FORMS) or is_used(node, 3):
        return None
    if any(given[i] is not None for i in _OTHERS) or given[5] is None:
        return None
    present = graph.shape(node.outputs[1]) if len(node.outputs) > 1 else None
    if present is None or any(v is not None and graph.shape(v) is None for v in given):
        return None
    of = _Grouped(n, node, present[2])
    heads, keys, values = of.projected(given[:3])
    if graph.attribute(node, "do_rotary", 0):
        heads, keys = of.turned((heads, keys), given[7:10])
    cache = [of.cached(new, past) for new, past in zip((keys, values), given[3:5])]
    return first_of(node, of.attended(heads, cache, given[10], given[11]), *cache)


class _Grouped:
    """Sizes of a GroupQueryAttention, and the nodes in its place."""

    def __init__(self, n: Nodes, node: ir.Node, keys: int) -> None:
        self.n, self.node, self.keys = n, node, keys
        self.heads, self.groups = (graph.attribute(node, a, 0) for a in ("num_heads", "kv_num_heads"))
        self.batch, self.rows, columns = graph.static_shape(graph.operand(node, 0))
        packed = graph.input_at(node, 1) is None
        self.width = columns // (self.heads + 2 * self.groups if packed else self.heads)
        kind = graph.operand(node, 0).dtype or ir.DataType.FLOAT
        self.kind = kind.numpy()
        last = n("Cast", graph.operand(node, 5), to=int(ir.DataType.INT64))
        total = n("Max", n("Add", last, n.constant([1])), n.constant([self.rows]))
        self.total = n("Reshape", total, n.constant([self.batch, 1]))
        self.old = n("Sub", self.total, n.constant(self.rows))  # keys before the new ones

    def projected(self, given: list[ir.Value | None]) -> list[Any]:
        """Queries, keys and values, [batch, rows, heads, width]."""
        counts = (self.heads, self.groups, self.groups)
        parts: list[Any] = given
        if given[1] is None:
            sizes = self.n.constant([c * self.width for c in counts])
            parts = self.n("Split", given[0], sizes, axis=2, outputs=3)
        shapes = ([self.batch, self.rows, c, self.width] for c in counts)
        return [self.n("Reshape", p, self.n.constant(s)) for p, s in zip(parts, shapes)]

    def turned(self, values: tuple[Any, ...], tables: list[ir.Value | None]) -> list[Any]:
        """Pairs of elements turned by angles of their positions."""
        cos, sin, places = tables
        half = graph.static_shape(cos)[-1] if cos is not None else 0
        steps = self.n.constant(np.arange(self.rows)[None])
        if places is None:
            places = self.n("Add", self.old, steps)
        elif self.batch * self.rows > 1:  # of a first prompt only the first position counts
            total = self.n("Reshape", graph.operand(self.node, 6), self.n.constant([1, 1]))
            first = self.n("Slice", places, *(self.n.constant([i] * 2) for i in (0, 1)))
            is_first = self.n("Equal", total, self.n.constant(self.rows, np.int32))
            places = self.n("Where", is_first, self.n("Add", first, steps), places)
        shape = self.n.constant([self.batch, self.rows, 1, half])
        angles = [self.n("Reshape", self.n("Gather", table, places), shape) for table in (cos, sin)]
        paired = bool(graph.attribute(self.node, "rotary_interleaved", 0))
        return [rotated(self.n, x, angles, 2 * half, self.width, paired) for x in values]

    def cached(self, new: Any, past: ir.Value | None) -> Any:
        """New rows behind those of the past, [batch, groups, keys, width]."""
        n = self.n
        place = n("Sub", n.constant(np.arange(self.keys)[None]), self.old)
        inside = n("And", n("GreaterOrEqual", place, n.constant(0)), n("Less", place, n.constant(self.rows)))
        index = n("Clip", place, n.constant(0), n.constant(self.rows - 1))
        rows_ = n("GatherND", new, n("Unsqueeze", index, n.constant([-1])), batch_dims=1)
        rows_ = n("Transpose", rows_, perm=[0, 2, 1, 3])
        before = n.constant(0, self.kind) if past is None else past
        if past is not None and graph.static_shape(past)[2] < self.keys:
            missing = self.keys - graph.static_shape(past)[2]
            zeros = np.zeros((self.batch, self.groups, missing, self.width))
            before = n("Concat", past, n.constant(zeros, self.kind), axis=2)
        return n("Where", n("Unsqueeze", inside, n.constant([1, 3])), rows_, before)

    def attended(
        self, heads: Any, cache: list[Any], bias: ir.Value | None, sink: ir.Value | None
    ) -> ir.Value:
        """[batch, rows, heads * width]; queries of a group share its keys."""
        n, each = self.n, self.heads // self.groups
        turned = n("Transpose", heads, perm=[0, 2, 1, 3])
        asked = n("Reshape", turned, n.constant([self.batch, self.groups, each * self.rows, self.width]))
        scores = n("MatMul", asked, n("Transpose", cache[0], perm=[0, 1, 3, 2]))
        scale = graph.attribute(self.node, "scale", 0.0) or 1.0 / math.sqrt(self.width)
        scores = n("Mul", scores, n.constant(scale, self.kind))
        cap = graph.attribute(self.node, "softcap", 0.0)
        if cap:
            limit = n.constant(cap, self.kind)
            scores = n("Mul", n("Tanh", n("Div", scores, limit)), limit)
        shape = [self.batch, self.heads, self.rows, self.keys]
        scores = n("Reshape", scores, n.constant(shape))
        if bias is not None:
            missing = self.keys - graph.static_shape(bias)[3]
            if missing > 0:
                bias = n("Pad", bias, n.constant([0] * 7 + [missing]))
            scores = n("Add", scores, bias)
        scores = n("Where", self._seen(), scores, n.constant(-np.inf, self.kind))
        if sink is not None or graph.attribute(self.node, "smooth_softmax", 0) == 1:
            sink = n.constant(np.zeros(self.heads), self.kind) if sink is None else sink
            column = n("Reshape", sink, n.constant([1, self.heads, 1, 1]))
            column = n("Expand", column, n.constant([*shape[:3], 1]))
            weights = n("Softmax", n("Concat", scores, column, axis=-1), axis=-1)
            weights = n("Slice", weights, *(n.constant([i]) for i in (0, self.keys, 3)))
        else:
            weights = n("Softmax", scores, axis=-1)
        wide = n("Reshape", weights, n.constant([self.batch, self.groups, each * self.rows, self.keys]))
        found = n("Reshape", n("MatMul", wide, cache[1]), n.constant([*shape[:3], self.width]))
        columns = n.constant([self.batch, self.rows, self.heads * self.width])
        result: ir.Value = n("Reshape", n("Transpose", found, perm=[0, 2, 1, 3]), columns)
        return result

    def _seen(self) -> Any:
        """bool[batch, 1, rows or 1, keys]: true where a query may see a key."""
        n, window = self.n, graph.attribute(self.node, "local_window_size", -1)
        key = n.constant(np.arange(self.keys)[None, None, None])
        if not graph.attribute(self.node, "causal", 1):
            return n("Less", key, n("Unsqueeze", self.total, n.constant([2, 3])))
        place = n("Add", self.old, n.constant(np.arange(self.rows)[None]))
        place = n("Unsqueeze", place, n.constant([1, 3]))
        seen = n("LessOrEqual", key, place)
        if window > 0:
            seen = n("And", seen, n("Greater", key, n("Sub", place, n.constant(window))))
        return seen


ROWS = rows(
    (
        ("GroupQueryAttention", group_query_attention, MICROSOFT),
        ("MultiHeadAttention", multi_head_attention, MICROSOFT),
        ("Attention", attention, MICROSOFT),
        ("QAttention", quantized_attention, MICROSOFT),
    )
)
