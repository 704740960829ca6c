"""Recurrent operators and loops as their steps, one after the other, in operators that have gradients.

An LSTM, GRU or RNN becomes the arithmetic of its cell for every step and direction; a Scan or a Loop whose
number of turns is known becomes its body, as often. Where the number of turns is known only when the graph
runs, or the steps would be too many nodes, the operator stays and its rejection says so.

Source of the cells: ONNX operator specifications of LSTM-22, GRU-22, RNN-22.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from app.engine.core import graph
from app.engine.gradient import cells
from app.engine.gradient.rule import Site
from app.engine.gradient.terms import Maker, Term
from app.engine.model import naming
from app.engine.model.shape_inference import tensor_rules

PREFIX = "step."
LARGEST = 20_000  # nodes that all unrolled operators of a graph become

Outputs: TypeAlias = Sequence[Term | None]  # of the operator; None where nobody reads it


@dataclass(frozen=True, slots=True)
class Unrolling:
    """The steps of an operator.

    Attributes:
        nodes: how many it becomes, at most.
        outputs: its outputs, computed by new nodes.
        rejection: reason why a form of the operator is not unrolled.
    """

    nodes: Callable[[ir.Node], int]
    outputs: Callable[[Site], Outputs]
    rejection: Callable[[ir.Node], str | None]


def rejection(node: ir.Node) -> str | None:
    """Reason why a node of `UNROLLED` has no steps; None where it has."""
    row = UNROLLED[node.op_type]
    found = row.rejection(node)
    if found is None and row.nodes(node) > LARGEST:
        return f"its steps would be {row.nodes(node)} nodes, at most {LARGEST} are made: shorten the sequence"
    return found


def is_unrolled(node: ir.Node) -> bool:
    """True for an operator that has gradients by its steps alone."""
    return not node.domain and node.op_type in UNROLLED


def unroll(model: ir.Model, nodes: Iterable[ir.Node], room: int) -> int:
    """Replace nodes of the main graph by their steps, of at most `room` nodes; returns how many these are.

    Outputs keep their names; new values have no shapes yet. What has a rejection, or no room, is left.
    """
    main, made = model.graph, 0
    taken = {v.name or "" for n in main.all_nodes() for v in n.outputs} | set(main.initializers)
    taken |= {v.name or "" for g in model.graphs() for v in g.inputs}
    for node in nodes:
        if rejection(node) is not None or made + UNROLLED[node.op_type].nodes(node) > room:
            continue
        maker = Maker(f"{PREFIX}{node.name}.")
        outputs = UNROLLED[node.op_type].outputs(Site(maker, node, ()))
        made += len(maker.nodes)
        _replace(node, maker, outputs, taken)
    return made


def _replace(node: ir.Node, maker: Maker, outputs: Outputs, taken: set[str]) -> None:
    main = graph.owner(node)
    copies = [None if term is None else term.op("Identity").value for term in outputs]
    for member in maker.nodes:
        for value in _made(member):
            value.name = naming.free(value.name or "", taken) if value.name else value.name
    for value in dict.fromkeys(v for n in maker.nodes for v in graph.reads(n)):
        if value.const_value is not None and value.producer() is None and not value.is_initializer():
            value.name = naming.free(value.name or "", taken)
            main.register_initializer(value)
    main.insert_before(node, maker.nodes)
    for old, new in zip(node.outputs, copies):
        if new is None:
            continue
        new.name, old.name = old.name, None
        new.type, new.shape = old.type, old.shape
        for use in tuple(old.uses()):
            use.node.replace_input_with(use.idx, new)
        for index, value in enumerate(main.outputs):
            if value is old:
                main.outputs[index] = new
    main.remove(node, safe=True)


def _made(node: ir.Node) -> Iterator[ir.Value]:
    """Values that a node and the nodes of its bodies make, and those that its bodies receive."""
    yield from node.outputs
    for body in graph.bodies(node):
        yield from body.inputs
        for member in body:
            yield from _made(member)


def _read_outputs(node: ir.Node) -> list[bool]:
    return [bool(v.uses()) or v.is_graph_output() for v in node.outputs]


# ---- Loop and Scan


@dataclass(frozen=True, slots=True)
class _Turns:
    """Body of a loop, run a known number of times.

    Attributes:
        count: of turns.
        leading: inputs of the body before the carried values, each turn's own.
        results: outputs of the body before the carried values.
        carried: values that a turn hands to the next.
    """

    body: ir.Graph
    count: int
    leading: int
    results: int
    carried: int


def _inlined(maker: Maker, body: ir.Graph, leading: Sequence[Term], states: Sequence[Term]) -> list[Term]:
    """Outputs of a copy of the body on these arguments: its nodes are the maker's from now on."""
    copy = body.clone(allow_outer_scope_values=True)
    given = dict(zip(copy.inputs, (t.value for t in (*leading, *states)), strict=True))
    outputs = [given.get(v, v) for v in copy.outputs]
    nodes = tuple(copy)
    copy.outputs.clear()
    copy.initializers.clear()
    copy.remove(nodes)
    for received, value in given.items():
        for use in tuple(received.uses()):
            use.node.replace_input_with(use.idx, value)
    for node in nodes:
        node.name = f"{maker.prefix}{len(maker.nodes)}"
        maker.nodes.append(node)
    return [Term(maker, v) for v in outputs]


