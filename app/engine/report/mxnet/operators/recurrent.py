"""Recurrent layers of ONNX in MXNet's spelling: all of their parameters are one list.

Of each direction the weights of the input and of the state, then likewise the two biases; gates in the order
of cuDNN.
"""

from collections.abc import Mapping

import numpy as np

from app.engine.model.mxnet.operators.recurrent import CELLS
from app.engine.model.mxnet.symbol_file import Entry
from app.engine.report.mxnet.operators.elementwise import Row, Written
from app.engine.report.mxnet.spelling import Array, Spelling, Unspelled

_STANDARD = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}
_MODES = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh"}


def _mode(c: Spelling) -> str:
    """MXNet's name of the cell.

    Raises:
        Unspelled: it has an option that MXNet has not.
    """
    op, directions = c.node.op_type, _directions(c)
    standard = _STANDARD[op] * directions
    given = tuple(c.attribute("activations", ())) or standard
    mode = _MODES[op]
    if op == "RNN" and set(given) == {"Relu"}:
        mode = "rnn_relu"
    elif tuple(a.lower() for a in given) != tuple(a.lower() for a in standard):
        raise Unspelled(f"activations {', '.join(given)}; MXNet has {', '.join(standard)}")
    if op == "GRU" and not c.attribute("linear_before_reset", 0):
        raise Unspelled("linear_before_reset=0; MXNet's GRU multiplies before it resets")
    for name in ("clip", "input_forget", "layout"):
        if c.attribute(name, 0):
            raise Unspelled(f"{name}={c.attribute(name, 0)}; MXNet's layer has none")
    if c.has(7):
        raise Unspelled("peepholes; MXNet's layer has none")
    if c.has(4) and (c.constant(4) != c.static(c.value(0))[0]).any():
        raise Unspelled("sequences of different lengths; MXNet's layer here has one for all")
    return mode


def _directions(c: Spelling) -> int:
    return 2 if c.attribute("direction", "forward") == "bidirectional" else 1


def _turned(array: Array, gates: tuple[int, ...]) -> Array:
    """Gates of a matrix or list in MXNet's order, flattened."""
    parts = np.split(array, len(gates))
    return np.concatenate([parts[gates.index(g)].reshape(-1) for g in range(len(gates))])


def _parameters(c: Spelling, gates: tuple[int, ...]) -> Array:
    weights, recurrent = c.constant(1), c.constant(2)
    directions, rows = weights.shape[:2]
    bias = c.constant(3) if c.has(3) else np.zeros((directions, 2 * rows), weights.dtype)
    found = [_turned(m, gates) for d in range(directions) for m in (weights[d], recurrent[d])]
    found += [_turned(b, gates) for d in range(directions) for b in np.split(bias[d], 2)]
    return np.concatenate(found)


def _layer(c: Spelling) -> Written:
    """Outputs of ONNX are (time, direction, batch, state) and the last states of each direction."""
    mode, directions = _mode(c), _directions(c)
    c.floats()
    reverse = c.attribute("direction", "forward") == "reverse"
    time, batch, _ = c.static(c.value(0))
    hidden = int(c.attribute("hidden_size", 0)) or c.static(c.value(2))[2]
    x = c.add("flip", c.input(0), axis=(0,)) if reverse else c.input(0)
    parameters = c.array(_parameters(c, CELLS[mode].gates), "parameters")
    count = 2 if mode == "lstm" else 1
    shape, dtype = (directions, batch, hidden), c.dtype(c.value(0))
    states = [
        c.input(5 + i) if c.has(5 + i) else c.array(np.zeros(shape, dtype), f"state{i}") for i in range(count)
    ]
    index = c.add(
        "RNN",
        x,
        parameters,
        *states,
        mode=mode,
        state_size=hidden,
        num_layers=1,
        bidirectional=directions == 2,
        state_outputs=True,
    )[0]
    outputs: list[Entry] = [_sequence(c, (index, 0), (time, batch, directions, hidden), reverse)]
    outputs += [(index, i + 1) for i in range(count)]
    return outputs[: len(c.node.outputs)]


def _sequence(c: Spelling, entry: Entry, shape: tuple[int, ...], reverse: bool) -> Entry:
    split = c.add("transpose", c.reshaped(entry, shape), axes=(0, 2, 1, 3))
    return c.add("flip", split, axis=(0,)) if reverse else split


ROWS: Mapping[str, Row] = {"LSTM": _layer, "GRU": _layer, "RNN": _layer}
