"""Dropout in training mode, as a product with its mask: an input of the training graph."""

import onnx_ir as ir

from app.engine.core import graph
from app.engine.gradient.terms import BOOL, Maker, Term
from app.engine.model import dropout_masks, naming
from app.engine.model.shape_inference import inference

PREFIX = "dropout."


def take_masks(model: ir.Model) -> None:
    """Replace each Dropout of the main graph that may be in training mode by a product with a new input.

    Those in nested graphs stay: each turn of a loop has a mask of its own. So do those whose ratio is not a
    number below 1 that is known before a run.
    """
    main = model.graph
    taken = {v.name or "" for v in graph.values(main)}
    taken |= {v.name or "" for n in main.all_nodes() for v in n.outputs}
    found = [(n, _ratio(n)) for n in main if n.op_type == "Dropout" and not n.domain and is_random(n)]
    for node, ratio in found:
        if ratio is not None and graph.shape(graph.operand(node, 0)) is not None:
            _replace(main, node, ratio, taken)
    if found:
        inference.infer(model)


def is_random(node: ir.Node) -> bool:
    """True if a Dropout leaves elements out, or may do so."""
    training = graph.input_at(node, 2)
    return training is not None and _number(training) != 0 and _ratio(node) != 0


def _ratio(node: ir.Node) -> float | None:
    given = graph.input_at(node, 1)
    ratio = 0.5 if given is None else _number(given)
    return ratio if ratio is not None and 0 <= ratio < 1 else None


def _number(value: ir.Value) -> float | None:
    """A constant number, of a node too."""
    tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None


def _replace(main: ir.Graph, node: ir.Node, ratio: float, taken: set[str]) -> None:
    x, training = graph.operand(node, 0), graph.input_at(node, 2)
    name = naming.free(f"{node.name or node.op_type}_mask", taken)
    given = dropout_masks.mask(name, graph.static_shape(x), x, ratio)
    main.inputs.append(given)
    maker = Maker(f"{PREFIX}{node.name}.")
    factor = Term(maker, given)
    if training is not None and _number(training) is None:
        factor = Term(maker, training).reshape(()).where(factor, factor.like(1.0))
    results = [Term(maker, x) * factor]
    if len(node.outputs) > 1 and node.outputs[1].name:
        results.append(factor.op("Cast", dtype=BOOL, to=BOOL.value))
    for value in dict.fromkeys(v for n in maker.nodes for v in n.inputs if v is not None):
        if value.const_value is not None and value.producer() is None and not value.is_initializer():
            value.name = naming.free(value.name or "", taken)
            main.register_initializer(value)
    main.insert_before(node, maker.nodes)
    for old, new in zip(node.outputs, results):
        new.value.name, old.name = old.name, None
        new.value.type, new.value.shape = old.type, old.shape
        ir.convenience.replace_all_uses_with(old, new.value, replace_graph_outputs=True)
    main.remove(node, safe=True)
