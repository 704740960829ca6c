"""A schedule as nested loops: repetitions in the sequence of calls, from the shortest to the longest.

The next call of an operator begins at the row where its last one ended, so that a loop says how many rows and
not which: every turn goes on where the turn before ended. What comes before the longest loop is the
prologue, what comes after it the epilogue; a loop that reaches beyond both ends of the image has neither.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from app.engine.memory.rows.geometry import Segment
from app.engine.memory.rows.schedule import Call


class Strip(NamedTuple):
    """The next `rows` rows of an operator, by its number in the segment."""

    operator: int
    rows: int


class Loop(NamedTuple):
    """A body that is run `turns` times."""

    turns: int
    body: "tuple[Item, ...]"


Item: TypeAlias = Strip | Loop


class LoopProgram(NamedTuple):
    """Loops, and the row at which each operator begins: before the image where it is negative.

    A call computes those of its rows that the image has, and nothing where it has none; either way the
    operator goes on by the rows of the strip.
    """

    items: tuple[Item, ...]
    starts: tuple[int, ...]

    def calls(self, extents: Sequence[int]) -> Iterator[Call]:
        """The calls that compute something; `extents` are the rows of each operator."""
        at = [*self.starts]
        for operator, rows in _strips(self.items):
            first, last = max(at[operator], 0), min(at[operator] + rows, extents[operator])
            at[operator] += rows
            if first < last:
                yield Call(operator, first, last - first)


def rolled(calls: Sequence[Call]) -> tuple[Item, ...]:
    """Nested loops whose unrolling is the sequence of calls; deterministic, not proved shortest."""
    items: list[Item] = [Strip(c.operator, c.rows) for c in calls]
    period = 1
    while 2 * period <= len(items):
        items = _folded(items, period)
        period += 1
    return tuple(items)


def length(items: Sequence[Item]) -> int:
    """Entries of the program as a table: strips, and one for each loop."""
    return sum(1 + length(i.body) if isinstance(i, Loop) else 1 for i in items)


def _strips(items: Sequence[Item]) -> Iterator[Strip]:
    for item in items:
        if isinstance(item, Loop):
            for _ in range(item.turns):
                yield from _strips(item.body)
        else:
            yield item


def _folded(items: list[Item], period: int) -> list[Item]:
    """Items with every maximal repetition of `period` items as a loop, from the left."""
    found: list[Item] = []
    at = 0
    while at < len(items):
        end = at
        while end + period < len(items) and items[end] == items[end + period]:
            end += 1
        turns = (end - at) // period + 1
        if turns > 1:
            found.append(Loop(turns, tuple(items[at : at + period])))
            at += turns * period
        else:
            found.append(items[at])
            at += 1
    return found


def pipelined(segment: Segment, calls: Sequence[Call]) -> LoopProgram | None:
    """The longest loop of a schedule, begun early enough and run long enough to be all of it.

    None if an operator has no part in that loop, if a call would come before the rows that it reads, or a
    strip not begin where it must: segments that are too short to become periodic, or whose rows come in no
    fixed ratio.
    """
    items = rolled(calls)
    loops = [i for i, item in enumerate(items) if isinstance(item, Loop)]
    if not loops:
        return None
    at = max(loops, key=lambda i: (sum(s.rows for s in _strips(items[i : i + 1])), -i))
    loop = items[at]
    assert isinstance(loop, Loop)
    operators = range(len(segment.operators))
    extents = [segment.rows(o) for o in segment.operators]
    done, each = ([0] * len(extents) for _ in range(2))
    for operator, rows in _strips(items[:at]):
        done[operator] += rows
    for operator, rows in _strips(loop.body):
        each[operator] += rows
    if not all(each):
        return None
    before = max(-(-done[i] // each[i]) for i in operators)
    after = max(-(-(extents[i] - done[i]) // each[i]) for i in operators)
    starts = tuple(done[i] - before * each[i] for i in operators)
    if any(o.aligned and at % o.strip for o, at in zip(segment.operators, starts, strict=True)):
        return None
    found = LoopProgram((Loop(before + after, loop.body),), starts)
    return found if _is_feasible(segment, found.calls(extents)) else None


def _is_feasible(segment: Segment, calls: Iterator[Call]) -> bool:
    """True if every call comes after the calls that compute what it reads, and all rows are computed."""
    done = [0] * len(segment.operators)
    for call in calls:
        for read in segment.operators[call.operator].reads:
            low, high = segment.needed(read, call.first, call.rows)
            source = segment.producer.get(read.value)
            if source is not None and low < high and done[source] < high:
                return False
        done[call.operator] += call.rows
    return all(n == segment.rows(o) for n, o in zip(done, segment.operators, strict=True))
