"""Plans in strips of rows in a small memory, with values and weights in a large one: predicted, not executed.

A value that does not fit lies whole in the large memory (the store). It is written there row by row, and
comes back row by row for each operator that reads it: two more operators on rows, so that cuts, rings, places
and the checker are those of any graph. Weights are kept in the small memory while a segment runs, or pass in
blocks at every call of their operator. Rows come in strips of two, of which one is moved while the other is
read: a segment takes the longer of moving and computing. Where there is no room for that, one row comes at a
time, and a segment takes the sum of the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.engine.core import graph
from app.engine.core.program import Program, Step
from app.engine.memory.rows.cuts import Counted, Limits, Positions, pareto_cuts, with_strip
from app.engine.memory.rows.geometry import Read, RowOperator, Segment
from app.engine.memory.rows.schedule import Demand
from app.engine.planning.streams.forecast import checked, row_graph
from app.engine.types.errors import EngineError

BLOCK = 4096  # byte of weights that are moved at a time
BUFFERS = 2  # blocks of weights, of which one is moved while the other is read
KEPT = 8  # weights of at most this part of the small memory are kept
STRIPS = (1, 4, 16)
LONGEST = 96  # operators of a segment, moves among them


@dataclass(frozen=True, slots=True)
class Banked:
    """A plan whose rows lie in a small memory.

    Attributes:
        capacity: bytes of the small memory.
        nbytes: what the plan takes of it.
        segments: operators of each segment, by name.
        spilled: values that lie whole in the store, those of the caller among them.
        overlapped: True if rows are moved while others are computed on.
        moved: bytes between the memories: of weights and of spilled values.
        computing: predicted seconds of all operators and of the starts of their calls.
        seconds: of the plan, moving included.
    """

    capacity: int
    nbytes: int
    segments: tuple[tuple[str, ...], ...]
    spilled: tuple[str, ...]
    overlapped: bool
    moved: int
    computing: float
    seconds: float

    def __str__(self) -> str:
        """Bytes and predicted times, a line each."""
        way = "while others are computed on" if self.overlapped else "one at a time"
        lines = [
            f"{self.nbytes:12} in rows within {self.capacity} byte, beside a store",
            f"{self.moved:12} moved: weights, and {len(self.spilled)} values by rows, {way}",
            f"{self.seconds * 1e3:12.3f} ms predicted, {self.computing * 1e3:.3f} ms of it computing",
        ]
        return "\n".join(lines) + "\n"


def banked(program: Program, capacity: int, bandwidth: float) -> Banked:
    """The fastest plan found within `capacity` bytes, by a store of `bandwidth` bytes a second.

    Segments are as long as there is room; what is alive where none goes on is spilled. The plan is placed,
    and replayed by the checker.

    Raises:
        EngineError: a value has no static shape, or an operator has no room for its rows.
    """
    rows, _ = row_graph(program)
    crowded = ""
    for overlapped in (True, False):
        costs = _Costs(program, capacity // KEPT, bandwidth, overlapped)
        weighted = replace(rows, operators=tuple(costs.with_weights(o) for o in rows.operators))
        found = _cut(program, weighted, capacity, costs)
        if isinstance(found, Banked):
            return found
        crowded = found
    raise EngineError(f"the rows that {crowded!r} reads and writes take more than {capacity} byte")


def _cut(program: Program, rows: Segment, capacity: int, costs: "_Costs") -> Banked | str:
    """The plan; else the name of the operator that has no room."""
    caller = {v.name or "" for v in (*program.compilation.graph.inputs, *program.compilation.graph.outputs)}
    away = {v.name for v in rows.values if v.name in caller and not v.accumulated}
    limits = Limits(nbytes=capacity, operators=LONGEST, known={})
    while True:
        spilled, free = with_spilled(rows, away, overlapped=costs.overlapped)
        cuts = pareto_cuts(spilled, free, STRIPS, costs.seconds, limits=limits)
        end = cuts[0].parts[-1].end if cuts[0].parts else 0
        if end == len(spilled.operators):
            break
        more = _whole_at(rows, spilled, end) - away or _ahead(rows, spilled, end, away, capacity)
        if not more:
            return _named(spilled.operators[end:], costs)
        away |= more
    for option in sorted(cuts, key=lambda c: c.seconds):
        placed = checked(program.compilation, spilled, option, free, rings=True)
        if placed.nbytes <= capacity:
            segments = [part.segment for part in option.parts]
            names = tuple(tuple(o.name for o in s.operators) for s in segments)
            moved, computing = sum(map(costs.moved, segments)), sum(map(costs.computing, segments))
            spills = tuple(sorted(away))
            return Banked(
                capacity, placed.nbytes, names, spills, costs.overlapped, moved, computing, option.seconds
            )
    fullest = max(cuts[0].parts, key=lambda part: part.nbytes)
    return _named(fullest.segment.operators, costs)


def _named(operators: Sequence[RowOperator], costs: "_Costs") -> str:
    """The first operator that is no move, where there is one."""
    return next((o.name for o in operators if o.name in costs.weights), operators[0].name)


def with_spilled(rows: Segment, away: set[str], *, overlapped: bool) -> tuple[Segment, frozenset[str]]:
    """The graph with values in the store, and the names of those there.

    A value that an operator computes is stored row by row; each operator that reads one has it loaded.
    """
    values = [v for v in rows.values if v.name not in rows.producer]
    operators: list[RowOperator] = []
    stored = {name: f"{name} stored" if name in rows.producer else name for name in away}
    for operator in rows.operators:
        here: dict[str, str] = {}
        for name in dict.fromkeys(r.value for r in operator.reads if r.value in away):
            here[name] = f"{name} for {operator.name}"
            values.append(replace(rows.by_name[name], name=here[name]))
            operators.append(_move(stored[name], here[name], 2 if overlapped else 1))
        reads = tuple(Read(here.get(r.value, r.value), r.map) for r in operator.reads)
        takes = here.get(operator.takes, operator.takes) if operator.takes is not None else None
        operators.append(replace(operator, reads=reads, takes=takes))
        values.extend(rows.by_name[name] for name in operator.outputs)
        for name in operator.outputs:
            if name in away:
                values.append(replace(rows.by_name[name], name=stored[name]))
                operators.append(_move(name, stored[name], 1))
    outputs = tuple(stored.get(name, name) for name in rows.outputs)
    graph = Segment(tuple(values), tuple(operators), rows.inputs, outputs)
    return graph, frozenset(stored.values())


def _move(source: str, target: str, strip: int) -> RowOperator:
    """A copy between the memories, `strip` rows at a time."""
    return RowOperator(f"move {target}", (Read(source),), (target,), strip=strip, aligned=strip > 1)


def _whole_at(rows: Segment, spilled: Segment, position: int) -> set[str]:
    """Values that are alive at a position of the graph and may lie in the store."""
    before, after = spilled.operators[:position], spilled.operators[position:]
    written = {y for o in before for y in o.outputs}
    read = {r.value for o in after for r in o.reads}
    return {v.name for v in rows.values if v.name in written & read and v.rows > 1 and not v.accumulated}


def _ahead(rows: Segment, spilled: Segment, begin: int, away: set[str], capacity: int) -> set[str]:
    """Values to spill at the last position whose way from `begin` has room for its rings."""
    positions = Positions(spilled, frozenset(), Limits(), Counted.RINGS)
    found: set[str] = set()
    for end in range(begin + 1, len(spilled.operators)):
        segment = with_strip(positions.segment(begin, end), 1)
        if Demand(segment).most_in_rings() + segment.kept > capacity:
            break
        found = _whole_at(rows, spilled, end) - away or found
    return found


class _Costs:
    """Seconds and bytes of operators, by the steps of a program."""

    def __init__(self, program: Program, most_kept: int, bandwidth: float, overlapped: bool) -> None:
        self.most_kept = most_kept
        self.bandwidth = bandwidth
        self.overlapped = overlapped
        self.launch = program.compilation.target.launch
        self._seconds = {s.group.name: s.choice.seconds for s in program.steps}
        self.weights = {s.group.name: _weights(s) for s in program.steps}

    def with_weights(self, operator: RowOperator) -> RowOperator:
        """The operator with the bytes that its weights take of the small memory."""
        weights = self.weights[operator.name]
        if weights <= self.most_kept:
            return replace(operator, kept=weights)
        return replace(operator, scratch=operator.scratch + BUFFERS * BLOCK)

    def computing(self, segment: Segment) -> float:
        """Seconds of the operators; each call after the first of an operator is started for itself."""
        own = [o for o in segment.operators if o.name in self._seconds]
        further = sum(_calls(segment, o) - 1 for o in own)
        return sum(self._seconds[o.name] for o in own) + further * self.launch

    def moved(self, segment: Segment) -> int:
        """Bytes between the memories: weights, and values that moves write."""
        own = [o for o in segment.operators if o.name in self.weights]
        moves = [o for o in segment.operators if o.name not in self.weights]
        weights = sum(o.kept or self.weights[o.name] * _calls(segment, o) for o in own)
        return weights + sum(segment.by_name[o.outputs[0]].nbytes for o in moves)

    def seconds(self, segment: Segment) -> float:
        """The longer of computing and moving, or their sum where they take turns."""
        both = self.computing(segment), self.moved(segment) / self.bandwidth
        return max(both) if self.overlapped else sum(both)


def _calls(segment: Segment, operator: RowOperator) -> int:
    """Calls of an operator if each computes a whole strip."""
    return -(-segment.rows(operator) // operator.strip)


def _weights(step: Step) -> int:
    """Bytes of the constants that a step reads."""
    return sum(graph.nbytes(v) for v in step.group.inputs if graph.is_constant(v))
