"""Dependencies between groups, and the order of execution that follows the graph."""

import heapq
from dataclasses import replace

from app.engine.buffers.buffer_assignment import touched
from app.engine.core.group import Group
from app.engine.core.plan import Compilation, Plan


def dependencies(compilation: Compilation) -> dict[Group, frozenset[Group]]:
    """By group, in graph order, the groups that must run before it."""
    chosen = compilation.plan.require("implementation")
    groups = compilation.plan.groups
    maker = {v: group for group in groups for node in group.nodes for v in node.outputs}
    return {
        group: frozenset(maker[v] for v in touched(group, chosen[group]) if v in maker) - {group}
        for group in groups
    }


def stable_order(needs: dict[Group, frozenset[Group]]) -> tuple[Group, ...]:
    """Topological order that takes, of the groups that may run, always the first in graph order.

    Raises:
        ValueError: the groups depend on each other in a cycle.
    """
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
    """The compilation in its stable order: a trial, which has the columns that buffers depend on."""
    plan = compilation.plan
    trial = Plan(
        fusion=plan.require("fusion"),
        storage=plan.require("storage"),
        layout=plan.require("layout"),
        implementation=plan.require("implementation"),
        order=stable_order(dependencies(compilation)),
    )
    return replace(compilation, plan=trial)
