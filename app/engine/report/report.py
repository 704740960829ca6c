"""What a plan says of itself: memory.json, plan.json, decisions.json and report.html.

Documents hold JSON types only, no NaN, sizes in bytes and times in seconds; the same plan gives
the same document. Names come from the model and are not to be trusted: the page escapes them.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import jinja2
import onnx_ir as ir

from app.engine.buffers.buffer_assignment import value_bytes
from app.engine.core import bodies, graph
from app.engine.core.calls import Constant, KernelCall
from app.engine.core.group import SUBGRAPH, Group
from app.engine.core.placement import PlacedBuffer, Placement
from app.engine.core.plan import Choice, Compilation
from app.engine.core.registry import PlanningContext
from app.engine.report import explain, memory_map, units
from app.engine.types.storage import DispatchMode

Json: TypeAlias = dict[str, Any]

SLOWEST = 25  # operators with a bar of their own
AT_PEAK = 40  # buffers that the page of the memory map names
LISTED = 1500  # decisions on the page; decisions.json has all


def memory_json(compilation: Compilation) -> Json:
    """The memory plan: every buffer with its reason, every step with its live bytes."""
    plan = compilation.plan
    assert plan.placement is not None
    assert plan.order is not None
    assert plan.implementation is not None
    placement, solution = plan.placement, plan.placement.solution
    asked = compilation.options.memory_budget
    alignment = compilation.target.memories[0].alignment
    first = compilation.target.memories[0].name
    live = _live_by_step([b for b in placement.buffers if b.memory == first], alignment, len(plan.order))
    order_bound = compilation.plan.require("buffers").bound
    return {
        "schema": "stowplan.memory/1",
        "memory": first,
        "alignment": alignment,
        "budget_bytes": compilation.target.budget if asked is None else asked,
        "memories": _memories(compilation),
        "peak_bytes": solution.peak,
        "lower_bound": solution.lower_bound,
        "gap": solution.gap,
        # What has no bound lies outside: of a part of the memory nothing is proved.
        "proved": solution.proved and not placement.unplanned,
        "method": solution.method,
        "nodes": solution.nodes,
        "order": {
            "lower_bound": order_bound,
            "proved": order_bound is not None and solution.peak <= order_bound and not placement.unplanned,
        },
        "rows": {
            "lower_bound": compilation.row_bound,
            "proved": compilation.row_bound is not None
            and solution.peak <= compilation.row_bound
            and not placement.unplanned,
        },
        "activation_bytes": placement.activations,
        "policies": list(placement.policies),
        "naive_bytes": placement.naive,
        "weights_bytes": _weights_bytes(compilation),
        "input_bytes": _total(compilation, compilation.graph.inputs),
        "output_bytes": _total(compilation, dict.fromkeys(compilation.graph.outputs)),
        "buffers": [_buffer(b, placement) for b in placement.buffers],
        "bodies": [_body_memory(nested) for nested in bodies.walk(compilation)],
        "outside": [
            {
                "name": value.name or "",
                "space": at.space,
                "offset": at.offset,
                "bytes": at.nbytes,
                "root": at.root.name if at.root is not None else None,
            }
            for value, at in placement.values.items()
            if at.space in ("input", "output")
        ],
        "unplanned": list(placement.unplanned),
        "steps": _live_steps(compilation, live),
    }


def _live_steps(compilation: Compilation, live: list[int], prefix: str = "") -> list[Json]:
    plan = compilation.plan
    assert plan.order is not None
    assert plan.implementation is not None
    return [
        {
            "index": i,
            "name": f"{prefix}{group.name}",
            "op": _operators(group),
            "implementation": plan.implementation[group].implementation.name,
            "live_bytes": live[i],
        }
        for i, group in enumerate(plan.order)
    ]


def _buffer(buffer: PlacedBuffer, placement: Placement, prefix: str = "", start: int = 0) -> Json:
    """A buffer of a plan whose arena begins at `start`."""
    by_name = {v.name or "": v for v in placement.values}
    return {
        "name": f"{prefix}{buffer.name}",
        "kind": buffer.kind,
        "memory": buffer.memory,
        "offset": start + buffer.offset,
        "bytes": buffer.nbytes,
        "first": buffer.first,
        "last": buffer.last,
        "reason": buffer.reason,
        "values": [{"name": f"{prefix}{n}", **_tensor(by_name[n])} for n in buffer.values],
        "parts": [
            {"offset": p.offset, "bytes": p.nbytes, "first": p.first, "last": p.last} for p in buffer.parts
        ],
    }


def _body_memory(nested: bodies.Nested) -> Json:
    """The memory of a body: addresses are those of the whole arena, steps its own."""
    compilation, prefix = nested.compilation, f"{nested.path}/"
    plan = compilation.plan
    assert plan.placement is not None
    assert plan.order is not None
    placement, last = plan.placement, max(len(plan.order) - 1, 0)
    inputs = set(compilation.graph.inputs)
    held = [
        PlacedBuffer(
            value.name or "",
            "input" if value in inputs else "output",
            offset,
            nbytes,
            0,
            last,
            (value.name or "",),
            f"{'input' if value in inputs else 'output'} of the body, in its memory through all its turns",
            memory=compilation.target.memories[0].name,
        )
        for value, (offset, nbytes) in nested.body.places.items()
    ]
    alignment = compilation.target.memories[0].alignment
    live = _live_by_step([*placement.buffers, *held], alignment, len(plan.order))
    return {
        "name": nested.path,
        "parent": nested.parent,
        "step": nested.step,
        "span": list(nested.span),
        "turns": nested.turns,
        "offset": nested.offset,
        "bytes": nested.body.nbytes,
        "proved": placement.solution.proved and not placement.unplanned,
        "unplanned": [f"{prefix}{name}" for name in placement.unplanned],
        "buffers": [_buffer(b, placement, prefix, nested.offset) for b in (*placement.buffers, *held)],
        "steps": _live_steps(compilation, live, prefix),
    }


def _memories(compilation: Compilation) -> list[Json]:
    """What the plan takes of each memory of the target; offsets of buffers count from the first's start."""
    placement = compilation.plan.placement
    assert placement is not None
    first, *further = compilation.target.memories
    banks = {bank.memory: bank for bank in placement.banks}
    used = [(first, 0, placement.solution)]
    used += [(m, banks[m.name].start, banks[m.name].solution) for m in further if m.name in banks]
    return [
        {
            "name": memory.name,
            "size": memory.size,
            "start": start,
            "peak_bytes": solution.peak,
            "lower_bound": solution.lower_bound,
        }
        for memory, start, solution in used
    ]


