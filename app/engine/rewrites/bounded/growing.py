"""Loops that stack as many elements as a run has turns, where the trip count has a bound.

A stack becomes a carried value of the bound's extent, into which each turn scatters its element in place, and
the number of turns another one. So the loop has fixed shapes, and its results are prefixes.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.rewrites.bounded.movement import Results
from app.engine.rewrites.bounded.prefix import LARGEST, Nodes, Prefix, fits, upper_bound

FIRST = 2  # of the carried values among the inputs, after the trip count and the condition


def loop(n: Nodes, node: ir.Node, largest: int = LARGEST) -> Results:
    """Carried values as they are, and prefixes of bounded stacks of so many byte at most."""
    body, carried = node.attributes["body"].as_graph(), len(node.inputs) - FIRST
    bound = upper_bound(graph.input_at(node, 0))
    if bound is None or bound <= 0 or any(v is None or graph.is_dynamic(v) for v in node.inputs[FIRST:]):
        return None
    stacked = [i for i in range(carried, len(node.outputs)) if node.outputs[i].name]
    elements = [body.outputs[1 + i] for i in stacked]
    if not any(graph.is_dynamic(node.outputs[i]) for i in stacked):
        return None
    shapes = [graph.shape(v) for v in (*elements, *body.outputs[1 : 1 + carried])]
    if None in shapes:
        return None
    wholes = [(bound, *graph.static_shape(v)) for v in elements]
    if not all(fits(s, graph.dtype(v), largest) for s, v in zip(wholes, elements)):
        return None
    begin = [n.repeated(np.zeros((), graph.element_type(v))[()], s) for s, v in zip(wholes, elements)]
    body = _with_stacks(node, carried, [v - carried for v in stacked], bound)
    initial = [*node.inputs, n.constant([0]), *begin]
    kinds = [(v.dtype, graph.static_shape(v)) for v in body.outputs[1:]]
    attributes = [a for a in node.attributes.values() if a.name != "body"]
    again = ir.Node("", "Loop", initial, [*attributes, ir.AttrGraph("body", body)], num_outputs=len(kinds))
    n.made.append(again)
    for i, (value, (dtype, shape)) in enumerate(zip(again.outputs, kinds)):
        named = i >= carried or node.outputs[i].name
        value.name = f"{node.outputs[stacked[0]].name}.turns.{i}" if named else ""
        value.shape, value.type = ir.Shape(shape), None if dtype is None else ir.TensorType(dtype)
    count = n.counted(again.outputs[carried], bound)
    made = {i: Prefix(whole, 0, count) for i, whole in zip(stacked, again.outputs[carried + 1 :])}
    results = [*again.outputs[:carried], *node.outputs[carried:]]
    return [made.get(i, v) for i, v in enumerate(results)]


def _with_stacks(node: ir.Node, carried: int, stacked: Sequence[int], bound: int) -> ir.Graph:
    """Copy of the body that carries the number of turns and the stacks, behind what it carries."""
    body = node.attributes["body"].as_graph().clone(allow_outer_scope_values=True)
    made = Nodes(node, ".turn")
    number = made.reshaped(body.inputs[0], (1,))
    results = [made.number("Add", number, made.constant([1]))]
    place = made.reshaped(number, (1, 1))
    states = [made.state("turns", ir.DataType.INT64, (1,))]
    for at in stacked:
        element = body.outputs[1 + carried + at]
        shape = graph.static_shape(element)
        state = made.state(f"stack{at}", element.dtype, (bound, *shape))
        row = made.reshaped(element, (1, *shape))
        states.append(state)
        results.append(made("ScatterND", [state, place, row], element.dtype, (bound, *shape)))
    for index, added in enumerate(made.made):
        for value in added.inputs:
            if value is not None and value.const_value is not None and value.producer() is None:
                value.name = f"{value.name}.{index}"
                body.register_initializer(value)
    body.extend(made.made)
    body.inputs.extend(states)
    body.outputs[:] = [*body.outputs[: 1 + carried], *results]
    return body
