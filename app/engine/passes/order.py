"""Decide the order of execution: as in the graph, unless another needs less memory."""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import onnx_ir as ir

from app.engine import graph
from app.engine.memory.alias import AliasClasses
from app.engine.memory.downsets import least_order
from app.engine.memory.greedy import solve
from app.engine.memory.order import Step, least_peak, schedule
from app.engine.memory.problem import lower_bound
from app.engine.memory.rigid import improve
from app.engine.memory.storage_graph import build, share_views, touched, view_classes
from app.engine.options import Preference
from app.engine.plan import COLUMNS, Compilation, Group, KernelCall, Workspace

# States of a segment that the exact search may reach, by what the job prefers.
STATES: Mapping[Preference, int] = {"latency": 1 << 16, "memory": 1 << 22}


@dataclass(frozen=True, slots=True)
class Order:
    """Write the order: a stable topological one, or one found by search whose planned peak is lower."""

    name: ClassVar[str] = "order"
    reads: ClassVar[tuple[str, ...]] = ("fusion", "implementation")
    writes: ClassVar[tuple[str, ...]] = ("order",)
    keeps: ClassVar[tuple[str, ...]] = tuple(c for c in COLUMNS if c not in ("order", "placement"))

    def __call__(self, compilation: Compilation) -> Compilation:
        """The compilation with an order, and the bytes that no other order stays below.

        Raises:
            ValueError: the groups depend on each other in a cycle.
        """
        needs = dependencies(compilation)
        given = compilation.with_plan(order=_stable(needs))
        steps, sizes, whole = memory_steps(given, needs)
        floor = least_peak(steps, sizes)
        peak = peak_bytes(given)
        if peak <= floor:
            return replace(given, order_bound=peak)
        exact = least_order(steps, sizes, STATES[compilation.options.prefer])
        order = exact.order if exact else schedule(steps, sizes, peak)
        bound = exact.lower_bound if exact and whole else None
        given = replace(given, order_bound=bound)
        if order is None:
            return given
        assert given.plan.order is not None
        better = given.with_plan(order=tuple(given.plan.order[i] for i in order))
        # The search knows no offsets and estimates what is shared in place; the plan decides.
        if lower_bound(build(better).problem) >= peak or peak_bytes(better) >= peak:
            return given
        note = f"order: peak {peak} byte in graph order, {peak_bytes(better)} byte in the order found"
        return replace(better, notes=(*better.notes, note))


def dependencies(compilation: Compilation) -> dict[Group, frozenset[Group]]:
    """By group, in graph order, the groups that must run before it."""
    chosen = compilation.plan.implementation
    assert chosen is not None
    groups = compilation.plan.groups
    maker = {v: group for group in groups for node in group.nodes for v in node.outputs}
    return {
        group: frozenset(maker[v] for v in touched(group, chosen[group]) if v in maker) - {group}
        for group in groups
    }


def memory_steps(
    compilation: Compilation, needs: dict[Group, frozenset[Group]]
) -> tuple[list[Step], list[int], bool]:
    """The steps of a plan as the search sees them, and bytes by storage; indices are those of the order.

    A storage is a stretch of bytes that the same values of an alias class cover: a slice of a
    concatenation lives from its own write. Last is whether all in-place pairs are among the steps:
    those with slices are not, which may share more than the search knows.
    """
    plan = compilation.plan
    assert plan.order is not None
    assert plan.implementation is not None
    alignment = compilation.target.memories[0].alignment
    classes = view_classes(compilation)
    share_views(tuple((group, plan.implementation[group]) for group in plan.order), classes)
    sizes: list[int] = []
    stretches: dict[int, dict[ir.Value, tuple[int, ...]]] = {}  # by identity of the class

    def storages(value: ir.Value) -> tuple[int, ...]:
        alias = classes.of(value)
        if id(alias) not in stretches:
            cuts = alias.cuts(classes.nbytes, alignment)
            first = len(sizes)
            sizes.extend(b - a for a, b in pairwise(cuts))
            stretches[id(alias)] = {
                v: tuple(
                    first + k
                    for k, (a, b) in enumerate(pairwise(cuts))
                    if a < at + classes.nbytes(v) and b > at
                )
                for v, at in alias.places.items()
            }
        return stretches[id(alias)][value]

    position = {group: i for i, group in enumerate(plan.order)}
    steps, whole = [], True
    for group in plan.order:
        choice = plan.implementation[group]
        static = [v for v in touched(group, choice) if not graph.is_dynamic(v) and not _fixed(v, classes)]
        workspaces = {
            id(a): -(-a.nbytes * (compilation.options.threads if a.per_thread else 1) // alignment)
            * alignment
            for call in choice.calls
            if isinstance(call, KernelCall)
            for a in call.arguments
            if isinstance(a, Workspace)
        }
        static_pairs = [(a, b) for a, b in choice.inplace if a in static and b in static]
        apart = [p for p in static_pairs if classes.of(p[0]) is not classes.of(p[1])]
        # What moves into another's bytes is whole.
        pairs = [(a, b) for a, b in apart if len(storages(a)) == len(storages(b)) == 1]
        whole &= len(pairs) == len(apart)
        steps.append(
            Step(
                tuple(sorted(position[g] for g in needs[group])),
                tuple(dict.fromkeys(s for v in static for s in storages(v))),
                tuple((storages(a)[0], storages(b)[0]) for a, b in pairs),
                sum(workspaces.values()),
                group.name,
            )
        )
    return steps, sizes, whole


def _fixed(value: ir.Value, classes: AliasClasses) -> bool:
    """Whether the value's memory is there whatever the order: inputs, weights and outputs."""
    return classes.of(value).owner is not None


def _stable(needs: dict[Group, frozenset[Group]]) -> tuple[Group, ...]:
    """Of the groups that may run, always the first in graph order."""
    groups = list(needs)
    position = {group: i for i, group in enumerate(groups)}
    users: dict[Group, list[Group]] = {group: [] for group in groups}
    for group, before in needs.items():
        for other in before:
            users[other].append(group)
    waiting = {group: len(before) for group, before in needs.items()}
    ready = [position[group] for group in groups if not waiting[group]]
    order = []
    while ready:
        group = groups[heapq.heappop(ready)]
        order.append(group)
        for user in users[group]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, position[user])
    if len(order) != len(groups):
        stuck = next(g.name for g in groups if waiting[g])
        raise ValueError(f"group {stuck!r} depends on its own output through other groups")
    return tuple(order)


def in_graph_order(compilation: Compilation) -> Compilation:
    """The compilation in a stable topological order."""
    return compilation.with_plan(order=_stable(dependencies(compilation)))


def peak_bytes(compilation: Compilation) -> int:
    """The arena that a plan with an order takes."""
    problem = build(compilation).problem
    return improve(problem, solve(problem)).peak
