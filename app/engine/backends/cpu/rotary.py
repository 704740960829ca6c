"""RotaryEmbedding, pairs of elements turned by angles: its row, and the patterns that stand for it in graphs.

A canonical graph has products and sums in its place. In one kernel every element is read and written once,
and rows of angles are read where their tables have them.
"""

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.axis_kernels import first_over_first, takes_mixed
from app.engine.backends.cpu.calls import Operands, kernel_call, of_values
from app.engine.backends.cpu.rows import group_roofline
from app.engine.core import graph
from app.engine.core.calls import Call, Constant
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.core.rewriter import Replacement, RewriteRule, reshape, sole_reader, typed
from app.engine.operators.operands import data

Parts: TypeAlias = tuple[ir.Value, ir.Value, ir.Value, ir.Value]  # both parts of pairs, cos, sin
OPSET = 23  # that has the operator
VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Identity")
HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
ANGLES = 8.0  # operations of a pair


def _lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    x, y = data(node), node.outputs[0]
    cos, sin, ids = graph.operand(node, 1), graph.operand(node, 2), graph.input_at(node, 3)
    shape, (*_, half) = graph.static_shape(x), graph.static_shape(cos)
    if len(shape) == 3:  # [batch, positions, heads * width]
        rows, together = graph.attribute(node, "num_heads", 1), 1
        width = shape[2] // max(rows, 1)
    else:
        rows, together, width = shape[1] * shape[2], shape[2], shape[3]
    if graph.elements(x) == 0:
        return ()
    length = 0 if ids is None else graph.static_shape(cos)[0]
    operands: Operands = (
        *of_values(x, y, cos, sin),
        ("int64*", Constant(np.zeros(1, np.int64)) if ids is None else ids),
        *(width, half, graph.attribute(node, "interleaved", 0), rows, together, length),
    )
    return (kernel_call("app.kernels.cpu.key_value_cache:turn", operands, graph.elements(x) // width),)


def _cost(group: Group, context: PlanningContext) -> float:
    return group_roofline(group, context, ANGLES * graph.elements(data(group.anchor)) / 2, 0.2)


@dataclass(frozen=True, slots=True)
class _Source:
    """A value that another one views, in 16 bits if it is widened on the way."""

    value: ir.Value
    widened: bool = False


def _source(value: ir.Value) -> _Source:
    """The value before operators that move no element, and before one Cast to float32."""
    widened = False
    while (node := value.producer()) is not None and not node.domain:
        if node.op_type == "Cast" and value.dtype == ir.DataType.FLOAT and not widened:
            source = graph.operand(node, 0)
            if source.dtype not in HALVES:
                break
            widened = True
        elif node.op_type not in VIEWS:
            break
        value = graph.operand(node, 0)
    return _Source(value, widened)


def _factors(value: ir.Value, op: str) -> list[tuple[ir.Value, ir.Value]] | None:
    """The factors of both terms of a sum or difference of products that nothing else reads."""
    node = value.producer()
    if node is None or node.op_type != op or node.domain:
        return None
    found = []
    for term in graph.operands(node):
        product = term.producer()
        if product is None or product.op_type != "Mul" or sole_reader(term) is not node:
            return None
        found.append((graph.operand(product, 0), graph.operand(product, 1)))
    return found


def _turned(real: ir.Value, imaginary: ir.Value) -> Parts | None:
    """Parts (a, b, cos, sin) of a cos - b sin and a sin + b cos."""
    difference, total = _factors(real, "Sub"), _factors(imaginary, "Add")
    if difference is None or total is None:
        return None
    for a, cos in (difference[0], difference[0][::-1]):
        for b, sin in (difference[1], difference[1][::-1]):
            if {frozenset(f) for f in total} == {frozenset((a, sin)), frozenset((b, cos))}:
                return a, b, cos, sin
    return None


def _split(a: ir.Value, b: ir.Value, axis_extent: int) -> _Source | None:
    """The value whose last axis a and b are, each of so many elements there; it may be widened after it."""
    first, second = _source(a), _source(b)
    node = first.value.producer()
    if node is None or node.op_type != "Split" or first.widened != second.widened:
        return None
    x, shape = data(node), graph.shape(data(node))
    if shape is None or tuple(node.outputs) != (first.value, second.value):
        return None
    axis = graph.attribute(node, "axis", 0) % len(shape)
    parts = [graph.shape(v) for v in node.outputs]
    if axis != len(shape) - 1 or parts[0] != parts[1] or shape[-1] != 2 * axis_extent:
        return None
    return _Source(x, first.widened)


class _Nodes:
    """New nodes in the place of one."""

    def __init__(self, node: ir.Node) -> None:
        self.made: list[ir.Node] = []
        self._name = node.outputs[0].name

    def viewed(self, value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        """The value in another shape."""
        if graph.shape(value) == shape:
            return value
        self.made.append(reshape(value, shape, f"{self._name}.viewed{len(self.made)}"))
        return self.made[-1].outputs[0]

    def widened(self, source: _Source, shape: tuple[int, ...], like: ir.Value) -> ir.Value:
        """A source in another shape, of the type of a value."""
        value = self.viewed(source.value, shape)
        if not source.widened:
            return value
        return self.rounded(value, like)

    def rounded(self, value: ir.Value, like: ir.Value) -> ir.Value:
        """A value in the type of another one."""
        if value.dtype == like.dtype or like.dtype is None:
            return value
        cast = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(like.dtype))])
        self.made.append(typed(cast, like, graph.static_shape(value), f"{self._name}.cast{len(self.made)}"))
        return cast.outputs[0]


