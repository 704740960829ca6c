"""The row of streams: groups whose kernels run in turn on strips of rows, in loops of the compiled driver."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.calls import Operands, kernel_call
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, Jump, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.core.streams.stream_group import STREAM, StreamGroup
from app.engine.core.streams.strips import CallOf, RowsPlace, Strip
from app.engine.cost.strips import predicted
from app.engine.memory.rows import loops
from app.engine.memory.rows.emit import row_places
from app.engine.memory.rows.loops import Item
from app.engine.types.layout import Layout

KERNELS = "app.kernels.cpu.strips"
COUNTER = 8  # byte of a counter and of a flag


def _rejection(group: Group, _context: PlanningContext) -> str | None:
    return None if isinstance(group, StreamGroup) else "its rows have no schedule"


@dataclass
class _Table:
    """Calls of the loops of a program, one after the other.

    Attributes:
        of: the call of an operator for a number of rows, by its number.
        advances: the call after it that advances its cursor, where its own does not.
        counters: number of the turn, and whether another one follows, by depth of the loop.
    """

    of: tuple[CallOf, ...]
    advances: Mapping[int, Callable[[int], KernelCall]]
    calls: list[Call] = field(default_factory=list)
    counters: list[tuple[Workspace, Workspace]] = field(default_factory=list)
    known: dict[tuple[int, int], KernelCall] = field(default_factory=dict)

    def add(self, items: Iterable[Item], depth: int = 0) -> None:
        for item in items:
            if isinstance(item, loops.Loop):
                self._add_loop(item, depth)
                continue
            key = item.operator, item.rows
            if key not in self.known:
                self.known[key] = self.of[item.operator](item.rows)
            self.calls.append(self.known[key])
            if item.operator in self.advances:
                self.calls.append(self.advances[item.operator](item.rows))

    def _add_loop(self, loop: loops.Loop, depth: int) -> None:
        if depth == len(self.counters):
            self.counters.append((Workspace(COUNTER), Workspace(COUNTER)))
        turn, again = self.counters[depth]
        self.calls.append(kernel_call(f"{KERNELS}:begin_loop", (("int64*", turn),), 1))
        first = len(self.calls)
        self.add(loop.body, depth + 1)
        counted: Operands = (("int64*", turn), ("int64*", again), loop.turns)
        self.calls.append(kernel_call(f"{KERNELS}:end_turn", counted, 1))
        self.calls.append(Jump(again, 1, first))


def _lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    assert isinstance(group, StreamGroup)
    cursors, memory = Workspace(8 * len(group.parts)), Workspace(group.memory.nbytes)
    table: list[int] = []
    places = _places(group, memory, table)
    entries = Constant(np.array(table, np.int32))
    of = []
    last = len(group.parts) - 1
    turns = [last] if group.by_heads else range(len(group.parts) if context.threads > 1 else 0)
    shared = [number for number in turns if group.parts[number].strips.shared]
    for number, part in enumerate(group.parts):
        scratch = group.memory.scratch[number] or 0
        cursor = last if group.by_heads else number  # which all heads of a turn share
        shares = context.threads if number in shared else 1
        strip = Strip(part.rows, places, cursors, cursor, memory, scratch, entries, shares)
        of.append(part.strips.lower(part.group, replace(context, tuning=part.choice.tuning), strip))
    loops_of = _Table(tuple(of), {number: partial(_advance, cursors, number) for number in shared})
    program = group.memory.program
    starts = Constant(np.array(program.starts, np.int64))
    start: Operands = (("int64*", cursors), ("int64*", starts), len(group.parts))
    loops_of.calls.append(kernel_call(f"{KERNELS}:begin_strips", start, 1))
    loops_of.add(program.items)
    return tuple(loops_of.calls)


def _advance(cursors: Workspace, operator: int, rows: int) -> KernelCall:
    return kernel_call(f"{KERNELS}:advance", (("int64*", cursors), operator, rows), 1)


def _places(group: StreamGroup, memory: Workspace, table: list[int]) -> Mapping[ir.Value, RowsPlace]:
    """Rows in the workspace; what the stream reads and leaves is whole. Entries go to the table."""
    rings, schedule, placed = group.memory.by_value, group.memory.schedule, row_places(group.memory)
    found = {}
    for name, value in group.images.items():
        shape, width, first = schedule.segment.by_name[name], graph.element_type(value).itemsize, len(table)
        line = shape.row_bytes // shape.planes
        if name in schedule.whole:  # an output has a place of its own, which may be that of an input
            place = name if value in group.outputs else schedule.whole[name]
            stored = shape.stored
            table += [row % stored * line // width for row in range(shape.rows)]
            found[value] = RowsPlace(group.images[place], 0, stored, False, first, stored * line // width)
            continue
        rows = [placed.get((name, row)) for row in range(shape.rows)]  # none for a row that nobody reads
        table += [0 if place is None else place.offset // width for place in rows]
        plane = next(place.plane for place in rows if place is not None)
        ring, offset = rings.get(name, (None, 0))
        slots, moves = (0, False) if ring is None else (ring.rows, ring.transient)
        found[value] = RowsPlace(memory, offset, slots, moves, first, plane // width)
    return found


def _cost(group: Group, context: PlanningContext) -> float:
    assert isinstance(group, StreamGroup)
    calls = Counter(call.operator for call in group.memory.schedule.calls)
    parts = enumerate(group.parts)
    return sum(predicted(part, calls[i], context.target, context.threads) for i, part in parts)


def _inplace(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """Inputs that nothing else reads, row by row over which outputs may be written."""
    assert isinstance(group, StreamGroup)
    whole = group.memory.schedule.whole
    pairs = ((group.images[whole[name]], y) for name, y in group.images.items() if y in group.outputs)
    return tuple((x, y) for x, y in pairs if x is not y)


def _layouts(group: Group, context: PlanningContext) -> Mapping[ir.Value, Layout]:
    """Those that its groups ask for and give."""
    assert isinstance(group, StreamGroup)
    found: dict[ir.Value, Layout] = {}
    for part in group.parts:
        found |= part.choice.implementation.required_layouts(part.group, context)
    return {v: found[v] for v in (*group.inputs, *group.outputs) if v in found}


IMPLEMENTATIONS = (
    Implementation("stream.rows", STREAM, "numba-cpu", _rejection, _lower, _cost, _inplace, layouts=_layouts),
)
