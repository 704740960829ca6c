"""Groups of a plan as operators on rows, and the reasons why a group is none."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.plan import Choice, Compilation
from app.engine.core.registry import PlanningContext
from app.engine.core.streams.stream_group import StreamPart
from app.engine.core.streams.strips import RowMaps, StripRow
from app.engine.memory.rows.geometry import ROW, Read, RowOperator, RowValue, Segment


def strips_of(
    group: Group, choice: Choice, compilation: Compilation, context: PlanningContext
) -> StripRow | str:
    """How the chosen implementation of a group computes strips of rows; or why it does not."""
    row = compilation.registry.strips.get(choice.implementation.name)
    if row is None:
        return f"{choice.implementation.name} has no kernel of strips"
    if choice.views:
        return "a part of a larger value is read or written where it lies"
    reason = row.rejection(group, replace(context, tuning=choice.tuning))
    return row if reason is None else reason


def segment_of(
    parts: Sequence[StreamPart], compilation: Compilation
) -> tuple[Segment, dict[str, ir.Value]] | str:
    """Parts, in an order of execution, as operators on rows, and their images by name; or a rejection."""
    context = PlanningContext.of(compilation, compilation.plan.require("storage"))
    made = {v for p in parts for v in p.group.outputs}
    images: dict[str, ir.Value] = {}
    operators = []
    for part in parts:
        reads = part.strips.reads(part.group, context)
        read = {v for v, _ in reads}
        other = [v for v in part.group.inputs if v in made and v not in read]
        if other:
            return f"{part.group.name!r} reads all of {other[0].name!r}, which is made in strips"
        images |= {v.name or "": v for v in (*read, *part.group.outputs)}
        operators.append(_operator(part, reads, context))
    members = {part.group for part in parts}
    escaping = _escaping(made, members, compilation)
    values = tuple(_rows_of(v, compilation) for v in images.values())
    inputs = tuple(name for name, v in images.items() if v not in made)
    outputs = tuple(name for name, v in images.items() if v in escaping)
    kept = _kept(members, compilation)
    freed = tuple(name for name in inputs if images[name] not in kept)
    return Segment(values, tuple(operators), inputs, outputs, freed), images


def _operator(part: StreamPart, reads: RowMaps, context: PlanningContext) -> RowOperator:
    tuned = replace(context, tuning=part.choice.tuning)
    over = [v for v, y in part.choice.implementation.inplace(part.group, tuned) if (v, ROW) in reads]
    return RowOperator(
        part.group.name,
        tuple(Read(v.name or "", rows) for v, rows in reads),
        tuple(v.name or "" for v in part.group.outputs),
        part.rows,
        aligned=part.strips.step > 1,
        takes=over[0].name if over else None,
        scratch=part.strips.scratch(part.group, tuned, part.rows),
    )


def _rows_of(value: ir.Value, compilation: Compilation) -> RowValue:
    """An image [1, C, H, W] in its layout as H rows of channels or of blocks of them."""
    layout, shape = compilation.plan.require("layout")[value], graph.static_shape(value)
    nbytes = layout.elements(shape) * graph.element_type(value).itemsize
    return RowValue(value.name or "", shape[2], nbytes // shape[2], layout.physical_shape(shape)[1])


def _kept(members: set[Group], compilation: Compilation) -> set[ir.Value]:
    """Values that the caller needs, or groups that may run later, or that share bytes with others."""
    main, chosen = compilation.graph, compilation.plan.require("implementation")
    done = members | _before(members, compilation)
    outside = [v for g in compilation.plan.groups if g not in done for v in g.inputs]
    shared = [v for choice in chosen.values() for view in choice.views for v in (view.source, view.view)]
    return {*outside, *shared, *main.inputs, *main.outputs, *main.initializers.values()}


def _before(members: set[Group], compilation: Compilation) -> set[Group]:
    """Groups that run before the members in every order, since these read what comes of them."""
    made_by = {v: g for g in compilation.plan.groups for v in g.outputs}
    found: set[Group] = set()
    left = [*members]
    while left:
        sources = {made_by[v] for v in left.pop().inputs if v in made_by} - members - found
        found |= sources
        left += sources
    return found


def _escaping(made: Iterable[ir.Value], members: set[Group], compilation: Compilation) -> set[ir.Value]:
    """Values that something outside of the groups reads, or that the graph returns."""
    outside = {v for g in compilation.plan.groups if g not in members for v in g.inputs}
    return {v for v in made if v in outside or v in compilation.graph.outputs}