def _angles(n: _Nodes, tables: tuple[ir.Value, ir.Value], shape: tuple[int, int, int]) -> list[ir.Value]:
    """Tables and, where both are rows of constant or wide tables at the same positions, these positions."""
    sources = [_source(t) for t in tables]
    gathers = [s.value.producer() for s in sources]
    first = gathers[0]
    if first is not None and all(
        g is not None
        and g.op_type == "Gather"
        and graph.attribute(g, "axis", 0) == 0
        and g.inputs[1] is first.inputs[1]
        and len(graph.shape(data(g)) or ()) == 2
        and (graph.is_constant(data(g)) or not s.widened)
        for g, s in zip(gathers, sources)
    ):
        ids = graph.operand(first, 1)
        rows = [data(g) for g in gathers if g is not None]
        if ids.dtype == ir.DataType.INT64 and graph.shape(rows[0]) == graph.shape(rows[1]):
            whole = [
                n.widened(_Source(v, s.widened), graph.static_shape(v), t)
                for v, s, t in zip(rows, sources, tables)
            ]
            return [*whole, n.viewed(ids, shape[:2])]
    return [n.widened(s, shape, t) for s, t in zip(sources, tables)]


def _replaced(node: ir.Node, x: _Source, parts: Parts, *, interleaved: bool) -> Replacement | None:
    """The operator in the place of a node that makes what x is, its first elements turned."""
    a, _, cos, sin = parts
    if a.dtype != ir.DataType.FLOAT:  # the operator takes no float64
        return None
    shape, half = graph.shape(x.value), (graph.shape(a) or (0,))[-1]
    tables = {(1,) * (4 - len(s)) + s for s in map(graph.shape, (cos, sin)) if s is not None and len(s) <= 4}
    if shape is None or len(shape) != 4 or len(tables) != 1 or math.prod(shape) == 0:
        return None
    batch, p, q, width = shape
    table = next(iter(tables))
    heads_first = table == (batch, 1, q, half)
    if not heads_first and table != (batch, p, 1, half):
        return None
    n = _Nodes(node)
    angles = _angles(n, (cos, sin), (batch, q if heads_first else p, half))
    given = {"interleaved": int(interleaved), "rotary_embedding_dim": 2 * half if 2 * half < width else 0}
    flat = shape if heads_first else (batch, p, q * width)
    if not heads_first:
        given["num_heads"] = q
    turned = ir.Node(
        "", "RotaryEmbedding", [n.widened(x, flat, a), *angles],
        [ir.AttrInt64(k, v) for k, v in given.items()],
    )  # fmt: skip
    n.made.append(turned)
    typed(turned, a, flat, f"{node.outputs[0].name}.turned")
    return Replacement([n.rounded(n.viewed(turned.outputs[0], shape), node.outputs[0])], n.made)


