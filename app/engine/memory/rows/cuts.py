"""Cuts of a graph into streamed segments: a shortest path with Pareto sets of bytes and seconds.

What crosses a cut is whole. A label at a position is the most bytes that any segment before it needs and the
seconds of all of them; a label that is neither smaller nor faster than another is dropped. Bottleneck and sum
are monotone, so that no plan over the same positions and strips is better than the labels at the end.
"""

import sys
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TypeAlias

from app.engine.memory.rows.geometry import RowOperator, Segment
from app.engine.memory.rows.schedule import Demand

STRIPS = (1, 2, 4, 7)  # rows of a strip; beside them whole operators, one a segment
Seconds: TypeAlias = Callable[[Segment], float]
Stripped: TypeAlias = Callable[[Segment, int], Segment]
SegmentBytes: TypeAlias = MutableMapping[object, tuple[int, int]]


class Counted(Enum):
    """Bytes of the values of a segment that count.

    RINGS: whole inputs and outputs, and rings of the others. INNER: rows of the others while they live, in
    strips of one row; longer strips keep a place until the last of their rows is read, so rings count.
    ROWS: rows of all of them.
    """

    RINGS = auto()
    INNER = auto()
    ROWS = auto()


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of cuts.

    Attributes:
        crossing: values that may cross one.
        nbytes: that a segment may need; None for any.
        operators: of a segment. Work grows with their square.
        known: bytes of segments that were looked at, by names and strips of their operators, filled in for
            a further search in a graph where those of the same names and strips are the same; None for none.
    """

    crossing: int = 3
    nbytes: int | None = None
    operators: int = sys.maxsize
    known: SegmentBytes | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Operators [begin, end) of a graph as one segment.

    Attributes:
        nbytes: whole values that live during it, whether it touches them or not, with its rings, scratch and
            constants that it keeps; values that are not counted (`free`) left out.
        inner: those of them that are no inputs and do not pass through; a segment with the same end that
            begins earlier needs no less, since its strips ask for the same rows in the same order.
        seconds: as the caller measured or predicted them.
    """

    begin: int
    end: int
    segment: Segment
    nbytes: int
    inner: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Cuts:
    """Segments in order; `nbytes` is the largest of theirs, `seconds` their sum."""

    parts: tuple[Part, ...]
    nbytes: int
    seconds: float


def with_strip(segment: Segment, strip: int) -> Segment:
    """The segment in strips of so many rows; an aligned operator keeps its own."""

    def changed(operator: RowOperator) -> RowOperator:
        return operator if operator.aligned else replace(operator, strip=strip)

    return replace(segment, operators=tuple(changed(o) for o in segment.operators))


def no_seconds(_segment: Segment) -> float:
    """Zero for every segment: of plans that are all as fast the smallest is left."""
    return 0.0


def pareto_cuts(
    graph: Segment,
    free: frozenset[str] = frozenset(),
    strips: Sequence[int] = STRIPS,
    seconds: Seconds = no_seconds,
    stripped: Stripped = with_strip,
    counted: Counted = Counted.RINGS,
    floor: Seconds = no_seconds,
    limits: Limits = Limits(),
) -> tuple[Cuts, ...]:
    """All ways to cut a graph of which none is both smaller and faster, the smallest first.

    Where no segments within the limits reach the end, those of as many operators as any reach are returned.

    Args:
        graph: all operators of a model, none of them in strips.
        free: values whose bytes are not counted, such as the network's input in the caller's memory.
        strips: sizes of strips to look at.
        seconds: of a segment in strips, measured or predicted by the caller.
        stripped: a segment in strips of a size; what comes out equal is looked at once.
        counted: what counts of the values of a segment.
        floor: seconds that a segment takes at least, in strips of any size: what is known to be beaten with
            them is not looked at.
        limits: what no cut or segment may exceed.
    """
    most = limits.nbytes
    positions = Positions(graph, free, limits, counted)
    labels: dict[int, list[Cuts]] = {0: [Cuts((), 0, 0.0)]}
    for end in positions.cuts[1:]:
        found: list[Cuts] = []
        inner = 0  # what the segments that begin later need without their inputs: these do not need less
        for begin in reversed([c for c in positions.cuts if end - limits.operators <= c < end and labels[c]]):
            if most is not None and inner > most:
                break
            least = max(positions.whole_bytes(begin, end), inner)
            segment = positions.segment(begin, end)
            fastest = floor(segment)
            open_labels = [
                before
                for before in labels[begin]
                if not _dominated(max(before.nbytes, least), before.seconds + fastest, found)
            ]
            if not open_labels:
                continue
            timed = [(option, seconds(option)) for option in _options(segment, strips, stripped)]
            parts = [
                Part(begin, end, option, *positions.nbytes(begin, option), taken)
                for option, taken in timed
                if not all(_dominated(max(b.nbytes, least), b.seconds + taken, found) for b in open_labels)
            ]
            if end - begin > 1 and len(parts) == len(timed):
                inner = max(inner, min(part.inner for part in parts))
            for part in parts if most is None else [p for p in parts if p.nbytes <= most]:
                for before in open_labels:
                    nbytes, total = max(before.nbytes, part.nbytes), before.seconds + part.seconds
                    if not _dominated(nbytes, total, found):
                        found = [c for c in found if c.nbytes < nbytes or c.seconds < total]
                        found.append(Cuts((*before.parts, part), nbytes, total))
        labels[end] = sorted(found, key=lambda c: (c.nbytes, c.seconds))
    return tuple(labels[max(end for end, found in labels.items() if found)])


