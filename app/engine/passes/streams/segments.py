"""Groups of a plan as operators on rows, and the reasons why a group is none."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.plan import Choice, Compilation
from app.engine.core.registry import PlanningContext
from app.engine.core.streams.stream_group import StreamPart
from app.engine.core.streams.strips import HEADS, IMAGE, MATRIX, RowMaps, StripRow, lines_of
from app.engine.memory.rows.geometry import ROW, Read, RowOperator, RowValue, Segment, only


def strips_of(
    group: Group, choice: Choice, compilation: Compilation, context: PlanningContext, *, heads: bool = False
) -> StripRow | str:
    """How the chosen implementation of a group computes strips of rows, or of heads; or why it does not."""
    registry = compilation.registry
    row = (registry.heads if heads else registry.strips).get(choice.implementation.name)
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
    if len({part.strips.axis for part in parts}) > 1:
        return "rows of some are lines of images, of others rows of matrices"
    if parts[0].strips.axis == HEADS and not any(part.strips.heads for part in parts):
        return "none of them tells how many heads there are"
    context = PlanningContext.of(compilation, compilation.plan.require("storage"))
    made = {v for p in parts for v in p.group.outputs}
    turns = {v: p.strips.lines(p.group)[0] for p in parts if p.strips.sums for v in p.group.outputs}
    images: dict[str, ir.Value] = {}
    operators = []
    for part in parts:
        own = part.strips.reads(part.group, context)
        reads = tuple((v, only(turns[v] - 1) if v in turns else rows) for v, rows in own)
        read = dict.fromkeys(v for v, _ in reads)
        other = [v for v in part.group.inputs if v in made and v not in read]
        if other:
            return f"{part.group.name!r} reads all of {other[0].name!r}, which is made in strips"
        images |= {v.name or "": v for v in (*read, *part.group.outputs)}
        operators.append(_operator(part, reads, context))
    members = {part.group for part in parts}
    escaping = _escaping(made, members, compilation)
    values = tuple(_rows_of(v, made, turns, parts, compilation) for v in images.values())
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


def _rows_of(
    value: ir.Value,
    made: set[ir.Value],
    turns: Mapping[ir.Value, int],
    parts: Sequence[StreamPart],
    compilation: Compilation,
) -> RowValue:
    """A sum as turns, an image in its layout as lines of channels or of blocks of them, a matrix as rows.

    What is made as heads has those of a token side by side; what they are made of is one row.
    """
    axis = parts[0].strips.axis
    layout, shape = compilation.plan.require("layout")[value], graph.static_shape(value)
    nbytes = layout.elements(shape) * graph.element_type(value).itemsize
    if axis == HEADS:
        heads = next(part.strips.heads(part.group) for part in parts if part.strips.heads)
        tokens, _ = lines_of(parts[0].group.outputs[0], MATRIX)
        rows = heads if value in made else 1
        return RowValue(value.name or "", rows, nbytes // rows, tokens if value in made else 1)
    if value in turns:
        return RowValue(value.name or "", turns[value], nbytes, accumulated=True)
    rows, _ = lines_of(value, axis)
    planes = layout.physical_shape(shape)[1] if axis == IMAGE else 1
    return RowValue(value.name or "", rows, nbytes // rows, planes)


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
