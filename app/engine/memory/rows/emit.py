"""Addresses of a placed segment: for each call the bytes that it reads and writes, for the checker."""

from collections.abc import Iterator, Mapping

from app.engine.memory.rows.geometry import RowValue
from app.engine.memory.rows.replay import Access, EmittedCall
from app.engine.memory.rows.workspace import Workspace


def emit(workspace: Workspace, whole: Mapping[str, int], base: int = 0) -> Iterator[EmittedCall]:
    """The calls of a segment with addresses.

    `whole` has the offsets of its inputs and outputs, `base` is that of its workspace.
    """
    segment = workspace.schedule.segment
    places = _Places(workspace, whole, base)
    for call in workspace.schedule.calls:
        operator = segment.operators[call.operator]
        end = call.first + call.rows
        for name in operator.outputs:
            places.origin[name] = call.first
        reads = {
            (read.value, row): None
            for read in operator.reads
            for i in range(call.first, end)
            for row in range(*segment.needed(read, i, 1))
        }
        if operator.accumulates and call.first > 0:
            reads |= {(name, call.first - 1): None for name in operator.outputs}
        offset = workspace.scratch[call.operator]
        yield EmittedCall(
            *call,
            tuple(a for name, row in reads for a in places.row(name, row)),
            tuple(a for n in operator.outputs for row in range(call.first, end) for a in places.row(n, row)),
            None if offset is None else (base + offset, operator.scratch),
        )


class _Places:
    """Addresses of rows: whole values by row, rings by slot."""

    def __init__(self, workspace: Workspace, whole: Mapping[str, int], base: int) -> None:
        self.segment, self.values = workspace.schedule.segment, workspace.schedule.whole
        self.whole, self.base, self.rings = whole, base, workspace.by_value
        self.origin: dict[str, int] = {}  # first row of the call that wrote last, by value

    def row(self, name: str, row: int) -> Iterator[Access]:
        """The planes of a row."""
        value = self.segment.by_name[name]
        line = value.row_bytes // value.planes
        for plane in range(value.planes):
            yield Access(name, row, plane, self._offset(value, row, plane, line), line)

    def _offset(self, value: RowValue, row: int, plane: int, line: int) -> int:
        name = self.values.get(value.name)
        if name is not None:
            stored = self.segment.stored(name)
            return self.whole[name] + (plane * stored + row % stored) * line
        ring, offset = self.rings[value.name]
        slot = ring.slot(row, self.origin.get(value.name, 0))
        return self.base + offset + (plane * ring.rows + slot) * line
