"""Seconds of labellings of a graph with layouts, and the minimum cut that bounds them from below."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import onnx_ir as ir

from app.engine.core.group import Group
from app.engine.core.plan import Compilation
from app.engine.core.registry import PlanningContext
from app.engine.layouts.conversions import conversion
from app.engine.layouts.options import (
    BLOCKED,
    LAST,
    PLAIN,
    SECOND,
    THRESHOLDS,
    LayoutOption,
    LayoutOptions,
    Levels,
    level,
)
from app.engine.partition.mincut import INFINITE, Network
from app.engine.types.layout import Layout

SWEEPS = 4  # over the groups of which a cut cannot count all; each is cheap beside a cut

Labelling: TypeAlias = Mapping[Group, LayoutOption]


@dataclass(frozen=True, slots=True)
class Assignment:
    """Layouts by group: what it reads and writes other than row-major.

    Attributes:
        seconds: of the groups and conversions.
        bound: no labelling takes less.
        cuts: how many minimum cuts proved it.
    """

    required_layouts: Mapping[Group, Mapping[ir.Value, Layout]]
    seconds: float = 0.0
    bound: float = 0.0
    cuts: int = 0

    def written(self, group: Group) -> Mapping[ir.Value, Layout]:
        """Layouts of the group's outputs that are not row-major."""
        return {v: at for v, at in self.required_layouts[group].items() if v in group.outputs}

    @property
    def gap(self) -> float:
        """How much dearer than the best labelling this may be, as a fraction."""
        return max(self.seconds - self.bound, 0.0) / self.seconds if self.seconds else 0.0


