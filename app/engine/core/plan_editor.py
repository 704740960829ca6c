"""Insertion of nodes between a writer and its readers, in a graph with a plan."""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.plan import Compilation, Subgraph
from app.engine.types.storage import DispatchMode

Edited: TypeAlias = Literal["partition", "fusion", "storage", "dispatch", "layout"]


class PlanEditor:
    """A graph under change, with the columns of its plan that are named.

    Every inserted node is a group of its own; what it writes has the layout and the storage type of what it
    reads until `layout` and `storage` say otherwise. The columns are new dictionaries, the graph is changed
    in place.
    """

    def __init__(self, compilation: Compilation, *columns: Edited) -> None:
        plan = compilation.plan
        self._compilation = compilation
        self._columns = columns
        self.graph = compilation.graph
        self.partition = dict(plan.require("partition")) if "partition" in columns else {}
        self.fusion = dict(plan.require("fusion")) if "fusion" in columns else {}
        self.storage = dict(plan.require("storage")) if "storage" in columns else {}
        self.dispatch = dict(plan.require("dispatch")) if "dispatch" in columns else {}
        self.layout = dict(plan.require("layout")) if "layout" in columns else {}

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
        by_node: dict[str, Mapping[ir.Node, object]] = {
            "partition": self.partition,
            "fusion": self.fusion,
            "dispatch": self.dispatch,
        }
        by_value: dict[str, Mapping[ir.Value, object]] = {"storage": self.storage, "layout": self.layout}
        edited: dict[str, object] = {
            name: {n: column[n] for n in self.graph}
            for name, column in by_node.items()
            if name in self._columns
        }
        values = graph.values(self.graph)
        edited |= {
            name: {v: column[v] for v in values} for name, column in by_value.items() if name in self._columns
        }
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