def plan_json(compilation: Compilation) -> Json:
    """Every column of the plan, in the words of the model."""
    plan = compilation.plan
    assert plan.order is not None
    assert plan.implementation is not None
    assert plan.placement is not None
    return {
        "schema": "stowplan.plan/1",
        "model": compilation.graph.name or "",
        "target": compilation.target.name,
        "opset": dict(compilation.model.graph.opset_imports),
        "partition": {
            node.name or "": {"index": part.index, "backend": part.backend}
            for node, part in (plan.partition or {}).items()
        },
        "steps": _steps(compilation),
        "spill_seconds": plan.placement.delay,  # predicted, beside those of the steps
        "values": {
            **{v.name or "": _value(v, compilation) for v in graph.values(compilation.graph) if v.name},
            **{name: row for nested in bodies.walk(compilation) for name, row in _inner_values(nested)},
        },
        "passes": [{"name": r.name, "nodes": r.nodes, "notes": list(r.notes)} for r in compilation.records],
        "notes": list(compilation.notes),
    }


def _steps(compilation: Compilation, around: str = "", parent: str | None = None) -> list[Json]:
    """The steps in order, those of bodies after the step that runs them; names are paths."""
    plan = compilation.plan
    assert plan.order is not None
    assert plan.implementation is not None
    rows = []
    for index, group in enumerate(plan.order):
        path = f"{around}{group.name}"
        rows.append(_step(index, group, plan.implementation[group], around, parent))
        for body in bodies.of_group(group, compilation):
            rows += _steps(body.program.compilation, f"{path}/{body.name}/", path)
    return rows


