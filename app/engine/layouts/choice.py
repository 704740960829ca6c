"""Which groups compute in blocked layouts: a minimum cut over predicted seconds.

Every group is labelled twice: how it reads and how it writes, row-major or blocked; a row of an
implementation stands for one pair of labels. A value that is written one way and read the other is
converted once for all such readers. Costs of groups and of conversions make a network whose minimum
cut is the best labelling (Kolmogorov and Zabih, 2004, "What energy functions can be minimized via
graph cuts?": two labels, submodular terms). Four readings of one group that are no submodular term
lose the dearer of the mixed ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from app.engine import cost, graph
from app.engine.layout import Layout
from app.engine.memory.storage_graph import value_bytes
from app.engine.mincut import INFINITE, Network
from app.engine.plan import Compilation, Group
from app.engine.registry import Known

SECOND = 1e12  # capacities are picoseconds

Labels = tuple[bool, bool]  # whether a group reads blocked, whether it writes blocked


@dataclass
class Readings:
    """The rows of a group by their labels.

    Attributes:
        seconds: of the cheapest row for each pair of labels.
        asked: the layouts that this row asks for.
    """

    seconds: dict[Labels, float] = field(default_factory=dict)
    asked: dict[Labels, Mapping[ir.Value, Layout]] = field(default_factory=dict)

    @property
    def reads(self) -> Mapping[ir.Value, Layout]:
        """What is read blocked by a row that reads anything so."""
        return next((self.asked[k] for k in ((True, True), (True, False)) if k in self.asked), {})

    @property
    def writes(self) -> Mapping[ir.Value, Layout]:
        """What is written blocked by a row that writes anything so."""
        return next((self.asked[k] for k in ((True, True), (False, True)) if k in self.asked), {})


def readings(group: Group, compilation: Compilation, known: Known) -> Readings:
    """What the rows of the group's backend ask for."""
    partition = compilation.plan.partition
    assert partition is not None
    rows = compilation.registry.candidates(group.op, (partition[group.anchor].backend,))
    accepted = [row for row in rows if row.unless(group, known) is None]
    found = Readings()
    for row, (seconds, _) in cost.comparable(accepted, group, known).items():
        asked = row.layouts(group, known)
        labels = (any(v in asked for v in group.inputs), any(v in asked for v in group.outputs))
        if seconds < found.seconds.get(labels, float("inf")):
            found.seconds[labels] = seconds
            found.asked[labels] = asked
    return found


@dataclass(frozen=True, slots=True)
class Assignment:
    """Layouts by group: what it reads and writes other than row-major."""

    asked: Mapping[Group, Mapping[ir.Value, Layout]]

    def written(self, group: Group) -> Mapping[ir.Value, Layout]:
        """Layouts of the group's outputs that are not row-major."""
        return {v: at for v, at in self.asked[group].items() if v in group.outputs}


def choose(compilation: Compilation, known: Known) -> Assignment:
    """The layouts of least predicted cost, conversions included."""
    every = {group: readings(group, compilation, known) for group in compilation.plan.groups}
    if not any(labels != (False, False) for found in every.values() for labels in found.asked):
        return Assignment({group: {} for group in every})
    network = Network()
    for group, found in every.items():
        _group(network, group, found.seconds)
    _conversions(network, every, compilation, known)
    # The source's side is blocked.
    side = network.source_side("blocked", "plain")
    return Assignment(
        {group: found.asked[("in", group) in side, ("out", group) in side] for group, found in every.items()}
    )


def _group(network: Network, group: Group, seconds: Mapping[Labels, float]) -> None:
    """Terms of one group: f(reads, writes)."""

    def term(reads: bool, writes: bool) -> int:
        found = seconds.get((reads, writes))
        return INFINITE >> 8 if found is None else round(found * SECOND)

    reads, writes = ("in", group), ("out", group)
    both, neither = term(True, True), term(False, False)
    into, out_of = term(False, True), term(True, False)
    lacking = both + neither - into - out_of
    if lacking > 0:
        into, out_of = (into + lacking, out_of) if into >= out_of else (into, out_of + lacking)
    # f(r, w) = neither + (out_of - neither) r + (both - out_of) w + slack (1 - r) w, slack >= 0.
    _unary(network, reads, out_of - neither)
    _unary(network, writes, both - out_of)
    network.add(writes, reads, into + out_of - both - neither)


def _unary(network: Network, vertex: object, blocked_costs: int) -> None:
    """What it costs more when a vertex is blocked."""
    network.add(vertex, "plain", blocked_costs)
    network.add("blocked", vertex, -blocked_costs)


def _conversions(
    network: Network, every: Mapping[Group, Readings], compilation: Compilation, known: Known
) -> None:
    """Terms of the values: one conversion when written blocked and read plain by any, or the reverse."""
    writers = {
        v: (group, at)
        for group, found in every.items()
        for v, at in found.writes.items()
        if v in group.outputs
    }
    readers: dict[ir.Value, list[Group]] = {}
    layouts = {v: at for v, (_, at) in writers.items()}
    for group, found in every.items():
        for v in group.inputs:
            readers.setdefault(v, []).append(group)
            if v in found.reads:
                layouts.setdefault(v, found.reads[v])
    outputs = set(compilation.graph.outputs)
    for v, layout in layouts.items():
        capacity = round(conversion(v, layout, compilation, known) * SECOND)
        source = ("out", writers[v][0]) if v in writers else "plain"
        sinks: list[object] = [
            ("in", group) if v in every[group].reads else "plain" for group in readers.get(v, ())
        ]
        sinks += ["plain"] * (v in outputs)
        network.add(source, ("unblock", v), capacity)
        network.add(("block", v), source, capacity)
        for sink in dict.fromkeys(sinks):
            network.add(("unblock", v), sink, INFINITE)
            network.add(sink, ("block", v), INFINITE)


def conversion(value: ir.Value, layout: Layout, compilation: Compilation, known: Known) -> float:
    """Predicted seconds of one conversion of a value; none where both layouts are the same bytes."""
    shape = graph.static_shape(value)
    if layout.is_same_bytes(shape):
        return 0.0
    kind = graph.dtype(value)
    assert kind is not None
    moved = value_bytes(value, compilation) + layout.elements(shape) * kind.itemsize
    return cost.roofline(known.target, flops=0.0, nbytes=3.0 * moved, threads=known.threads)
