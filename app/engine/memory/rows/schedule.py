"""The order of the calls of a streamed segment, and the rings that hold exactly the rows alive.

Demand-driven from the last value: an operator runs when the strip that is to come needs its rows, and then
computes these rows and no more.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from app.engine.memory.rows.geometry import ROW, Read, Segment


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
        first, last: the calls between which it holds rows, both included.
        live: bit i is set if it holds a row during call i.
    """

    values: tuple[str, ...]
    rows: int
    row_bytes: int
    planes: int
    transient: bool
    first: int
    last: int
    live: int

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self.rows * self.row_bytes

    def slot(self, row: int, origin: int) -> int:
        """The slot of a row; `origin` is the first row of the call that wrote it."""
        return row - origin if self.transient else row % self.rows


@dataclass(frozen=True, slots=True)
class Schedule:
    """Calls in order, and rings of all values but the inputs and outputs of the segment, which are whole."""

    segment: Segment
    calls: tuple[Call, ...]
    rings: tuple[RowRing, ...]

    @property
    def by_value(self) -> dict[str, RowRing]:
        """The ring of each value that has one."""
        return {v: ring for ring in self.rings for v in ring.values}


def schedule(segment: Segment) -> Schedule:
    """The demand-driven calls of a segment and its rings."""
    calls = tuple(demanded(segment))
    return Schedule(segment, calls, tuple(_rings(segment, calls)))


def demanded(segment: Segment) -> Iterator[Call]:
    """Calls in the order in which the last value asks for rows; then what else must be whole at the end.

    The operands of a strip are asked for in the order in which the operator names them.
    """
    done = [0] * len(segment.operators)
    kept = {segment.producer[v] for v in segment.outputs if v in segment.producer}
    for target in sorted(kept, reverse=True):
        extent = segment.rows(segment.operators[target])
        while done[target] < extent:
            stack = [(target, done[target] + 1)]
            while stack:
                number, upto = stack[-1]
                if done[number] >= upto:
                    stack.pop()
                    continue
                first, rows = done[number], _strip(segment, number, done[number], upto, number == target)
                missing = _missing(segment, number, first, rows, done)
                if missing is not None:
                    stack.append(missing)
                    continue
                yield Call(number, first, rows)
                done[number] += rows


def _strip(segment: Segment, number: int, done: int, upto: int, ahead: bool) -> int:
    """Rows of the next call: what is asked for, or a whole strip where it is aligned or of the last value."""
    operator = segment.operators[number]
    left = segment.rows(operator) - done
    return min(
        operator.strip, left if operator.aligned or ahead else min(upto, segment.rows(operator)) - done
    )


def _missing(segment: Segment, number: int, first: int, rows: int, done: list[int]) -> tuple[int, int] | None:
    """The first producer that a call must wait for, and how many rows it must have; None if all is there."""
    for read in segment.operators[number].reads:
        source = segment.producer.get(read.value)
        if source is not None:
            low, high = segment.needed(read, first, rows)
            if low < high and done[source] < high:
                return source, high
    return None


class _Readers:
    """Rows of each value that calls are still to read. Rows that nothing asks for are never computed."""

    def __init__(self, segment: Segment, calls: tuple[Call, ...]) -> None:
        self.segment = segment
        self.done = [0] * len(segment.operators)
        self.end = [0] * len(segment.operators)  # rows that each operator computes
        for call in calls:
            self.end[call.operator] += call.rows
        self.readers: dict[str, list[tuple[int, Read]]] = {v.name: [] for v in segment.values}
        for i, operator in enumerate(segment.operators):
            for read in operator.reads:
                self.readers[read.value].append((i, read))
        self.kept = {*segment.outputs, *(set(segment.inputs) - set(segment.freed))}

    def low(self, name: str) -> int:
        """The first row of a value that something still reads; its extent if nothing does."""
        value = self.segment.by_name[name]
        if name in self.kept:
            return 0
        low = value.rows
        for number, read in self.readers[name]:
            if self.done[number] < self.end[number]:
                low = min(low, max(read.map.low(self.done[number]), 0))
        if name in self.segment.accumulated and 0 < self.high(name) < self.end[self.segment.producer[name]]:
            low = min(low, self.high(name) - 1)  # the next turn adds to it
        return low

    def high(self, name: str) -> int:
        """One after the last row that is written."""
        source = self.segment.producer.get(name)
        return self.segment.by_name[name].rows if source is None else self.done[source]


