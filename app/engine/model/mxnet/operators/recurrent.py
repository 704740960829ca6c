"""MXNet's fused recurrent layers as ONNX nodes, one a layer.

Parameters are one list: of each layer and direction the weights of the input and of the state, then likewise
the two biases. Gates are in the order of cuDNN.

Source: apache/mxnet 1.9.1, documentation of the operator RNN.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from app.engine.model.mxnet.builder import Call
from app.engine.model.mxnet.operators import projected
from app.engine.model.mxnet.operators.elementwise import Translation, Values


@dataclass(frozen=True, slots=True)
class _Cell:
    """The ONNX operator of a mode; `gates` are those of MXNet in ONNX's order."""

    op: str
    gates: tuple[int, ...]
    activation: str = ""


CELLS = {
    "lstm": _Cell("LSTM", (0, 3, 1, 2)),
    "gru": _Cell("GRU", (1, 0, 2)),
    "rnn_relu": _Cell("RNN", (0,), "Relu"),
    "rnn_tanh": _Cell("RNN", (0,), "Tanh"),
}
_MOST = 256  # layers


@dataclass(frozen=True, slots=True)
class _Sizes:
    layers: int
    directions: int
    gates: int
    hidden: int

    def first(self, total: int) -> int:
        """Size of the first layer's input, from the number of all parameters."""
        rows = self.directions * self.gates * self.hidden
        later = (self.layers - 1) * rows * (self.directions * self.hidden + self.hidden + 2)
        return (total - later) // rows - self.hidden - 2

    def total(self, first: int) -> int:
        """The number of all parameters."""
        rows = self.directions * self.gates * self.hidden
        later = (self.layers - 1) * rows * (self.directions * self.hidden + self.hidden + 2)
        return rows * (first + self.hidden + 2) + later


def _sizes(c: Call, cell: _Cell) -> tuple[_Sizes, int]:
    """Sizes of the layers, and that of the input."""
    layers, hidden = c.attributes.integer("num_layers"), c.attributes.integer("state_size")
    if not 1 <= layers <= _MOST or hidden < 1:
        raise c.error(f"{layers} layers of {hidden}; expected 1 to {_MOST} layers of 1 at least")
    sizes = _Sizes(layers, 2 if c.attributes.flag("bidirectional") else 1, len(cell.gates), hidden)
    total, first = c.extent(c.inputs[1], 0), c.extent(c.inputs[0], 2)
    if first is None and total is not None:
        first = sizes.first(total)
    if first is None or first < 1:
        raise c.error("neither the size of the input nor the number of parameters is known")
    if total is not None and total != sizes.total(first):
        raise c.error(f"{total} parameters; inputs of {first} need {sizes.total(first)}")
    return sizes, first


def _part(c: Call, at: int, shape: tuple[int, int], cell: _Cell) -> ir.Value:
    """A part of the parameters as (1, gates * rows, columns), the gates in ONNX's order."""
    rows, columns = shape
    size = rows * columns
    parts = [
        c.one("Slice", c.inputs[1], c.ints(at + g * size), c.ints(at + (g + 1) * size), c.ints(0))
        for g in cell.gates
    ]
    whole = c.one("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]
    return c.one("Reshape", whole, c.ints(1, len(cell.gates) * rows, columns))


def _parameters(c: Call, cell: _Cell, sizes: _Sizes, first: int) -> Iterator[tuple[ir.Value, ...]]:
    """Weights of input and state and the biases of each layer, its directions together."""
    gates, hidden = sizes.gates, sizes.hidden
    at, weights = 0, []
    for layer in range(sizes.layers):
        width = first if layer == 0 else sizes.directions * hidden
        parts = []
        for _ in range(sizes.directions):
            parts.append(
                (
                    _part(c, at, (hidden, width), cell),
                    _part(c, at + gates * hidden * width, (hidden, hidden), cell),
                )
            )
            at += gates * hidden * (width + hidden)
        weights.append(parts)
    for parts in weights:
        biases = []
        for _ in range(sizes.directions):
            both = [_part(c, at + i * gates * hidden, (hidden, 1), cell) for i in range(2)]
            biases.append(c.one("Reshape", c.one("Concat", *both, axis=1), c.ints(1, 2 * gates * hidden)))
            at += 2 * gates * hidden
        yield tuple(_joined(c, list(values)) for values in (*zip(*parts), biases))


def _joined(c: Call, values: list[ir.Value]) -> ir.Value:
    return values[0] if len(values) == 1 else c.one("Concat", *values, axis=0)


def _state(c: Call, slot: int, layer: int, sizes: _Sizes) -> ir.Value:
    """The first states of a layer; one that has no batch is that of every sequence."""
    d = sizes.directions
    state = c.one("Slice", c.inputs[slot], c.ints(layer * d), c.ints((layer + 1) * d), c.ints(0))
    if c.extent(state, 1) != 1 or c.extent(c.inputs[0], 1) == 1:
        return state
    batch = c.one("Shape", c.inputs[0], start=1, end=2)
    return c.one("Expand", state, c.one("Concat", c.ints(1), batch, c.ints(1), axis=0))


def _rnn(c: Call) -> Values:
    """The output of the last layer, then the last states of all, if they are asked for."""
    mode = c.attributes.text("mode", "", CELLS)
    cell = CELLS[mode]
    for name in ("lstm_state_clip_min", "lstm_state_clip_max"):
        if c.attributes.given(name):
            raise c.error(f"{name} is not supported; expected None")
    if c.attributes.flag("use_sequence_length"):
        raise c.error("use_sequence_length is not supported; expected False")
    c.attributes.text("p", "0")  # dropout between layers, of training
    if c.attributes.given("projection_size"):
        if mode != "lstm":
            raise c.error(f"projection_size of the mode {mode}; expected lstm")
        return projected.layers(c)
    sizes, first = _sizes(c, cell)
    x = c.inputs[0]
    kept: list[list[ir.Value]] = [[] for _ in range(2 if mode == "lstm" else 1)]
    attributes = {
        "hidden_size": sizes.hidden,
        "direction": "bidirectional" if sizes.directions == 2 else "forward",
        "activations": [cell.activation] * sizes.directions if cell.activation else None,
        "linear_before_reset": 1 if mode == "gru" else None,
    }
    for layer, (weight, recurrent, bias) in enumerate(_parameters(c, cell, sizes, first)):
        states = [_state(c, slot, layer, sizes) for slot in range(2, 2 + len(kept))]
        operands = (x, weight, recurrent, bias, None, *states)
        y, *last = c.many(cell.op, *operands, count=1 + len(kept), **attributes)
        x = c.one("Reshape", c.one("Transpose", y, perm=[0, 2, 1, 3]), c.ints(0, 0, -1))
        for states_of, state in zip(kept, last):
            states_of.append(state)
    if not c.attributes.flag("state_outputs"):
        return x
    return (x, *(_joined(c, states) for states in kept))


ROWS: Mapping[str, Translation] = {"RNN": _rnn}
