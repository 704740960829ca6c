"""Addresses of a placed segment: for each call the bytes that it reads and writes, for the checker."""

from collections.abc import Iterator, Mapping, Sequence

from app.engine.memory.rows.geometry import Segment
from app.engine.memory.rows.replay import Access, EmittedCall
from app.engine.memory.rows.schedule import Schedule
from app.engine.memory.rows.workspace import RowPlace, RowTable, Workspace


def emit(workspace: Workspace, whole: Mapping[str, int], base: int = 0) -> Iterator[EmittedCall]:
    """The calls of a segment whose rows lie in rings.

    `whole` has the offsets of its inputs and outputs, `base` is that of its workspace.
    """
    schedule = workspace.schedule
    table = {**whole_rows(schedule, whole), **row_places(workspace, base)}
    scratch = [None if offset is None else base + offset for offset in workspace.scratch]
    return emit_rows(schedule, table, scratch)


def emit_rows(schedule: Schedule, table: RowTable, scratch: Sequence[int | None]) -> Iterator[EmittedCall]:
    """The calls of a segment whose rows lie where a table says; `scratch` by operator."""
    segment = schedule.segment
    for call in schedule.calls:
        operator, end = segment.operators[call.operator], call.first + call.rows
        reads = {
            (read.value, row): None
            for read in operator.reads
            for i in range(call.first, end)
            for row in range(*segment.needed(read, i, 1))
        }
        if segment.accumulates(operator) and call.first > 0:
            reads |= {(name, call.first - 1): None for name in operator.outputs}
        writes = [(name, row) for name in operator.outputs for row in range(call.first, end)]
        offset = scratch[call.operator]
        yield EmittedCall(
            *call,
            tuple(a for name, row in reads for a in _accesses(segment, table, name, row)),
            tuple(a for name, row in writes for a in _accesses(segment, table, name, row)),
            None if offset is None else (offset, operator.scratch),
        )


def whole_rows(schedule: Schedule, whole: Mapping[str, int]) -> dict[tuple[str, int], RowPlace]:
    """The places of rows in inputs and outputs, plane by plane."""
    segment = schedule.segment
    table: dict[tuple[str, int], RowPlace] = {}
    for name, place in schedule.whole.items():
        value, stored = segment.by_name[name], segment.by_name[place].stored
        line = value.row_bytes // value.planes
        for row in range(value.rows):
            table[name, row] = RowPlace(whole[place] + row % stored * line, stored * line)
    return table


def row_places(workspace: Workspace, base: int = 0) -> RowTable:
    """The places of rows in a workspace: those of its table, or of its rings."""
    if workspace.table is None:
        return ring_rows(workspace, base)
    return {row: place._replace(offset=base + place.offset) for row, place in workspace.table.items()}


def ring_rows(workspace: Workspace, base: int = 0) -> dict[tuple[str, int], RowPlace]:
    """The places of rows in rings."""
    segment, rings = workspace.schedule.segment, workspace.by_value
    table: dict[tuple[str, int], RowPlace] = {}
    for call in workspace.schedule.calls:
        for name in segment.operators[call.operator].outputs:
            if name in rings:
                ring, offset = rings[name]
                line = ring.row_bytes // ring.planes
                for row in range(call.first, call.first + call.rows):
                    slot = ring.slot(row, call.first)
                    table[name, row] = RowPlace(base + offset + slot * line, ring.rows * line)
    return table


def _accesses(segment: Segment, table: RowTable, name: str, row: int) -> Iterator[Access]:
    value, place = segment.by_name[name], table[name, row]
    for plane in range(value.planes):
        yield Access(name, row, plane, place.offset + plane * place.plane, value.row_bytes // value.planes)
