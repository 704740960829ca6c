"""A lower bound of every arena of a graph of rows: minimum cuts between rows, over all orders of rows.

No cuts into segments, strips or schedules stay below, as long as no row is computed twice and an operator
computes its rows in rising order.
"""

from collections.abc import Set as AbstractSet

from app.engine.buffers.step_cuts import StepCuts
from app.engine.memory.beam_order import Step
from app.engine.memory.rows.geometry import RowOperator, Segment


def live_row_bound(graph: Segment, free: AbstractSet[str] = frozenset(), enough: int = 1 << 62) -> int:
    """Bytes of rows that live in every order while some row is computed; `enough` bytes end the search.

    `free` values are not counted. The search ends by the work that it has done, never by the clock.
    """
    steps, sizes = row_steps(graph, free)
    return StepCuts(steps, sizes).bound(enough)


def row_steps(graph: Segment, free: AbstractSet[str] = frozenset()) -> tuple[list[Step], list[int]]:
    """The rows of a graph as steps, operator by operator, and the bytes of what they touch.

    An input that is counted is written by a step of its own before all others; outputs, and inputs that the
    graph does not free, are read by a step after all others.
    """
    rows = _Rows(graph, free)
    counted = [v for v in graph.inputs if v not in free]
    rows.add((), [rows.storage(v, i) for v in counted for i in range(graph.by_name[v].stored)])
    needed = _needed(graph)
    for operator in graph.operators:
        before = None
        for i in range(graph.rows(operator)):
            if any((y, i) in needed for y in operator.outputs):
                before = rows.add_row(operator, i, before)
    kept = [v for v in (*graph.outputs, *counted) if v not in graph.freed]
    everything = tuple(range(len(rows.steps)))
    rows.add(everything, [rows.storage(v, i) for v in kept for i in range(graph.by_name[v].stored)])
    return rows.steps, rows.sizes


def _needed(graph: Segment) -> set[tuple[str, int]]:
    """Rows that outputs need, directly or not; of a sum all turns before one that is needed."""
    needed = {(v, i) for v in graph.outputs for i in range(graph.by_name[v].rows)}
    for operator in reversed(graph.operators):
        rows = [i for i in range(graph.rows(operator)) if any((y, i) in needed for y in operator.outputs)]
        if rows and graph.accumulates(operator):
            rows = list(range(rows[-1] + 1))
            needed |= {(y, i) for y in operator.outputs for i in rows}
        for read in operator.reads:
            needed |= {(read.value, j) for i in rows for j in range(*graph.needed(read, i, 1))}
    return needed


class _Rows:
    """Steps and storages as they are numbered."""

    def __init__(self, graph: Segment, free: AbstractSet[str]) -> None:
        self.graph, self.free = graph, free
        self.steps: list[Step] = []
        self.sizes: list[int] = []
        self._storages: dict[tuple[str, int], int] = {}
        self._writer: dict[tuple[str, int], int] = {}

    def storage(self, name: str, row: int) -> int:
        """The number of a row; all turns of a sum have one."""
        value = self.graph.by_name[name]
        key = name, row % value.stored
        if key not in self._storages:
            self._storages[key] = len(self.sizes)
            self.sizes.append(0 if name in self.free else value.row_bytes)
        return self._storages[key]

    def add(self, needs: tuple[int, ...], touches: list[int]) -> None:
        """A step that is no row."""
        self.steps.append(Step(needs, tuple(dict.fromkeys(touches))))

    def add_row(self, operator: RowOperator, row: int, before: int | None) -> int:
        """The step that computes one row after another one; returns its number."""
        graph, number = self.graph, len(self.steps)
        reads = [(read.value, i) for read in operator.reads for i in range(*graph.needed(read, row, 1))]
        needs = {0, *(self._writer.get(r, 0) for r in reads)}
        if before is not None:
            needs.add(before)
        pairs: tuple[tuple[int, int], ...] = ()
        if operator.takes is not None:
            pair = self.storage(operator.takes, row), self.storage(operator.outputs[0], row)
            pairs = (pair,) if self.sizes[pair[0]] == self.sizes[pair[1]] else ()
        for name in operator.outputs:
            self._writer[name, row] = number
        touches = [self.storage(*r) for r in reads] + [self.storage(y, row) for y in operator.outputs]
        self.steps.append(
            Step(tuple(sorted(needs)), tuple(dict.fromkeys(touches)), pairs, operator.scratch, operator.name)
        )
        return number
