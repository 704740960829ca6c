"""The order of the calls of a streamed segment, and the rings that hold exactly the rows alive.

Demand-driven from the last value: an operator runs when the strip that is to come needs its rows, and then
computes these rows and no more.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from app.engine.memory.rows.demand_tables import Tables
from app.engine.memory.rows.geometry import ROW, Segment

Array = np.ndarray[Any, Any]


class Call(NamedTuple):
    """An operator, by its number in the segment, computes the rows [first, first + rows) of its outputs."""

    operator: int
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class RowRing:
    """Rows that live, of one value or of several that take each other's slots: row i lies in slot i % rows.

    Attributes:
        values: in the order of the segment; a sum follows the operand that it takes.
        row_bytes: of the widest of the values, which all have as many planes.
        transient: every call writes from slot 0, and the one reader then reads exactly the rows of that call.
        runs: (first, last) call of each sequence of calls during which it holds rows, both included.
    """

    values: tuple[str, ...]
    rows: int
    row_bytes: int
    planes: int
    transient: bool
    runs: tuple[tuple[int, int], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self.rows * self.row_bytes

    def slot(self, row: int, origin: int) -> int:
        """The slot of a row; `origin` is the first row of the call that wrote it."""
        return row - origin if self.transient else row % self.rows


@dataclass(frozen=True, slots=True)
class Schedule:
    """Calls in order, and rings of all values but those that lie in the inputs and outputs of the segment.

    Attributes:
        whole: the input or output in whose place each value lies that has no ring, row i at row i: itself,
            or what a sum takes or becomes. An output that lies in an input takes its place.
    """

    segment: Segment
    calls: tuple[Call, ...]
    rings: tuple[RowRing, ...]
    whole: Mapping[str, str]

    @property
    def by_value(self) -> dict[str, RowRing]:
        """The ring of each value that has one."""
        return {v: ring for ring in self.rings for v in ring.values}


def schedule(segment: Segment, calls: Sequence[Call] | None = None) -> Schedule:
    """The demand-driven calls of a segment and its rings; or the rings of calls that are given.

    The operands of a strip are asked for in the order in which the operator names them; outputs that the
    last one does not complete are completed after it.
    """
    found = Demand(segment, calls)
    made = tuple(Call(*row) for row in found.calls.tolist())
    runs: dict[int, list[tuple[int, int]]] = {}
    for own, first, last in found.runs.tolist():
        runs.setdefault(own, []).append((first, last))
    rings: list[RowRing] = []
    whole: dict[str, str] = {}
    for own, rows in enumerate(found.slots.tolist()):
        values = tuple(segment.values[v].name for v in np.flatnonzero(found.owner == own).tolist())
        value = segment.values[own]
        if own in found.whole:
            whole |= dict.fromkeys(values, segment.values[found.whole[own]].name)
        elif rows and values:
            transient = len(values) == 1 and _is_transient(segment, made, value.name)
            rings.append(RowRing(values, rows, value.row_bytes, value.planes, transient, tuple(runs[own])))
    return Schedule(segment, made, tuple(rings), whole)


class Demand:
    """Calls, slots and runs of a segment as arrays; planning looks at thousands of segments.

    Attributes:
        calls: int64[n, 3], operator, first row, rows.
        owner: int64[v], the value in whose place each value lies.
        whole: first input or output, by number, in each place that has one.
        slots: int64[v], rows of the ring of each owner.
        runs: int64[m, 3], owner, first and last call of each sequence of calls during which it holds rows.
    """

    def __init__(self, segment: Segment, calls: Sequence[Call] | None = None) -> None:
        from app.engine.memory.rows import demand_core  # imports numba

        self.segment = segment
        self._tables = tables = _tables(segment)
        operators, values = len(segment.operators), len(segment.values)
        if calls is None:
            room = np.empty((int(tables.operators[:, 0].sum()), 3), np.int64)
            stack = np.empty((operators + 1, 2), np.int64)
            self.calls = room[: demand_core.demand(tables, self._zeros(), stack, room)]
        else:
            self.calls = np.array(calls, np.int64).reshape(-1, 3)
        self._end = np.bincount(self.calls[:, 0], self.calls[:, 2], operators).astype(np.int64)
        self.owner = np.arange(values)
        self._in_place = _comparable(segment)
        demand_core.owners(tables, self.calls, self._end, self._zeros(), self.owner, self._in_place)
        kept = {*segment.inputs, *segment.outputs}
        self.whole: dict[int, int] = {}
        for i, v in enumerate(segment.values):
            if v.name in kept:
                self.whole.setdefault(int(self.owner[i]), i)
        state = np.zeros((values, 2), np.int64)
        state[:, 1] = -1
        runs = np.empty((len(self.calls) * int(np.diff(tables.first_touched).max()), 3), np.int64)
        span = np.zeros((values, 2), np.int64)
        rows = (tables, self.calls, self._end, self._zeros(), _places(self.owner))
        count = demand_core.trace(*rows, span, state, runs)
        self.runs, self.slots = runs[:count], state[:, 0]

    def most_in_rings(self) -> int:
        """Most bytes of rings and scratch during one call, rings whole while they hold any row."""
        width = np.array([v.row_bytes for v in self.segment.values], np.int64)
        width[[*self.whole]] = 0
        change = np.zeros(len(self.calls) + 1, np.int64)
        nbytes = (self.slots * width)[self.runs[:, 0]]
        np.add.at(change, self.runs[:, 1], nbytes)
        np.subtract.at(change, self.runs[:, 2] + 1, nbytes)
        scratch = np.array([o.scratch for o in self.segment.operators], np.int64)[self.calls[:, 0]]
        return int((np.cumsum(change[:-1]) + scratch).max())

    def most_in_rows(self) -> int:
        """Most bytes of rows and scratch during one call, without those of whole values."""
        whole = {v for v, own in enumerate(self.owner.tolist()) if own in self.whole}
        values = enumerate(self.segment.values)
        return self.live_bytes([0 if i in whole else v.row_bytes for i, v in values])

    def live_bytes(self, row_bytes: Sequence[int]) -> int:
        """Most bytes of rows alive during one call; `row_bytes` by value, 0 for what does not count."""
        from app.engine.memory.rows import demand_core  # imports numba

        scratch = np.array([o.scratch for o in self.segment.operators], np.int64)
        width = np.array(row_bytes, np.int64)
        rows = (self._tables, self.calls, self._end, self._zeros(), width, scratch, self._in_place)
        return int(demand_core.most_live(*rows))

    def _zeros(self) -> Array:
        return np.zeros(len(self.segment.operators), np.int64)


def _tables(segment: Segment) -> Tables:
    number = {v.name: i for i, v in enumerate(segment.values)}
    kept = {*segment.outputs, *(set(segment.inputs) - set(segment.freed))}
    users: list[list[tuple[int, int]]] = [[] for _ in segment.values]
    reads: list[tuple[int, int, int, int, int]] = []
    for i, o in enumerate(segment.operators):
        for read in o.reads:
            users[number[read.value]].append((i, len(reads)))
            reads.append((number[read.value], read.map.step, read.map.per, read.map.first, read.map.last))
    operators = [
        (segment.rows(o), o.strip, o.aligned, -1 if o.takes is None else number[o.takes])
        for o in segment.operators
    ]
    values = [
        (v.rows, segment.producer.get(v.name, -1), v.name in kept, v.accumulated) for v in segment.values
    ]
    outputs = [[number[y] for y in o.outputs] for o in segment.operators]
    touched = [
        [*dict.fromkeys([*(number[r.value] for r in o.reads), *written])]
        for o, written in zip(segment.operators, outputs, strict=True)
    ]
    return Tables(
        np.array(operators, np.int64),
        _starts(len(o.reads) for o in segment.operators),
        np.array(reads, np.int64).reshape(-1, 5),
        np.array(values, np.int64),
        _starts(len(u) for u in users),
        np.array([u for own in users for u in own], np.int64).reshape(-1, 2),
        _starts(len(o) for o in outputs),
        np.array([v for own in outputs for v in own], np.int64),
        _starts(len(t) for t in touched),
        np.array([v for own in touched for v in own], np.int64),
    )


def _places(owner: Array) -> Array:
    """int64[v, 2]: owner of each value, and the next value that lies in the same place, or -1."""
    found = np.stack([owner, np.full(len(owner), -1)], axis=1)
    last: dict[int, int] = {}
    for value, own in enumerate(owner.tolist()):
        if own in last:
            found[last[own], 1] = value
        last[own] = value
    return found


def _starts(counts: Iterable[int]) -> Array:
    return np.array([0, *accumulate(counts)], np.int64)


def _comparable(segment: Segment) -> Array:
    """1 for each operator whose operand to take has rows like those of its first output."""
    found = np.zeros(len(segment.operators), np.int64)
    for i, o in enumerate(segment.operators):
        if o.takes is not None:
            x, y = segment.by_name[o.takes], segment.by_name[o.outputs[0]]
            found[i] = (x.rows, x.row_bytes, x.planes) == (y.rows, y.row_bytes, y.planes)
            found[i] &= not (x.accumulated or y.accumulated)
    return found


def _is_transient(segment: Segment, calls: tuple[Call, ...], name: str) -> bool:
    """True if each call of the producer is followed by one of the only reader for exactly the same rows."""
    source = segment.producer[name]
    readers = [(i, r) for i, o in enumerate(segment.operators) for r in o.reads if r.value == name]
    if len(readers) != 1 or readers[0][1].map != ROW or segment.by_name[name].accumulated:
        return False
    reader = readers[0][0]
    wrote = [c for c in calls if c.operator in (source, reader)]
    pairs = list(zip(wrote[::2], wrote[1::2], strict=False))
    return len(wrote) % 2 == 0 and all(
        (a.operator, b.operator) == (source, reader) and a[1:] == b[1:] for a, b in pairs
    )
