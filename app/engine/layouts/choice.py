"""Which groups compute in which layouts: the labelling of least predicted or measured seconds.

There are three levels: channels last, row-major, blocked. Every group is labelled twice, with the level
at which it reads and that at which it writes; a row of an implementation stands for one pair of labels.
A value that is written at one level and read at another is converted by one step for each level between
them, and once for all such readers. So costs of conversions are convex in the levels, and two thresholds
(above channels last, above row-major) cut a graph of twice the size: the energy of a labelling, groups
and conversions, is mostly submodular in pairs, and a minimum cut finds its minimum (Kolmogorov and
Zabih, 2004, "What energy functions can be minimized via graph cuts?"; Ishikawa, 2003, "Exact
optimization for Markov random fields with convex priors"). What is not is bounded from below and decided
by branch and bound: a group whose mixed readings are dear, or whose rows disagree about what they read.
"""

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, TypeAlias

import onnx_ir as ir

from app.engine.core.group import Group
from app.engine.core.plan import Compilation
from app.engine.core.registry import PlanningContext
from app.engine.cost import roofline
from app.engine.layouts.conversions import conversion
from app.engine.partition.mincut import INFINITE, Network
from app.engine.types.layout import Layout

SECOND = 1e15  # capacities are femtoseconds
WORK = 20_000  # groups times minimum cuts that are spent on what one cut cannot decide
LARGE = 150  # groups from which fewer are spent: a second of cuts is much for a graph of a thousand
IMPOSSIBLE = INFINITE >> 8

LAST, PLAIN, BLOCKED = 0, 1, 2  # levels
THRESHOLDS = {LAST: PLAIN, BLOCKED: BLOCKED}  # by the level of a layout that is converted to row-major

Levels: TypeAlias = tuple[int, int]  # the levels at which a group reads and writes
Policy = Literal["joint", "plain", "blocked", "last", "greedy"]


def level(layout: Layout | None) -> int:
    """Of a layout; None is row-major."""
    if layout is None or layout.is_plain:
        return PLAIN
    return BLOCKED if layout.blocks else LAST


@dataclass(frozen=True, slots=True, eq=False)
class LayoutOption:
    """What the rows of a group that ask for the same layouts have in common.

    Attributes:
        labels: the level of any input, and of any output, that is not row-major.
        seconds: of the cheapest of the rows.
        required_layouts: the layouts.
    """

    labels: Levels
    seconds: float
    required_layouts: Mapping[ir.Value, Layout]


Labelling: TypeAlias = Mapping[Group, LayoutOption]


