"""Conversions as nodes: `ChangeLayout` of domain `stowplan`, logically the identity."""

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.plan import Compilation, Subgraph
from app.engine.core.plan_editor import PlanEditor
from app.engine.layouts.conversions import DOMAIN, OP
from app.engine.layouts.energy import Assignment
from app.engine.types.layout import Layout, plain


def insert_conversions(compilation: Compilation, assignment: Assignment) -> Compilation:
    """The compilation with a node for every conversion, and the column `layout`.

    The graph is changed: readers take the converted value.
    """
    editor = PlanEditor(compilation, "partition", "fusion", "storage", "dispatch")
    model = compilation.graph
    written = {v: at for group in compilation.plan.groups for v, at in assignment.written(group).items()}
    layout = dict(written)
    converted: dict[tuple[ir.Value, Layout | None], ir.Value] = {}

    def convert(value: ir.Value, to: Layout | None, reader: Subgraph | None = None) -> ir.Value:
        """The value in another layout; None is row-major, through which all others are reached.

        It is converted by the backend that knows the layout: that of the reader, or the writer's.
        """
        if (value, to) in converted:
            return converted[value, to]
        if to is not None and value in written:
            made = convert(convert(value, None), to, reader)
            made.name = f"{value.name}:{to}"
        else:
            producer = value.producer()
            made = ir.Value(name=f"{value.name}:{to or 'plain'}", shape=value.shape, type=value.type)
            node = ir.Node(DOMAIN, OP, [value], outputs=[made], name=made.name)
            part = reader if to is not None or producer is None else editor.partition[producer]
            editor.insert_between(value, node, part=part)
            if to is not None:
                layout[made] = to
        converted[value, to] = made
        return made

    for group in compilation.plan.groups:
        required_layouts = assignment.required_layouts[group]
        replaced = {
            value: convert(value, required_layouts.get(value), editor.partition[group.anchor])
            for value in group.inputs
            if not graph.is_constant(value) and required_layouts.get(value) != written.get(value)
        }
        if replaced:
            editor.redirect(group, replaced)
    for value in dict.fromkeys(model.outputs):
        if value in written:
            editor.return_instead(value, convert(value, None), str(written[value]))
    return editor.finish(
        layout={
            v: layout.get(v) or plain(len(v.shape) if v.shape is not None else 0) for v in graph.values(model)
        }
    )