def _dominated(nbytes: int, seconds: float, found: Sequence[Cuts]) -> bool:
    return any(c.nbytes <= nbytes and c.seconds <= seconds for c in found)


def _options(segment: Segment, sizes: Sequence[int], stripped: Stripped) -> list[Segment]:
    """A segment in strips of every size; one operator is not streamed, but whole."""
    if len(segment.operators) == 1:
        whole = tuple(replace(o, strip=segment.rows(o)) for o in segment.operators)
        return [replace(segment, operators=whole)]
    return [*dict.fromkeys(stripped(segment, size) for size in sizes)]


class Positions:
    """Positions between operators where a graph may be cut, and the bytes of what lies between two.

    Attributes:
        cuts: numbers of the operators that come next, 0 and the end among them.
    """

    def __init__(self, graph: Segment, free: frozenset[str], limits: Limits, counted: Counted) -> None:
        self.graph = graph
        self.known = limits.known
        self.counted = counted
        self.free = free
        count = len(graph.operators)
        self._written = {y: i for i, o in enumerate(graph.operators) for y in o.outputs}
        self._last: dict[str, int] = dict.fromkeys(graph.outputs, count)
        for i, operator in enumerate(graph.operators):
            for read in operator.reads:
                self._last[read.value] = max(self._last.get(read.value, i), i)
        self._crossing = [self._across(position) for position in range(count + 1)]
        self.cuts = [
            c for c in range(count + 1) if c in (0, count) or len(self._crossing[c]) <= limits.crossing
        ]

    def _across(self, position: int) -> tuple[str, ...]:
        """Counted values that are written before a position and read after it."""
        return tuple(
            v.name
            for v in self.graph.values
            if v.name not in self.free
            and self._written.get(v.name, -1) < position <= self._last.get(v.name, -1)
        )

    def segment(self, begin: int, end: int) -> Segment:
        """Operators [begin, end) with what they read from outside and what is read after them."""
        graph = self.graph
        operators = graph.operators[begin:end]
        written = {y for o in operators for y in o.outputs}
        used = dict.fromkeys(r.value for o in operators for r in o.reads)
        outputs = tuple(y for o in operators for y in o.outputs if self._last.get(y, -1) >= end)
        inputs = tuple(x for x in used if x not in written)
        freed = tuple(x for x in inputs if self._last[x] < end and x not in self.free)
        values = tuple(v for v in graph.values if v.name in written or v.name in used)
        return Segment(values, operators, inputs, outputs or operators[-1].outputs[:1], freed)

    def whole_bytes(self, begin: int, end: int) -> int:
        """A lower bound of the bytes of [begin, end): the larger of what crosses its ends."""
        return max(
            sum(self.graph.by_name[v].nbytes for v in self._crossing[position]) for position in (begin, end)
        )

    def nbytes(self, begin: int, segment: Segment) -> tuple[int, int]:
        """Bytes while a segment runs, and those of them that are no inputs and do not pass through."""
        touched = {v.name for v in segment.values}
        through = sum(self.graph.by_name[v].nbytes for v in self._crossing[begin] if v not in touched)
        own, made = self._remembered(segment)
        return through + own, made

    def _remembered(self, segment: Segment) -> tuple[int, int]:
        """Bytes as of `_own`, looked up where a search before has found them."""
        if self.known is None:
            return self._own(segment)
        operators = tuple((o.name, o.strip) for o in segment.operators)
        key = operators, segment.inputs, segment.outputs, segment.freed
        if key not in self.known:
            self.known[key] = self._own(segment)
        return self.known[key]

    def _own(self, segment: Segment) -> tuple[int, int]:
        """Bytes of a segment, and those of them that are no inputs."""
        demand = Demand(segment)
        if self.counted is Counted.ROWS:
            width = [0 if v.name in self.free else v.row_bytes for v in segment.values]
            alone = [0 if v.name in segment.inputs else w for v, w in zip(segment.values, width, strict=True)]
            return demand.live_bytes(width) + segment.kept, demand.live_bytes(alone) + segment.kept
        places = [segment.values[i] for i in demand.whole]
        single = self.counted is Counted.INNER and all(o.strip == 1 for o in segment.operators)
        rings = (demand.most_in_rows() if single else demand.most_in_rings()) + segment.kept
        whole = sum(v.nbytes for v in places if v.name not in self.free)
        made = sum(v.nbytes for v in places if v.name not in self.free and v.name not in segment.inputs)
        return whole + rings, made + rings
