"""Insertion of nodes between a writer and its readers, in a graph with a plan."""

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.plan import Compilation, Group, Subgraph
from app.engine.types.storage import DispatchMode


class PlanEditor:
    """A graph under change, with the columns of its plan that exist.

    Every inserted node is a group of its own; what it writes has the layout and the storage type of what it
    reads until `layout` and `storage` say otherwise. The columns are new dictionaries, the graph is changed
    in place.
    """

    def __init__(self, compilation: Compilation) -> None:
        plan = compilation.plan
        self._compilation = compilation
        self.graph = compilation.graph
        self.partition: dict[ir.Node, Subgraph] = dict(plan.partition or {})
        self.fusion: dict[ir.Node, Group] = dict(plan.fusion or {})
        self.storage = dict(plan.storage or {})
        self.dispatch = dict(plan.dispatch or {})
        self.layout = dict(plan.layout or {})

    def insert_between(
        self, value: ir.Value, node: ir.Node, readers: Iterable[Group] = (), part: Subgraph | None = None
    ) -> ir.Value:
        """Insert a node that reads `value` next to its writer, and let groups read its output instead.

        `part` is the sub-graph of the node, None where the graph is not partitioned or the caller sets it.
        """
        producer = value.producer()
        if producer is None:
            self.graph.insert_before(self.graph[0], node)
        else:
            self.graph.insert_after(producer, node)
        (made,) = node.outputs
        self.fusion[node] = Group((node,), node, (value,), (made,), node.op_type)
        self.dispatch[node] = DispatchMode.COMPUTE
        if part is not None:
            self.partition[node] = part
        if value in self.storage:
            self.storage[made] = self.storage[value]
        if value in self.layout:
            self.layout[made] = self.layout[value]
        for group in readers:
            self.redirect(group, {value: made})
        return made

    def redirect(self, group: Group, replaced: Mapping[ir.Value, ir.Value]) -> Group:
        """Let a group read other values; the group that stands for it from now on."""
        for node in group.nodes:
            replace_inputs(node, replaced)
        inputs = tuple(replaced.get(v, v) for v in group.inputs)
        changed = Group(group.nodes, group.anchor, inputs, group.outputs, group.op)
        self.fusion.update(dict.fromkeys(group.nodes, changed))
        return changed

    def return_instead(self, value: ir.Value, made: ir.Value, suffix: str) -> None:
        """Let the graph return `made` where it returned `value`, and under its name."""
        value.name, made.name = f"{value.name}:{suffix}", value.name
        for index, output in enumerate(self.graph.outputs):
            if output is value:
                self.graph.outputs[index] = made

    def finish(self, **columns: object) -> Compilation:
        """The compilation with the columns of the changed graph; those given replace them."""
        plan, values = self._compilation.plan, graph.values(self.graph)
        edited: dict[str, object] = {
            "partition": {n: self.partition[n] for n in self.graph},
            "fusion": {n: self.fusion[n] for n in self.graph},
        }
        if plan.dispatch is not None:
            edited["dispatch"] = {n: self.dispatch[n] for n in self.graph}
        if plan.storage is not None:
            edited["storage"] = {v: self.storage[v] for v in values}
        if plan.layout is not None:
            edited["layout"] = {v: self.layout[v] for v in values}
        return self._compilation.with_plan(**{**edited, **columns})


def replace_inputs(node: ir.Node, replaced: Mapping[ir.Value, ir.Value]) -> None:
    """Let a node and its bodies read other values."""
    for i, value in enumerate(node.inputs):
        if value is not None and value in replaced:
            node.replace_input_with(i, replaced[value])
    for body in graph.bodies(node):
        for inner in body:
            replace_inputs(inner, replaced)
        for i, value in enumerate(body.outputs):
            if value in replaced:
                body.outputs[i] = replaced[value]
