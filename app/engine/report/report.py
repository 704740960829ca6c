"""The documents of a plan: memory.json and plan.json.

Documents hold JSON types only, no NaN, sizes in bytes and times in seconds; the same plan gives
the same document.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import onnx_ir as ir

from app.engine.buffers.buffer_assignment import value_bytes
from app.engine.core import bodies, graph
from app.engine.core.calls import BodyCall, Call, Constant, Jump, KernelCall
from app.engine.core.group import Group
from app.engine.core.placement import PlacedBuffer, Placement
from app.engine.core.plan import Choice, Compilation
from app.engine.types.storage import SparseFormat

Json: TypeAlias = dict[str, Any]


def order_json(compilation: Compilation) -> Json:
    """Bytes that no order of the steps stays below, and the gap to the peak; null where it is not known."""
    placement = compilation.plan.require("placement")
    peak = placement.solution.peak
    # The bound is of all buffers in one memory.
    bound = None if placement.banks else compilation.plan.require("buffers").bound
    return {
        "lower_bound": bound,
        "gap": peak / bound - 1.0 if bound else None,
        "proved": bound is not None and peak <= bound and not placement.unplanned,
    }


def memory_json(compilation: Compilation) -> Json:
    """The memory plan: every buffer with its reason, every step with its live bytes."""
    plan = compilation.plan
    placement, order = plan.require("placement"), plan.require("order")
    solution = placement.solution
    asked = compilation.options.memory_budget
    alignment = compilation.target.memories[0].alignment
    first = compilation.target.memories[0].name
    live = _live_by_step([b for b in placement.buffers if b.memory == first], alignment, len(order))
    return {
        "schema": "stowplan.memory/1",
        "memory": first,
        "alignment": alignment,
        "budget_bytes": compilation.target.budget if asked is None else asked,
        "memories": _memories(compilation),
        "peak_bytes": solution.peak,
        "lower_bound": solution.lower_bound,
        "gap": solution.gap,
        # Values without a bound lie outside, and a part of the memory proves nothing.
        "proved": solution.proved and not placement.unplanned,
        "method": solution.method,
        "nodes": solution.nodes,
        "order": order_json(compilation),
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
    implementation = plan.require("implementation")
    return [
        {
            "index": i,
            "name": f"{prefix}{group.name}",
            "op": operators(group),
            "implementation": implementation[group].implementation.name,
            "live_bytes": live[i],
        }
        for i, group in enumerate(plan.require("order"))
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
    placement, steps = plan.require("placement"), len(plan.require("order"))
    last = max(steps - 1, 0)
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
    live = _live_by_step([*placement.buffers, *held], alignment, steps)
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
    """Bytes taken of each memory of the target; offsets of buffers count from the first's start."""
    placement = compilation.plan.require("placement")
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
            # Of the values and copies that live there: another choice of homes may take less.
            "lower_bound": solution.lower_bound,
            "gap": solution.gap,
            "proved": solution.proved and not placement.unplanned,
        }
        for memory, start, solution in used
    ]


def plan_json(compilation: Compilation) -> Json:
    """Every column of the plan, in the words of the model."""
    plan = compilation.plan
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
        "spill_seconds": plan.require("placement").delay,  # predicted, beside those of the steps
        "values": {
            **{v.name or "": _value(v, compilation) for v in graph.values(compilation.graph) if v.name},
            **{name: value for nested in bodies.walk(compilation) for name, value in _inner_values(nested)},
        },
        "passes": [{"name": r.name, "nodes": r.nodes, "notes": list(r.notes)} for r in compilation.records],
        "notes": list(compilation.notes),
    }


def _steps(compilation: Compilation, around: str = "", parent: str | None = None) -> list[Json]:
    """The steps in order, those of bodies after the step that runs them; names are paths."""
    plan = compilation.plan
    steps = []
    implementation = plan.require("implementation")
    for index, group in enumerate(plan.require("order")):
        path = f"{around}{group.name}"
        steps.append(_step(index, group, implementation[group], around, parent))
        for body in bodies.of_group(group, compilation):
            steps += _steps(body.program.compilation, f"{path}/{body.name}/", path)
    return steps


