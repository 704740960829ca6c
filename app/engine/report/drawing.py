"""graph.json: the plan's graph with a place for every step, ready to be drawn."""

from typing import Any, TypeAlias

import onnx_ir as ir

from app.engine.buffers.buffer_assignment import value_bytes
from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.plan import Compilation
from app.engine.report.layered import draw
from app.engine.types.storage import DispatchMode

Json: TypeAlias = dict[str, Any]

BOX_HEIGHT, LETTER, MARGIN = 38, 8.0, 30  # pixels at scale 1
NARROWEST, WIDEST = 92, 224
LONGEST = 200  # characters of operators' names; one step may be thousands of nodes


def graph_json(compilation: Compilation) -> Json:
    """Steps, inputs and outputs as placed boxes; values as edges, each with what is known of it."""
    plan = compilation.plan
    outputs = dict.fromkeys(compilation.graph.outputs)
    boxes: list[Json] = [_port(v, "input", compilation) for v in compilation.graph.inputs]
    made = {v: i for i, v in enumerate(compilation.graph.inputs)}
    flows: dict[tuple[int, int], list[ir.Value]] = {}
    for group in plan.require("order"):
        for value in dict.fromkeys(group.inputs):
            if value in made:
                flows.setdefault((made[value], len(boxes)), []).append(value)
        made |= dict.fromkeys(group.outputs, len(boxes))
        boxes.append(_step(group, compilation))
    for value in outputs:
        if value in made:
            flows.setdefault((made[value], len(boxes)), []).append(value)
        boxes.append(_port(value, "output", compilation))
    drawing = draw([(box["width"], box["height"]) for box in boxes], list(flows))
    for box, (x, y) in zip(boxes, drawing.centers):
        box |= {"x": round(x), "y": round(y)}
    return {
        "schema": "stowplan.graph/1",
        "width": round(drawing.width),
        "height": round(drawing.height),
        "nodes": boxes,
        "edges": [
            {
                "from": source,
                "to": sink,
                "values": [v.name or "" for v in values],
                "points": [[round(x), round(y)] for x, y in way],
            }
            for ((source, sink), values), way in zip(flows.items(), drawing.ways)
        ],
        "values": {v.name: _value(v, compilation) for v in made if v.name},
    }


def _step(group: Group, compilation: Compilation) -> Json:
    plan = compilation.plan
    choice = plan.require("implementation")[group]
    first = group.outputs[0] if group.outputs else None
    dispatch = plan.dispatch or {}
    op = _cut("+".join(n.op_type for n in group.nodes))
    return {
        "kind": "step",
        "name": group.name,
        "op": op,
        "nodes": len(group.nodes),
        "backend": choice.implementation.backend,
        "implementation": choice.implementation.name,
        "precision": choice.implementation.precision,
        "fallback": any(dispatch.get(n) is DispatchMode.FALLBACK for n in group.nodes),
        "layout": _layout(first, compilation),
        "storage": _storage(first, compilation),
        **_size(op),
    }


def _port(value: ir.Value, kind: str, compilation: Compilation) -> Json:
    name = value.name or ""
    return {
        "kind": kind,
        "name": name,
        "op": kind,
        "layout": _layout(value, compilation),
        "storage": _storage(value, compilation),
        **_size(name),
    }


def _size(text: str) -> Json:
    return {"width": round(min(max(LETTER * len(text) + MARGIN, NARROWEST), WIDEST)), "height": BOX_HEIGHT}


def _value(value: ir.Value, compilation: Compilation) -> Json:
    dims = None if value.shape is None else [d if isinstance(d, int) else str(d) for d in value.shape]
    return {
        "shape": dims,
        "dtype": None if value.dtype is None else value.dtype.name,
        "layout": _layout(value, compilation),
        "storage": _storage(value, compilation),
        "bytes": None if graph.is_dynamic(value) else value_bytes(value, compilation),
    }


def _layout(value: ir.Value | None, compilation: Compilation) -> str:
    found = (compilation.plan.layout or {}).get(value) if value is not None else None
    return "row-major" if found is None or found.is_plain else str(found)


def _storage(value: ir.Value | None, compilation: Compilation) -> str:
    found = (compilation.plan.storage or {}).get(value) if value is not None else None
    if found is None:
        return "unknown"
    return f"{'dense' if found.kind == 'default' else found.kind} {found.dtype}"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