@dataclass(frozen=True, eq=False)
class LayoutOptions:
    """The modes of a group, the cheapest first."""

    modes: tuple[LayoutOption, ...]

    @cached_property
    def seconds(self) -> Mapping[Levels, float]:
        """Of the cheapest mode for each pair of labels."""
        return {mode.labels: mode.seconds for mode in reversed(self.modes)}

    @cached_property
    def layouts(self) -> tuple[tuple[ir.Value, Layout], ...]:
        """Every layout that any mode asks for."""
        return tuple(
            required_layouts for mode in self.modes for required_layouts in mode.required_layouts.items()
        )

    @cached_property
    def is_diagonal(self) -> bool:
        """Whether every mode writes at the level at which it reads."""
        return all(reads == writes for reads, writes in zip(*self._labels))

    @cached_property
    def _labels(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """By side, the label of each mode."""
        return tuple(m.labels[0] for m in self.modes), tuple(m.labels[1] for m in self.modes)

    def levels(self, side: int) -> tuple[int, ...]:
        """At which the modes read (side 0) or write, in order."""
        return self._levels[side]

    @cached_property
    def _levels(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        reads, writes = (tuple(sorted(set(labels))) for labels in self._labels)
        return reads, writes

    @cached_property
    def terms(self) -> "Terms":
        """What each pair of labels costs; pairs that no row has cost more than any labelling can."""
        return _terms(*self._levels, tuple(self.seconds.items()))

    @cached_property
    def counted(self) -> "Terms":
        """Terms that a cut can count, none of them larger."""
        return _submodular(self.terms)

    def level(self, value: ir.Value) -> tuple[int, ...]:
        """Of a value, by mode."""
        return self._by_value.get(value) or (PLAIN,) * len(self.modes)

    @cached_property
    def _by_value(self) -> Mapping[ir.Value, tuple[int, ...]]:
        required_layouts = dict.fromkeys(v for mode in self.modes for v in mode.required_layouts)
        return {
            v: tuple(level(mode.required_layouts.get(v)) for mode in self.modes) for v in required_layouts
        }

    def always(self, value: ir.Value, side: int, threshold: int) -> bool | None:
        """Whether a value is above the threshold just where the label of this side is.

        False when it is on one side of the threshold for all modes; None when neither holds.
        """
        return _always(self.level(value), self._labels[side], threshold)

    def nearest(self, labels: Levels) -> LayoutOption:
        """The cheapest mode with these labels, or of all."""
        return next((mode for mode in self.modes if mode.labels == labels), self.modes[0])


@lru_cache  # few are different, and each is asked for thousands of values
def _always(levels: tuple[int, ...], labels: tuple[int, ...], threshold: int) -> bool | None:
    """See `LayoutOptions.always`: levels of a value and labels of the group, by mode."""
    above = [at >= threshold for at in levels]
    if above == [label >= threshold for label in labels]:
        return True
    return None if True in above and False in above else False


def layout_options(
    group: Group, compilation: Compilation, context: PlanningContext, *, alike: bool = True
) -> LayoutOptions:
    """What the rows of the group's backend ask for; those whose times compare, when `alike`."""
    partition = compilation.plan.partition
    assert partition is not None
    rows = compilation.registry.candidates(group.op, (partition[group.anchor].backend,))
    accepted = [row for row in rows if row.rejection_reason(group, context) is None]
    times = {
        row: roofline.seconds(row, group, context) for row in roofline.permitted(accepted, group, context)
    }
    found: dict[frozenset[tuple[ir.Value, Layout]], LayoutOption] = {}
    for row, (seconds, _) in (roofline.comparable(times, group, context) if alike else times).items():
        required_layouts = row.required_layouts(group, context)
        labels = (_level_of(group.inputs, required_layouts), _level_of(group.outputs, required_layouts))
        same = frozenset(required_layouts.items())
        if same not in found or seconds < found[same].seconds:
            found[same] = LayoutOption(labels, seconds, required_layouts)
    return LayoutOptions(tuple(sorted(found.values(), key=lambda mode: mode.seconds)))


def _level_of(values: Sequence[ir.Value], required_layouts: Mapping[ir.Value, Layout]) -> int:
    """Of the first that is not row-major."""
    return next((level(required_layouts[v]) for v in values if v in required_layouts), PLAIN)


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


def choose(compilation: Compilation, context: PlanningContext, policy: Policy = "joint") -> Assignment:
    """The layouts of least predicted cost, conversions included.

    Other policies than `joint` are there to compare with: all row-major, all blocked or all channels
    last that can be, and every group by its own cheapest row.
    """
    alike = policy in ("joint", "greedy")
    every = {
        group: layout_options(group, compilation, context, alike=alike) for group in compilation.plan.groups
    }
    if not any(mode.required_layouts for found in every.values() for mode in found.modes):
        return Assignment({group: {} for group in every})
    energy = Energy(every, compilation, context)
    if policy == "joint":
        return branch_and_bound(energy)
    wanted = {"plain": PLAIN, "blocked": BLOCKED, "last": LAST}.get(policy)

    def preference(mode: LayoutOption) -> tuple[float, ...]:
        # What cannot be had at the level that is wanted is row-major.
        return (
            -mode.labels.count(wanted),
            -mode.labels.count(PLAIN),
            mode.seconds,
        ) if wanted is not None else (mode.seconds,)  # fmt: skip

    return energy.assignment({g: min(found.modes, key=preference) for g, found in every.items()})


class Energy:
    """Seconds of labellings of a graph."""

    def __init__(
        self, every: Mapping[Group, LayoutOptions], compilation: Compilation, context: PlanningContext
    ) -> None:
        self.outputs = frozenset(compilation.graph.outputs)
        self.writer: dict[ir.Value, Group] = {}
        self.readers: dict[ir.Value, list[Group]] = {}
        # Seconds of the conversion of a value between row-major and a level, by the threshold between.
        self.conversion: dict[tuple[ir.Value, int], float] = {}
        for group, found in every.items():
            self.writer.update(dict.fromkeys(group.outputs, group))
            for value in group.inputs:
                self.readers.setdefault(value, []).append(group)
            for value, layout in found.layouts:
                crossed = value, THRESHOLDS[level(layout)]
                if crossed not in self.conversion:
                    self.conversion[crossed] = conversion(value, layout, compilation, context)
        self.every = self._useful(every)
        self.doubtful = [g for g, found in self.every.items() if not _is_exact(g, found)]

    def _useful(self, every: Mapping[Group, LayoutOptions]) -> Mapping[Group, LayoutOptions]:
        """The modes without channels last, wherever these cannot be the only best.

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
        lying = {g: [m for m in found.modes if LAST in m.labels] for g, found in every.items()}
        for group, modes in lying.items():
            for value in (v for mode in modes for v in mode.required_layouts):
                of[root(group)] = root(value)
        for group, modes in lying.items():
            for mode in modes:
                for at in (PLAIN, BLOCKED):
                    if not self._replaces(every[group], mode, at):
                        needed.add((at, root(group)))
        both = {item for at, item in needed if (PLAIN + BLOCKED - at, item) in needed}
        return {
            group: found
            if not lying[group] or root(group) in both
            else LayoutOptions(tuple(mode for mode in found.modes if LAST not in mode.labels))
            for group, found in every.items()
        }

    def _replaces(self, found: LayoutOptions, last: LayoutOption, at: int) -> bool:
        """Whether a mode at another level costs no more, its conversions included."""
        if any(level(layout) != LAST for layout in last.required_layouts.values()):
            return False
        values = last.required_layouts if at == BLOCKED else ()
        if any(self._crossing(v, BLOCKED) > self._crossing(v, PLAIN) for v in values):
            return False
        return any(
            mode.required_layouts.keys() == set(values)
            and all(level(layout) == at for layout in mode.required_layouts.values())
            and mode.seconds <= last.seconds
            for mode in found.modes
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
        required_layouts = {group: labelling[group].required_layouts for group in self.every}
        for (value, threshold), seconds in self.conversion.items():
            writer = self.writer.get(value)
            above = level(None if writer is None else required_layouts[writer].get(value)) >= threshold
            read = {
                level(required_layouts[group].get(value)) >= threshold
                for group in self.readers.get(value, ())
            }
            read |= {threshold <= PLAIN} if value in self.outputs else set()
            total += seconds * ((not above) in read)
        return total

    def relaxed(self, fixed: Labelling) -> tuple[dict[Group, Levels], float]:
        """A labelling and its seconds, where what no cut can count is counted for less.

        It has the modes in `fixed`, which are counted in full; no labelling that has them takes fewer
        seconds.
        """
        network = Network()
        shown = {**self.every, **{g: LayoutOptions((mode,)) for g, mode in fixed.items()}}
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
        above = network.source_side(ABOVE, BELOW)
        labelling = {group: _labels(group, found, above) for group, found in shown.items()}
        return labelling, (spent + network.flow) / SECOND

    def doubt(self, group: Group, labels: Levels) -> float:
        """Seconds by which a relaxation may have counted too little for a group with these labels."""
        found = self.every[group]
        mode = found.nearest(labels)
        if mode.labels != labels:
            return float("inf")
        places = tuple(found.levels(side).index(labels[side]) for side in (0, 1))
        counted = found.counted[places[0]][places[1]] / SECOND
        return mode.seconds - counted + sum(self.conversion[at] for at in _unseen(group, found))

    @cached_property
    def _terms(self) -> Mapping[Group, "_Edges"]:
        """What a cut counts of each group, none of them fixed."""
        return {group: _group(group, found) for group, found in self.every.items()}

    @cached_property
    def _shared(self) -> Mapping[tuple[ir.Value, int], "_Shared | None"]:
        """What it counts of each conversion, where no group is fixed."""
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
        return _label(side, group, found, threshold)
    return ABOVE if found.level(value)[0] >= threshold else BELOW


def _label(side: int, group: Group, found: LayoutOptions, threshold: int) -> object:
    """The vertex that tells whether a label is above a threshold."""
    return _step(side, group, found, bisect_left(found.levels(side), threshold))


def _step(side: int, group: Group, found: LayoutOptions, place: int) -> object:
    """The vertex that tells whether a label is at least the one at this place of `levels`."""
    if place == 0:
        return ABOVE
    if place == len(found.levels(side)):
        return BELOW
    return (0 if found.is_diagonal else side, group, place)


def _labels(group: Group, found: LayoutOptions, above: set[object]) -> Levels:
    """The labels that a cut gives a group."""
    first, second = (
        levels[sum(_step(side, group, found, place) in above for place in range(1, len(levels)))]
        for side, levels in ((0, found.levels(0)), (1, found.levels(1)))
    )
    return first, second


def _unseen(group: Group, found: LayoutOptions) -> list[tuple[ir.Value, int]]:
    """Values and thresholds where no single label of the group tells on which side they are."""
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


def _is_exact(group: Group, found: LayoutOptions) -> bool:
    """Whether a cut counts all that the group costs."""
    return not _unseen(group, found) and found.counted == found.terms


Terms: TypeAlias = tuple[tuple[int, ...], ...]  # by the places of the labels among the levels of each side


@lru_cache(maxsize=1024)  # groups that are alike have the same
def _terms(
    reads: tuple[int, ...], writes: tuple[int, ...], seconds: tuple[tuple[Levels, float], ...]
) -> Terms:
    """Terms of one group by its labels; those that no row has cost more than any labelling can."""
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


def _unusual(label: int) -> int:
    """What breaks ties: the least that can be counted, where a label is not row-major."""
    return int(label != PLAIN)


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


def _group(group: Group, found: LayoutOptions) -> _Edges:
    """The terms of one group: what it costs beyond the cut, and edges."""
    terms = found.counted
    spent = terms[0][0]
    edges: list[tuple[object, object, int]] = []
    sides = (len(terms),) if found.is_diagonal else (len(terms), len(terms[0]))
    for side, count in enumerate(sides):
        edges.extend(  # a label that passes a threshold passes those below
            (_step(side, group, found, place), _step(side, group, found, place - 1), INFINITE)
            for place in range(2, count)
        )

    def unary(vertex: object, above_costs: int) -> int:
        """What it costs more when a vertex is above; less than nothing is counted beyond the cut."""
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


def branch_and_bound(energy: Energy) -> Assignment:
    """The labelling of least energy, and a bound that proves it or tells how far it may be.

    The relaxation of least bound is taken first; the group that it counts for too little the most is
    given each of its modes in turn.

    Source: Land and Doig, 1960, "An automatic method of solving discrete programming problems".
    """
    groups = len(energy.every)
    allowed = max(int(WORK / groups * min(1.0, LARGE / groups)), 1)
    rounding = (6 * len(energy.every) + 2 * len(energy.conversion)) / SECOND
    order = itertools.count()
    labels: Mapping[Group, Levels]
    labels, bound = energy.relaxed({})
    cuts, least = 1, float("inf")
    best: Labelling = {}
    open_: list[tuple[float, int, Labelling, Mapping[Group, Levels]]] = [(bound, next(order), {}, labels)]
    while open_ and open_[0][0] < least - rounding:
        bound, _, fixed, labels = open_[0]
        possible = {g: fixed.get(g) or found.nearest(labels[g]) for g, found in energy.every.items()}
        if (seconds := energy.of(possible)) < least:
            best, least = possible, seconds
        doubts = {g: energy.doubt(g, labels[g]) for g in energy.doubtful if g not in fixed}
        group = max(doubts, key=doubts.__getitem__, default=None)
        if bound >= least - rounding or group is None or cuts >= allowed:
            break
        heapq.heappop(open_)
        for mode in energy.every[group].modes:
            narrower = {**fixed, group: mode}
            labels, bound = energy.relaxed(narrower)
            cuts += 1
            heapq.heappush(open_, (bound, next(order), narrower, labels))
    return energy.assignment(best, min(open_[0][0] if open_ else least, least), cuts)
