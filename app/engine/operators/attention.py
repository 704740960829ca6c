"""The operator Attention, with key-value cache, and the chain of nodes that spells it, as one problem."""

import math
from dataclasses import replace
from typing import TypeAlias

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Argument, Workspace
from app.engine.core.group import ATTENTION, Group, of_group
from app.engine.operators import attention_pattern
from app.engine.operators.attention_pattern import RANK, Core, Operand
from app.engine.operators.operands import itemsize
from app.engine.operators.strides import StridedCopy, strides_of

# Inputs of the operator, and its outputs after y.
Q, K, V, MASK, PAST_K, PAST_V, LENGTHS = range(7)
PRESENT_K, PRESENT_V, SCORES = 1, 2, 3

Joined: TypeAlias = tuple[tuple[StridedCopy, ir.Value, Argument], ...]  # (copy, from, to), the old first


def is_node(group: Group) -> bool:
    """True for the operator, False for the chain."""
    return group.anchor.op_type == ATTENTION


def lengths_of(group: Group) -> ir.Value | None:
    """Keys that each sequence has."""
    return graph.input_at(group.anchor, LENGTHS) if is_node(group) else None


def softcap_of(group: Group) -> float:
    """Limit of scores; 0 for none."""
    return float(graph.attribute(group.anchor, "softcap", 0.0)) if is_node(group) else 0.0


def scores_of(group: Group) -> ir.Value | None:
    """The output of scores, where something reads it."""
    return _output(group, SCORES) if is_node(group) else None


def has_window(group: Group) -> bool:
    """True if queries of the operator see a window of keys."""
    return any(graph.attribute(group.anchor, f"{side}_window_size", -1) >= 0 for side in ("left", "right"))


@of_group
def prepared(group: Group) -> tuple[Core, tuple[Joined, ...]]:
    """The attention, and the copies that put old and new keys, then values, one behind the other."""
    node = group.anchor
    if not is_node(group):
        chain = attention_pattern.read(group)
        assert not isinstance(chain, str)
        return chain, ()
    q, y = (_heads(v, node, "q_num_heads") for v in (graph.operand(node, Q), node.outputs[0]))
    if y.value not in group.outputs:
        y = replace(y, value=Workspace(graph.nbytes(node.outputs[0])))
    keys, k = _cached(group, K, PAST_K, PRESENT_K)
    values, v = _cached(group, V, PAST_V, PRESENT_V)
    past = graph.input_at(node, PAST_K)
    core = Core(
        q,
        k,
        v,
        y,
        _mask(graph.input_at(node, MASK)),
        graph.attribute(node, "scale", 1.0 / math.sqrt(max(q.shape[3], 1))),
        bool(graph.attribute(node, "is_causal", 0)),
        0 if past is None else graph.static_shape(past)[2],
        zero=True,
    )
    return core, (keys, values)


def products(core: Core) -> float:
    """Operations of the two products."""
    batch, heads, rows, depth = core.q.shape
    keys, width = core.v.shape[2:]
    return 2.0 * batch * heads * rows * keys * (depth + width)


def _output(group: Group, position: int) -> ir.Value | None:
    outputs = group.anchor.outputs
    return outputs[position] if position < len(outputs) and outputs[position] in group.outputs else None


def _heads(value: ir.Value, node: ir.Node, attribute: str) -> Operand:
    """[batch, heads, length, width]: rank 4 as it is; rank 3 is [batch, length, heads · width]."""
    shape = graph.static_shape(value)
    if len(shape) == RANK:
        return Operand(value, 0, shape, strides_of(shape))
    b, s, all_heads = shape
    h = graph.attribute(node, attribute, 1)
    w = all_heads // h
    return Operand(value, 0, (b, h, s, w), (s * all_heads, w, all_heads, 1))


def _mask(mask: ir.Value | None) -> Operand | None:
    """[batch, heads, rows, keys], broadcast along axes of one."""
    if mask is None:
        return None
    shape = graph.static_shape(mask)
    shape = (1,) * (RANK - len(shape)) + shape
    return Operand(mask, 0, shape, tuple(0 if n == 1 else s for n, s in zip(shape, strides_of(shape))))


def _cached(group: Group, position: int, before: int, after: int) -> tuple[Joined, Operand]:
    """The copies that put old and new keys, or values, one behind the other, and how they then lie.

    `position` and `before` are inputs: new ones, and those of the cache; `after` is the output of them all.
    """
    value, past = graph.operand(group.anchor, position), graph.input_at(group.anchor, before)
    fresh, present = _heads(value, group.anchor, "kv_num_heads"), _output(group, after)
    if past is None and present is None:
        return (), fresh
    old = 0 if past is None else graph.static_shape(past)[2]
    batch, count, length, width = fresh.shape
    shape = (batch, count, old + length, width)
    target: Argument = Workspace(math.prod(shape) * itemsize(value)) if present is None else present
    steps = strides_of(shape)
    made = [(StridedCopy(fresh.shape, fresh.strides, steps, y0=old * width), value, target)]
    if past is not None:
        sizes = graph.static_shape(past)
        made.insert(0, (StridedCopy(sizes, strides_of(sizes), steps), past, target))
    return tuple(made), Operand(target, 0, shape, steps)
