"""Alternatives of a group: the layouts that its rows read and write, their levels, and what each costs."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

import onnx_ir as ir

from app.engine.core.group import Group
from app.engine.core.plan import Compilation
from app.engine.core.registry import PlanningContext
from app.engine.cost import roofline
from app.engine.partition.mincut import INFINITE
from app.engine.types.layout import Layout

SECOND = 1e15  # capacities are femtoseconds
IMPOSSIBLE = INFINITE >> 8

LAST, PLAIN, BLOCKED = 0, 1, 2  # levels
THRESHOLDS = {LAST: PLAIN, BLOCKED: BLOCKED}  # by the level of a layout that is converted to row-major

Levels: TypeAlias = tuple[int, int]  # the levels at which a group reads and writes
Terms: TypeAlias = tuple[tuple[int, ...], ...]  # by the places of the levels among those of each side


def level(layout: Layout | None) -> int:
    """The level of a layout; None is row-major."""
    if layout is None or layout.is_plain:
        return PLAIN
    return BLOCKED if layout.blocks else LAST


@dataclass(frozen=True, slots=True, eq=False)
class LayoutOption:
    """An alternative of a group: its rows that require the same layouts.

    Attributes:
        levels: the level of any input, and of any output, that is not row-major.
        seconds: of the cheapest of the rows.
        required_layouts: the layouts.
    """

    levels: Levels
    seconds: float
    required_layouts: Mapping[ir.Value, Layout]


@dataclass(frozen=True, eq=False)
class LayoutOptions:
    """The options of a group, the cheapest first."""

    options: tuple[LayoutOption, ...]

    @cached_property
    def seconds(self) -> Mapping[Levels, float]:
        """Seconds of the cheapest option for each pair of levels."""
        return {option.levels: option.seconds for option in reversed(self.options)}

    @cached_property
    def layouts(self) -> tuple[tuple[ir.Value, Layout], ...]:
        """Every layout that any option requires."""
        return tuple(item for option in self.options for item in option.required_layouts.items())

    @cached_property
    def is_diagonal(self) -> bool:
        """True if every option writes at the level at which it reads."""
        return all(reads == writes for reads, writes in zip(*self._by_option))

    @cached_property
    def _by_option(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """By side, the level of each option."""
        return tuple(m.levels[0] for m in self.options), tuple(m.levels[1] for m in self.options)

    def levels(self, side: int) -> tuple[int, ...]:
        """Levels at which the options read (side 0) or write, in order."""
        return self._levels[side]

    @cached_property
    def _levels(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        reads, writes = (tuple(sorted(set(levels))) for levels in self._by_option)
        return reads, writes

    @cached_property
    def terms(self) -> Terms:
        """Costs of each pair of levels; pairs that no row has cost more than any labelling can."""
        return _terms(*self._levels, tuple(self.seconds.items()))

    @cached_property
    def counted(self) -> Terms:
        """Terms that a cut can count, none of them larger."""
        return _submodular(self.terms)

    def level(self, value: ir.Value) -> tuple[int, ...]:
        """The level of a value, by option."""
        return self._by_value.get(value) or (PLAIN,) * len(self.options)

    @cached_property
    def _by_value(self) -> Mapping[ir.Value, tuple[int, ...]]:
        values = dict.fromkeys(v for option in self.options for v in option.required_layouts)
        return {v: tuple(level(o.required_layouts.get(v)) for o in self.options) for v in values}

    def always(self, value: ir.Value, side: int, threshold: int) -> bool | None:
        """True if a value is above the threshold exactly where the level of this side is.

        False when it is on one side of the threshold for all options; None when neither holds.
        """
        return _always(self.level(value), self._by_option[side], threshold)

    def nearest(self, levels: Levels) -> LayoutOption:
        """The cheapest option with these levels, or of all."""
        return next((option for option in self.options if option.levels == levels), self.options[0])


@lru_cache  # few are different, and each is asked for thousands of values
def _always(values: tuple[int, ...], groups: tuple[int, ...], threshold: int) -> bool | None:
    """See `LayoutOptions.always`: levels of a value and of the group, by option."""
    above = [at >= threshold for at in values]
    if above == [at >= threshold for at in groups]:
        return True
    return None if True in above and False in above else False


def layout_options(
    group: Group, compilation: Compilation, context: PlanningContext, *, alike: bool = True
) -> LayoutOptions:
    """The alternatives that the backend's rows offer; those whose times compare, when `alike`."""
    partition = compilation.plan.require("partition")
    rows = compilation.registry.candidates(group.op, (partition[group.anchor].backend,))
    accepted = [row for row in rows if row.rejection_reason(group, context) is None]
    times = {
        row: roofline.seconds(row, group, context) for row in roofline.permitted(accepted, group, context)
    }
    found: dict[frozenset[tuple[ir.Value, Layout]], LayoutOption] = {}
    for row, (seconds, _) in (roofline.comparable(times, group, context) if alike else times).items():
        required_layouts = row.required_layouts(group, context)
        levels = (_level_of(group.inputs, required_layouts), _level_of(group.outputs, required_layouts))
        same = frozenset(required_layouts.items())
        if same not in found or seconds < found[same].seconds:
            found[same] = LayoutOption(levels, seconds, required_layouts)
    return LayoutOptions(tuple(sorted(found.values(), key=lambda option: option.seconds)))


def _level_of(values: Sequence[ir.Value], required_layouts: Mapping[ir.Value, Layout]) -> int:
    """The level of the first value that is not row-major."""
    return next((level(required_layouts[v]) for v in values if v in required_layouts), PLAIN)


@lru_cache(maxsize=1024)  # groups that are alike have the same
def _terms(
    reads: tuple[int, ...], writes: tuple[int, ...], seconds: tuple[tuple[Levels, float], ...]
) -> Terms:
    """Terms of one group by its levels; those that no row has cost more than any labelling can."""
    given = [
        (reads.index(r), writes.index(w), round(taken * SECOND) + _unusual(r) + _unusual(w))
        for (r, w), taken in seconds
    ]
    return tuple(
        tuple(
            min(s + IMPOSSIBLE * (abs(i - r) + abs(j - w)) for r, w, s in given) for j in range(len(writes))
        )
        for i in range(len(reads))
    )


def _unusual(at: int) -> int:
    """Tie-breaking cost: the least that can be counted, where a level is not row-major."""
    return int(at != PLAIN)


@lru_cache(maxsize=1024)
def _submodular(terms: Terms) -> Terms:
    """Terms that a cut can count, none of them larger: towards the dearer end they are lowered."""
    if terms[0][0] > terms[-1][-1]:
        return _turned(_submodular(_turned(terms)))
    lowered = [list(row) for row in terms]
    for i, j in itertools.product(range(1, len(terms)), range(1, len(terms[0]))):
        most = lowered[i - 1][j] + lowered[i][j - 1] - lowered[i - 1][j - 1]
        lowered[i][j] = min(lowered[i][j], most)
    return tuple(map(tuple, lowered))


def _turned(terms: Terms) -> Terms:
    """Both axes from the other end."""
    return tuple(row[::-1] for row in terms[::-1])