class Energy:
    """Seconds of labellings of a graph."""

    def __init__(
        self, every: Mapping[Group, LayoutOptions], compilation: Compilation, context: PlanningContext
    ) -> None:
        self.outputs = frozenset(compilation.graph.outputs)
        self.writer: dict[ir.Value, Group] = {}
        self.readers: dict[ir.Value, list[Group]] = {}
        # Seconds of the conversion of a value between row-major and a layout.
        self.between: dict[tuple[ir.Value, Layout], float] = {}
        # Of the cheapest conversion between row-major and a level, by the threshold between.
        self.conversion: dict[tuple[ir.Value, int], float] = {}
        for group, found in every.items():
            self.writer.update(dict.fromkeys(group.outputs, group))
            for value in group.inputs:
                self.readers.setdefault(value, []).append(group)
            for value, layout in found.layouts:
                if (value, layout) not in self.between:
                    self.between[value, layout] = conversion(value, layout, compilation, context)
        for (value, layout), seconds in self.between.items():
            crossed = value, THRESHOLDS[level(layout)]
            self.conversion[crossed] = min(seconds, self.conversion.get(crossed, seconds))
        # Values with several layouts of one level; a cut sees no conversion from one to another.
        counts = Counter((value, level(layout)) for value, layout in self.between)
        self.several = dict.fromkeys(value for (value, _), count in counts.items() if count > 1)
        self.every = self._useful(every)
        self.doubtful = [g for g, found in self.every.items() if not self._is_exact(g, found)]

    def _useful(self, every: Mapping[Group, LayoutOptions]) -> Mapping[Group, LayoutOptions]:
        """The options without channels last, wherever these cannot be the only best.

        Groups are taken together that such values connect. Where each of them takes no longer row-major,
        none is worse off when all that lie last become row-major; the same holds for blocks, where
        their conversions cost no more.
        """
        of: dict[ir.Value | Group, ir.Value | Group] = {}

        def root(item: ir.Value | Group) -> ir.Value | Group:
            while (above := of.setdefault(item, item)) is not item:
                of[item] = item = of[above]
            return item

        needed: set[tuple[int, ir.Value | Group]] = set()
        lying = {g: [m for m in found.options if LAST in m.levels] for g, found in every.items()}
        for group, options in lying.items():
            for value in (v for option in options for v in option.required_layouts):
                of[root(group)] = root(value)
        for group, options in lying.items():
            for option in options:
                for at in (PLAIN, BLOCKED):
                    if not self._replaces(every[group], option, at):
                        needed.add((at, root(group)))
        both = {item for at, item in needed if (PLAIN + BLOCKED - at, item) in needed}
        return {
            group: found
            if not lying[group] or root(group) in both
            else LayoutOptions(tuple(option for option in found.options if LAST not in option.levels))
            for group, found in every.items()
        }

    def _replaces(self, found: LayoutOptions, last: LayoutOption, at: int) -> bool:
        """True if an option at another level costs no more, its conversions included."""
        if any(level(layout) != LAST for layout in last.required_layouts.values()):
            return False
        values = last.required_layouts if at == BLOCKED else ()
        if any(v in self.several for v in values):
            return False
        if any(self._crossing(v, BLOCKED) > self._crossing(v, PLAIN) for v in values):
            return False
        return any(
            option.required_layouts.keys() == set(values)
            and all(level(layout) == at for layout in option.required_layouts.values())
            and option.seconds <= last.seconds
            for option in found.options
        )

    def _crossing(self, value: ir.Value, threshold: int) -> float:
        return self.conversion.get((value, threshold), 0.0)

    def assignment(self, labelling: Labelling, bound: float = 0.0, cuts: int = 0) -> Assignment:
        """The layouts that a labelling stands for."""
        required_layouts = {group: labelling[group].required_layouts for group in self.every}
        return Assignment(required_layouts, self.of(labelling), bound, cuts)

    def of(self, labelling: Labelling) -> float:
        """Seconds of the groups, and of a conversion for each value that is read as it is not written."""
        total = sum(labelling[group].seconds for group in self.every)
        return total + sum(
            self._value_seconds(v, labelling) for v in dict.fromkeys(v for v, _ in self.between)
        )

    def improved(self, labelling: Labelling) -> Labelling:
        """A labelling of no more seconds: each doubtful group in turn takes its best option."""
        best = dict(labelling)
        for _ in range(SWEEPS):
            before = dict(best)
            for group in self.doubtful:
                values = dict.fromkeys((*group.inputs, *group.outputs))

                def seconds(
                    option: LayoutOption, group: Group = group, values: Iterable[ir.Value] = values
                ) -> float:
                    around = {**best, group: option}
                    return option.seconds + sum(self._value_seconds(v, around) for v in values)

                options = (best[group], *self.every[group].options)  # of equal ones the first
                best[group] = min(options, key=seconds)
            if best == before:
                break
        return best

    def _value_seconds(self, value: ir.Value, labelling: Labelling) -> float:
        """Seconds of all conversions of a value: from what is written to row-major, and to each that is read.

        Groups that have no label read nothing.
        """
        writer = self.writer.get(value)
        written = None if writer is None else labelling[writer].required_layouts.get(value)
        read = {
            labelling[group].required_layouts.get(value)
            for group in self.readers.get(value, ())
            if group in labelling
        }
        read |= {None} if value in self.outputs else set()
        ends = [layout for layout in (*(read - {written}), written) if layout is not None]
        return sum(self.between[value, layout] for layout in ends) if read - {written} else 0.0

    def relaxed(self, fixed: Labelling) -> tuple[dict[Group, Levels], float]:
        """A labelling and its seconds, where what no cut can count is counted for less.

        It has the options in `fixed`, which are counted in full; no labelling that has them takes fewer
        seconds.
        """
        network = Network()
        shown = {**self.every, **{g: LayoutOptions((option,)) for g, option in fixed.items()}}
        spent = 0
        for group, (own, edges) in self._terms.items():
            if group in fixed:
                own, edges = _group(group, shown[group])
            spent += own
            for edge in edges:
                network.add(*edge)
        decided = {v for group in fixed for v in (*group.inputs, *group.outputs)}
        for at, shared in self._shared.items():
            if at[0] in decided:
                shared = self._value(*at, shown)
            if shared is not None:
                network.add_shared(*shared)
        spent += sum(self._uncounted(value, fixed) for value in self.several)
        above = network.source_side(ABOVE, BELOW)
        labelling = {group: _levels(group, found, above) for group, found in shown.items()}
        return labelling, (spent + network.flow) / SECOND

    def doubt(self, group: Group, levels: Levels) -> float:
        """Seconds by which a relaxation may have counted too little for a group with these levels."""
        found = self.every[group]
        option = found.nearest(levels)
        if option.levels != levels:
            return float("inf")
        places = tuple(found.levels(side).index(levels[side]) for side in (0, 1))
        counted = found.counted[places[0]][places[1]] / SECOND
        unseen = sum(self.conversion[at] for at in _unseen(group, found))
        touched = {v for v in (*group.inputs, *group.outputs) if v in self.several}
        return (
            option.seconds - counted + unseen + sum(s for (v, _), s in self.between.items() if v in touched)
        )

    def _is_exact(self, group: Group, found: LayoutOptions) -> bool:
        """True if a cut counts all that the group costs."""
        if any(v in self.several for v in (*group.inputs, *group.outputs)):
            return False
        return not _unseen(group, found) and found.counted == found.terms

    def _uncounted(self, value: ir.Value, fixed: Labelling) -> int:
        """Femtoseconds of conversions of a value that groups with a label need and no cut counts.

        A cut counts one conversion for each threshold at most, and its cheapest.
        """
        writer = self.writer.get(value)
        if writer is not None and writer not in fixed:
            return 0
        needed = self._value_seconds(value, fixed)
        if not needed:
            return 0
        counted = [
            seconds
            for (v, threshold), seconds in self.conversion.items()
            if v is value and self._may_cross(value, threshold, fixed)
        ]
        return max(int((needed - sum(counted)) * SECOND), 0)

    def _may_cross(self, value: ir.Value, threshold: int, fixed: Labelling) -> bool:
        """True if a value may be written on one side of a threshold and read on the other."""
        readers = self.readers.get(value, ())
        if any(group not in fixed for group in readers):
            return True
        groups = [g for g in (self.writer.get(value), *readers) if g is not None]
        levels = [level(fixed[g].required_layouts.get(value)) for g in groups]
        levels += [PLAIN] * (value in self.outputs or value not in self.writer)
        return len({at >= threshold for at in levels}) > 1

    @cached_property
    def _terms(self) -> Mapping[Group, "_Edges"]:
        """Cut edges of every group, none of them fixed."""
        return {group: _group(group, found) for group, found in self.every.items()}

    @cached_property
    def _shared(self) -> Mapping[tuple[ir.Value, int], "_Shared | None"]:
        """Cut edges of every conversion, where no group is fixed."""
        return {at: self._value(*at, self.every) for at in self.conversion}

    def _value(
        self, value: ir.Value, threshold: int, shown: Mapping[Group, LayoutOptions]
    ) -> "_Shared | None":
        """One conversion when written above the threshold and read below by any, or the reverse."""
        row_major = ABOVE if threshold <= PLAIN else BELOW
        writer = self.writer.get(value)
        source = row_major if writer is None else _vertex(1, writer, shown[writer], value, threshold)
        if source is None:
            return None
        sinks: list[object] = [row_major] * (value in self.outputs)
        sinks += [_vertex(0, group, shown[group], value, threshold) for group in self.readers.get(value, ())]
        capacity = round(self.conversion[value, threshold] * SECOND) + 1
        return source, [s for s in sinks if s is not None], ("value", value, threshold), capacity