def _inner_values(nested: bodies.Nested) -> Iterator[tuple[str, Json]]:
    """The values of a body by path, with their places in the whole arena; not those that it captures."""
    compilation, places = nested.compilation, nested.body.places
    captured = set(compilation.graph.inputs[nested.body.own :])
    for value in graph.values(compilation.graph):
        if not value.name or value in captured or value.is_initializer():
            continue
        row = _value(value, compilation)
        location, own = row["location"], places.get(value, (0, 0))[0]
        if location is not None and (location["space"] == "arena" or value in places):
            row["location"] = {
                **location,
                "space": "arena",
                "offset": nested.offset + own + location["offset"],
            }
        yield f"{nested.path}/{value.name}", row


def decisions_json(compilation: Compilation) -> Json:
    """Why each group runs as it does, and what else could have run it, in order of execution.

    The steps of bodies come after the step that runs them.
    """
    return {"schema": "stowplan.decisions/1", "decisions": _decisions(compilation)}


def _decisions(compilation: Compilation, around: str = "", parent: str | None = None) -> list[Json]:
    plan = compilation.plan
    assert plan.order is not None
    assert plan.implementation is not None
    told = {d.subject: d for d in compilation.decisions}
    context = PlanningContext.of(compilation, compilation.plan.require("storage"))
    sizes: explain.Sizes = {}
    rows = []
    for group in plan.order:
        choice = plan.implementation[group]
        decision = told.get(group.name)
        named = [v for v in (*group.inputs, *group.outputs) if v.name]
        rows.append(
            {
                "subject": f"{around}{group.name}",
                "parent": parent,
                "op": _operators(group),
                "nodes": [f"{around}{n.name or ''}" for n in group.nodes],
                "chosen": choice.implementation.name,
                "backend": choice.implementation.backend,
                "precision": choice.implementation.precision,
                "seconds": _finite(choice.seconds),
                "reason": decision.reason if decision else "",
                "measured": decision.measured if decision else False,
                "error": _finite(decision.error) if decision and decision.error is not None else None,
                "fallback": is_fallback(group, compilation),
                "bytes": explain.nbytes(choice.implementation, group, context, sizes),
                "alternatives": _alternatives(
                    group,
                    choice,
                    explain.alternatives(group, decision, compilation, context, sizes) if decision else (),
                    compilation,
                ),
                "why_not_blocked": explain.why_not_blocked(group, compilation, context)
                if plan.layout is not None
                else None,
                "storage": {
                    **{v.name: _storage(v, compilation) for v in named},
                    **{
                        v.name: {**(_storage(v, compilation) or {}), "kind": kind}
                        for v, kind in choice.implementation.storage(group, context).items()
                    },
                },
                "layout": {v.name: _layout(v, compilation) for v in named},
                "padding": {
                    **dataclasses.asdict(choice.implementation.padding),
                    "values": {v.name: (plan.padding or {}).get(v) for v in named},
                },
                "dispatch": {
                    f"{around}{n.name or ''}": _dispatch(n, group, compilation).value
                    for n in group.nodes
                    if n in (plan.dispatch or {})
                },
            }
        )
        path = f"{around}{group.name}"
        for body in bodies.of_group(group, compilation):
            rows += _decisions(body.program.compilation, f"{path}/{body.name}/", path)
    return rows


