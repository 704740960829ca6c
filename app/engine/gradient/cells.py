"""LSTM, GRU and RNN as the arithmetic of their cells, for every step and direction.

Shapes: [t, b, i] of steps, batch and inputs; h hidden units; g gates. A cell maps the projected input of one
step, [b, g h], and its states, [b, h] each, to the next states, the hidden one first.

Source: ONNX operator specifications of LSTM-22, GRU-22, RNN-22.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from app.engine.core import graph
from app.engine.gradient.rule import Site
from app.engine.gradient.terms import Term
from app.engine.operators.recurrent import (
    INITIAL_H,
    PEEPHOLES,
    CellFunction,
    Layer,
    cell_of,
    layer_of,
    unknown_activations,
)

Activation: TypeAlias = Callable[[Term], Term]
States: TypeAlias = tuple[Term, ...]
Cell: TypeAlias = Callable[[Term, States], States]
NODES = 40  # that a step of any cell needs, at most

_B, _LENGTHS = 3, 4  # positions of operands


# Activations of a term by its alpha and beta.
_FUNCTIONS: Mapping[str, Callable[[Term, float, float], Term]] = {
    "relu": lambda x, _a, _b: x.op("Relu"),
    "tanh": lambda x, _a, _b: x.op("Tanh"),
    "sigmoid": lambda x, _a, _b: x.op("Sigmoid"),
    "affine": lambda x, a, b: x * a + b,
    "leakyrelu": lambda x, a, _b: x.op("LeakyRelu", alpha=a),
    "thresholdedrelu": lambda x, a, _b: x.op("ThresholdedRelu", alpha=a),
    "scaledtanh": lambda x, a, b: (x * b).op("Tanh") * a,
    "hardsigmoid": lambda x, a, b: x.op("HardSigmoid", alpha=a, beta=b),
    "elu": lambda x, a, _b: x.op("Elu", alpha=a),
    "softsign": lambda x, _a, _b: x.op("Softsign"),
    "softplus": lambda x, _a, _b: x.op("Softplus"),
}


@dataclass(frozen=True, slots=True)
class _Direction:
    """Weights of one direction.

    Attributes:
        activations: in the order of the specification, what clips their operand included.
        r: [g h, h].
        bias: [g h], of the hidden state, where it is not part of the projected input.
        peepholes: [h] of the gates i, o and f.
    """

    activations: tuple[Activation, ...]
    hidden: int
    r: Term
    bias: Term | None
    peepholes: tuple[Term, ...]


def split(term: Term, count: int, axis: int) -> list[Term]:
    """Equal parts along an axis."""
    if count == 1:
        return [term]
    node = term.maker.node("Split", [term.value], {"axis": axis, "num_outputs": count}, count)
    for value in node.outputs:
        value.type = ir.TensorType(term.dtype)
    return [Term(term.maker, v) for v in node.outputs]


def _rnn(_s: Site, d: _Direction) -> Cell:
    (f,) = d.activations
    return lambda gates, states: (f(_projected(states[0], d.r, gates)),)


def _gru(s: Site, d: _Direction) -> Cell:
    """Gates in the order z, r, h."""
    (f, g), linear, ends = d.activations, s.attribute("linear_before_reset", 0), (2 * d.hidden, 3 * d.hidden)
    gate_weights, weights = d.r.slice((0,), ends[:1], (0,)), d.r.slice(ends[:1], ends[1:], (0,))
    bias = None if d.bias is None else d.bias.slice(ends[:1], ends[1:], (0,))

    def step(gates: Term, states: States) -> States:
        (h,) = states
        outer, inner = gates.slice((0,), ends[:1], (1,)), gates.slice(ends[:1], ends[1:], (1,))
        z, reset = split(f(_projected(h, gate_weights, outer)), 2, 1)
        if linear:
            candidate = g(inner + reset * _projected(h, weights, bias))
        else:
            candidate = g(_projected(reset * h, weights, inner))
        return ((1 - z) * candidate + z * h,)

    return step


def _lstm(s: Site, d: _Direction) -> Cell:
    """Gates in the order i, o, f, c; peepholes i, o, f."""
    f, g, last = d.activations

    def step(gates: Term, states: States) -> States:
        hidden, old = states
        i, o, forget, c = split(_projected(hidden, d.r, gates), 4, 1)
        if d.peepholes:
            i, forget = i + d.peepholes[0] * old, forget + d.peepholes[2] * old
        i = f(i)
        forget = 1 - i if s.attribute("input_forget", 0) else f(forget)
        new = forget * old + i * g(c)
        o = f(o + d.peepholes[1] * new if d.peepholes else o)
        return o * last(new), new

    return step


def _projected(h: Term, weights: Term, plus: Term | None) -> Term:
    return h.op("Gemm", weights, *([] if plus is None else [plus]), transB=1)


CELLS: Mapping[str, Callable[[Site, _Direction], Cell]] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


def nodes_of(node: ir.Node) -> int:
    """Nodes that the steps of a node are, at most."""
    layer = layer_of(node)
    return (layer.steps * layer.directions + 1) * NODES


def rejection(node: ir.Node) -> str | None:
    """Reason why a node has no steps."""
    given = [v for v in node.inputs if v is not None]
    unknown = next((v for v in given if graph.shape(v) is None), None)
    if unknown is not None:
        return f"the shape of {unknown.name!r} is {unknown.shape}, expected a static one; bind the inputs"
    reason, layer = unknown_activations(node), layer_of(node)
    if reason:
        return reason
    if not (layer.steps and layer.batch and layer.hidden and layer.inputs):
        return "an operand is empty"
    return None


def outputs_of(s: Site) -> list[Term | None]:
    """Y, then the last of every state, in the layout of the node."""
    layer = layer_of(s.node)
    batch_first = s.attribute("layout", 0) == 1
    x = s.x.transpose((1, 0, 2)) if batch_first else s.x
    functions = [tuple(map(_activation, own)) for own in cell_of(s.node)]
    sequences, finals = [], []
    for d in range(layer.directions):
        ys, states = _direction(s, layer, x, d, functions[d])
        sequences.append(ys)
        finals.append(states)
    y = None
    if s.node.outputs[0].uses() or s.node.outputs[0].is_graph_output():
        y = _joined(sequences, 1)
        y = y.transpose((2, 0, 1, 3)) if batch_first else y
    shape = (layer.batch, 1, layer.hidden) if batch_first else (1, layer.batch, layer.hidden)
    last = [_joined([t.reshape(shape) for t in column], 1 if batch_first else 0) for column in zip(*finals)]
    return [y, *last][: len(s.node.outputs)]


def _joined(parts: Sequence[Term], axis: int) -> Term:
    return parts[0] if len(parts) == 1 else parts[0].op("Concat", *parts[1:], axis=axis)


def _direction(
    s: Site, layer: Layer, x: Term, d: int, functions: tuple[Activation, ...]
) -> tuple[Term, States]:
    """Y [t, 1, b, h] and the last states of one direction."""
    t, b, h = layer.steps, layer.batch, layer.hidden
    backward = s.attribute("direction", "forward") == "reverse" or d == 1
    lengths = s[_LENGTHS] if s.has(_LENGTHS) else None
    if backward and lengths is not None:
        x = _reversed(x, lengths)
    direction, bias = _weights(s, layer, d, functions)
    w = _of_direction(s, 1, d)
    flat = x.reshape((t * b, layer.inputs))
    parts = split(flat.op("Gemm", w, *([] if bias is None else [bias]), transB=1), t, 0)
    initial = range(INITIAL_H, INITIAL_H + (2 if s.node.op_type == "LSTM" else 1))
    states: States = tuple(_initial(s, layer, k, d) for k in initial)
    cell = CELLS[s.node.op_type](s, direction)
    hidden: list[Term | None] = [None] * t
    for turn in range(t):
        # With lengths the sequences are reversed one by one, without them their steps are.
        place = t - 1 - turn if backward and lengths is None else turn
        computed = cell(parts[place], states)
        if lengths is None:
            states, hidden[place] = computed, computed[0]
            continue
        on = (lengths > s.maker.constant(turn, lengths.dtype)).reshape((b, 1))
        states = tuple(on.where(new, old) for new, old in zip(computed, states))
        hidden[place] = on.where(computed[0], 0.0)
    rows = [r for r in hidden if r is not None]
    y = _joined(rows, 0).reshape((t, 1, b, h))
    return _reversed(y, lengths, 2) if backward and lengths is not None else y, states


def _reversed(x: Term, lengths: Term, batch: int = 1) -> Term:
    return x.op("ReverseSequence", lengths.cast(ir.DataType.INT64), batch_axis=batch, time_axis=0)


def _of_direction(s: Site, position: int, d: int) -> Term:
    """Part of an operand [directions, ...] that is one direction's."""
    directions, *own = s[position].shape
    term = s[position] if directions == 1 else s[position].slice((d,), (d + 1,), (0,))
    return term.reshape(own)


