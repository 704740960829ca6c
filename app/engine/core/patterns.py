"""Patterns: groups that one implementation computes, found as small graphs of operators.

Passes that give nodes away and those that make groups match in the same order, so that both find the same.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import ELEMENTWISE, Group
from app.engine.types.accelerator import PatternNode

if TYPE_CHECKING:
    from app.engine.core.plan import Compilation
    from app.engine.core.registry import PlanningContext

COMMUTATIVE = frozenset(("Add", "Mul", "And", "Or", "Xor", "Equal", "Min", "Max", "Sum"))
TRIALS = 512  # nodes that are looked at for one root: operands may be exchanged at each


@dataclass(frozen=True, slots=True)
class Pattern:
    """Operators in the order of their wiring; `anchor` is the one whose arithmetic dominates."""

    nodes: tuple[PatternNode, ...]
    anchor: int

    def __str__(self) -> str:
        return ", ".join(node.op for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Match:
    """Nodes of a graph by the nodes of a pattern, and values by its names; None is absent."""

    nodes: Mapping[int, ir.Node]
    values: Mapping[str, ir.Value | None]


def match(pattern: Pattern, root: ir.Node) -> Match | None:
    """The part of a graph that ends with `root` and is wired as a pattern; the first of several."""
    search = _Search(pattern.nodes)
    return next(search.completed(((len(pattern.nodes) - 1, root),), Match({}, {})), None)


class _Search:
    """Depth-first search for a match, from the root to what it reads."""

    def __init__(self, pattern: Sequence[PatternNode]) -> None:
        self.pattern = pattern
        self.writer = {n: (i, k) for i, node in enumerate(pattern) for k, n in enumerate(node.outputs)}
        self.left = TRIALS

    def completed(self, waiting: tuple[tuple[int, ir.Node], ...], found: Match) -> Iterator[Match]:
        """Every match that contains `found` and the pairs that wait."""
        if not waiting:
            inside = {v for node in found.nodes.values() for v in node.outputs}
            if not any(
                v in inside for n, v in found.values.items() if n not in self.writer and v is not None
            ):
                yield found
            return
        (index, node), *rest = waiting
        if index in found.nodes:
            if found.nodes[index] is node:
                yield from self.completed(tuple(rest), found)
            return
        self.left -= 1
        if self.left < 0 or any(node is other for other in found.nodes.values()):
            return
        for values, more in self._bound(index, node, found.values):
            yield from self.completed((*rest, *more), Match({**found.nodes, index: node}, values))

    def _bound(
        self, index: int, node: ir.Node, values: Mapping[str, ir.Value | None]
    ) -> Iterator[tuple[dict[str, ir.Value | None], list[tuple[int, ir.Node]]]]:
        """Values with those of one node, for each order of its operands, and the nodes that these lead to."""
        wanted = self.pattern[index]
        made = [v for v in node.outputs if v.name]
        if node.op_type not in wanted.ops or node.domain not in ("", "ai.onnx"):
            return
        if len(made) != len(wanted.outputs):
            return
        inputs = [*node.inputs, *([None] * (len(wanted.inputs) - len(node.inputs)))]
        if any(v is not None for v in inputs[len(wanted.inputs) :]):
            return
        inputs = inputs[: len(wanted.inputs)]
        orders = [inputs]
        if node.op_type in COMMUTATIVE and len(inputs) == 2 and inputs[0] is not inputs[1]:
            orders.append(inputs[::-1])
        for order in orders:
            bound = dict(values)
            bound.update(zip(wanted.outputs, made))
            more: list[tuple[int, ir.Node]] = []
            if all(self._operand(name, value, bound, more) for name, value in zip(wanted.inputs, order)):
                yield bound, more

    def _operand(
        self,
        text: str,
        value: ir.Value | None,
        bound: dict[str, ir.Value | None],
        more: list[tuple[int, ir.Node]],
    ) -> bool:
        """True if a value may have a name; it has it then."""
        name = text.removesuffix("?")
        if value is None and name == text:
            return False
        if name in bound and bound[name] is not value:
            return False
        bound[name] = value
        if name not in self.writer:
            return True
        producer = None if value is None else value.producer()
        index, place = self.writer[name]
        if producer is None or value is None:
            return False
        if [v for v in producer.outputs if v.name][place : place + 1] != [value]:
            return False
        more.append((index, producer))
        return True


def groups(
    compilation: "Compilation", backend: str, context: "PlanningContext", free: Callable[[ir.Node], bool]
) -> Iterator[Group]:
    """The groups that patterns of a backend make of free nodes, in the order of its rows.

    The caller takes the nodes of each group, which are free no more, before it asks for the next. There are
    none where nothing is fused.
    """
    rows = [
        row
        for rows in compilation.registry.implementations.values()
        for row in rows
        if row.pattern is not None and row.backend == backend
    ]
    if not rows or not compilation.options.fuse or compilation.options.semantics != "stowplan":
        return
    nodes = tuple(compilation.graph)
    index = {node: i for i, node in enumerate(nodes)}
    readers, ends = graph.readers(compilation.graph), frozenset(compilation.graph.outputs)
    unfused = compilation.concessions.unfused

    def may(node: ir.Node) -> bool:
        return node in index and free(node) and (node.name or "") not in unfused

    def escapes(members: frozenset[ir.Node], value: ir.Value) -> bool:
        return value in ends or any(r not in members for r in readers.get(value, ()))

    for row in sorted(rows, key=lambda row: (row.rank, row.name)):
        pattern = row.pattern
        for root in reversed(nodes):
            found = match(pattern, root) if pattern is not None and may(root) else None
            if pattern is None or found is None or not all(map(may, found.nodes.values())):
                continue
            members = frozenset(found.nodes.values())
            if any(escapes(members, v) for n in members - {root} for v in n.outputs):
                continue
            anchor, ordered = found.nodes[pattern.anchor], tuple(sorted(members, key=index.__getitem__))
            leaves = functools.partial(escapes, members)
            alone = len(members) == 1  # an output that nobody reads still needs memory to be written to
            op = _op(ordered, anchor, compilation)
            group = graph.group(ordered, anchor, op, (lambda v: bool(v.name)) if alone else leaves)
            if group.op == row.op and row.rejection_reason(group, context) is None:
                yield group


def _op(nodes: tuple[ir.Node, ...], anchor: ir.Node, compilation: "Compilation") -> str:
    rows = (compilation.registry.operator(node) for node in nodes)
    return ELEMENTWISE if all(row is not None and row.elementwise for row in rows) else anchor.op_type