def _inner_values(nested: bodies.Nested) -> Iterator[tuple[str, Json]]:
    """The values of a body by path, with their places in the whole arena; not those that it captures."""
    compilation, places = nested.compilation, nested.body.places
    captured = set(compilation.graph.inputs[nested.body.own :])
    for value in graph.values(compilation.graph):
        if not value.name or value in captured or value.is_initializer():
            continue
        described = _value(value, compilation)
        location, own = described["location"], places.get(value, (0, 0))[0]
        if location is not None and (location["space"] == "arena" or value in places):
            described["location"] = {
                **location,
                "space": "arena",
                "offset": nested.offset + own + location["offset"],
            }
        yield f"{nested.path}/{value.name}", described


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
    """Bytes that a run reads and never writes: initializers that calls name, and arrays packed from them."""
    arrays: dict[int, int] = {}
    for plan in (compilation, *(nested.compilation for nested in bodies.walk(compilation))):
        for choice in (plan.plan.implementation or {}).values():
            for call in choice.calls:
                for held in call.arguments if isinstance(call, KernelCall | Jump) else call.inputs:
                    if isinstance(held, Constant):
                        arrays[id(held)] = held.nbytes
                    elif (
                        isinstance(held, ir.Value) and graph.is_constant(held) and not graph.is_dynamic(held)
                    ):
                        # Bodies share the tensors of what they capture.
                        arrays[id(held.const_value)] = value_bytes(held, plan)
    return sum(arrays.values())


def _call(call: Call) -> Json:
    if isinstance(call, KernelCall):
        return {"kernel": call.kernel, "units": call.units, "static": plain(call.static)}
    if isinstance(call, Jump):
        return {"jump": call.target, "if": call.expected}
    return {"body": call.body.name} if isinstance(call, BodyCall) else {"host": call.function}


def _step(index: int, group: Group, choice: Choice, around: str, parent: str | None) -> Json:
    return {
        "index": index,
        "name": f"{around}{group.name}",
        "parent": parent,
        "op": operators(group),
        "nodes": [f"{around}{n.name or ''}" for n in group.nodes],
        "inputs": [f"{around}{v.name or ''}" for v in group.inputs],
        "outputs": [f"{around}{v.name or ''}" for v in group.outputs],
        "implementation": choice.implementation.name,
        "backend": choice.implementation.backend,
        "seconds": finite(choice.seconds),
        "calls": [_call(call) for call in choice.calls],
        "inplace": [[f"{around}{a.name}", f"{around}{b.name}"] for a, b in choice.inplace],
        "views": [[f"{around}{v.source.name}", f"{around}{v.view.name}", v.offset] for v in choice.views],
    }


def _value(value: ir.Value, compilation: Compilation) -> Json:
    at = compilation.plan.require("placement").values.get(value)
    location = at and {
        "space": at.space,
        "offset": at.offset,
        "bytes": at.nbytes,
        "root": at.root.name if at.root is not None else None,
    }
    return {
        **_tensor(value),
        "storage": storage_json(value, compilation),
        "layout": layout_json(value, compilation),
        "padding": (compilation.plan.padding or {}).get(value),
        "location": location,
    }


def _tensor(value: ir.Value) -> Json:
    dims = None if value.shape is None else [d if isinstance(d, int) else str(d) for d in value.shape]
    return {"shape": dims, "dtype": None if value.dtype is None else value.dtype.name}


def storage_json(value: ir.Value, compilation: Compilation) -> Json | None:
    """Storage type of a value; None where it is not decided."""
    found = (compilation.plan.storage or {}).get(value)
    if found is None:
        return None
    told: Json = {"kind": found.kind, "dtype": found.dtype, "density": finite(found.density)}
    if found.kind == "default" or value.is_initializer():
        return told
    shape, itemsize = graph.static_shape(value), graph.element_type(value).itemsize
    form = SparseFormat.of(found, shape, itemsize)
    return {**told, "bound": form.capacity, "bytes": form.nbytes, "dense_bytes": graph.nbytes(value)}


def layout_json(value: ir.Value, compilation: Compilation) -> Json | None:
    """Layout of a value; None where it is not decided."""
    found = (compilation.plan.layout or {}).get(value)
    return None if found is None else {"order": list(found.order), "blocks": [list(b) for b in found.blocks]}


def operators(group: Group) -> str:
    """Operators of a group's nodes, joined by `+`."""
    return "+".join(n.op_type for n in group.nodes)


def finite(number: float) -> float | None:
    """The number; None for infinities and NaN, which JSON does not have."""
    return float(number) if math.isfinite(number) else None


def plain(value: object) -> Any:
    """JSON types only: tuples become lists, what is not finite None, anything else its text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return finite(value)
    return value if value is None or isinstance(value, str | int | bool) else str(value)
