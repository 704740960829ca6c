"""Moves transposes through the operators between them until they cancel.

Graphs of frameworks that keep channels last (NHWC) wrap every convolution in two transposes. For
each permutation that occurs, the operators that can compute on permuted axes are labelled: as they
are, or permuted. A value that is written one way and read the other costs a transpose of its bytes,
so the best labelling is a minimum cut; a transpose moves only where the bytes that transposes copy
fall. Operators labelled permuted are rewritten between a transpose and its inverse, and inverse
neighbours cancel.

Source: the idea of hoisting and sinking layout changes and cancelling them by a peephole is that of
the discussion in apache/tvm issue 3670; the cut is Kolmogorov and Zabih, 2004.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, cast

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import ANY, Replacement, RewriteRule, constant, reshape, rewrite, typed
from app.engine.partition.mincut import Network
from app.engine.rewrites.axis_permutation import (
    Perm,
    Permuted,
    inverse,
    is_view,
    on_permuted_axes,
    permuted_shape,
)

T = TypeVar("T")
OPSET = 18  # axes of reductions are inputs, Split has no attribute for its parts

PERMUTED, ORIGINAL = "permuted", "original"  # source and sink of the network
FORTH, BACK, OTHER = "forth", "back", "other"  # what a Transpose does


@dataclass(slots=True)
class Decisions:
    """Decisions that depend on shapes, in the order in which one canonicalization took them.

    The same model of other shapes repeats them, so that its canonical graph is the same: all of a region of
    shapes has one program then. Where its graph is another one, it decides for itself.

    Attributes:
        taken: what each was about, and what was decided.
        records: whether the decisions of this model are kept.
        count: of those that it has repeated.
    """

    taken: list[tuple[object, object]] = field(default_factory=list)
    records: bool = True
    count: int = 0

    def take(self, about: object, decide: Callable[[], T]) -> T:
        """The next decision, which `decide` takes where none is to be repeated."""
        if not self.records and self.count < len(self.taken) and self.taken[self.count][0] == about:
            self.count += 1
            return cast(T, self.taken[self.count - 1][1])
        decided = decide()
        if self.records:
            self.taken.append((about, decided))
        return decided

    def again(self) -> "Decisions":
        """The same for the next model; the first one takes them."""
        return Decisions(self.taken, not self.taken)


def move(model: ir.Model, before: float) -> tuple[Counter[str], int]:
    """Move transposes of all graphs to where they cost least.

    Nothing moves where transposes copy no fewer bytes than `before`, when they last were moved.
    `Decisions` under their name in the metadata of the model are repeated.

    Shapes and types of the graph must be inferred; those of new values are set.

    Returns:
        How many operators were permuted, and the bytes that transposes copied, see `nbytes`.
    """
    applied: Counter[str] = Counter()
    decisions, copied = model.meta.get(Decisions.__name__, Decisions()), nbytes(model)
    if not decisions.take("move", lambda: copied < before) or model.opset_imports.get("", 0) < OPSET:
        return applied, copied
    for inner in (model.graph, *_nested(model.graph)):
        for perm in _permutations(inner):
            region = _region(inner, perm)
            about = perm, tuple(node.name for node in region)
            places = decisions.take(about, partial(_worth_permuting, inner, perm, region))
            chosen = {node: how for i, (node, how) in enumerate(region.items()) if i in places}
            if chosen:
                applied += rewrite(model.graph, (_permute(chosen, perm), *ROWS))
    return applied, copied


def nbytes(model: ir.Model) -> int:
    """Cost of transposes of a graph and those nested in it: bytes, one for each, one for each inside."""
    return sum(
        _cost(node.outputs[0], inverse(perm))
        + (not any(_is_border(v) for v in (*node.inputs, *node.outputs)))
        for node in model.graph.all_nodes()
        if (perm := permutation(node)) is not None
    )


def permutation(node: ir.Node) -> Perm | None:
    """The axes of a Transpose of known rank; None for other nodes."""
    if node.op_type != "Transpose" or node.domain or node.inputs[0] is None:
        return None
    shape = graph.shape(node.inputs[0])
    if shape is None:
        return None
    return tuple(graph.attribute(node, "perm", tuple(reversed(range(len(shape))))))


def merge_transposes(node: ir.Node) -> Replacement | None:
    """Transpose(Transpose(x, p), q) = Transpose(x, p[q]), which is x when they are inverse."""
    source = node.inputs[0]
    producer = None if source is None else source.producer()
    outer, inner = permutation(node), None if producer is None else permutation(producer)
    if outer is None or inner is None or producer is None or producer.inputs[0] is None:
        return None
    both = tuple(inner[axis] for axis in outer)
    if both == tuple(sorted(both)):
        return Replacement([producer.inputs[0]])
    new = transpose(producer.inputs[0], both, node.outputs[0].name or "")
    return Replacement(new.outputs, [new])


ROWS = (RewriteRule(merge_transposes, ("Transpose",)),)


def _nested(outer: ir.Graph) -> Iterator[ir.Graph]:
    for node in outer:
        for body in graph.bodies(node):
            yield body
            yield from _nested(body)


def _permutations(inner: ir.Graph) -> tuple[Perm, ...]:
    """Every permutation that occurs, and its inverse."""
    found = (perm for node in inner if (perm := permutation(node)) is not None)
    return tuple(dict.fromkeys(p for perm in found for p in (perm, inverse(perm))))


def _cost(value: ir.Value, perm: Perm) -> int:
    """Bytes that a transpose of a value copies, and one for the node itself."""
    shape = graph.shape(value)
    if shape is None or len(shape) != len(perm) or graph.dtype(value) is None:
        return 1
    return 1 if is_view(shape, perm) else graph.nbytes(value) + 1


def _is_border(value: ir.Value | None) -> bool:
    """True if the value is an input or output of a graph: of two places as good, a transpose goes there."""
    return value is not None and (value.is_graph_input() or value.is_graph_output())


def _worth_permuting(inner: ir.Graph, perm: Perm, region: Mapping[ir.Node, Permuted]) -> frozenset[int]:
    """Places in the region of the nodes that compute on permuted axes in the best labelling."""
    if not region:
        return frozenset()
    network = Network()
    for value in _touched(region):
        _conversion(network, value, region, perm, inner)
    side = network.source_side(PERMUTED, ORIGINAL)
    return frozenset(i for i, node in enumerate(region) if node in side)


def _region(inner: ir.Graph, perm: Perm) -> dict[ir.Node, Permuted]:
    """Nodes that can be permuted and lie, through others that can, next to a transpose that may cancel."""
    back = inverse(perm)
    found: dict[ir.Node, Permuted] = {}
    refused: set[ir.Node] = set()
    pending = [n for node in inner if permutation(node) in (perm, back) for n in _neighbours(node)]
    while pending:
        node = pending.pop()
        if node in found or node in refused or node.graph is not inner:
            continue
        how = on_permuted_axes(node, perm)
        if how is None:
            refused.add(node)
        else:
            found[node] = how
            pending += _neighbours(node)
    return {node: found[node] for node in inner if node in found}


def _neighbours(node: ir.Node) -> Iterator[ir.Node]:
    for value in node.inputs:
        producer = None if value is None else value.producer()
        if producer is not None:
            yield producer
    for value in node.outputs:
        for use in value.uses():
            yield use.node


def _touched(region: Mapping[ir.Node, Permuted]) -> Iterable[ir.Value]:
    """Values that a node of the region may read or write permuted, each once; constants are free."""
    found: dict[ir.Value, None] = {}
    for node, how in region.items():
        values = [node.inputs[i] for i in how.reads] + (list(node.outputs) if how.writes else [])
        found.update(dict.fromkeys(v for v in values if v is not None and v.name))
    return (v for v in found if not graph.is_constant(v))


def _conversion(
    network: Network, value: ir.Value, region: Mapping[ir.Node, Permuted], perm: Perm, inner: ir.Graph
) -> None:
    """One transpose when a value is written one way and read the other by any."""
    capacity = _cost(value, perm) + (not _is_border(value))
    source = _written(value, region, perm)
    sinks: list[Hashable] = [ORIGINAL] * value.is_graph_output()
    for use in value.uses():
        reader = _read(use.node, use.idx, region, perm, inner)
        if reader is not None:
            sinks.append(reader)
    network.add_shared(source, sinks, ("value", value), capacity)


def _written(value: ir.Value, region: Mapping[ir.Node, Permuted], perm: Perm) -> Hashable:
    """The vertex that tells how a value is written."""
    producer = value.producer()
    if producer is None:
        return ORIGINAL
    if producer in region:
        return producer if region[producer].writes else ORIGINAL
    way = _way(producer, region, perm) or ""
    return {BACK: PERMUTED, OTHER: ("either", value)}.get(way, ORIGINAL)


def _read(
    node: ir.Node, index: int, region: Mapping[ir.Node, Permuted], perm: Perm, inner: ir.Graph
) -> Hashable | None:
    """The vertex that tells how a node reads an input; None when it takes both at the same cost."""
    if node in region:
        return node if index in region[node].reads else ORIGINAL
    way = (_way(node, region, perm) or "") if node.graph is inner else ""
    return {FORTH: PERMUTED, OTHER: None}.get(way, ORIGINAL)


def _way(node: ir.Node, region: Mapping[ir.Node, Permuted], perm: Perm) -> str | None:
    """Permutation of a Transpose; None for other nodes.

    One by `perm` (FORTH) reads what may be permuted already, its inverse (BACK) writes what may stay
    so. Where both are the same it is seen as the first if its operand can be permuted.
    """
    axes = permutation(node)
    if axes is None or node.inputs[0] is None:
        return None
    if axes not in (perm, inverse(perm)):
        return OTHER
    if axes == perm == inverse(perm):
        return FORTH if node.inputs[0].producer() in region else BACK
    return FORTH if axes == perm else BACK


def _permute(chosen: Mapping[ir.Node, Permuted], perm: Perm) -> RewriteRule:
    """The rule that rewrites the chosen nodes, between transposes."""

    def permute(node: ir.Node) -> Replacement | None:
        how = chosen.get(node)
        return None if how is None else _between_transposes(node, how, perm)

    return RewriteRule(permute, (ANY,))


def _between_transposes(node: ir.Node, how: Permuted, perm: Perm) -> Replacement:
    nodes: list[ir.Node] = []

    def operand(index: int, value: ir.Value | None) -> ir.Value | None:
        name = f"{node.name}.{index}"
        if index in how.constants:
            array, kind = how.constants[index], None if value is None else value.dtype
            return constant(array if kind is None else array.astype(kind.numpy()), name, kind)
        if value is None:
            return None
        fixed = graph.constant(value)
        if index in how.reads and fixed is not None:
            return constant(np.ascontiguousarray(fixed.transpose(perm)), name, value.dtype)
        if index in how.reads:
            nodes.append(transpose(value, perm, name))
        elif index in how.reshaped:
            nodes.append(reshape(value, how.reshaped[index], name))
        else:
            return value
        return nodes[-1].outputs[0]

    count = max(len(node.inputs), *(i + 1 for i in how.constants), 0)
    given = (*node.inputs, *[None] * (count - len(node.inputs)))
    inputs = [operand(i, v) for i, v in enumerate(given)]
    attributes = {} if how.op else {**node.attributes, **how.attributes}
    new = ir.Node(
        "", how.op or node.op_type, inputs, list(attributes.values()), num_outputs=len(node.outputs)
    )
    nodes.append(new)
    if not how.writes:
        return Replacement([v if old.name else None for v, old in zip(new.outputs, node.outputs)], nodes)
    outputs: list[ir.Value | None] = []
    for old, value in zip(node.outputs, new.outputs):
        if not old.name:
            value.name = ""
            outputs.append(None)
            continue
        value.name, value.type = f"{old.name}.permuted", old.type
        value.shape = ir.Shape(permuted_shape(graph.static_shape(old), perm))
        nodes.append(transpose(value, inverse(perm), old.name))
        outputs.append(nodes[-1].outputs[0])
    return Replacement(outputs, nodes)


def transpose(value: ir.Value, perm: Perm, name: str) -> ir.Node:
    """A new Transpose of a value of static shape; `name` is that of its output."""
    node = ir.Node("", "Transpose", [value], [ir.AttrInt64s("perm", list(perm))])
    return typed(node, value, permuted_shape(graph.static_shape(value), perm), name)
