"""Bytes of a plan if its groups ran in strips of rows: predicted, and not executed.

Every group whose operators are maps of rows counts as one that can run so, whether a kernel of strips exists
or not. Scratch of strips is not known before there is a kernel, and is not counted; that of whole groups is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from app.engine.buffers.buffer_assignment import value_bytes
from app.engine.buffers.row_bound import live_row_bound
from app.engine.core import graph
from app.engine.core.calls import workspace_bytes
from app.engine.core.plan import Compilation
from app.engine.core.program import Program, Step
from app.engine.memory.rows.arena import Arena, arena
from app.engine.memory.rows.cuts import Counted, Cuts, pareto_cuts
from app.engine.memory.rows.geometry import ROW, Read, RowMap, RowOperator, RowValue, Segment, only
from app.engine.memory.rows.replay import replay
from app.engine.operators.row_maps import GroupRows, group_rows, rows_of
from app.engine.types.errors import EngineError

ENTRY = 4  # byte of an address in a table of rows


@dataclass(frozen=True, slots=True)
class Forecast:
    """Bytes without weights and without what the caller owns.

    Attributes:
        whole: arena of the plan as it is.
        rings: arena with rows in rings.
        rows: arena with each row where the placement puts it; `table_bytes` of addresses are beside it.
        lower_bound: no order of rows without recompute takes less; 0 if it was not asked for.
        segments: operators of each segment of the plan in rings, by name.
        barriers: (group, reason) of groups that read all rows first.
    """

    whole: int
    rings: int
    rows: int
    table_bytes: int
    lower_bound: int
    segments: tuple[tuple[str, ...], ...]
    barriers: tuple[tuple[str, str], ...]

    @property
    def least(self) -> int:
        """The smallest of the three, the table of addresses counted."""
        return min(self.whole, self.rings, self.rows + self.table_bytes)

    def __str__(self) -> str:
        """Bytes, segments of more than one group, and barriers, a line each."""
        lines = [
            "in rows, predicted and not executed; byte without weights, inputs and outputs:",
            f"{self.whole:12} the plan as it is",
            f"{self.rings:12} rows in rings",
            f"{self.rows:12} rows placed one by one, and {self.table_bytes} for the table of their addresses",
        ]
        if self.lower_bound:
            lines.append(f"{self.lower_bound:12} no order of rows without recompute takes less")
        streamed = [names for names in self.segments if len(names) > 1]
        lines += [f"segment of {len(names)} groups: {names[0]} to {names[-1]}" for names in streamed]
        lines += [f"barrier {name}: {reason}" for name, reason in self.barriers]
        return "\n".join(lines) + "\n"


def forecast(program: Program, strips: Sequence[int] = (1,), bound: bool = False) -> Forecast:
    """Predicted bytes of a program in strips of rows; each placement is replayed by the checker.

    Raises:
        EngineError: a value has no static shape, so that nothing can be said.
    """
    rows, barriers = row_graph(program)
    outside = {v.name or "" for v in (*program.compilation.graph.inputs, *program.compilation.graph.outputs)}
    free = frozenset(v.name for v in rows.values if v.name in outside)
    found: dict[bool, tuple[Cuts, Arena]] = {}
    for by_rows in (False, True):
        cuts = pareto_cuts(rows, free, strips, counted=Counted.ROWS if by_rows else Counted.RINGS)[0]
        found[by_rows] = cuts, checked(program.compilation, rows, cuts, free, rings=not by_rows)
    cuts, placed = found[False]
    table = found[True][1]
    return Forecast(
        program.arena_bytes,
        placed.nbytes,
        table.nbytes,
        table.table_rows * ENTRY,
        live_row_bound(rows, free) if bound else 0,
        tuple(tuple(o.name for o in part.segment.operators) for part in cuts.parts),
        barriers,
    )


def checked(
    compilation: Compilation, rows: Segment, cuts: Cuts, free: frozenset[str], *, rings: bool
) -> Arena:
    """The arena of a cut graph, replayed; what the caller owns lies behind it."""
    alignment = compilation.target.memories[0].alignment
    segments = [part.segment for part in cuts.parts]
    pieces = [*(v.nbytes + v.rows * alignment for v in rows.values), *(o.scratch for o in rows.operators)]
    begin = sum(pieces) + alignment * len(pieces)  # no arena is larger
    at = {}
    for name in sorted(free):
        at[name] = begin
        begin += rows.by_name[name].nbytes
    placed = arena(rows, segments, at, alignment, rings)
    replay(rows, list(placed.emitted(rows)), placed.whole, begin)
    return placed


def row_graph(program: Program) -> tuple[Segment, tuple[tuple[str, str], ...]]:
    """The steps of a program as operators on rows, and its barriers with their reasons."""
    compilation = program.compilation
    values: dict[str, RowValue] = {}
    operators: list[RowOperator] = []
    barriers: list[tuple[str, str]] = []
    for step in program.steps:
        dynamic = [v for v in (*step.group.inputs, *step.group.outputs) if graph.is_dynamic(v)]
        if dynamic:
            raise EngineError(f"{dynamic[0].name!r} has no static shape: its rows are not known")
        found = group_rows(step.group, compilation.registry)
        if found.barrier is not None:
            barriers.append((step.group.name, found.barrier))
        for value, _ in found.reads:
            values.setdefault(value.name or "", _row_value(value, compilation))
        turns = max((rows_of(v) for v, _ in found.reads), default=1) if found.accumulated else None
        for value in step.group.outputs:
            values[value.name or ""] = _row_value(value, compilation, turns)
        if len({values[v.name or ""].rows for v in step.group.outputs}) > 1:
            for value in step.group.outputs:
                name = value.name or ""
                values[name] = RowValue(name, 1, values[name].nbytes)
        operators.append(_operator(step, found, values, compilation))
    main = compilation.graph
    made = {y for o in operators for y in o.outputs}
    inputs = tuple(name for name in values if name not in made)
    outputs = tuple(v.name or "" for v in main.outputs if (v.name or "") in made)
    return Segment(tuple(values.values()), tuple(operators), inputs, outputs), tuple(barriers)


def _row_value(value: ir.Value, compilation: Compilation, turns: int | None = None) -> RowValue:
    """A value in its layout, as rows of as many bytes."""
    nbytes, rows = value_bytes(value, compilation), rows_of(value)
    if turns is not None:
        return RowValue(value.name or "", turns, max(nbytes, 1), accumulated=True)
    return RowValue(value.name or "", rows, max(-(-nbytes // rows), 1))


def _operator(
    step: Step, found: GroupRows, values: dict[str, RowValue], compilation: Compilation
) -> RowOperator:
    """A step as an operator; its reads are those of the rows that the values have."""
    outputs = tuple(v.name or "" for v in step.group.outputs)
    reads = tuple(Read(v.name or "", _map_of(values[v.name or ""], rows_of(v), m)) for v, m in found.reads)
    owned = step.group.outputs[0] in compilation.graph.outputs
    pairs = [a.name or "" for a, b in step.choice.inplace if (b.name or "") == outputs[0] and not owned]
    takes = next((a for a in pairs if Read(a, ROW) in reads), None)
    scratch = workspace_bytes(step.choice.calls, compilation.options.threads)
    return RowOperator(step.group.name, reads, outputs, takes=takes, scratch=scratch)


def _map_of(value: RowValue, rows: int, found: RowMap) -> RowMap:
    """The map of a read; of a sum its last turn is read, of a value that counts as one row that row."""
    if value.accumulated:
        return only(value.rows - 1)
    return found if value.rows == rows else only(0)