def _before_rounding(value: ir.Value) -> ir.Value:
    """The float32 value that a Cast to 16 bits makes this one of, or itself."""
    node = value.producer()
    if node is None or node.op_type != "Cast" or node.domain or value.dtype not in HALVES:
        return value
    return graph.operand(node, 0) if graph.operand(node, 0).dtype == ir.DataType.FLOAT else value


def _has_operator(node: ir.Node) -> bool:
    return (graph.owner(node).opset_imports.get("") or 0) >= OPSET


def rotation_of_halves(node: ir.Node) -> Replacement | None:
    """Halves of an axis turned by angles, and what follows them as it is = RotaryEmbedding."""
    values, shape = graph.operands(node), graph.shape(node.outputs[0])
    if len(values) not in (2, 3) or shape is None or not _has_operator(node):
        return None
    if any(sole_reader(v) is not node for v in values[:2]):
        return None
    parts = _turned(_before_rounding(values[0]), _before_rounding(values[1]))
    if graph.attribute(node, "axis", 0) % len(shape) != len(shape) - 1 or parts is None:
        return None
    x = _split(parts[0], parts[1], (graph.shape(parts[0]) or (0,))[-1])
    if x is None or (graph.dtype(node.outputs[0]) != graph.dtype(parts[0]) and not x.widened):
        return None
    if len(values) == 3:
        whole = x.value.producer()
        if whole is None or whole.op_type != "Split" or _source(values[2]).value is not whole.outputs[1]:
            return None
        if len(whole.outputs) != 2 or whole.outputs[0] is not x.value:
            return None
        x = _Source(data(whole), x.widened)
    return _replaced(node, x, parts, interleaved=False) if graph.shape(x.value) == shape else None


def rotation_of_pairs(node: ir.Node) -> Replacement | None:
    """Neighbours along an axis turned by angles = RotaryEmbedding."""
    pairs, shape = data(node).producer(), graph.shape(node.outputs[0])
    if pairs is None or pairs.op_type != "Concat" or shape is None or not _has_operator(node):
        return None
    joined, values = graph.shape(pairs.outputs[0]), graph.operands(pairs)
    if joined is None or len(values) != 2 or joined != (*shape[:-1], shape[-1] // 2, 2):
        return None
    if graph.attribute(pairs, "axis", 0) % len(joined) != len(joined) - 1:
        return None
    if any(graph.shape(v) != (*joined[:-1], 1) for v in values) or sole_reader(pairs.outputs[0]) is not node:
        return None
    parts = _turned(_source(values[0]).value, _source(values[1]).value)
    x = None if parts is None else _split(parts[0], parts[1], 1)
    if parts is None or x is None or graph.shape(x.value) != joined:
        return None
    whole = _source(x.value)
    source = _Source(whole.value, whole.widened or x.widened)
    return _replaced(node, source, parts, interleaved=True) if graph.shape(source.value) == shape else None


IMPLEMENTATIONS = (
    Implementation(
        "rotary_embedding.rows", "RotaryEmbedding", "numba-cpu", takes_mixed, _lower, _cost, first_over_first
    ),
)
REWRITES = (
    RewriteRule(
        rotation_of_halves, ("Concat",), backends=("numba-cpu",), by_extents=True, makes="RotaryEmbedding"
    ),
    RewriteRule(
        rotation_of_pairs, ("Reshape",), backends=("numba-cpu",), by_extents=True, makes="RotaryEmbedding"
    ),
)