def _stacked(parts: Sequence[Term], axis: int) -> Term:
    raised = [p.op("Unsqueeze", p.maker.integers((axis,))) for p in parts]
    return raised[0] if len(raised) == 1 else raised[0].op("Concat", *raised[1:], axis=axis)


def _loop_turns(node: ir.Node) -> _Turns:
    count = tensor_rules.trip_count(node)
    assert count is not None
    return _Turns(node.attributes["body"].as_graph(), count, 2, 1, len(node.inputs) - 2)


def _loop(s: Site) -> Outputs:
    turns = _loop_turns(s.node)
    kinds = [v.dtype or k for v, k in zip(turns.body.inputs, (ir.DataType.INT64, ir.DataType.BOOL))]
    shapes = [graph.shape(v) or () for v in turns.body.inputs[:2]]
    states = [s[2 + k] for k in range(turns.carried)]

    def arguments(turn: int) -> list[Term]:
        one = [s.maker.constant(n, k) for n, k in zip((turn, 1), kinds)]
        return [t.reshape((1,)) if shape else t for t, shape in zip(one, shapes)]

    rows = []
    for turn in range(turns.count):
        _, *outputs = _inlined(s.maker, turns.body, arguments(turn), states)
        states = outputs[: turns.carried]
        rows.append(outputs[turns.carried :])
    read = _read_outputs(s.node)[turns.carried :]
    stacks = [_stacked(column, 0) if r else None for r, column in zip(read, zip(*rows))]
    return [*states, *stacks]


def _axes(node: ir.Node, name: str, count: int) -> Sequence[int]:
    return graph.attribute(node, name, (0,) * count) or (0,) * count


def _scan_turns(node: ir.Node) -> _Turns:
    scanned = int(graph.attribute(node, "num_scan_inputs", 0))
    states = len(node.inputs) - scanned
    axis = _axes(node, "scan_input_axes", scanned)[0]
    return _Turns(
        node.attributes["body"].as_graph(),
        graph.static_shape(graph.operand(node, states))[axis],
        0,
        0,
        states,
    )


def _scan(s: Site) -> Outputs:
    turns, scanned = _scan_turns(s.node), int(s.attribute("num_scan_inputs", 0))
    directions = _axes(s.node, "scan_input_directions", scanned)
    columns = []
    for k, axis in enumerate(_axes(s.node, "scan_input_axes", scanned)):
        parts = cells.split(s[turns.carried + k], turns.count, axis)
        squeezed = [p.op("Squeeze", s.maker.integers((axis,))) for p in parts]
        columns.append(squeezed[::-1] if directions[k] else squeezed)
    states = [s[k] for k in range(turns.carried)]
    rows = []
    for elements in zip(*columns, strict=True):
        outputs = _inlined(s.maker, turns.body, states, elements)
        states = outputs[: turns.carried]
        rows.append(outputs[turns.carried :])
    read = _read_outputs(s.node)[turns.carried :]
    axes, back = (_axes(s.node, f"scan_output_{n}", len(read)) for n in ("axes", "directions"))
    stacks = [
        _stacked(column[::-1] if back[k] else column, axes[k]) if read[k] else None
        for k, column in enumerate(zip(*rows))
    ]
    return [*states, *stacks]


def _loop_rejection(node: ir.Node) -> str | None:
    if tensor_rules.trip_count(node) is None:
        return "its number of turns is known only when the graph runs; give a constant, and no condition"
    return _body_rejection(node, _loop_turns(node))


def _scan_rejection(node: ir.Node) -> str | None:
    if graph.owner(node).opset_imports.get("", 0) < 9:
        return "it has a batch axis, as Scan had before opset 9; export the model with a newer opset"
    scanned = int(graph.attribute(node, "num_scan_inputs", 0))
    values = node.inputs[len(node.inputs) - scanned :]
    if not scanned or any(v is None or graph.shape(v) is None for v in values):
        return "the length of its sequences is not known; bind the inputs"
    return _body_rejection(node, _scan_turns(node))


def _body_rejection(node: ir.Node, turns: _Turns) -> str | None:
    if any(v is None for v in node.inputs[turns.leading :]):
        return "a carried value is not given"
    unknown = [v for v in turns.body.outputs[turns.results :] if v.dtype is None or not graph.is_tensor(v)]
    if unknown:
        return f"output {unknown[0].name!r} of its body is {unknown[0].type}, expected a tensor"
    if not turns.count and any(_read_outputs(node)[turns.carried :]):
        return "it has no turns, so that its stacks are empty"
    return None


def _body_nodes(turns_of: Callable[[ir.Node], _Turns]) -> Callable[[ir.Node], int]:
    def nodes(node: ir.Node) -> int:
        turns = turns_of(node)
        own = sum(1 for _ in turns.body.all_nodes())
        return turns.count * (own + len(node.inputs) + len(node.outputs)) + len(node.outputs)

    return nodes


def _if_rejection(_node: ir.Node) -> str | None:
    return "its branch is chosen when the graph runs; compute both and choose with Where"


_CELLS = Unrolling(cells.nodes_of, cells.outputs_of, cells.rejection)

UNROLLED: Mapping[str, Unrolling] = {
    **dict.fromkeys(cells.CELLS, _CELLS),
    "Loop": Unrolling(_body_nodes(_loop_turns), _loop, _loop_rejection),
    "Scan": Unrolling(_body_nodes(_scan_turns), _scan, _scan_rejection),
    "If": Unrolling(lambda _node: 0, lambda _site: (), _if_rejection),
}
