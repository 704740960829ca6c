"""One arena for all segments of a cut graph: rows live from their first write to their last read.

Time counts calls, over all segments. A value that crosses a cut is one buffer whose parts are its rows, so
that what follows takes their place as they are read, also across the border of a segment. Rows within a
segment lie in rings, or each where the placement puts it: then programs need a table of addresses, and the
slots that a ring keeps idle between two calls hold rows of others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.engine.memory.portfolio import solve
from app.engine.memory.problem import Buffer, Part, Problem, Solution
from app.engine.memory.rows.emit import emit_rows, ring_rows, whole_rows
from app.engine.memory.rows.geometry import Segment
from app.engine.memory.rows.replay import EmittedCall
from app.engine.memory.rows.schedule import Schedule, schedule
from app.engine.memory.rows.workspace import (
    ALIGNMENT,
    Place,
    RowPlace,
    RowTable,
    Workspace,
    located,
    nested_loops,
    ring_items,
    shared_places,
)

SEARCH = 20_000  # failed branches of a search for places of rows


@dataclass(frozen=True, slots=True)
class Arena:
    """Places of all rows of a cut graph.

    Attributes:
        whole: offset of each value that crosses a cut, by the value that names its place.
        tables: by segment, the place of each row.
        scratch: by segment and operator, its offset or None.
        rings: False if rows lie where the tables say, and in no rings.
    """

    schedules: tuple[Schedule, ...]
    whole: Mapping[str, int]
    tables: tuple[RowTable, ...]
    scratch: tuple[tuple[int | None, ...], ...]
    rings: bool
    solution: Solution

    @property
    def nbytes(self) -> int:
        """Bytes of the arena, without the table of addresses."""
        return self.solution.peak

    @property
    def table_rows(self) -> int:
        """Entries of the table of addresses that a program needs; 0 with rings."""
        return 0 if self.rings else sum(len(table) for table in self.tables)

    def emitted(self, graph: Segment) -> Iterator[EmittedCall]:
        """The calls of all segments, with the numbers of the operators in the graph."""
        numbers = {o.name: i for i, o in enumerate(graph.operators)}
        for one, table, scratch in zip(self.schedules, self.tables, self.scratch, strict=True):
            for call in emit_rows(one, table, scratch):
                name = one.segment.operators[call.operator].name
                yield call._replace(operator=numbers[name])


def arena(
    graph: Segment,
    segments: Sequence[Segment],
    free: Mapping[str, int] | None = None,
    alignment: int = 64,
    rings: bool = True,
) -> Arena:
    """Place the segments of a graph; `free` values lie elsewhere, at offsets that are given."""
    free = free or {}
    lives = _Lives(graph, [schedule(s) for s in segments], {*free})
    buffers = [lives.whole_buffer(name, alignment) for name in lives.places()]
    placed: list[list[Place]] = []
    begin = 0
    for k, one in enumerate(lives.schedules):
        items = ring_items(one)
        if not rings:
            items = [(0, 0)] * len(one.rings) + items[len(one.rings) :]
            buffers.extend(lives.row_buffers(k, alignment))
        placed.append(shared_places(items))
        buffers.extend(p.buffer(f"place {k}/{i}", begin, alignment) for i, p in enumerate(placed[-1]))
        if one.segment.kept:
            buffers.append(Buffer(f"kept {k}", begin, begin + len(one.calls), one.segment.kept, alignment))
        begin += len(one.calls)
    solution = solve(Problem(tuple(buffers)))
    at = solution.offsets
    names = dict.fromkeys(place for one in lives.schedules for place in one.whole.values())
    whole = {name: free[name] if name in free else at[f"value {lives.place(name)}"] for name in names}
    for name in graph.outputs:
        place = lives.place(name)
        whole.setdefault(name, free[place] if place in free else at[f"value {place}"])
    tables: list[RowTable] = []
    scratch: list[tuple[int | None, ...]] = []
    for k, (one, places) in enumerate(zip(lives.schedules, placed, strict=True)):
        if rings:
            offsets = [at[f"place {k}/{i}"] for i in range(len(places))]
            own = located(one, nested_loops(one), places, offsets, 0, 0)
            inner: RowTable = ring_rows(own)
            scratch.append(own.scratch)
        else:
            inner = lives.row_table(k, at)
            scratch.append(_scratch_offsets(one, places, at, k))
        tables.append({**whole_rows(one, whole), **inner})
    return Arena(tuple(lives.schedules), whole, tuple(tables), tuple(scratch), rings, solution)


def with_rows_placed(rings: Workspace, alignment: int = ALIGNMENT) -> Workspace:
    """The workspace of a segment with each row where a placement puts it, if that takes less than rings.

    Slots that a ring keeps idle between two calls hold rows of others; programs need a table of places.
    """
    one = rings.schedule
    lives = _Lives(one.segment, [one], {*one.segment.inputs, *one.segment.outputs})
    items = [(0, 0)] * len(one.rings) + ring_items(one)[len(one.rings) :]
    places = shared_places(items)
    buffers = [*lives.row_buffers(0, alignment)]
    buffers += [p.buffer(f"place 0/{i}", 0, alignment) for i, p in enumerate(places)]
    solution = solve(Problem(tuple(buffers)), SEARCH)
    if solution.peak >= rings.nbytes:
        return rings
    at = solution.offsets
    scratch = _scratch_offsets(one, places, at, 0)
    nbytes, bound = solution.peak, solution.lower_bound
    return replace(rings, scratch=scratch, nbytes=nbytes, lower_bound=bound, table=lives.row_table(0, at))


def _scratch_offsets(
    one: Schedule, places: list[Place], at: Mapping[str, int], k: int
) -> tuple[int | None, ...]:
    found: list[int | None] = [None] * len(one.segment.operators)
    for i, place in enumerate(places):
        for member in place.members:
            found[member - len(one.rings)] = at[f"place {k}/{i}"]
    return tuple(found)


@dataclass(slots=True)
class _Span:
    """Calls that touch a row, first and last, and rows of the strip that it was written in."""

    first: int
    last: int
    strip: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class _Lives:
    """First and last call that touch each row.

    Attributes:
        whole: rows of values that cross a cut, by the value that names their place.
        inner: rows of the others by segment, value in whose ring they are, and row.
        owner: places that lie in another one: the output of a segment in its input.
        rings: the first value of the ring of each value of the last segment.
    """

    graph: Segment
    schedules: list[Schedule]
    free: set[str]
    owner: dict[str, str] = field(default_factory=dict)
    whole: dict[tuple[str, int], _Span] = field(default_factory=dict)
    inner: list[dict[tuple[str, int], _Span]] = field(default_factory=list)
    rings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for one in self.schedules:
            for name, place in one.whole.items():
                if name != place and name in one.segment.outputs:
                    self.owner[name] = place
        time = 0
        for name in self.graph.inputs:
            for row in range(0 if name in self.free else self.graph.by_name[name].stored):
                self._extend(self.whole, (name, row), 0)
        for one in self.schedules:
            self.inner.append({})
            self.rings = {v: ring.values[0] for ring in one.rings for v in ring.values}
            for call in one.calls:
                operator = one.segment.operators[call.operator]
                for read in operator.reads:
                    low, high = one.segment.needed(read, call.first, call.rows)
                    self._touch(one, read.value, low, high, time)
                for name in operator.outputs:
                    self._touch(one, name, call.first, call.first + call.rows, time, write=True)
                time += 1
        for name in self.graph.outputs:
            for row in range(0 if name in self.free else self.graph.by_name[name].stored):
                self._extend(self.whole, (self.place(name), row), time)

    def place(self, name: str) -> str:
        """The value that names the place of one that crosses a cut."""
        while name in self.owner:
            name = self.owner[name]
        return name

    def places(self) -> list[str]:
        """The values that name a place, in the order of their first use."""
        return [*dict.fromkeys(name for name, _ in self.whole)]

    def whole_buffer(self, name: str, alignment: int) -> Buffer:
        """A value that crosses a cut, its rows as parts where they do not all live as long."""
        value, stored = self.graph.by_name[name], self.graph.by_name[name].stored
        line = value.row_bytes // value.planes
        spans = {row: s for row in range(stored) if (s := self.whole.get((name, row))) is not None}
        parts = tuple(
            Part((plane * stored + row) * line, line, span.first, span.last + 1)
            for plane in range(value.planes)
            for row, span in spans.items()
        )
        lower, upper = min(p.lower for p in parts), max(p.upper for p in parts)
        if all((p.lower, p.upper) == (lower, upper) for p in parts):
            parts = ()
        return Buffer(f"value {name}", lower, upper, stored * value.row_bytes, alignment, parts)

    def row_buffers(self, k: int, alignment: int) -> Iterator[Buffer]:
        """Rows of rings of segment k, each strip in its own place until all its rows are read.

        All strips of a value take as much, so that its planes lie at one distance.
        """
        strips = self._strips(k)
        most: dict[str, int] = {}
        for (name, _), members in strips.items():
            most[name] = max(most.get(name, 0), len(members))
        for (name, first), members in strips.items():
            lower, upper = min(s.first for s in members), max(s.last for s in members) + 1
            nbytes = self.graph.by_name[name].row_bytes
            size, own = most[name] * nbytes, min(alignment, nbytes & -nbytes)
            yield Buffer(f"row {k}/{name}/{first}", lower, upper, size, own)

    def row_table(self, k: int, at: Mapping[str, int]) -> RowTable:
        """The places of rows of rings of segment k."""
        table: dict[tuple[str, int], RowPlace] = {}
        for ring in self.schedules[k].rings:
            most = max(span.strip[1] for (name, _), span in self.inner[k].items() if name == ring.values[0])
            for name in ring.values:
                value, own = self.graph.by_name[name], ring.values[0]
                line = value.row_bytes // value.planes
                for row in range(value.rows):
                    kept = 0 if value.accumulated else row
                    span = self.inner[k].get((own, kept))
                    if span is not None:
                        first = span.strip[0]
                        offset = at[f"row {k}/{own}/{first}"] + (kept - first) * line
                        table[name, row] = RowPlace(offset, most * line)
        return table

    def _strips(self, k: int) -> dict[tuple[str, int], list[_Span]]:
        found: dict[tuple[str, int], list[_Span]] = {}
        for (name, _), span in self.inner[k].items():
            found.setdefault((name, span.strip[0]), []).append(span)
        return found

    def _touch(self, one: Schedule, name: str, low: int, high: int, time: int, write: bool = False) -> None:
        """Rows [low, high) of a value are touched during a call."""
        place = one.whole.get(name)
        if place is not None:
            if place not in self.free:
                stored = one.segment.by_name[place].stored
                for row in {row % stored for row in range(low, high)}:
                    self._extend(self.whole, (self.place(place), row), time)
            return
        own = self.rings[name]
        summed = one.segment.by_name[name].accumulated
        for row in range(low, high):
            key = (own, 0 if summed else row)
            self._extend(self.inner[-1], key, time)
            if write and own == name:
                self.inner[-1][key].strip = (0, 1) if summed else (low, high - low)

    @staticmethod
    def _extend(spans: dict[tuple[str, int], _Span], key: tuple[str, int], time: int) -> None:
        spans.setdefault(key, _Span(time, time)).last = time
