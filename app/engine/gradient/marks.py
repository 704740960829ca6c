"""Note of a model on which of its outputs are gradients."""

import json
from collections.abc import Collection, Iterable

import onnx_ir as ir

from app.engine.core import graph
from app.engine.model.shape_inference.tensor_rules import BACKWARD, GRADIENT

NOTE = "stowplan.gradients"  # metadata of a model: a JSON list of names


def mark(model: ir.Model, names: Iterable[str]) -> None:
    """Note that these outputs are gradients, beside those that are noted already."""
    model.metadata_props[NOTE] = json.dumps(sorted({*names, *_noted(model)}))


def gradients(model: ir.Model) -> frozenset[str]:
    """Outputs of the main graph that are gradients: as noted, or made by nodes that ask for gradients.

    Notes on what is no output, such as those of a model that an output was cut from, mean nothing.
    """
    noted, main = _noted(model), model.graph
    found = {v for v in main.outputs if v.name in noted}
    behind: set[ir.Value] = set()
    for node in main:
        asks = (node.domain, node.op_type) in (GRADIENT, BACKWARD)
        if asks or any(v in behind for v in graph.reads(node)):
            behind.update(node.outputs)
    return frozenset(v.name for v in main.outputs if v.name and (v in found or v in behind))


def forward_nodes(main: ir.Graph, names: Collection[str]) -> set[ir.Node]:
    """Nodes that outputs need which are no gradients and are computed from none, as updated weights are."""
    behind = {v for v in main.outputs if v.name in names}
    for node in main:
        if any(v in behind for v in graph.reads(node)):
            behind.update(node.outputs)
    found: set[ir.Node] = set()
    waiting = [v.producer() for v in main.outputs if v not in behind]
    while waiting:
        node_ = waiting.pop()
        if node_ is not None and node_ not in found:
            found.add(node_)
            waiting += [v.producer() for v in graph.reads(node_)]
    return found


def _noted(model: ir.Model) -> frozenset[str]:
    try:
        names = json.loads(model.metadata_props.get(NOTE, "[]"))
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(n for n in names if isinstance(n, str)) if isinstance(names, list) else frozenset()
