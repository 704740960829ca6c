"""Which groups compute in blocked layouts: the labelling of least predicted or measured seconds.

Every group is labelled twice: how it reads and how it writes, row-major or blocked; a row of an
implementation stands for one pair of labels. A value that is written one way and read the other is
converted once for all such readers. The energy of a labelling, groups and conversions, is mostly
submodular in pairs, so a minimum cut finds its minimum (Kolmogorov and Zabih, 2004, "What energy
functions can be minimized via graph cuts?"). What is not is bounded from below and decided by branch
and bound: a group whose mixed readings are dear, or whose rows disagree about what they read blocked.
"""

import heapq
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import onnx_ir as ir

from app.engine import cost, graph
from app.engine.layout import Layout
from app.engine.memory.storage_graph import value_bytes
from app.engine.mincut import INFINITE, Network
from app.engine.plan import Compilation, Group
from app.engine.registry import Known

SECOND = 1e12  # capacities are picoseconds
WORK = 20_000  # groups times minimum cuts that are spent on what one cut cannot decide
IMPOSSIBLE = INFINITE >> 8

Labels: TypeAlias = tuple[bool, bool]  # whether a group reads blocked, whether it writes blocked
Policy = Literal["joint", "plain", "blocked", "greedy"]


@dataclass(frozen=True, slots=True, eq=False)
class Mode:
    """What the rows of a group that ask for the same layouts have in common.

    Attributes:
        labels: whether any input, and any output, is blocked.
        seconds: of the cheapest of the rows.
        asked: the layouts.
    """

    labels: Labels
    seconds: float
    asked: Mapping[ir.Value, Layout]


Labelling: TypeAlias = Mapping[Group, Mode]


@dataclass(frozen=True, slots=True)
class Readings:
    """The modes of a group, the cheapest first."""

    modes: tuple[Mode, ...]

    @property
    def seconds(self) -> Mapping[Labels, float]:
        """Of the cheapest mode for each pair of labels."""
        return {mode.labels: mode.seconds for mode in reversed(self.modes)}

    @property
    def layouts(self) -> Mapping[ir.Value, Layout]:
        """Every layout that any mode asks for."""
        return {v: at for mode in self.modes for v, at in mode.asked.items()}

    def always(self, value: ir.Value, index: int) -> bool | None:
        """Whether modes with label `index` blocked, and only those, have the value blocked.

        False when none has; None when some of them have.
        """
        if all(mode.labels[index] == (value in mode.asked) for mode in self.modes):
            return any(mode.labels[index] for mode in self.modes)
        return None if any(value in mode.asked for mode in self.modes) else False

    def nearest(self, labels: Labels) -> Mode:
        """The cheapest mode with these labels, or of all."""
        return next((mode for mode in self.modes if mode.labels == labels), self.modes[0])


def readings(group: Group, compilation: Compilation, known: Known) -> Readings:
    """What the rows of the group's backend ask for."""
    partition = compilation.plan.partition
    assert partition is not None
    rows = compilation.registry.candidates(group.op, (partition[group.anchor].backend,))
    times = {row: cost.seconds(row, group, known) for row in rows if row.unless(group, known) is None}
    found: dict[frozenset[tuple[ir.Value, Layout]], Mode] = {}
    for row, (taken, _) in cost.comparable(times, group, known).items():
        seconds = cost.weighed(row, group, known, taken)
        asked = row.layouts(group, known)
        labels = (any(v in asked for v in group.inputs), any(v in asked for v in group.outputs))
        same = frozenset(asked.items())
        if same not in found or seconds < found[same].seconds:
            found[same] = Mode(labels, seconds, asked)
    return Readings(tuple(sorted(found.values(), key=lambda mode: mode.seconds)))


@dataclass(frozen=True, slots=True)
class Assignment:
    """Layouts by group: what it reads and writes other than row-major.

    Attributes:
        seconds: of the groups and conversions.
        bound: no labelling takes less.
        cuts: how many minimum cuts proved it.
    """

    asked: Mapping[Group, Mapping[ir.Value, Layout]]
    seconds: float = 0.0
    bound: float = 0.0
    cuts: int = 0

    def written(self, group: Group) -> Mapping[ir.Value, Layout]:
        """Layouts of the group's outputs that are not row-major."""
        return {v: at for v, at in self.asked[group].items() if v in group.outputs}

    @property
    def gap(self) -> float:
        """How much dearer than the best labelling this may be, as a fraction."""
        return max(self.seconds - self.bound, 0.0) / self.seconds if self.seconds else 0.0


