"""A schedule as nested loops: repetitions in the sequence of calls, from the shortest to the longest.

The next call of an operator begins at the row where its last one ended, so that a loop says how many rows and
not which: every turn goes on where the turn before ended. What comes before the longest loop is the
prologue, what comes after it the epilogue.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

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


def rolled(calls: Sequence[Call]) -> tuple[Item, ...]:
    """Nested loops whose unrolling is the sequence of calls; deterministic, not proved shortest."""
    items: list[Item] = [Strip(c.operator, c.rows) for c in calls]
    period = 1
    while 2 * period <= len(items):
        items = _folded(items, period)
        period += 1
    return tuple(items)


def unrolled(items: Sequence[Item]) -> Iterator[Call]:
    """The calls of a program, with the rows where they begin."""
    done: dict[int, int] = {}
    for strip in _strips(items):
        first = done.get(strip.operator, 0)
        yield Call(strip.operator, first, strip.rows)
        done[strip.operator] = first + strip.rows


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
