"""Run groups on strips of rows, as one step: what they hand on are rings of rows in its workspace."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from app.engine.buffers.graph_order import dependencies, stable_order
from app.engine.core import graph
from app.engine.core.plan import COLUMNS, Choice, Compilation, Decision
from app.engine.core.registry import PlanningContext
from app.engine.core.streams.stream_group import STREAM, StreamGroup, StreamPart
from app.engine.memory.rows.arena import with_rows_placed
from app.engine.memory.rows.schedule import schedule
from app.engine.memory.rows.workspace import workspace
from app.engine.passes.streams.segments import segment_of, strips_of
from app.engine.types.options import Streamed

WRITES = "fusion", "implementation"


@dataclass(frozen=True, slots=True)
class Stream:
    """Make one group of each of `concessions.streams`, in place of its groups.

    A stream that cannot be is left out, and a note says why.
    """

    name: ClassVar[str] = "stream"
    reads: ClassVar[tuple[str, ...]] = ("partition", "fusion", "storage", "layout", "implementation")
    writes: ClassVar[tuple[str, ...]] = WRITES
    keeps: ClassVar[tuple[str, ...]] = tuple(
        c for c in COLUMNS if c not in (*WRITES, "order", "buffers", "placement")
    )

    def __call__(self, compilation: Compilation) -> Compilation:
        """The compilation with the groups of streams."""
        for asked in compilation.concessions.streams:
            found = _streamed(asked, compilation)
            if isinstance(found, str):
                note = f"{asked.groups[0]!r} to {asked.groups[-1]!r} are not computed in strips: {found}"
                compilation = replace(compilation, notes=(*compilation.notes, note))
            else:
                compilation = found
        return compilation


def _streamed(asked: Streamed, compilation: Compilation) -> Compilation | str:
    parts = _parts(asked, compilation)
    found = parts if isinstance(parts, str) else segment_of(parts, compilation)
    if isinstance(parts, str) or isinstance(found, str):
        return str(found)
    segment, images = found
    nodes = tuple(n for part in parts for n in part.group.nodes)
    anchor = parts[-1].group.anchor
    escaping = {images[name] for name in segment.outputs}
    plain = graph.group(nodes, anchor, STREAM, escaping.__contains__)
    memory = workspace(schedule(segment))
    if all(part.strips.anywhere for part in parts):
        memory = with_rows_placed(memory)
    stream = StreamGroup(
        nodes,
        anchor,
        plain.inputs,
        plain.outputs,
        STREAM,
        parts=parts,
        memory=memory,
        images=images,
    )
    merged = _merged(stream, compilation)
    try:
        stable_order(dependencies(merged))
    except ValueError:
        return "what lies outside reads a value of one of them and makes one that another reads"
    return merged


def _parts(asked: Streamed, compilation: Compilation) -> tuple[StreamPart, ...] | str:
    """The named groups in an order of execution; or why one has no strips."""
    chosen = compilation.plan.require("implementation")
    context = PlanningContext.of(compilation, compilation.plan.require("storage"))
    rows = dict(zip(asked.groups, asked.rows, strict=True))
    parts = []
    for group in stable_order(dependencies(compilation)):
        if group.name in rows:
            strips = strips_of(group, chosen[group], compilation, context, heads=asked.heads)
            if isinstance(strips, str):
                return f"{group.name!r}: {strips}"
            whole = -(-rows[group.name] // strips.step) * strips.step
            parts.append(StreamPart(group, chosen[group], strips, whole))
    missing = rows.keys() - {part.group.name for part in parts}
    return f"there is no group {min(missing)!r}" if missing else tuple(parts)


def _merged(stream: StreamGroup, compilation: Compilation) -> Compilation:
    """The compilation with the stream in place of its groups, and a decision about it."""
    members = {part.group for part in stream.parts}
    members_of = compilation.plan.require("fusion")
    fusion = {node: stream if group in members else group for node, group in members_of.items()}
    chosen = {g: c for g, c in compilation.plan.require("implementation").items() if g not in members}
    context = PlanningContext.of(compilation, compilation.plan.require("storage"))
    backend = compilation.plan.require("partition")[stream.anchor].backend
    (row,) = compilation.registry.candidates(STREAM, (backend,))
    seconds = row.predicted(stream, context)
    inplace = row.inplace(stream, context) if compilation.options.inplace else ()
    chosen[stream] = Choice(row, row.lower(stream, context), inplace, seconds)
    decision = Decision(stream.name, STREAM, row.name, _reason(stream, stream.parts))
    kept = tuple(d for d in compilation.decisions if d.subject != stream.name)
    compilation = replace(compilation, decisions=(*kept, decision))
    return compilation.with_plan(fusion=fusion, implementation=chosen)


def _reason(stream: StreamGroup, parts: Sequence[StreamPart]) -> str:
    counts = Counter(part.choice.implementation.name for part in parts)
    named = ", ".join(f"{count} x {name}" for name, count in counts.items())
    memory = stream.memory
    how = "head by head" if stream.by_heads else "in strips of rows"
    kind = "rings" if memory.table is None else "rows"
    proved = "the least" if memory.nbytes == memory.lower_bound else f"at least {memory.lower_bound}"
    return (
        f"for a smaller arena, {len(parts)} groups {how}: {named}; {kind} and scratch take "
        f"{memory.nbytes} byte ({proved}); seconds are predicted"
    )