def fallbacks(compilation: Compilation) -> list[Json]:
    """What the reference evaluator runs for want of a kernel: distinct operators and reasons, counted."""
    counts: dict[tuple[str, str], int] = {}
    for plan in (compilation, *(nested.compilation for nested in bodies.walk(compilation))):
        told = {d.subject: d for d in plan.decisions}
        for group in plan.plan.order or ():
            if is_fallback(group, plan):
                decision = told.get(group.name)
                key = _operators(group), decision.reason if decision else ""
                counts[key] = counts.get(key, 0) + 1
    return [{"op": op, "reason": reason, "count": n} for (op, reason), n in sorted(counts.items())]


def libraries(compilation: Compilation) -> list[Json]:
    """What libraries run: operators, and why no kernel of ours runs them; distinct ones, counted."""
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


def _dispatch(node: ir.Node, group: Group, compilation: Compilation) -> DispatchMode:
    """How a node is run; whoever partitions decides that a library does."""
    return DispatchMode.SUBGRAPH if group.op == SUBGRAPH else compilation.plan.require("dispatch")[node]


def _alternatives(
    group: Group, choice: Choice, found: Iterable[Mapping[str, Any]], compilation: Compilation
) -> list[Json]:
    """Every row that was weighed, then every backend that was passed over before, each with its reason."""
    weighed = [dict(_plain(a)) for a in found]
    for row in weighed:
        row["reason"] = row.get("reason") or _slower(row, choice)
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


def _slower(row: Mapping[str, Any], choice: Choice) -> str:
    """Why a row that may run a group does not."""
    chosen = choice.implementation
    if row.get("backend") != chosen.backend:
        return f"{chosen.backend} runs it, which comes first, or is faster by measurement"
    seconds = row.get("seconds")
    if seconds is None:
        return "not compared"
    how = "measured" if row.get("measured") else "predicted"
    return f"{how} {seconds * 1e6:.3g} us, {chosen.name} {choice.seconds * 1e6:.3g} us"


def is_fallback(group: Group, compilation: Compilation) -> bool:
    """Whether the reference evaluator runs the group for want of a kernel."""
    dispatch = compilation.plan.dispatch or {}
    return any(dispatch.get(node) is DispatchMode.FALLBACK for node in group.nodes)


def report_html(
    summary: Mapping[str, Any],
    memory: Mapping[str, Any],
    timings: Mapping[str, Any],
    decisions: Mapping[str, Any],
) -> str:
    """One page that needs nothing else: no script, style, font or image from anywhere."""
    operators = sorted(timings["operators"], key=lambda o: (-o["seconds"], o["name"]))
    rows = sorted(decisions["decisions"], key=lambda d: not d["fallback"])
    return (
        _environment()
        .get_template("report.html")
        .render(
            summary=summary,
            memory=memory,
            timings=timings,
            map=memory_map.draw(memory),
            operators=operators[:SLOWEST],
            rest=operators[SLOWEST:],
            slowest=max((o["seconds"] for o in operators), default=0.0),
            decisions=rows[:LISTED],
            omitted=len(rows[LISTED:]),
        )
    )


def memory_html(memory: Mapping[str, Any], model: str) -> str:
    """The memory map alone, with what lives at the peak and what others would take."""
    live = [step["live_bytes"] for step in memory["steps"]]
    worst = max(range(len(live)), key=live.__getitem__, default=0)
    at_peak = [
        {**b, "bytes": part["bytes"]}
        for b in memory["buffers"]
        for part in (b["parts"] or [b])
        if part["first"] <= worst <= part["last"] and part["bytes"]
    ]
    return (
        _environment()
        .get_template("memory.html")
        .render(
            model=model,
            memory=memory,
            map=memory_map.draw(memory),
            worst=worst,
            live=live[worst] if live else 0,
            at_peak=sorted(at_peak, key=lambda b: (-b["bytes"], b["name"]))[:AT_PEAK],
            more=max(len(at_peak) - AT_PEAK, 0),
        )
    )


