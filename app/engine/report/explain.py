"""What decisions.json says of each implementation that a group might have had, and why it is not blocked."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import workspace_bytes
from app.engine.core.group import Group
from app.engine.core.plan import Compilation, Decision
from app.engine.core.registry import Implementation, PlanningContext, all_plain
from app.engine.cost import roofline
from app.engine.layouts.conversions import conversion
from app.engine.types.layout import Layout

Json: TypeAlias = dict[str, Any]


Sizes: TypeAlias = dict[tuple[str, str], int]  # by row and signature of the group: many are alike


def nbytes(row: Implementation, group: Group, context: PlanningContext, sizes: Sizes) -> int:
    """Bytes that a step holds: what it reads and writes, in the row's layouts, and its workspace."""
    key = (row.name, roofline.signature(group))
    if key not in sizes:
        sizes[key] = _nbytes(row, group, context)
    return sizes[key]


def _nbytes(row: Implementation, group: Group, context: PlanningContext) -> int:
    layouts = row.layouts(group, context)
    total = 0
    for value in (*group.inputs, *group.outputs):
        if not graph.is_dynamic(value):
            total += _bytes_in(value, layouts.get(value))
    # The reference backend plans the bodies of control flow when it lowers them; it has no workspace.
    calls = () if row.op == "*" else row.lower(group, context)
    return total + workspace_bytes(calls, context.threads)


def _bytes_in(value: ir.Value, layout: Layout | None) -> int:
    if layout is None:
        return graph.nbytes(value)
    shape = graph.static_shape(value)
    return graph.nbytes(value) // max(graph.elements(value), 1) * layout.elements(shape)


def alternatives(
    group: Group, decision: Decision, compilation: Compilation, context: PlanningContext, sizes: Sizes
) -> list[Json]:
    """Each row that was not chosen: cost, bytes and layouts where its predicate lets it, else the refusal."""
    rows = _rows(group, compilation)
    return [{**a, **_facts(rows.get(str(a["name"])), group, context, sizes)} for a in decision.alternatives]


def _rows(group: Group, compilation: Compilation) -> Mapping[str, Implementation]:
    found = compilation.registry.candidates(group.op, compilation.target.backends)
    return {row.name: row for row in found}


def _facts(row: Implementation | None, group: Group, context: PlanningContext, sizes: Sizes) -> Json:
    if row is None or (row.inexact(group, context) or row.rejection(group, context)) is not None:
        return {"seconds": None, "measured": False, "bytes": None, "layouts": {}}
    seconds, tuning = roofline.seconds(row, group, context)
    layouts = {v.name: str(at) for v, at in row.layouts(group, context).items()}
    return {
        "seconds": seconds,
        "measured": tuning is not None,
        "bytes": nbytes(row, group, context, sizes),
        "layouts": layouts,
    }


def why_not_blocked(group: Group, compilation: Compilation, context: PlanningContext) -> str | None:
    """Why a group neither reads nor writes blocked values; None where it does."""
    plan = compilation.plan
    assert plan.layout is not None
    assert plan.implementation is not None
    if any(v in plan.layout and plan.layout[v].blocks for v in (*group.inputs, *group.outputs)):
        return None
    rows = [row for row in _rows(group, compilation).values() if row.layouts is not all_plain]
    if not rows:
        return f"no implementation of {group.op} reads or writes blocked values"
    choice = plan.implementation[group]
    told = []
    for row in rows:
        reason = row.inexact(group, context) or row.rejection(group, context)
        if reason is None:
            taken = {v: at for v, at in row.layouts(group, context).items() if at.blocks}
            converted = sum(conversion(v, at, compilation, context) for v, at in taken.items())
            reason = (
                f"takes {_micro(roofline.seconds(row, group, context)[0])}, and conversions up to "
                f"{_micro(converted)} where neighbours are row-major; {choice.implementation.name} takes "
                f"{_micro(choice.seconds)}"
            )
        told.append(f"{row.name}: {reason}")
    return "; ".join(told)


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us"
