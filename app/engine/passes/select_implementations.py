"""Choose an implementation for every group: what may run, by predicates; what should, by cost."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from app.engine import cost, graph
from app.engine.errors import KernelError
from app.engine.memory.alias import AliasClasses
from app.engine.memory.storage_graph import view_classes, view_refusal
from app.engine.plan import Choice, Compilation, Decision, Group
from app.engine.registry import Implementation, Known


@dataclass(frozen=True)
class SelectImplementations:
    """The cheapest row whose predicate refuses nothing, within the backend of the partition.

    What may share memory is read from the chosen row, so the memory plan follows the choice
    (apache/mxnet issue 13598).
    """

    name: ClassVar[str] = "select_implementations"
    reads: ClassVar[tuple[str, ...]] = ("partition", "fusion", "storage", "layout")
    writes: ClassVar[tuple[str, ...]] = ("implementation",)
    keeps: ClassVar[tuple[str, ...]] = ("partition", "fusion", "storage", "dispatch", "layout")

    def __call__(self, compilation: Compilation) -> Compilation:
        """Write the column `implementation`, and a decision per group."""
        known = Known.of(compilation)
        views = view_classes(compilation)
        chosen: dict[Group, Choice] = {}
        decisions: list[Decision] = []
        for group in compilation.plan.groups:
            chosen[group], decision = choose(group, compilation, known, views)
            decisions.append(decision)
        return replace(compilation.with_plan(implementation=chosen), decisions=tuple(decisions))


def choose(
    group: Group, compilation: Compilation, known: Known, views: AliasClasses
) -> tuple[Choice, Decision]:
    """The choice for one group and why.

    Raises:
        KernelError: no implementation applies, which the partition should have excluded.
    """
    partition = compilation.plan.partition
    assert partition is not None
    backend = partition[group.anchor].backend
    refused: dict[str, str | None] = {}
    accepted: list[Implementation] = []
    candidates = compilation.registry.candidates(group.op, compilation.target.backends)
    for row in candidates:
        reason = row.unless(group, known) or _misfit(row, group, compilation, known)
        if reason is None:
            reason = next((r for pair in row.views(group, known) if (r := view_refusal(*pair, views))), None)
        refused[row.name] = reason
        if reason is None and row.backend == backend:
            accepted.append(row)
    times = {row: cost.seconds(row, group, known) for row in candidates if refused[row.name] is None}
    alternatives = [
        {
            "name": row.name,
            "backend": row.backend,
            "seconds": times[row][0] if row in times else None,
            "measured": row in times and times[row][1] is not None,
            "reason": refused[row.name],
        }
        for row in candidates
    ]
    if not accepted:
        told = "; ".join(f"{a['name']}: {a['reason']}" for a in alternatives)
        raise KernelError(
            f"{group.op} {group.name!r}: no implementation on backend {backend!r} ({told})",
            pointer=f"node:{group.name}",
        )
    compared = cost.comparable({row: times[row] for row in accepted})
    row = min(compared, key=lambda r: (compared[r][0], r.rank))
    seconds, tuning = compared[row]
    pairs = row.views(group, known)
    for pair in pairs:
        views.merge(*pair)
    facts = replace(known, tuning=tuning or "")
    choice = Choice(row, row.lower(group, facts), row.inplace(group, facts), seconds, pairs)
    others = tuple(a for a in alternatives if a["name"] != row.name)
    decision = Decision(
        group.name,
        group.op,
        row.name,
        _reason(row, seconds, len(compared), others, tuning),
        others,
        measured=tuning is not None,
        error=row.error(group, known),
    )
    return choice, decision


def _misfit(row: Implementation, group: Group, compilation: Compilation, known: Known) -> str | None:
    """Why a row does not read and write the layouts that were chosen; None when it does."""
    chosen = compilation.plan.layout
    assert chosen is not None
    asked = row.layouts(group, known)
    for value in (*group.inputs, *group.outputs):
        if graph.is_constant(value) or not value.name:
            continue
        wanted = asked.get(value)
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