def compile_templates() -> None:
    """Make the pages' templates ready for this process and those it forks."""
    environment = _environment()
    for name in environment.list_templates():
        environment.get_template(name)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("app.engine.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= units.FILTERS
    return environment


def _live_by_step(buffers: Iterable[PlacedBuffer], alignment: int, steps: int) -> list[int]:
    change = [0] * (steps + 1)
    for b in buffers:
        for part in b.spans:
            extent = -(-part.nbytes // alignment) * alignment if not b.parts else part.nbytes
            change[part.first] += extent
            change[part.last + 1] -= extent
    return list(itertools.accumulate(change[:steps]))


def _total(compilation: Compilation, values: Any) -> int:
    return sum(value_bytes(v, compilation) for v in values if not graph.is_dynamic(v))


def _weights_bytes(compilation: Compilation) -> int:
    """What a run reads and never writes: initializers that calls name, and arrays packed from them."""
    arrays: dict[int, int] = {}
    for plan in (compilation, *(nested.compilation for nested in bodies.walk(compilation))):
        for choice in (plan.plan.implementation or {}).values():
            for call in choice.calls:
                for held in call.arguments if isinstance(call, KernelCall) else call.inputs:
                    if isinstance(held, Constant):
                        arrays[id(held)] = held.nbytes
                    elif (
                        isinstance(held, ir.Value) and graph.is_constant(held) and not graph.is_dynamic(held)
                    ):
                        # Bodies share the tensors of what they capture.
                        arrays[id(held.const_value)] = value_bytes(held, plan)
    return sum(arrays.values())


def _step(index: int, group: Group, choice: Choice, around: str, parent: str | None) -> Json:
    return {
        "index": index,
        "name": f"{around}{group.name}",
        "parent": parent,
        "op": _operators(group),
        "nodes": [f"{around}{n.name or ''}" for n in group.nodes],
        "inputs": [f"{around}{v.name or ''}" for v in group.inputs],
        "outputs": [f"{around}{v.name or ''}" for v in group.outputs],
        "implementation": choice.implementation.name,
        "backend": choice.implementation.backend,
        "seconds": _finite(choice.seconds),
        "calls": [
            {"kernel": call.kernel, "units": call.units, "static": _plain(call.static)}
            if isinstance(call, KernelCall)
            else {"host": call.function}
            for call in choice.calls
        ],
        "inplace": [[f"{around}{a.name}", f"{around}{b.name}"] for a, b in choice.inplace],
        "views": [[f"{around}{v.source.name}", f"{around}{v.view.name}", v.offset] for v in choice.views],
    }


def _value(value: ir.Value, compilation: Compilation) -> Json:
    assert compilation.plan.placement is not None
    at = compilation.plan.placement.values.get(value)
    location = at and {
        "space": at.space,
        "offset": at.offset,
        "bytes": at.nbytes,
        "root": at.root.name if at.root is not None else None,
    }
    return {
        **_tensor(value),
        "storage": _storage(value, compilation),
        "layout": _layout(value, compilation),
        "padding": (compilation.plan.padding or {}).get(value),
        "location": location,
    }


def _tensor(value: ir.Value) -> Json:
    dims = None if value.shape is None else [d if isinstance(d, int) else str(d) for d in value.shape]
    return {"shape": dims, "dtype": None if value.dtype is None else value.dtype.name}


def _storage(value: ir.Value, compilation: Compilation) -> Json | None:
    found = (compilation.plan.storage or {}).get(value)
    if found is None:
        return None
    return {"kind": found.kind, "dtype": found.dtype, "density": _finite(found.density)}


def _layout(value: ir.Value, compilation: Compilation) -> Json | None:
    found = (compilation.plan.layout or {}).get(value)
    return None if found is None else {"order": list(found.order), "blocks": [list(b) for b in found.blocks]}


def _operators(group: Group) -> str:
    return "+".join(n.op_type for n in group.nodes)


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


def _plain(value: object) -> Any:
    """JSON types only: tuples become lists, what is not finite None, anything else its text."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return _finite(value)
    return value if value is None or isinstance(value, str | int | bool) else str(value)