def choose(compilation: Compilation, known: Known, policy: Policy = "joint") -> Assignment:
    """The layouts of least predicted cost, conversions included.

    Other policies than `joint` are there to compare with: all row-major, all blocked that can be, and
    every group by its own cheapest row.
    """
    every = {group: readings(group, compilation, known) for group in compilation.plan.groups}
    if not any(found.layouts for found in every.values()):
        return Assignment({group: {} for group in every})
    energy = Energy(every, compilation, known)
    if policy != "joint":
        sign = {"plain": 1, "blocked": -1, "greedy": 0}[policy]
        return energy.assignment(
            {
                g: min(found.modes, key=lambda m: (sign * sum(m.labels), m.seconds))
                for g, found in every.items()
            }
        )
    return branch_and_bound(energy)


class Energy:
    """Seconds of labellings of a graph."""

    def __init__(self, every: Mapping[Group, Readings], compilation: Compilation, known: Known) -> None:
        self.every = every
        self.outputs = frozenset(compilation.graph.outputs)
        self.layouts: dict[ir.Value, Layout] = {}
        self.writer: dict[ir.Value, Group] = {}
        self.readers: dict[ir.Value, list[Group]] = {}
        for group, found in every.items():
            self.writer.update(dict.fromkeys(group.outputs, group))
            for value in group.inputs:
                self.readers.setdefault(value, []).append(group)
            for value, layout in found.layouts.items():
                self.layouts.setdefault(value, layout)
        self.conversion = {v: conversion(v, at, compilation, known) for v, at in self.layouts.items()}
        self.doubtful = [group for group, found in every.items() if not _is_exact(group, found)]

    def assignment(self, labelling: Labelling, bound: float = 0.0, cuts: int = 0) -> Assignment:
        """The layouts that a labelling stands for."""
        asked = {group: labelling[group].asked for group in self.every}
        return Assignment(asked, self.of(labelling), bound, cuts)

    def of(self, labelling: Labelling) -> float:
        """Seconds of the groups, and of a conversion for each value that is read as it is not written."""
        total = sum(labelling[group].seconds for group in self.every)
        asked = {group: labelling[group].asked for group in self.every}
        for value, seconds in self.conversion.items():
            writer = self.writer.get(value)
            blocked = writer is not None and value in asked[writer]
            read = {value in asked[group] for group in self.readers.get(value, ())}
            read |= {False} if value in self.outputs else set()
            total += seconds * ((not blocked) in read)
        return total

    def relaxed(self, fixed: Labelling) -> tuple[dict[Group, Labels], float]:
        """A labelling and its seconds, where what no cut can count is counted for less.

        It has the modes in `fixed`, which are counted in full; no labelling that has them takes fewer
        seconds.
        """
        network = Network()
        shown = {g: Readings((fixed[g],)) if g in fixed else found for g, found in self.every.items()}
        spent = sum(_group(network, group, found.seconds) for group, found in shown.items())
        for value, seconds in self.conversion.items():
            self._value(network, value, round(seconds * SECOND), shown)
        side = network.source_side("blocked", "plain")  # the source's side is blocked
        labelling = {group: (("in", group) in side, ("out", group) in side) for group in shown}
        return labelling, (spent + network.flow) / SECOND

    def doubt(self, group: Group, labels: Labels) -> float:
        """Seconds by which a relaxation may have counted too little for a group with these labels."""
        found = self.every[group]
        mode = found.nearest(labels)
        if mode.labels != labels:
            return float("inf")
        counted = _submodular(_terms(found.seconds))[labels] / SECOND
        return mode.seconds - counted + sum(self.conversion[v] for v in _unseen(group, found))

    def _value(
        self, network: Network, value: ir.Value, capacity: int, shown: Mapping[Group, Readings]
    ) -> None:
        """One conversion when written blocked and read plain by any, or the reverse."""
        writer = self.writer.get(value)
        source: object = "plain" if writer is None else _vertex("out", writer, shown[writer], value)
        sinks: list[object] = ["plain"] * (value in self.outputs)
        sinks += [_vertex("in", group, shown[group], value) for group in self.readers.get(value, ())]
        if source is not None:
            network.add_shared(source, (s for s in sinks if s is not None), ("value", value), capacity)


