"""Applies rewrite rules to a graph, each where its operator occurs.

Rules are indexed by operator, and a node is looked at again only when something next to it has
changed: the cost grows with the number of nodes and of rewrites, not with the number of rules.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph

ANY = "*"
NEWS = 8  # readers of a value that are looked at again when it loses one


@dataclass(frozen=True, slots=True)
class Replacement:
    """Replacement of a node.

    Attributes:
        outputs: one per output of the node, existing values or new ones; None where an output
            has no reader.
        nodes: new nodes in topological order; the inputs they need exist before the old node.
    """

    outputs: Sequence[ir.Value | None]
    nodes: Sequence[ir.Node] = ()


Rule: TypeAlias = Callable[[ir.Node], Replacement | None]


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """A rule and the operators it looks at; ANY looks at all.

    A rule must not change the graph. It creates nodes only when it returns them, because a node
    counts as a reader from its creation on. Outputs of new nodes that replace an old output get
    its name, type and shape; those of others the rule must state.

    `backends` are those that a target must have one of; the tables `REWRITES` of backends, which the
    pass rewrite_operators applies, state theirs, any other row is for all targets.
    """

    rule: Rule
    ops: tuple[str, ...]
    domain: str = ""
    nested: bool = True  # whether it may look at nodes of nested graphs too
    backends: tuple[str, ...] = ()
    by_extents: bool = (
        False  # whether extents decide if it applies; regions of shapes have one graph, without it
    )
    for_libraries: bool = False  # whether it applies only to libraries, and to regions of shapes
    makes: str = ""  # operator of the default domain that portable rules would take apart again

    @property
    def name(self) -> str:
        """For the report."""
        return self.rule.__name__


def constant(array: np.ndarray[Any, Any], name: str, dtype: ir.DataType | None = None) -> ir.Value:
    """An array as a value that new nodes can read; it becomes an initializer when they are used."""
    # `ir.tensor` walks the protocols that an array might have.
    return constant_of(ir.Tensor(np.asarray(array), dtype=dtype, name=name), name)


def constant_of(tensor: ir.TensorProtocol, name: str) -> ir.Value:
    """A tensor as such a value."""
    return ir.Value(
        name=name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype), const_value=tensor
    )


def value_like(like: ir.Value, name: str) -> ir.Value:
    """A new inner value of the same type and shape."""
    return ir.Value(name=name, shape=like.shape, type=like.type)


def typed(node: ir.Node, like: ir.Value, shape: tuple[int, ...], name: str) -> ir.Node:
    """A new node whose output has this name, this shape and the type of a value."""
    (output,) = node.outputs
    output.name, output.type, output.shape = name, like.type, ir.Shape(shape)
    return node


def reshape(value: ir.Value, shape: tuple[int, ...], name: str) -> ir.Node:
    """A new Reshape; `name` is that of its output. No extent is 0, which would mean that of the value."""
    target = constant(np.array(shape, np.int64), f"{name}.shape")
    return typed(ir.Node("", "Reshape", [value, target]), value, shape, name)


class Made:
    """Nodes of one replacement, in order; inference tells the types of what they compute."""

    def __init__(self, node: ir.Node) -> None:
        self._name = node.name or node.op_type
        self.nodes: list[ir.Node] = []

    def __call__(self, op: str, *inputs: ir.Value | None, **attributes: int | tuple[int, ...]) -> ir.Value:
        """The result of a new node."""
        given = [
            ir.AttrInt64(k, v) if isinstance(v, int) else ir.AttrInt64s(k, v) for k, v in attributes.items()
        ]
        node = ir.Node("", op, inputs, given)
        node.outputs[0].name = f"{self._name}.{op}{len(self.nodes)}"
        self.nodes.append(node)
        return node.outputs[0]

    def number(self, value: float, like: ir.Value) -> ir.Value:
        """A constant of the type of another value."""
        dtype = graph.dtype(like) or np.dtype(np.float32)
        return constant(np.array(value, dtype), f"{self._name}.{value:g}")

    def array(self, array: np.ndarray[Any, Any], name: str) -> ir.Value:
        """A constant."""
        return constant(array, f"{self._name}.{name}")

    def axes(self, *numbers: int) -> ir.Value:
        """A constant list of axes or sizes."""
        return constant(np.array(numbers, np.int64), f"{self._name}.{'_'.join(map(str, numbers))}")


def sole_reader(value: ir.Value) -> ir.Node | None:
    """The only node that reads the value, nested graphs included; None for outputs of a graph."""
    uses = value.uses()
    return next(iter(uses)).node if len(uses) == 1 and not value.is_graph_output() else None


def takes_over(new: ir.Value, old: ir.Value) -> bool:
    """True if `new` can stand wherever `old` does, under the old name where that is an output."""
    if not old.is_graph_output():
        return True
    producer = new.producer()
    return (
        producer is not None
        and producer.graph is old.producer().graph  # type: ignore[union-attr]  # a node computes it
        and not new.is_graph_output()
    )


def rewrite(root: ir.Graph, rows: Iterable[RewriteRule]) -> Counter[str]:
    """Apply the rules until none applies, the first that does at each node; how often each did.

    Nested graphs are rewritten too where a row allows. New constants become initializers of `root`.
    """
    return _Driver(root, tuple(rows)).run()


def register(root: ir.Graph, value: ir.Value | None) -> None:
    """Make a new constant an initializer of a graph, under a name that is free; leave other values."""
    if value is None or value.const_value is None or value.producer() is not None:
        return
    if value.is_initializer() or value.is_graph_input():
        return
    name, count = value.name or "constant", 0
    value.name = name
    while value.name in root.initializers:
        count += 1
        value.name = f"{name}.{count}"
    root.register_initializer(value)


class _Driver:
    def __init__(self, root: ir.Graph, rows: tuple[RewriteRule, ...]) -> None:
        self._root = root
        self._rows = rows
        self._index: dict[tuple[str, str], tuple[RewriteRule, ...]] = {}
        self._pending: deque[ir.Node] = deque(root.all_nodes())
        self._waiting = set(self._pending)
        self._applied: Counter[str] = Counter()

    def run(self) -> Counter[str]:
        while self._pending:
            node = self._pending.popleft()
            self._waiting.discard(node)
            if node.graph is not None:
                self._visit(node)
        return self._applied

    def _visit(self, node: ir.Node) -> None:
        if is_dead(node):
            self._remove(node)
            return
        for row in self._of(node.domain, node.op_type):
            if not row.nested and node.graph is not self._root:
                continue
            replacement = row.rule(node)
            if replacement is not None:
                self._applied[row.name] += 1
                self._replace(node, replacement)
                return

    def _of(self, domain: str, op: str) -> tuple[RewriteRule, ...]:
        """The rows that look at an operator, in the order of the table."""
        found = self._index.get((domain, op))
        if found is None:
            found = tuple(r for r in self._rows if ANY in r.ops or (r.domain == domain and op in r.ops))
            self._index[domain, op] = found
        return found

    def _replace(self, node: ir.Node, replacement: Replacement) -> None:
        owner = graph.owner(node)
        for new in replacement.nodes:
            for value in new.inputs:
                register(self._root, value)
        for index, new in enumerate(replacement.nodes):
            self._root.opset_imports.setdefault(new.domain, 1)
            if not new.name:
                new.name = node.name if index == 0 else f"{node.name}.{index}"
        owner.insert_before(node, replacement.nodes)
        made = {v for n in replacement.nodes for v in n.outputs}
        for old, new_value in zip(node.outputs, replacement.outputs, strict=True):
            if new_value is None:
                continue
            register(self._root, new_value)
            stand_in = self._stand_in(node, old, new_value)
            if stand_in in made or old.is_graph_output():
                stand_in.name = old.name
            if stand_in in made:
                stand_in.type = old.type if old.type is not None else stand_in.type
                stand_in.shape = old.shape if old.shape is not None else stand_in.shape
            self._enqueue(use.node for use in old.uses())
            old.replace_all_uses_with(stand_in, replace_graph_outputs=True)
        self._enqueue(replacement.nodes)
        for new in replacement.nodes:
            for body in graph.bodies(new):
                self._enqueue(body.all_nodes())
        self._remove(node)

    def _stand_in(self, node: ir.Node, old: ir.Value, new: ir.Value) -> ir.Value:
        """The new value, or an Identity of it where it cannot be an output under the old name."""
        owner = graph.owner(node)
        if takes_over(new, old):
            return new
        identity = ir.Node("", "Identity", [new], name=f"{node.name}.copy")
        output = identity.outputs[0]
        output.name, output.type, output.shape = old.name, new.type, new.shape
        owner.insert_before(node, identity)
        self._enqueue([identity])
        return output

    def _remove(self, node: ir.Node) -> None:
        """Remove a node that nothing reads, and what it alone kept alive."""
        doomed = [node]
        while doomed:
            dead = doomed.pop()
            if dead.graph is None:
                continue
            read = graph.reads(dead)
            _detach(dead)
            dead.graph.remove(dead, safe=True)
            for value in read:
                producer = value.producer()
                if producer is not None and producer.graph is not None:
                    if is_dead(producer):
                        doomed.append(producer)
                    else:
                        self._enqueue([producer])
                # Of a constant that thousands read, one reader less is no news.
                if len(value.uses()) <= NEWS:
                    self._enqueue(use.node for use in value.uses())

    def _enqueue(self, nodes: Iterable[ir.Node]) -> None:
        for node in nodes:
            if node not in self._waiting and node.graph is not None:
                self._waiting.add(node)
                self._pending.append(node)


def is_dead(node: ir.Node) -> bool:
    """True if nothing reads any output of the node."""
    return not any(v.uses() or v.is_graph_output() for v in node.outputs)


def _detach(node: ir.Node) -> None:
    """Make the nested graphs of a node read nothing from the graphs around it."""
    for body in graph.bodies(node):
        body.outputs.clear()
        for member in body:
            _detach(member)
            for index in range(len(member.inputs)):
                member.replace_input_with(index, None)
