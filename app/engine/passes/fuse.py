"""Put neighbouring nodes into groups that one kernel computes.

Every group has one value that leaves it through its last node, the root. A path that leaves
the group can therefore only start at the root, so groups are convex and, taken together, form
no cycle. What a group may hold is not decided here: an implementation accepts it or not.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import onnx_ir as ir

from app.engine.core import graph, patterns
from app.engine.core.group import ATTENTION, ELEMENTWISE, SUBGRAPH, Group
from app.engine.core.plan import Compilation, Subgraph
from app.engine.core.registry import PlanningContext
from app.engine.cost import roofline
from app.engine.operators import attention_pattern

LONGEST_EPILOGUE = 16  # nodes after an anchor that are looked at
LARGEST_TREE = 32  # elementwise nodes in one kernel: keeps registers and compile time in bounds


@dataclass(frozen=True)
class Fuse:
    """Patterns, attentions; then epilogues, from the last anchor to the first; then elementwise trees.

    A residual Add thus goes to the later of its two producers, where the other operand is ready.
    """

    enabled: bool = True

    name: ClassVar[str] = "fuse"
    reads: ClassVar[tuple[str, ...]] = ("partition",)
    writes: ClassVar[tuple[str, ...]] = ("fusion",)
    keeps: ClassVar[tuple[str, ...]] = ("partition", "passed_over")

    def __call__(self, compilation: Compilation) -> Compilation:
        """Write the column `fusion`."""
        work = _Work.of(compilation)
        work.take_sub_graphs()
        if self.enabled:
            work.take_patterns()
            for node in reversed(work.nodes):
                if node.op_type == "Softmax" and node not in work.fusion:
                    work.take_first(_attentions(node, work))
            for node in reversed(work.nodes):
                if node not in work.fusion and not work.is_elementwise(node):
                    work.take_first(_epilogues(node, work))
            for node in reversed(work.nodes):
                if work.is_elementwise(node) and work.joins(node):
                    work.take_first(_trees(node, work))
        for node in work.nodes:
            if node not in work.fusion:
                work.take(work.group((node,), node))
        return compilation.with_plan(fusion={n: work.fusion[n] for n in work.nodes})


@dataclass
class _Work:
    compilation: Compilation
    nodes: tuple[ir.Node, ...]
    index: dict[ir.Node, int]
    readers: dict[ir.Value, tuple[ir.Node, ...]]
    outputs: frozenset[ir.Value]
    context: PlanningContext
    fusion: dict[ir.Node, Group] = field(default_factory=dict)

    @classmethod
    def of(cls, compilation: Compilation) -> "_Work":
        nodes = tuple(compilation.graph)
        return cls(
            compilation,
            nodes,
            {n: i for i, n in enumerate(nodes)},
            graph.readers(compilation.graph),
            frozenset(compilation.graph.outputs),
            PlanningContext.of(compilation),
        )

    def joins(self, node: ir.Node) -> bool:
        """True if a node may share a kernel with others."""
        return node not in self.fusion and (node.name or "") not in self.context.concessions.unfused

    def is_elementwise(self, node: ir.Node) -> bool:
        row = self.compilation.registry.operator(node)
        return row is not None and row.elementwise and len(node.outputs) == 1

    def escapes(self, value: ir.Value, members: set[ir.Node]) -> bool:
        return value in self.outputs or any(r not in members for r in self.readers.get(value, ()))

    def named_escape(self, members: set[ir.Node], value: ir.Value) -> bool:
        return bool(value.name) and self.escapes(value, members)

    def same_part(self, a: ir.Node, b: ir.Node) -> bool:
        partition = self.compilation.plan.require("partition")
        return partition[a].backend == partition[b].backend

    def group(self, nodes: tuple[ir.Node, ...], anchor: ir.Node, op: str = "") -> Group:
        if not op:
            op = ELEMENTWISE if all(self.is_elementwise(n) for n in nodes) else anchor.op_type
        members = set(nodes)
        if len(nodes) == 1:  # an output that nobody reads still needs memory to be written to
            return graph.group(nodes, anchor, op, lambda value: bool(value.name))
        return graph.group(nodes, anchor, op, lambda value: self.escapes(value, members))

    def accepted(self, group: Group) -> bool:
        partition = self.compilation.plan.require("partition")
        rows = self.compilation.registry.candidates(group.op, (partition[group.anchor].backend,))
        return any(row.rejection_reason(group, self.context) is None for row in rows)

    def take_sub_graphs(self) -> None:
        """Group of a sub-graph that a library runs."""
        partition, rows = self.compilation.plan.require("partition"), self.compilation.registry.backends
        libraries = {name for name, row in rows.items() if row.selector is not None}
        parts: dict[Subgraph, list[ir.Node]] = {}
        for node in self.nodes:
            if partition[node].backend in libraries:
                parts.setdefault(partition[node], []).append(node)
        for nodes in parts.values():
            heaviest = max(nodes, key=lambda n: (roofline.arithmetic(n), n.name or ""))
            leaves = functools.partial(self.named_escape, set(nodes))
            named = graph.group(tuple(nodes), heaviest, SUBGRAPH, leaves)
            self.take(named)

    def take_patterns(self) -> None:
        """Group of every pattern of a backend, as its nodes were given away."""
        partition = self.compilation.plan.require("partition")
        for backend in self.compilation.target.backends:
            free = lambda n, own=backend: partition[n].backend == own and n not in self.fusion  # noqa: E731
            for group in patterns.groups(self.compilation, backend, self.context, free):
                self.take(group)

    def take_first(self, proposals: Iterator[Group]) -> None:
        for group in proposals:
            if self.accepted(group):
                self.take(group)
                return

    def take(self, group: Group) -> None:
        for node in group.nodes:
            self.fusion[node] = group


def _attentions(softmax: ir.Node, work: _Work) -> Iterator[Group]:
    """Groups of two products with a Softmax between, and of nodes around that move their operands."""
    for root, *others in attention_pattern.proposals(softmax):
        members = {root, *others}
        # What something else reads stays outside, and with it what it reads itself.
        while escaping := {n for n in members - {root} if any(work.escapes(v, members) for v in n.outputs)}:
            members -= escaping
        if softmax not in members or not members.issubset(work.index):
            continue
        if all(work.same_part(root, n) and n not in work.fusion for n in members):
            yield work.group(tuple(sorted(members, key=work.index.__getitem__)), softmax, ATTENTION)


def _epilogues(anchor: ir.Node, work: _Work) -> Iterator[Group]:
    """Groups of an anchor and the elementwise nodes that follow from it, largest first."""
    if not work.joins(anchor) or not anchor.outputs:
        return
    if graph.shape(anchor.outputs[0]) is None:
        return
    closed: list[tuple[ir.Node, ...]] = []
    members: list[ir.Node] = [anchor]
    beside: set[ir.Node] = set()
    frontier = {r for v in anchor.outputs for r in work.readers.get(v, ())}
    while frontier and len(members) <= LONGEST_EPILOGUE:
        node = min(frontier, key=lambda n: work.index[n])
        frontier.discard(node)
        if not work.joins(node) or not work.is_elementwise(node) or not work.same_part(anchor, node):
            break
        if graph.shape(node.outputs[0]) != graph.shape(anchor.outputs[0]):
            break
        widening = [n for n in _widening(node, work) if n not in members]
        beside.update(widening)
        members += [*widening, node]
        frontier.update(work.readers.get(node.outputs[0], ()))
        inside = set(members)
        if not any(work.escapes(v, inside) for n in members[:-1] for v in n.outputs):
            closed.append(tuple(members))
    for nodes in reversed(closed):
        yield work.group(nodes, anchor)
        if not beside.isdisjoint(nodes):
            yield work.group(tuple(n for n in nodes if n not in beside), anchor)


def _widening(node: ir.Node, work: _Work) -> Iterator[ir.Node]:
    """Elementwise nodes that only `node` reads and that make more bytes than they read: DequantizeLinear.

    In the group of their reader the narrow value is read, and the wide one is never stored.
    """
    for value in node.inputs:
        source = None if value is None else value.producer()
        if source is None or source not in work.index or not work.joins(source):
            continue
        x, y = source.inputs[0], source.outputs[0]
        if not work.is_elementwise(source) or not work.same_part(node, source) or x is None:
            continue
        others = [v for v in source.inputs[1:] if v is not None]
        if not _alike(x, node.outputs[0]) or not all(graph.is_constant(v) for v in others):
            continue
        if graph.element_type(x).itemsize < graph.element_type(y).itemsize and not work.escapes(y, {node}):
            yield source


def _trees(root: ir.Node, work: _Work) -> Iterator[Group]:
    """The largest tree of elementwise nodes that only the root leaves, then smaller ones."""
    size = LARGEST_TREE
    while size > 1:
        nodes = _tree(root, work, size)
        if len(nodes) < 2:
            return
        yield work.group(nodes, root)
        size = len(nodes) // 2


def _tree(root: ir.Node, work: _Work, limit: int) -> tuple[ir.Node, ...]:
    members = {root}
    above = {v.producer() for v in root.inputs if v is not None}
    while above and len(members) < limit:
        node = max((n for n in above if n is not None), key=lambda n: work.index[n], default=None)
        above.discard(node)
        if node is None:
            break
        if not work.joins(node) or not work.is_elementwise(node) or not work.same_part(root, node):
            continue
        if not _alike(node.outputs[0], root.outputs[0]) or work.escapes(node.outputs[0], members):
            continue
        members.add(node)
        above.update(v.producer() for v in node.inputs if v is not None)
    return tuple(sorted(members, key=lambda n: work.index[n]))


def _alike(a: ir.Value, b: ir.Value) -> bool:
    """True if values have one static shape, or one number of axes and sizes that a run tells."""
    shapes = graph.shape(a), graph.shape(b)
    if shapes != (None, None) or a.shape is None or b.shape is None:
        return shapes[0] is not None and shapes[0] == shapes[1]
    return len(a.shape) == len(b.shape)