_Edges: TypeAlias = tuple[int, Sequence[tuple[object, object, int]]]  # beyond the cut; tail, head, capacity
_Shared: TypeAlias = tuple[object, Sequence[object], object, int]  # arguments of `Network.add_shared`

ABOVE, BELOW = "above", "below"  # the ends of a network: every threshold passed, none


def _vertex(side: int, group: Group, found: LayoutOptions, value: ir.Value, threshold: int) -> object | None:
    """The vertex that tells whether a group has a value above a threshold; None where none does."""
    always = found.always(value, side, threshold)
    if always is None:
        return None
    if always:
        return _level_vertex(side, group, found, threshold)
    return ABOVE if found.level(value)[0] >= threshold else BELOW


def _level_vertex(side: int, group: Group, found: LayoutOptions, threshold: int) -> object:
    """The vertex that tells whether a level is above a threshold."""
    return _step(side, group, found, bisect_left(found.levels(side), threshold))


def _step(side: int, group: Group, found: LayoutOptions, place: int) -> object:
    """The vertex that tells whether a level is at least the one at this place of `levels`."""
    if place == 0:
        return ABOVE
    if place == len(found.levels(side)):
        return BELOW
    return (0 if found.is_diagonal else side, group, place)


def _levels(group: Group, found: LayoutOptions, above: set[object]) -> Levels:
    """The levels that a cut gives a group."""
    first, second = (
        levels[sum(_step(side, group, found, place) in above for place in range(1, len(levels)))]
        for side, levels in ((0, found.levels(0)), (1, found.levels(1)))
    )
    return first, second


def _unseen(group: Group, found: LayoutOptions) -> list[tuple[ir.Value, int]]:
    """Values and thresholds where no single level of the group tells on which side they are."""
    sides = ((0, group.inputs), (1, group.outputs))
    required_layouts = {v for v, _ in found.layouts}
    return [
        (v, threshold)
        for side, values in sides
        for v in values
        if v in required_layouts
        for threshold in THRESHOLDS.values()
        if found.always(v, side, threshold) is None
    ]


def _group(group: Group, found: LayoutOptions) -> _Edges:
    """The terms of one group: what it costs beyond the cut, and edges."""
    terms = found.counted
    spent = terms[0][0]
    edges: list[tuple[object, object, int]] = []
    sides = (len(terms),) if found.is_diagonal else (len(terms), len(terms[0]))
    for side, count in enumerate(sides):
        edges.extend(  # a level that passes a threshold passes those below
            (_step(side, group, found, place), _step(side, group, found, place - 1), INFINITE)
            for place in range(2, count)
        )

    def unary(vertex: object, above_costs: int) -> int:
        """Count the cost of a vertex being above; a negative one is counted beyond the cut."""
        edges.append((vertex, BELOW, above_costs) if above_costs > 0 else (ABOVE, vertex, -above_costs))
        return min(above_costs, 0)

    if found.is_diagonal:
        for i in range(1, len(terms)):
            spent += unary(_step(0, group, found, i), terms[i][i] - terms[i - 1][i - 1])
        return spent, edges
    # f(r, w) = f(0, 0) + sum of (f(i, 0) - f(i - 1, 0)) over i <= r + sum of (f(-1, j) - f(-1, j - 1))
    # over j <= w + sum of slack(i, j) over i > r, j <= w; every slack >= 0.
    for i in range(1, len(terms)):
        spent += unary(_step(0, group, found, i), terms[i][0] - terms[i - 1][0])
    for j in range(1, len(terms[0])):
        spent += unary(_step(1, group, found, j), terms[-1][j] - terms[-1][j - 1])
        for i in range(1, len(terms)):
            slack = terms[i - 1][j] + terms[i][j - 1] - terms[i - 1][j - 1] - terms[i][j]
            edges.append((_step(1, group, found, j), _step(0, group, found, i), slack))
    return spent, edges
