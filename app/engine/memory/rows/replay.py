"""Checker of streamed segments: replays emitted addresses byte by byte, without code of the scheduler.

It is told what the operators mean (`Segment`), and for each call the bytes that it reads and writes. It
works out itself which rows a call must read, tap by tap, and until when a row must stay.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from app.engine.memory.rows.geometry import Read, RowValue, Segment

Array = np.ndarray[Any, Any]
NOBODY = -1
FOREVER = 1 << 60


class Access(NamedTuple):
    """Bytes [offset, offset + nbytes) as one plane of a row of a value."""

    value: str
    row: int
    plane: int
    offset: int
    nbytes: int


class EmittedCall(NamedTuple):
    """A call as it runs: rows [first, first + rows) of an operator, by number, and the bytes it touches."""

    operator: int
    first: int
    rows: int
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    scratch: tuple[int, int] | None = None  # offset and bytes


class ReplayError(ValueError):
    """A call reads what is not there, or writes where something still lives."""


def replay(segment: Segment, calls: Sequence[EmittedCall], whole: Mapping[str, int], nbytes: int) -> None:
    """Run the calls on memory of `nbytes` in which every byte knows its (value, row, plane) and index.

    `whole` are the offsets of the segment's inputs, which are there at the beginning, and of its outputs,
    which must be there at the end; plane p, row i of one begins at p * rows * line + i * line. Of a sum of
    turns the last is there alone.

    Raises:
        ReplayError: with the number of the call, the operator, and what was found.
    """
    memory = _Memory(segment, nbytes)
    for name in segment.inputs:
        memory.fill(name, whole[name])
    memory.until = _last_needs(segment, calls, memory)
    done = [0] * len(segment.operators)
    for number, call in enumerate(calls):
        at = f"call {number}, operator {call.operator}"
        if not 0 <= call.operator < len(done):
            raise ReplayError(f"{at}: the segment has {len(done)} operators")
        at = f"call {number}, {segment.operators[call.operator].name!r} rows {call.first}+{call.rows}"
        if call.first != done[call.operator] or call.rows < 1:
            raise ReplayError(f"{at}: the next row is {done[call.operator]}")
        done[call.operator] += call.rows
        _read(segment, memory, call, at)
        _write(segment, memory, call, number, at)
    for name in segment.outputs:
        memory.expect(name, whole[name])


class _Memory:
    """Owners of bytes: number of the (value, row, plane), and the index of the byte in it."""

    def __init__(self, segment: Segment, nbytes: int) -> None:
        self.segment = segment
        self.owner: Array = np.full(nbytes, NOBODY, np.int64)
        self.index: Array = np.zeros(nbytes, np.int64)
        self.until: Array = np.zeros(0, np.int64)  # call that needs each row last, by its number
        self.base: dict[str, int] = {}
        self.size = 0
        for value in segment.values:
            self.base[value.name] = self.size
            self.size += value.rows * value.planes

    def number(self, value: RowValue, row: int, plane: int) -> int:
        """The number of a plane of a row among those of all values."""
        return self.base[value.name] + row * value.planes + plane

    def holds(self, access: Access) -> bool:
        """True if the bytes are those of the row that the access names."""
        value = self.segment.by_name[access.value]
        at = slice(access.offset, access.offset + access.nbytes)
        number = self.number(value, access.row, access.plane)
        return bool((self.owner[at] == number).all() and (self.index[at] == np.arange(access.nbytes)).all())

    def put(self, access: Access) -> None:
        """Write the bytes of a row."""
        at = slice(access.offset, access.offset + access.nbytes)
        self.owner[at] = self.number(self.segment.by_name[access.value], access.row, access.plane)
        self.index[at] = np.arange(access.nbytes)

    def places(self, name: str, offset: int) -> Iterator[Access]:
        """All rows of a whole value."""
        value = self.segment.by_name[name]
        line = value.row_bytes // value.planes
        rows = [value.rows - 1] if value.accumulated else range(value.rows)
        for plane in range(value.planes):
            for slot, row in enumerate(rows):
                yield Access(name, row, plane, offset + (plane * len(rows) + slot) * line, line)

    def fill(self, name: str, offset: int) -> None:
        """Put a whole value."""
        for access in self.places(name, offset):
            self.put(_inside(access, len(self.owner), f"input {name!r}"))

    def expect(self, name: str, offset: int) -> None:
        """Demand a whole value."""
        for access in self.places(name, offset):
            if not self.holds(_inside(access, len(self.owner), f"output {name!r}")):
                raise ReplayError(f"output {name!r}: row {access.row} is not at byte {access.offset}")


def _inside(access: Access, nbytes: int, at: str) -> Access:
    """The access, if it lies in memory."""
    if access.offset < 0 or access.offset + access.nbytes > nbytes:
        raise ReplayError(f"{at}: {access} lies outside the {nbytes} byte")
    return access


def _touched(segment: Segment, read: Read, row: int) -> set[int]:
    """Rows of an operand that one row of the output reads, tap by tap."""
    rows, taps = segment.by_name[read.value].rows, range(read.map.first, read.map.last + 1)
    return {i for t in taps if 0 <= (i := (row * read.map.step + t) // read.map.per) < rows}


def _required(segment: Segment, call: EmittedCall) -> set[tuple[str, int, int]]:
    """(value, row, plane) that a call must read; of a sum of turns also the turn before."""
    operator = segment.operators[call.operator]
    needed = {
        (read.value, i, plane)
        for read in operator.reads
        for row in range(call.first, call.first + call.rows)
        for i in _touched(segment, read, row)
        for plane in range(segment.by_name[read.value].planes)
    }
    if segment.accumulates(operator) and call.first > 0:
        for name in operator.outputs:
            needed |= {(name, call.first - 1, p) for p in range(segment.by_name[name].planes)}
    return needed


def _last_needs(segment: Segment, calls: Sequence[EmittedCall], memory: _Memory) -> Array:
    """The last call that needs each row; outputs, and inputs that are not freed, are needed for ever."""
    until = np.full(memory.size, NOBODY, np.int64)
    for number, call in enumerate(calls):
        if not 0 <= call.operator < len(segment.operators):
            continue  # reported where it runs
        for name, row, plane in _required(segment, call):
            until[memory.number(segment.by_name[name], row, plane)] = number
    for name in (*segment.outputs, *(set(segment.inputs) - set(segment.freed))):
        value = segment.by_name[name]
        until[memory.base[name] : memory.base[name] + value.rows * value.planes] = FOREVER
    for value in segment.values:
        if value.accumulated:
            _only_the_last_turn(memory, value, until)
    return until


def _only_the_last_turn(memory: _Memory, value: RowValue, until: Array) -> None:
    """Turns of a sum but the last may be overwritten by the next, also in a value that is kept."""
    begin, last = memory.base[value.name], memory.number(value, value.rows - 1, 0)
    kept = until[begin:last] == FOREVER
    until[begin:last][kept] = NOBODY


def _read(segment: Segment, memory: _Memory, call: EmittedCall, at: str) -> None:
    """Demand that a call reads all that it must, and finds it."""
    missing = _required(segment, call) - {(a.value, a.row, a.plane) for a in call.reads}
    if missing:
        raise ReplayError(f"{at}: does not read {min(missing)}")
    for access in call.reads:
        _check_extent(segment, access, at)
        if not memory.holds(_inside(access, len(memory.owner), at)):
            raise ReplayError(f"{at}: {access} is not there")


def _check_extent(segment: Segment, access: Access, at: str) -> None:
    value = segment.by_name.get(access.value)
    if value is None or not (0 <= access.row < value.rows and 0 <= access.plane < value.planes):
        raise ReplayError(f"{at}: {access} is no row of the segment")
    if access.nbytes != value.row_bytes // value.planes:
        raise ReplayError(f"{at}: {access} is not {value.row_bytes // value.planes} byte")


def _write(segment: Segment, memory: _Memory, call: EmittedCall, number: int, at: str) -> None:
    """Demand that a call writes its rows, none of them over bytes that it reads or that live on."""
    operator = segment.operators[call.operator]
    expected = {
        (name, row, plane)
        for name in operator.outputs
        for row in range(call.first, call.first + call.rows)
        for plane in range(segment.by_name[name].planes)
    }
    if len(call.writes) != len(expected) or {(a.value, a.row, a.plane) for a in call.writes} != expected:
        raise ReplayError(f"{at}: writes other rows than its own")
    ranges = [(a.offset, a.nbytes, a) for a in call.writes]
    if call.scratch is not None:
        ranges.append((*call.scratch, Access("scratch", 0, 0, *call.scratch)))
    busy = {(r.offset, r.nbytes): r for r in call.reads}
    for offset, nbytes, access in ranges:
        _inside(access, len(memory.owner), at)
        for read in busy.values():
            clash = offset < read.offset + read.nbytes and read.offset < offset + nbytes
            if clash and not _may_replace(segment, call, access, read):
                raise ReplayError(f"{at}: {access} overlaps {read}, which the same call reads")
        owners = memory.owner[offset : offset + nbytes]
        alive = owners[(owners != NOBODY) & (memory.until[owners] > number)]
        if len(alive):
            raise ReplayError(f"{at}: {access} lies over row number {alive[0]}, which is read later")
    _check_disjoint(segment, call, ranges, at)
    for access in call.writes:
        memory.put(access)
    if call.scratch is not None:
        memory.owner[call.scratch[0] : sum(call.scratch)] = NOBODY


def _may_replace(segment: Segment, call: EmittedCall, write: Access, read: Access) -> bool:
    """True for a row that takes the place of the same row of its operand, or of the turn before."""
    operator = segment.operators[call.operator]
    same = (write.offset, write.nbytes, write.plane) == (read.offset, read.nbytes, read.plane)
    if write.value == read.value and segment.accumulates(operator):
        return same
    taken = operator.takes is not None and read.value == operator.takes
    return same and taken and write.value == operator.outputs[0] and write.row == read.row


def _check_disjoint(
    segment: Segment, call: EmittedCall, ranges: list[tuple[int, int, Access]], at: str
) -> None:
    """Demand that what one call writes does not overlap; turns of a sum replace each other."""
    accumulates = segment.accumulates(segment.operators[call.operator])
    last = {}
    for offset, nbytes, access in ranges:
        last[(access.value, access.plane) if accumulates else access] = (offset, nbytes, access)
    ordered = sorted(last.values())
    for (low, size, a), (high, _, b) in pairwise(ordered):
        if low + size > high:
            raise ReplayError(f"{at}: {a} overlaps {b}")
