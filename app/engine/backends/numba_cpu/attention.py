"""The row of Attention, float32, with masks, key-value cache, grouped heads and soft cap."""

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from app.engine import graph
from app.engine.backends.numba_cpu.operands import data, unsuited
from app.engine.backends.numba_cpu.strided import StridedCopy, calls, strides_of
from app.engine.cost import roofline
from app.engine.plan import Argument, Call, Constant, Group, KernelCall, Workspace
from app.engine.registry import Implementation, Known

Q, K, V, MASK, PAST_K, PAST_V, LENGTHS = range(7)
PRESENT_K, PRESENT_V, SCORES = 1, 2, 3  # outputs after y
POINTER = "float32*"
FLOAT64 = 11  # as ONNX numbers element types
EFFICIENCY = 0.15  # of peak arithmetic: dot products and rows of values, one query at a time


@dataclass(frozen=True, slots=True)
class Heads:
    """An operand as [batch, heads, length, width] with strides of the first three."""

    batch: int
    heads: int
    length: int
    width: int
    strides: tuple[int, int, int]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The four extents."""
        return self.batch, self.heads, self.length, self.width


def _heads(value: ir.Value, node: ir.Node, attribute: str) -> Heads:
    """Rank 4 as it is; rank 3 is [batch, length, heads · width]."""
    shape = graph.static_shape(value)
    if len(shape) == 4:
        b, h, s, w = shape
        return Heads(b, h, s, w, (h * s * w, s * w, w))
    b, s, all_heads = shape
    h = graph.attribute(node, attribute, 1)
    w = all_heads // h
    return Heads(b, h, s, w, (s * all_heads, w, all_heads))


def _unless(group: Group, _known: Known) -> str | None:
    node = group.anchor
    reason = unsuited(group)
    if reason:
        return reason
    for i in (Q, K, V, PAST_K, PAST_V):
        value = graph.input_at(node, i)
        if value is not None and str(graph.dtype(value)) != "float32":
            return f"value {value.name!r} is {graph.dtype(value)}, this kernel computes float32"
    mask = graph.input_at(node, MASK)
    if mask is not None and str(graph.dtype(mask)) not in ("bool", "float32"):
        return f"mask of dtype {graph.dtype(mask)}, expected bool or float32"
    if graph.attribute(node, "softmax_precision", 1) == FLOAT64:
        return "softmax in double precision"
    return None


def _mask_strides(mask: ir.Value | None) -> tuple[int, int, int, int, int, int]:
    """Kind, strides of batch, head, query and key, and length of the last axis."""
    if mask is None:
        return 0, 0, 0, 0, 0, 0
    shape = graph.static_shape(mask)
    shape = (1,) * (4 - len(shape)) + shape
    b, h, q, k = (0 if n == 1 else s for n, s in zip(shape, strides_of(shape)))
    return (1 if str(graph.dtype(mask)) == "bool" else 2), b, h, q, k, shape[-1]


def _cached(
    group: Group, fresh: ir.Value, heads: Heads, past: ir.Value | None, position: int
) -> tuple[tuple[Call, ...], Argument, Heads]:
    """The calls that put new keys or values behind the old ones, and where and how they then lie."""
    outputs = group.anchor.outputs
    present = outputs[position] if position < len(outputs) and outputs[position] in group.outputs else None
    if past is None and present is None:
        return (), fresh, heads
    old = 0 if past is None else graph.static_shape(past)[2]
    shape = (heads.batch, heads.heads, old + heads.length, heads.width)
    target: Argument = Workspace(4 * math.prod(shape)) if present is None else present
    sy = strides_of(shape)
    made = calls(StridedCopy(heads.shape, (*heads.strides, 1), sy, y0=old * heads.width), 4, fresh, target)
    if past is not None:
        sizes = graph.static_shape(past)
        made = (*calls(StridedCopy(sizes, strides_of(sizes), sy), 4, past, target), *made)
    b, h, s, _ = sy
    return made, target, Heads(*shape, (b, h, s))


def _lower(group: Group, _known: Known) -> tuple[Call, ...]:
    node = group.anchor
    fresh_k, fresh_v = node.inputs[K], node.inputs[V]
    assert fresh_k is not None
    assert fresh_v is not None
    q = _heads(data(node), node, "q_num_heads")
    old_k = graph.input_at(node, PAST_K)
    key_calls, key, k = _cached(group, fresh_k, _heads(fresh_k, node, "kv_num_heads"), old_k, PRESENT_K)
    value_calls, value, v = _cached(
        group, fresh_v, _heads(fresh_v, node, "kv_num_heads"), graph.input_at(node, PAST_V), PRESENT_V
    )
    y = node.outputs[0]
    out = Heads(*q.shape[:3], v.width, _y_strides(y, q, v.width))
    mask, lengths = graph.input_at(node, MASK), graph.input_at(node, LENGTHS)
    scale = graph.attribute(node, "scale", 1.0 / math.sqrt(max(q.width, 1)))
    scalars = np.array([scale, graph.attribute(node, "softcap", 0.0)], np.float32)
    every = Constant(np.full(max(q.batch, 1), k.length, np.int64))
    outputs = [o if o in group.outputs else None for o in node.outputs] + [None] * 3
    scores = outputs[SCORES]
    work = Workspace(4 * max(k.length, 1), per_thread=True)
    kind, *mask_numbers = _mask_strides(mask)
    numbers = (
        *(q.heads, max(q.heads // max(k.heads, 1), 1), q.length, k.length, q.width, v.width),
        *q.strides,
        *k.strides,
        *v.strides,
        *out.strides,
        kind,
        *mask_numbers,
        graph.attribute(node, "is_causal", 0),
        graph.attribute(node, "left_window_size", -1),
        graph.attribute(node, "right_window_size", -1),
        0 if old_k is None else graph.static_shape(old_k)[2],
        int(lengths is not None),
        -1 if scores is None else graph.attribute(node, "qk_matmul_output_mode", 0),
    )
    call = KernelCall(
        "app.kernels.cpu.attention:attention",
        (
            *[POINTER] * 3,
            "bool*" if kind == 1 else POINTER,
            "int64*",
            *[POINTER] * 4,
            *["int64"] * len(numbers),
        ),
        (
            data(node),
            key,
            value,
            Constant(np.zeros(1, np.float32)) if mask is None else mask,
            every if lengths is None else lengths,
            Constant(scalars),
            Workspace(graph.nbytes(y)) if outputs[0] is None else y,
            work if scores is None else scores,
            work,
            *numbers,
        ),
        units=q.batch * q.heads * q.length,
        takes_thread=True,
    )
    return (*key_calls, *value_calls, call)


def _y_strides(y: ir.Value, q: Heads, width: int) -> tuple[int, int, int]:
    if len(graph.static_shape(y)) == 4:
        return q.heads * q.length * width, q.length * width, width
    return q.length * q.heads * width, width, q.heads * width


def _cost(group: Group, known: Known) -> float:
    node = group.anchor
    q = _heads(data(node), node, "q_num_heads")
    keys = node.inputs[K]
    assert keys is not None
    old = graph.input_at(node, PAST_K)
    length = _heads(keys, node, "kv_num_heads").length + (0 if old is None else graph.static_shape(old)[2])
    return roofline(
        known.target,
        flops=4.0 * q.batch * q.heads * q.length * length * q.width,
        nbytes=float(sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs))),
        efficiency=EFFICIENCY,
        threads=known.threads,
    )


IMPLEMENTATIONS = (Implementation("attention.rows", "Attention", "numba-cpu", _unless, _lower, cost=_cost),)
