"""decisions.json: the implementation of every group, and those that it might have had with their reasons."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import onnx_ir as ir

from app.engine.core import bodies, graph
from app.engine.core.calls import workspace_bytes
from app.engine.core.group import SUBGRAPH, Group
from app.engine.core.plan import Choice, Compilation, Decision
from app.engine.core.registry import Implementation, PlanningContext, all_plain
from app.engine.core.signature import signature
from app.engine.cost import roofline
from app.engine.layouts.conversions import DOMAIN, conversion
from app.engine.report.report import finite, layout_json, operators, plain, storage_json
from app.engine.storage.inference import inferred
from app.engine.types.accelerator import BACKEND
from app.engine.types.layout import Layout
from app.engine.types.storage import DispatchMode

Json: TypeAlias = dict[str, Any]
_Sizes: TypeAlias = dict[tuple[str, str], int]  # by implementation and signature of the group: many are alike


def decisions_json(compilation: Compilation) -> Json:
    """The choice of every group with its reasons and alternatives, in order of execution.

    The steps of bodies come after the step that runs them.
    """
    return {
        "schema": "stowplan.decisions/1",
        "outside_core": [dataclasses.asdict(node) for node in compilation.outside_core],
        "decisions": _decisions(compilation),
        "symbol": _symbol_nodes(compilation),
    }


def _symbol_nodes(compilation: Compilation) -> list[Json] | None:
    """Storage types and dispatch mode of every node of a symbol as MXNet infers them, with its semantics."""
    symbol = compilation.symbol
    if symbol is None or compilation.options.semantics != "mxnet-1.9":
        return None
    columns = inferred(symbol, compilation.registry)
    return [
        {
            "name": node.name or "",
            "op": node.op_type,
            "inputs": [columns.kinds[v] for v in node.inputs if v is not None],
            "outputs": [columns.kinds[v] for v in node.outputs],
            "dispatch": columns.modes[node].value,
        }
        for node in symbol
    ]


def _decisions(compilation: Compilation, around: str = "", parent: str | None = None) -> list[Json]:
    plan = compilation.plan
    told = {d.subject: d for d in compilation.decisions}
    context = PlanningContext.of(compilation, compilation.plan.require("storage"))
    sizes: _Sizes = {}
    found: list[Json] = []
    implementation = plan.require("implementation")
    for group in plan.require("order"):
        choice = implementation[group]
        decision = told.get(group.name)
        named = [v for v in (*group.inputs, *group.outputs) if v.name]
        found.append(
            {
                "subject": f"{around}{group.name}",
                "parent": parent,
                "op": operators(group),
                "nodes": [f"{around}{n.name or ''}" for n in group.nodes],
                "chosen": choice.implementation.name,
                "backend": choice.implementation.backend,
                "precision": choice.implementation.precision,
                "seconds": finite(choice.seconds),
                "reason": decision.reason if decision else "",
                "measured": decision.measured if decision else False,
                "error": finite(decision.error) if decision and decision.error is not None else None,
                "fallback": is_fallback(group, compilation),
                "bytes": _bytes_of(choice.implementation, group, context, sizes),
                "alternatives": _alternatives(
                    group,
                    choice,
                    _weighed(group, decision, compilation, context, sizes) if decision else (),
                    compilation,
                ),
                "why_not_blocked": _unblocked_reason(group, compilation, context)
                if plan.layout is not None
                else None,
                "storage": {
                    **{v.name: storage_json(v, compilation) for v in named},
                    **{
                        v.name: {**(storage_json(v, compilation) or {}), "kind": kind}
                        for v, kind in choice.implementation.storage(group, context).items()
                    },
                },
                "layout": {v.name: layout_json(v, compilation) for v in named},
                "memories": _memories(choice.implementation, group, context),
                "padding": dataclasses.asdict(choice.implementation.padding)
                | {"values": {v.name: (plan.padding or {}).get(v) for v in named}},
                "dispatch": {
                    f"{around}{n.name or ''}": _dispatch(n, group, compilation).value
                    for n in group.nodes
                    if n in (plan.dispatch or {})
                },
            }
        )
        path = f"{around}{group.name}"
        for body in bodies.of_group(group, compilation):
            found += _decisions(body.program.compilation, f"{path}/{body.name}/", path)
    return found


def _memories(chosen: Implementation, group: Group, context: PlanningContext) -> dict[str, str]:
    """Memories that a step asks for, by operand."""
    return {v.name or "": held.memory for v, held in chosen.memories(group, context).items()}


def fallbacks(compilation: Compilation) -> list[Json]:
    """Operators that the reference evaluator runs for want of a kernel, with reasons and counts."""
    counts: dict[tuple[str, str], int] = {}
    for plan in (compilation, *(nested.compilation for nested in bodies.walk(compilation))):
        told = {d.subject: d for d in plan.decisions}
        for group in plan.plan.order or ():
            if is_fallback(group, plan):
                decision = told.get(group.name)
                key = operators(group), decision.reason if decision else ""
                counts[key] = counts.get(key, 0) + 1
    return [{"op": op, "reason": reason, "count": n} for (op, reason), n in sorted(counts.items())]


def libraries(compilation: Compilation) -> list[Json]:
    """Operators that libraries run, with the reason why no kernel of ours does; distinct ones, counted."""
    partition, backends = compilation.plan.partition or {}, compilation.target.backends
    named = set(compilation.registry.libraries(backends))
    counts: dict[tuple[str, str, str], int] = {}
    for node, part in partition.items():
        if part.backend not in named:
            continue
        told = (compilation.plan.passed_over or {}).get(node.name or "", {})
        reasons = (f"{name}: {told[name]}" for name in backends if name in told and name not in named)
        key = part.backend, node.op_type, next(reasons, f"{part.backend} comes first")
        counts[key] = counts.get(key, 0) + 1
    return [
        {"backend": backend, "op": op, "reason": reason, "count": n}
        for (backend, op, reason), n in sorted(counts.items())
    ]


def accelerated(compilation: Compilation) -> Json | None:
    """Nodes on the accelerator of the target, and why others are not on it; None where it has none."""
    plan, conversions, counts = compilation.plan, 0, Counter[tuple[str, str, str]]()
    if BACKEND not in compilation.target.backends:
        return None
    for node, part in (plan.partition or {}).items():
        if node.domain == DOMAIN:
            conversions += 1
        elif part.backend != BACKEND:
            reason = (plan.passed_over or {}).get(node.name or "", {}).get(BACKEND, "")
            counts[part.backend, node.op_type, reason] += 1
    chosen = plan.require("implementation").items()
    own = [g for g, c in chosen if c.implementation.backend == BACKEND and g.anchor.domain != DOMAIN]
    return {
        "nodes": sum(len(group.nodes) for group in own),
        "steps": len(own),
        "conversions": conversions,
        "elsewhere": [
            {"backend": backend, "op": op, "reason": reason, "count": n}
            for (backend, op, reason), n in sorted(counts.items())
        ],
    }


def _dispatch(node: ir.Node, group: Group, compilation: Compilation) -> DispatchMode:
    """Dispatch mode of a node; whoever partitions decides that a library runs it."""
    return DispatchMode.SUBGRAPH if group.op == SUBGRAPH else compilation.plan.require("dispatch")[node]


def _alternatives(
    group: Group, choice: Choice, alternatives: Iterable[Mapping[str, Any]], compilation: Compilation
) -> list[Json]:
    """Implementations that were weighed, then backends that were passed over before; with reasons."""
    weighed = [dict(plain(a)) for a in alternatives]
    for alternative in weighed:
        alternative["reason"] = alternative.get("reason") or _slower(alternative, choice)
    named = {a.get("backend") for a in weighed} | {choice.implementation.backend}
    reasons: dict[str, dict[str, list[str]]] = {}
    for node in group.nodes:
        for backend, reason in (compilation.plan.passed_over or {}).get(node.name or "", {}).items():
            if backend not in named:
                reasons.setdefault(backend, {}).setdefault(reason, []).append(node.name or "")
    passed = [
        {
            "name": backend,
            "backend": backend,
            "seconds": None,
            "measured": False,
            "reason": "; ".join(
                reason if len(told) == 1 else f"{reason} ({len(nodes)} nodes, first {nodes[0]!r})"
                for reason, nodes in told.items()
            ),
        }
        for backend, told in reasons.items()
    ]
    return [*weighed, *passed]


def _slower(alternative: Mapping[str, Any], choice: Choice) -> str:
    """Reason why an implementation that may run a group does not."""
    chosen = choice.implementation
    if alternative.get("backend") != chosen.backend:
        return f"{chosen.backend} runs it, which comes first, or is faster by measurement"
    seconds = alternative.get("seconds")
    if seconds is None:
        return "not compared"
    how = "measured" if alternative.get("measured") else "predicted"
    return f"{how} {seconds * 1e6:.3g} us, {chosen.name} {choice.seconds * 1e6:.3g} us"


def is_fallback(group: Group, compilation: Compilation) -> bool:
    """True if the reference evaluator runs the group for want of a kernel."""
    dispatch = compilation.plan.dispatch or {}
    return any(dispatch.get(node) is DispatchMode.FALLBACK for node in group.nodes)


def _bytes_of(candidate: Implementation, group: Group, context: PlanningContext, sizes: _Sizes) -> int:
    """Bytes that a step holds: its inputs and outputs in the layouts of the candidate, and its workspace."""
    key = (candidate.name, signature(group))
    if key not in sizes:
        sizes[key] = _nbytes(candidate, group, context)
    return sizes[key]


def _nbytes(candidate: Implementation, group: Group, context: PlanningContext) -> int:
    layouts = candidate.layouts(group, context)
    total = 0
    for value in (*group.inputs, *group.outputs):
        if not graph.is_dynamic(value):
            total += _bytes_in(value, layouts.get(value))
    # The reference backend plans the bodies of control flow when it lowers them; it has no workspace.
    calls = () if candidate.op == "*" else candidate.lower(group, context)
    return total + workspace_bytes(calls, context.threads)


def _bytes_in(value: ir.Value, layout: Layout | None) -> int:
    if layout is None:
        return graph.nbytes(value)
    shape = graph.static_shape(value)
    return graph.nbytes(value) // max(graph.elements(value), 1) * layout.elements(shape)


def _weighed(
    group: Group, decision: Decision, compilation: Compilation, context: PlanningContext, sizes: _Sizes
) -> list[Json]:
    """Implementations not chosen: cost, bytes and layouts of those that may run, else the rejection."""
    others = _implementations(group, compilation)
    return [{**a, **_facts(others.get(str(a["name"])), group, context, sizes)} for a in decision.alternatives]


def _implementations(group: Group, compilation: Compilation) -> Mapping[str, Implementation]:
    found = compilation.registry.candidates(group.op, compilation.target.backends)
    return {candidate.name: candidate for candidate in found}


def _facts(candidate: Implementation | None, group: Group, context: PlanningContext, sizes: _Sizes) -> Json:
    if candidate is None or _rejection(candidate, group, context) is not None:
        return {"seconds": None, "measured": False, "bytes": None, "layouts": {}}
    seconds, tuning = roofline.seconds(candidate, group, context)
    layouts = {v.name: str(at) for v, at in candidate.layouts(group, context).items()}
    return {
        "seconds": seconds,
        "measured": tuning is not None,
        "bytes": _bytes_of(candidate, group, context, sizes),
        "layouts": layouts,
    }


def _rejection(candidate: Implementation, group: Group, context: PlanningContext) -> str | None:
    return candidate.inexact(group, context) or candidate.rejection(group, context)


def _unblocked_reason(group: Group, compilation: Compilation, context: PlanningContext) -> str | None:
    """Reason why a group neither reads nor writes blocked values; None where it does."""
    layout = compilation.plan.require("layout")
    if any(v in layout and layout[v].blocks for v in (*group.inputs, *group.outputs)):
        return None
    others = [
        candidate
        for candidate in _implementations(group, compilation).values()
        if candidate.layouts is not all_plain
    ]
    if not others:
        return f"no implementation of {group.op} reads or writes blocked values"
    choice = compilation.plan.require("implementation")[group]
    told = []
    for candidate in others:
        reason = _rejection(candidate, group, context)
        if reason is None:
            taken = {v: at for v, at in candidate.layouts(group, context).items() if at.blocks}
            converted = sum(conversion(v, at, compilation, context) for v, at in taken.items())
            reason = (
                f"takes {_micro(roofline.seconds(candidate, group, context)[0])}, and conversions up to "
                f"{_micro(converted)} where neighbours are row-major; {choice.implementation.name} takes "
                f"{_micro(choice.seconds)}"
            )
        told.append(f"{candidate.name}: {reason}")
    return "; ".join(told)


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us"