def _initial(s: Site, layer: Layer, position: int, d: int) -> Term:
    if not s.has(position):
        return s.maker.zeros((layer.batch, layer.hidden), s.x.dtype)
    term = s[position]
    if layer.directions > 1:
        term = term.slice((d,), (d + 1,), (1 if s.attribute("layout", 0) == 1 else 0,))
    return term.reshape((layer.batch, layer.hidden))


def _weights(
    s: Site, layer: Layer, d: int, functions: tuple[Activation, ...]
) -> tuple[_Direction, Term | None]:
    """Weights of a direction, and the bias of its projected inputs: that of the states goes there too.

    That of the hidden gate of a GRU whose linear part comes before the reset is multiplied by the reset.
    """
    n, columns = layer.hidden, layer.columns
    bias = recurrent = None
    if s.has(_B):
        both = _of_direction(s, _B, d)
        bias, recurrent = (both.slice((k * columns,), ((k + 1) * columns,), (0,)) for k in (0, 1))
        if s.node.op_type == "GRU" and s.attribute("linear_before_reset", 0):
            outer = recurrent.slice((0,), (2 * n,), (0,))
            bias = bias + outer.op("Concat", s.maker.zeros((n,), s.x.dtype), axis=0)
        else:
            bias, recurrent = bias + recurrent, None
    peepholes: tuple[Term, ...] = ()
    if s.node.op_type == "LSTM" and s.has(PEEPHOLES):
        peepholes = tuple(split(_of_direction(s, PEEPHOLES, d), 3, 0))
    return _Direction(functions, n, _of_direction(s, 2, d), recurrent, peepholes), bias


def _activation(of: CellFunction) -> Activation:
    apply = _FUNCTIONS[of.name]
    if math.isinf(of.bound):
        return lambda x: apply(x, of.alpha, of.beta)
    return lambda x: apply(x.op("Clip", -of.bound, of.bound), of.alpha, of.beta)
