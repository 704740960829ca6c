"""Conversions as nodes: `ChangeLayout` of domain `stowplan`, logically the identity."""

from collections.abc import Mapping

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.plan import Compilation, Subgraph
from app.engine.layouts.choice import Assignment
from app.engine.layouts.conversions import DOMAIN, OP
from app.engine.types.layout import Layout, plain
from app.engine.types.storage import DispatchMode


def realize(compilation: Compilation, assignment: Assignment) -> Compilation:
    """The compilation with a node for every conversion, and the column `layout`.

    The graph is changed: readers take the converted value.
    """
    model, plan = compilation.graph, compilation.plan
    partition, fusion = dict(plan.require("partition")), dict(plan.require("fusion"))
    storage, dispatch = dict(plan.require("storage")), dict(plan.require("dispatch"))
    written = {v: at for group in plan.groups for v, at in assignment.written(group).items()}
    layout = dict(written)
    converted: dict[tuple[ir.Value, Layout | None], ir.Value] = {}

    def convert(value: ir.Value, to: Layout | None, reader: Subgraph | None = None) -> ir.Value:
        """The value in another layout; None is row-major, through which all others are reached.

        It is converted by the backend that knows the layout: that of the reader, or the writer's.
        """
        if (value, to) not in converted:
            if to is not None and value in written:
                made = convert(convert(value, None), to, reader)
                made.name = f"{value.name}:{to}"
                converted[value, to] = made
                return made
            made = ir.Value(name=f"{value.name}:{to or 'plain'}", shape=value.shape, type=value.type)
            node = ir.Node(DOMAIN, OP, [value], outputs=[made], name=made.name)
            producer = value.producer()
            part = reader if to is not None or producer is None else partition[producer]
            assert part is not None
            if producer is None:
                model.insert_before(model[0], node)
            else:
                model.insert_after(producer, node)
            partition[node] = part
            fusion[node] = Group((node,), node, (value,), (made,), OP)
            if to is not None:
                layout[made] = to
            converted[value, to] = made
        return converted[value, to]

    for group in plan.groups:
        required_layouts = assignment.required_layouts[group]
        replaced: dict[ir.Value, ir.Value] = {}
        for value in group.inputs:
            if graph.is_constant(value):
                continue
            if required_layouts.get(value) != written.get(value):
                replaced[value] = convert(value, required_layouts.get(value), partition[group.anchor])
        if replaced:
            for node in group.nodes:
                replace_inputs(node, replaced)
            inputs = tuple(replaced.get(v, v) for v in group.inputs)
            changed = Group(group.nodes, group.anchor, inputs, group.outputs, group.op)
            fusion.update(dict.fromkeys(group.nodes, changed))
    for value in dict.fromkeys(model.outputs):
        if value not in written:
            continue
        name, made = value.name, convert(value, None)
        value.name, made.name = f"{name}:{written[value]}", name
        for index, output in enumerate(model.outputs):
            if output is value:
                model.outputs[index] = made
    for node in model:
        dispatch.setdefault(node, DispatchMode.COMPUTE)
        for value in node.outputs:
            if value not in storage:
                storage[value] = storage[graph.operand(node, 0)]
    column = {
        v: layout.get(v) or plain(len(v.shape) if v.shape is not None else 0) for v in graph.values(model)
    }
    ordered = {node: fusion[node] for node in model}
    return compilation.with_plan(
        partition={n: partition[n] for n in model},
        fusion=ordered,
        storage=storage,
        dispatch=dispatch,
        layout=column,
    )


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