def row_spans(segment: Segment, calls: tuple[Call, ...]) -> Iterator[dict[str, tuple[int, int]]]:
    """Rows [low, high) of each value that the call reads or writes, which live while it runs.

    What it reads is held until it ends; what it writes has a place even if nothing reads it.
    """
    readers = _Readers(segment, calls)
    for call in calls:
        operator = segment.operators[call.operator]
        names = dict.fromkeys((*(r.value for r in operator.reads), *operator.outputs))
        before = {name: readers.low(name) for name in names}
        before |= {name: min(before[name], call.first) for name in operator.outputs}
        readers.done[call.operator] += call.rows
        yield {name: (before[name], readers.high(name)) for name in names}


def _rings(segment: Segment, calls: tuple[Call, ...]) -> Iterator[RowRing]:
    """Rings of values that are neither whole at the beginning nor at the end."""
    inner = [v.name for v in segment.values if v.name in segment.producer and v.name not in segment.outputs]
    owner = _shared_slots(segment, calls, set(inner))
    trace = _Trace(segment, calls, owner)
    for name in inner:
        if owner[name] != name or not trace.rows[name]:
            continue  # in the ring of another, or of an operator that nothing asks for
        values = tuple(v for v in inner if owner[v] == name)
        live = trace.live[name]
        rows = trace.rows[name]
        value = segment.by_name[name]
        yield RowRing(
            values,
            rows,
            value.row_bytes,
            value.planes,
            len(values) == 1 and _is_transient(segment, calls, name),
            (live & -live).bit_length() - 1,
            live.bit_length() - 1,
            live,
        )


def _shared_slots(segment: Segment, calls: tuple[Call, ...], inner: set[str]) -> dict[str, str]:
    """The owner of the ring of each value: a sum takes its operand's slots if nothing reads them later."""
    owner = {name: name for name in inner}
    late = set()  # operands that something reads after the sum has overwritten them
    readers = _Readers(segment, calls)
    for call in calls:
        operator = segment.operators[call.operator]
        readers.done[call.operator] += call.rows
        if operator.takes is not None and readers.low(operator.takes) < call.first + call.rows:
            late.add(operator.name)
    for operator in segment.operators:
        x, y = operator.takes, operator.outputs[0]
        if x is None or x not in inner or y not in inner or operator.name in late or operator.accumulates:
            continue
        a, b = segment.by_name[x], segment.by_name[y]
        if (a.row_bytes, a.planes) == (b.row_bytes, b.planes):
            owner[y] = owner[x]
    return owner


class _Trace:
    """Most rows at once of each ring, by the value that owns it, and the calls during which it holds rows."""

    def __init__(self, segment: Segment, calls: tuple[Call, ...], owner: dict[str, str]) -> None:
        self.rows = dict.fromkeys(owner, 0)
        self.live = dict.fromkeys(owner, 0)
        readers = _Readers(segment, calls)
        spans: dict[str, tuple[int, int]] = {}
        members: dict[str, list[str]] = {}
        for name, own in owner.items():
            members.setdefault(own, []).append(name)
        for i, touched in enumerate(row_spans(segment, calls)):
            spans.update((n, s) for n, s in touched.items() if n in owner)
            for own in dict.fromkeys(owner[n] for n in touched if n in owner):
                alive = [spans[n] for n in members[own] if n in spans and spans[n][0] < spans[n][1]]
                if alive:
                    rows = max(high for _, high in alive) - min(low for low, _ in alive)
                    self.rows[own] = max(self.rows[own], 1 if own in segment.accumulated else rows)
            readers.done[calls[i].operator] += calls[i].rows
            spans.update((n, (readers.low(n), readers.high(n))) for n in touched if n in owner)
            for own, names in members.items():
                held = any(spans[n][0] < spans[n][1] for n in names if n in spans)
                if held or any(n in touched for n in names):
                    self.live[own] |= 1 << i


def _is_transient(segment: Segment, calls: tuple[Call, ...], name: str) -> bool:
    """True if each call of the producer is followed by one of the only reader for exactly the same rows."""
    source = segment.producer[name]
    readers = [(i, r) for i, o in enumerate(segment.operators) for r in o.reads if r.value == name]
    if len(readers) != 1 or readers[0][1].map != ROW or segment.operators[source].accumulates:
        return False
    reader = readers[0][0]
    wrote = [c for c in calls if c.operator in (source, reader)]
    pairs = list(zip(wrote[::2], wrote[1::2], strict=False))
    return len(wrote) % 2 == 0 and all(
        (a.operator, b.operator) == (source, reader) and a[1:] == b[1:] for a, b in pairs
    )
