"""Decide the order of execution: as in the graph, unless another needs less memory."""

import heapq
from dataclasses import dataclass, replace
from typing import ClassVar

from app.engine.buffers.buffer_assignment import touched
from app.engine.buffers.placement import Placed, place
from app.engine.buffers.steps import memory_steps
from app.engine.core.plan import COLUMNS, Compilation, Group
from app.engine.memory.beam_order import least_peak, schedule
from app.engine.types.errors import CapacityError

STATES = 1 << 16  # of a segment that the exact search may reach
STATES_AT_LENGTH = 1 << 22


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
            CapacityError: every order takes more than what is of interest, `concessions.within`.
        """
        needs = dependencies(compilation)
        given = compilation.with_plan(order=_stable(needs))
        steps, sizes = memory_steps(given, needs)
        floor = least_peak(steps, sizes)
        given = _placed(given, floor)
        peak = _peak(given)
        if peak <= floor:
            return replace(given, order_bound=peak)
        from app.engine.memory.optimal_order import NO_LIMIT, least_order  # imports numba

        states = STATES_AT_LENGTH if compilation.concessions.order else STATES
        within = compilation.concessions.peak_limit
        exact = least_order(steps, sizes, states, NO_LIMIT if within is None else within)
        if exact and not exact.order:
            assert within is not None
            raise CapacityError(
                f"every order takes {exact.peak} byte or more", needed=exact.peak, available=within
            )
        order = exact.order if exact else schedule(steps, sizes, peak)
        bound = exact.lower_bound if exact else None
        given = replace(given, order_bound=bound)
        if order is None:
            return given
        assert given.plan.order is not None
        better = given.with_plan(order=tuple(given.plan.order[i] for i in order))
        # The search knows no offsets and estimates what is shared in place; the plan decides.
        better = _placed(better, bound or floor)
        found = _peak(better)
        if found >= peak:
            return given
        note = f"order: peak {peak} byte in graph order, {found} byte in the order found"
        return replace(better, notes=(*better.notes, note))


def _placed(compilation: Compilation, bound: int) -> Compilation:
    """The compilation with a place for every buffer in its order."""
    order = compilation.plan.order
    assert order is not None
    return replace(compilation, placed=Placed(order, *place(compilation, bound)))


def _peak(compilation: Compilation) -> int:
    assert compilation.placed is not None
    return compilation.placed.solution.peak


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
    """The arena that a plan with an order takes, placed greedily."""
    return place(compilation, search=False)[1].peak
