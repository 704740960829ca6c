"""Choose an implementation for every group: what may run, by predicates; what should, by cost."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeAlias

from app.engine.buffers.alias import AliasClasses
from app.engine.buffers.buffer_assignment import build, outputs_of, view_classes
from app.engine.buffers.graph_order import in_graph_order
from app.engine.buffers.placement import greedy_peak
from app.engine.core import graph
from app.engine.core.calls import View
from app.engine.core.group import Group
from app.engine.core.plan import Choice, Compilation, Decision
from app.engine.core.registry import Implementation, PlanningContext, all_plain, no_views
from app.engine.cost import roofline
from app.engine.memory.problem import live_bytes
from app.engine.types.errors import KernelError

GROWTH = 1.1  # of the arena, that parts in place of copies are worth
ROUNDS = 4  # in which parts are copied after all, before all of them are
DENIED = "needs more memory, at its step or for a value that waits, than may be in use"

Times: TypeAlias = Mapping[Implementation, tuple[float, str | None]]  # seconds, tuning that was measured


@dataclass(frozen=True)
class SelectImplementations:
    """The cheapest row whose predicate refuses nothing, within the backend of the partition.

    What may share memory is read from the chosen row, so the memory plan follows the choice
    (apache/mxnet issue 13598).
    """

    name: ClassVar[str] = "select_implementations"
    reads: ClassVar[tuple[str, ...]] = ("partition", "fusion", "storage", "layout")
    writes: ClassVar[tuple[str, ...]] = ("implementation", "storage")
    keeps: ClassVar[tuple[str, ...]] = ("partition", "passed_over", "fusion", "dispatch", "layout")

    def __call__(self, compilation: Compilation) -> Compilation:
        """Write the column `implementation`, the storage types of constants, and a decision per group."""
        return _stored(self._chosen(compilation))

    def _chosen(self, compilation: Compilation) -> Compilation:
        found = _selected(compilation, frozenset())
        joined = _joined(found)
        if not joined:
            return found
        # A buffer of several values lives from the first to the last of them: together they may take more.
        copying = _selected(compilation, joined, found)
        least, budget = greedy_peak(in_graph_order(copying)), compilation.options.memory_budget
        growth = 1.0 if compilation.concessions.order or compilation.concessions.denied else GROWTH
        limit = max(least, min(growth * least, budget or math.inf))
        apart: frozenset[Group] = frozenset()
        for _ in range(ROUNDS):
            ordered = in_graph_order(found)
            if greedy_peak(ordered) <= limit:
                return found
            apart |= _alive_at_peak(ordered, joined) or joined
            found = _selected(compilation, apart, copying)
            joined = _joined(found)
        return copying


def _selected(
    compilation: Compilation, apart: frozenset[Group], before: Compilation | None = None
) -> Compilation:
    """The compilation with choices; parts of the groups `apart` lie in no whole.

    Of groups that share no memory whatever is chosen, what was chosen `before` is taken.
    """
    context = PlanningContext.of(compilation, compilation.plan.require("storage"))
    views = view_classes(compilation)
    chosen: dict[Group, Choice] = {}
    decisions: list[Decision] = []
    for i, group in enumerate(compilation.plan.groups):
        candidates = compilation.registry.candidates(group.op, compilation.target.backends)
        if before is None or any(row.views is not no_views for row in candidates):
            chosen[group], decision = choose(group, compilation, context, views, apart=group in apart)
            views.share(chosen[group].views, outputs_of(group))
        else:
            chosen[group], decision = before.plan.require("implementation")[group], before.decisions[i]
        decisions.append(decision)
    return replace(compilation.with_plan(implementation=chosen), decisions=tuple(decisions))


def _stored(compilation: Compilation) -> Compilation:
    """Constants as the chosen rows store them; of several readers the first sparse one counts."""
    storage = dict(compilation.plan.require("storage"))
    context = PlanningContext.of(compilation, compilation.plan.require("storage"))
    for group, choice in compilation.plan.require("implementation").items():
        for value, kind in choice.implementation.storage(group, context).items():
            if graph.is_constant(value) and storage[value].kind == "default":
                storage[value] = replace(storage[value], kind=kind)
    return compilation.with_plan(storage=storage)


def _joined(compilation: Compilation) -> frozenset[Group]:
    """Groups whose parts lie in a whole."""
    return frozenset(g for g, c in compilation.plan.require("implementation").items() if _has_parts(c.views))


def _has_parts(views: Sequence[View]) -> bool:
    return any(graph.elements(v.source) != graph.elements(v.view) for v in views)


def _alive_at_peak(compilation: Compilation, joined: frozenset[Group]) -> frozenset[Group]:
    """Groups that have values in a buffer which lives when most bytes do."""
    storage = build(compilation)
    step, _ = max(live_bytes(storage.problem), key=lambda at: at[1])
    alive = {
        v for s in storage.storages if s.space == "arena" and s.first <= step <= s.last for v in s.values
    }
    return frozenset(g for g in joined if not alive.isdisjoint((*g.inputs, *g.outputs)))


@dataclass(frozen=True, slots=True)
class Candidate:
    """An implementation of a group before its time is compared.

    Attributes:
        rejection: reason why it does not apply; None when it does.
        granted: its views that may share memory, given what is shared so far.
        copied: its other views, and why their parts are copied.
    """

    row: Implementation
    rejection: str | None
    granted: tuple[View, ...] = ()
    copied: Mapping[View, str] = field(default_factory=dict)


def _candidate(
    row: Implementation,
    group: Group,
    compilation: Compilation,
    context: PlanningContext,
    views: AliasClasses,
    *,
    apart: bool,
) -> Candidate:
    reason = row.rejection_reason(group, context) or _rejection(row, group, compilation, context)
    if reason is not None:
        return Candidate(row, reason)
    granted, copied = views.granted(row.views(group, context), outputs_of(group))
    if copied and not (row.partial and granted):
        reason = next(iter(copied.values()))
    elif apart and _has_parts(granted):
        reason = f"in one buffer the parts would take over {GROWTH:g} times the arena"
    return Candidate(row, reason, granted, copied)


@dataclass(frozen=True, slots=True)
class Ranking:
    """The implementations of a group by time.

    Attributes:
        rejections: of every candidate; None for those that may be chosen, on any backend.
        times: (seconds, tuning that was measured) of those that apply, on any backend.
        accepted: those that apply on the backend of the partition.
        compared: times of the accepted ones that memory permits, on one scale; the least decides.
    """

    rejections: Mapping[Implementation, str | None]
    times: Times
    accepted: tuple[Implementation, ...]
    compared: Times

    @property
    def best(self) -> Implementation:
        """The implementation to choose; of equal times the one of the lowest rank."""
        return min(self.compared, key=lambda row: (self.compared[row][0], row.rank))

    def alternatives(self, chosen: Implementation | None) -> tuple[Mapping[str, object], ...]:
        """Every candidate but the chosen one, as a decision lists them."""
        return tuple(
            {
                "name": row.name,
                "backend": row.backend,
                "seconds": self.times[row][0] if row in self.times else None,
                "measured": row in self.times and self.times[row][1] is not None,
                "reason": rejection,
            }
            for row, rejection in self.rejections.items()
            if row is not chosen
        )


def _ranking(
    candidates: Sequence[Candidate], backend: str, group: Group, context: PlanningContext
) -> Ranking:
    rejections = {c.row: c.rejection for c in candidates}
    times = {
        row: roofline.seconds(row, group, context) for row, reason in rejections.items() if reason is None
    }
    accepted = tuple(row for row in times if row.backend == backend)
    permitted = roofline.permitted(accepted, group, context)
    rejections |= {row: DENIED for row in accepted if row not in permitted}
    compared = roofline.comparable({row: times[row] for row in permitted}, group, context)
    return Ranking(rejections, times, accepted, compared)


def choose(
    group: Group,
    compilation: Compilation,
    context: PlanningContext,
    views: AliasClasses,
    *,
    apart: bool = False,
) -> tuple[Choice, Decision]:
    """The choice for one group and why; `apart` forbids views of a part of a value.

    The views of the choice may share memory; the caller lets them.

    Raises:
        KernelError: no implementation applies, which the partition should have excluded.
    """
    rows = compilation.registry.candidates(group.op, compilation.target.backends)
    candidates = {row: _candidate(row, group, compilation, context, views, apart=apart) for row in rows}
    context = replace(context, granted=frozenset(v for c in candidates.values() for v in c.granted))
    backend = compilation.plan.require("partition")[group.anchor].backend
    ranking = _ranking(tuple(candidates.values()), backend, group, context)
    if not ranking.accepted:
        told = "; ".join(f"{a['name']}: {a['reason']}" for a in ranking.alternatives(None))
        raise KernelError(
            f"{group.op} {group.name!r}: no implementation on backend {backend!r} ({told})",
            pointer=f"node:{group.name}",
        )
    row = ranking.best
    seconds, tuning = ranking.compared[row]
    tuned = replace(context, tuning=tuning) if tuning else context
    inplace = row.inplace(group, tuned) if compilation.options.inplace else ()
    choice = Choice(row, row.lower(group, tuned), inplace, seconds, candidates[row].granted, tuning or "")
    decision = Decision(
        group.name,
        group.op,
        row.name,
        _explanation(candidates[row], ranking, group, context),
        ranking.alternatives(row),
        measured=tuning is not None,
        error=row.error(group, context),
    )
    return choice, decision


def _explanation(chosen: Candidate, ranking: Ranking, group: Group, context: PlanningContext) -> str:
    """Reason for a choice: its time, what a sparse constant would cost, and what is copied."""
    row = chosen.row
    seconds, tuning = ranking.compared[row]
    accepted = {r: ranking.times[r] for r in ranking.accepted}
    return "; ".join(
        [_reason(row, seconds, len(ranking.compared), ranking.alternatives(row), tuning)]
        + _lost(row, seconds, accepted, group, context)
        + [f"{v.view.name!r} is copied: {r}" for v, r in chosen.copied.items()]
        + [f"row-major: no row of {group.op} is over another layout"]
        * all(other.layouts is all_plain for other in ranking.rejections)
    )


def _lost(
    row: Implementation,
    seconds: float,
    times: Times,
    group: Group,
    context: PlanningContext,
) -> list[str]:
    """By how much the best row that stores a constant sparse is slower than a dense one that was chosen."""
    sparse = {r: t for r, t in times.items() if r.storage(group, context)}
    if not sparse or row in sparse:
        return []
    best = min(sparse, key=lambda r: sparse[r][0])
    kinds = ", ".join(dict.fromkeys(best.storage(group, context).values()))
    how = "predicted" if sparse[best][1] is None else "measured"
    return [
        f"stored {kinds} it would take {sparse[best][0] / seconds:.3g} times as long ({best.name}, {how})"
    ]


def _rejection(
    row: Implementation, group: Group, compilation: Compilation, context: PlanningContext
) -> str | None:
    """Reason why a row does not read and write the layouts that were chosen; None when it does."""
    chosen = compilation.plan.require("layout")
    required_layouts = row.required_layouts(group, context)
    for value in (*group.inputs, *group.outputs):
        if graph.is_constant(value) or not value.name:
            continue
        wanted = required_layouts.get(value)
        if wanted == chosen[value] or (wanted is None and chosen[value].is_plain):
            continue
        return f"asks for {value.name!r} {wanted or 'row-major'}, which is {chosen[value]} here"
    return None


def _reason(
    row: Implementation,
    seconds: float,
    count: int,
    others: tuple[Mapping[str, object], ...],
    tuning: str | None,
) -> str:
    if row.op == "*":
        refused = [f"{o['name']}: {o['reason']}" for o in others if o["reason"]]
        return "; ".join(refused) or "no other backend has a row for this operator"
    how = "predicted" if tuning is None else f"measured{' with ' + tuning if tuning else ''}"
    if count == 1:
        return f"the only implementation that applies; {how} {seconds * 1e6:.3g} us"
    return f"{how} {seconds * 1e6:.3g} us, the least of {count}"
