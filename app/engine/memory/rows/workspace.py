"""Offsets of the rings of a streamed segment and of the scratch of its calls: the workspace of its step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from app.engine.memory.portfolio import solve
from app.engine.memory.problem import Buffer, Problem
from app.engine.memory.rows.loops import LoopProgram, length, pipelined, rolled
from app.engine.memory.rows.schedule import RowRing, Schedule, schedule

ALIGNMENT = 64  # byte, of each ring


class RowPlace(NamedTuple):
    """Offset of the first plane of a row, and the distance from one plane to the next, in bytes."""

    offset: int
    plane: int


RowTable: TypeAlias = Mapping[tuple[str, int], RowPlace]  # by value and row


@dataclass(frozen=True, slots=True)
class Workspace:
    """Offsets in one block of `nbytes`; inputs and outputs of the segment are whole values beside it.

    Attributes:
        rings: offset of each ring of the schedule, in the same order.
        scratch: offset of the scratch of each operator; None for one without.
        lower_bound: bytes of rings and scratch, or of rows and scratch, that are alive during one call.
        table: where each row lies, if that is in no ring; there are no rings then.
    """

    schedule: Schedule
    program: LoopProgram
    rings: tuple[int, ...]
    scratch: tuple[int | None, ...]
    nbytes: int
    lower_bound: int
    table: RowTable | None = None

    @property
    def by_value(self) -> dict[str, tuple[RowRing, int]]:
        """RowRing and offset of each value that has one."""
        if self.table is not None:
            return {}
        placed = zip(self.schedule.rings, self.rings, strict=True)
        return {v: (ring, offset) for ring, offset in placed for v in ring.values}


@dataclass(frozen=True, slots=True)
class Place:
    """Members that are never alive during the same call, at one offset: transients and scratch take turns.

    `members` are numbers of rings, then of operators with scratch; `live` has a bit for each call.
    """

    members: tuple[int, ...]
    live: int
    nbytes: int

    def buffer(self, name: str, begin: int, alignment: int) -> Buffer:
        """The place as a buffer that lives from its first to its last call, `begin` being call 0."""
        first, after = (self.live & -self.live).bit_length() - 1, self.live.bit_length()
        return Buffer(name, begin + first, begin + after, self.nbytes, alignment)


def workspace(found: Schedule, alignment: int = ALIGNMENT) -> Workspace:
    """Place the rings and the scratch of a schedule in memory of their own.

    Its calls are one loop where that is shorter and its rings take no more.
    """
    segment = found.segment
    nested = _placed(found, nested_loops(found), alignment)
    loop = pipelined(segment, found.calls)
    if loop is None or length(loop.items) >= length(nested.program.items):
        return nested
    calls = tuple(loop.calls([segment.rows(o) for o in segment.operators]))
    other = _placed(schedule(segment, calls), loop, alignment)
    return other if other.nbytes <= nested.nbytes else nested


def nested_loops(found: Schedule) -> LoopProgram:
    """The calls of a schedule as loops that compute in each call all that they name."""
    return LoopProgram(rolled(found.calls), (0,) * len(found.segment.operators))


def _placed(found: Schedule, program: LoopProgram, alignment: int) -> Workspace:
    items = ring_items(found)
    places = shared_places(items)
    solution = solve(Problem(tuple(p.buffer(str(i), 0, alignment) for i, p in enumerate(places))))
    offsets = [solution.offsets[str(i)] for i in range(len(places))]
    bound = _most_alive(items, len(found.calls), alignment)
    return located(found, program, places, offsets, solution.peak, bound)


def located(
    found: Schedule, program: LoopProgram, places: list[Place], offsets: list[int], nbytes: int, bound: int
) -> Workspace:
    """The workspace of a schedule whose places have offsets."""
    rings = len(found.rings)
    at: list[int | None] = [None] * (rings + len(found.segment.operators))
    for place, offset in zip(places, offsets, strict=True):
        for member in place.members:
            at[member] = offset
    placed = tuple(o for o in at[:rings] if o is not None)
    return Workspace(found, program, placed, tuple(at[rings:]), nbytes, bound)


def ring_items(found: Schedule) -> list[tuple[int, int]]:
    """Live calls as bits, and bytes, of each ring and then of the scratch of each operator."""
    running = [0] * len(found.segment.operators)
    for i, call in enumerate(found.calls):
        running[call.operator] |= 1 << i
    items = [(_calls_of(ring), ring.nbytes) for ring in found.rings]
    return items + [(running[i], o.scratch) for i, o in enumerate(found.segment.operators)]


def _calls_of(ring: RowRing) -> int:
    """The calls during which a ring holds rows, as bits."""
    return sum((1 << last + 1) - (1 << first) for first, last in ring.runs)


def shared_places(items: list[tuple[int, int]]) -> list[Place]:
    """Items of (live calls, bytes) that share a place: largest first, in the first where none is alive.

    Items without bytes or calls have no place.
    """
    places: list[Place] = []
    for i in sorted(range(len(items)), key=lambda i: (-items[i][1], i)):
        live, nbytes = items[i]
        if not live or not nbytes:
            continue
        for k, place in enumerate(places):
            if not place.live & live:
                places[k] = Place((*place.members, i), place.live | live, place.nbytes)
                break
        else:
            places.append(Place((i,), live, nbytes))
    return places


def _most_alive(items: list[tuple[int, int]], calls: int, alignment: int) -> int:
    """The largest sum of extents alive during one call."""
    change = [0] * (calls + 1)
    for live, nbytes in items:
        extent = -(-nbytes // alignment) * alignment
        for i in _edges(live, calls):
            change[i] += extent if live >> i & 1 else -extent
    most = total = 0
    for delta in change:
        total += delta
        most = max(most, total)
    return most


def _edges(live: int, calls: int) -> list[int]:
    """The calls at which a set of calls begins or has ended."""
    edges = live ^ (live << 1)
    return [i for i in range(calls + 1) if edges >> i & 1]
