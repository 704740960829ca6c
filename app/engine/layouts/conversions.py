"""Seconds of conversions between row-major memory and another layout."""

from collections.abc import Iterable

import onnx_ir as ir

from app.engine.buffers.buffer_assignment import stored_bytes
from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.plan import Compilation
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost import roofline
from app.engine.types.accelerator import BACKEND
from app.engine.types.layout import Layout

DOMAIN, OP = "stowplan", "ChangeLayout"


def change(value: ir.Value) -> Group:
    """A conversion of a value like this, as a group that is in no graph."""
    x, y = (ir.Value(name=name, shape=value.shape, type=value.type) for name in ("x", "y"))
    node = ir.Node(DOMAIN, OP, [x], outputs=[y], name="change")
    return Group((node,), node, (x,), (y,), OP)


def changes(groups: Iterable[Group]) -> tuple[Group, ...]:
    """The conversions that the choice of layouts may have weighed for these groups."""
    images = dict.fromkeys(v for group in groups for v in (*group.inputs, *group.outputs))
    return tuple(change(v) for v in images if not graph.is_constant(v) and not graph.is_dynamic(v))


def rows_between(
    group: Group, layout: Layout, compilation: Compilation, context: PlanningContext
) -> tuple[list[Implementation], list[Implementation]]:
    """The rows that convert to a layout from row-major, and those that convert back."""
    rows = compilation.registry.candidates(OP, compilation.target.backends)
    able = [row for row in rows if row.op == OP and row.rejection_reason(group, context) is None]
    required_layouts = {row: row.required_layouts(group, context) for row in able}
    (x,), (y,) = group.inputs, group.outputs
    there = [row for row in able if required_layouts[row].get(y) == layout and x not in required_layouts[row]]
    return there, [
        row for row in able if required_layouts[row].get(x) == layout and y not in required_layouts[row]
    ]


def conversion(value: ir.Value, layout: Layout, compilation: Compilation, context: PlanningContext) -> float:
    """Seconds of one conversion of a value between row-major and a layout: the mean of both directions.

    Measured, where both were, or as an accelerator's description tells; none where both are the same bytes.
    Predicted seconds grow or shrink as those of the conversions of this value to other layouts did where
    they were measured, so that a layout is not taken because it was not measured.
    """
    if layout.is_same_bytes(graph.static_shape(value)):
        return 0.0
    if not context.timings and BACKEND not in context.target.backends:
        return _predicted(value, layout, context)
    timed = _timed(value, layout, compilation, context)
    if timed is not None:
        return timed
    return _predicted(value, layout, context) * _scale(value, compilation, context)


def _scale(value: ir.Value, compilation: Compilation, context: PlanningContext) -> float:
    """Largest measured over predicted seconds of a conversion of the value; 1 where none was measured."""
    group, ratios = change(value), [0.0]
    for row in compilation.registry.candidates(OP, compilation.target.backends):
        found = roofline.measured(row, group, context) if row.op == OP else None
        if found is not None:
            (layout,) = row.required_layouts(group, context).values()
            ratios.append(found[0] / _predicted(value, layout, context))
    return max(ratios) or 1.0


def _predicted(value: ir.Value, layout: Layout, context: PlanningContext) -> float:
    shape = graph.static_shape(value)
    written = stored_bytes(value, context.storage.get(value), None)
    moved = written + layout.elements(shape) * graph.element_type(value).itemsize
    target = roofline.on_machine(context, moved)
    return roofline.roofline(target, flops=0.0, nbytes=3.0 * moved, threads=context.threads)


def _timed(
    value: ir.Value, layout: Layout, compilation: Compilation, context: PlanningContext
) -> float | None:
    group = change(value)
    directions = []
    for rows in rows_between(group, layout, compilation, context):
        times = ((row, *roofline.seconds(row, group, context)) for row in rows)
        told = (seconds for row, seconds, by in times if by is not None or row.backend == BACKEND)
        directions.append(min(told, default=None))
    there, back = directions
    return None if there is None or back is None else (there + back) / 2