def _vertex(side: str, group: Group, found: Readings, value: ir.Value) -> object | None:
    """The vertex that tells whether a group has a value blocked; None where no single label does."""
    always = found.always(value, side == "out")
    if always is None:
        return None
    return (side, group) if always else "plain"


def _unseen(group: Group, found: Readings) -> list[ir.Value]:
    """Values whose layout no single label of the group tells."""
    sides = ((0, group.inputs), (1, group.outputs))
    return [v for index, values in sides for v in values if found.always(v, index) is None]


def _is_exact(group: Group, found: Readings) -> bool:
    """Whether a cut counts all that the group costs."""
    return not _unseen(group, found) and _lacking(_terms(found.seconds)) <= 0


def _terms(seconds: Mapping[Labels, float]) -> dict[Labels, int]:
    """Terms of one group by its labels; those that no row has cost more than any labelling can."""
    terms: dict[Labels, int] = {
        (r, w): min(
            round(found * SECOND) + IMPOSSIBLE * ((r != reads) + (w != writes))
            for (reads, writes), found in seconds.items()
        )
        if (r, w) not in seconds
        else round(seconds[r, w] * SECOND)
        for r in (False, True)
        for w in (False, True)
    }
    return terms


def _lacking(terms: Mapping[Labels, int]) -> int:
    """By how much mixed labels are too cheap for the terms to be submodular."""
    return terms[True, True] + terms[False, False] - terms[False, True] - terms[True, False]


def _submodular(terms: Mapping[Labels, int]) -> dict[Labels, int]:
    """Terms that a cut can count, none of them larger."""
    dearer = max(((True, True), (False, False)), key=terms.__getitem__)
    return {**terms, dearer: terms[dearer] - max(_lacking(terms), 0)}


def _group(network: Network, group: Group, seconds: Mapping[Labels, float]) -> int:
    """Add the terms of one group, f(reads, writes); what it costs beyond the cut."""
    terms = _submodular(_terms(seconds))
    reads, writes = ("in", group), ("out", group)
    both, neither = terms[True, True], terms[False, False]
    into, out_of = terms[False, True], terms[True, False]
    # f(r, w) = neither + (out_of - neither) r + (both - out_of) w + slack (1 - r) w, slack >= 0.
    network.add(writes, reads, into + out_of - both - neither)
    return neither + _unary(network, reads, out_of - neither) + _unary(network, writes, both - out_of)


def _unary(network: Network, vertex: object, blocked_costs: int) -> int:
    """What it costs more when a vertex is blocked; less than nothing is counted beyond the cut."""
    network.add(vertex, "plain", blocked_costs)
    network.add("blocked", vertex, -blocked_costs)
    return min(blocked_costs, 0)


def branch_and_bound(energy: Energy) -> Assignment:
    """The labelling of least energy, and a bound that proves it or tells how far it may be.

    The relaxation of least bound is taken first; the group that it counts for too little the most is
    given each of its modes in turn.

    Source: Land and Doig, 1960, "An automatic method of solving discrete programming problems".
    """
    allowed = max(WORK // len(energy.every), 1)
    rounding = (3 * len(energy.every) + len(energy.conversion)) / SECOND
    order = itertools.count()
    labels: Mapping[Group, Labels]
    labels, bound = energy.relaxed({})
    cuts, least = 1, float("inf")
    best: Labelling = {}
    open_: list[tuple[float, int, Labelling, Mapping[Group, Labels]]] = [(bound, next(order), {}, labels)]
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


def conversion(value: ir.Value, layout: Layout, compilation: Compilation, known: Known) -> float:
    """Predicted seconds of one conversion of a value; none where both layouts are the same bytes."""
    shape = graph.static_shape(value)
    if layout.is_same_bytes(shape):
        return 0.0
    kind = graph.dtype(value)
    assert kind is not None
    moved = value_bytes(value, compilation) + layout.elements(shape) * kind.itemsize
    return cost.roofline(known.target, flops=0.0, nbytes=3.0 * moved, threads=known.threads)
