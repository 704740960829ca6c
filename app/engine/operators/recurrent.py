"""Layers of recurrent operators."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from app.engine.core import graph
from app.engine.operators.strides import strides_of

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1, "DynamicQuantizeLSTM": 4}


DEFAULT_ACTIVATIONS = {
    "LSTM": ("sigmoid", "tanh", "tanh"),
    "GRU": ("sigmoid", "tanh"),
    "RNN": ("tanh",),
    "DynamicQuantizeLSTM": ("sigmoid", "tanh", "tanh"),
}


# Positions of inputs after x, w, r, b, sequence_lens.
INITIAL_H, INITIAL_C, PEEPHOLES = 5, 6, 7


RNN_ACTIVATIONS = ("tanh", "relu", "sigmoid")  # of kernels for the GPU
# Activations and their alpha and beta by default; None for a parameter that one lacks.
ACTIVATIONS: Mapping[str, tuple[float | None, float | None]] = {
    **dict.fromkeys(("relu", "tanh", "sigmoid", "softsign", "softplus"), (None, None)),
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01, None),
    "thresholdedrelu": (1.0, None),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
}


@dataclass(frozen=True, slots=True)
class Layer:
    """Extents and strides of a recurrent layer. Strides count elements, those of gates rows."""

    steps: int
    batch: int
    inputs: int
    hidden: int
    directions: int
    gates: int
    gates_strides: tuple[int, int]  # of step and batch
    y_strides: tuple[int, int, int]  # of step, direction and batch
    state_strides: tuple[int, int]  # of direction and batch

    @property
    def rows(self) -> int:
        """Projected rows of one direction."""
        return self.steps * self.batch

    @property
    def columns(self) -> int:
        """Columns of a projected row."""
        return self.gates * self.hidden

    @property
    def states(self) -> int:
        """Elements of the hidden state of all directions."""
        return self.directions * self.batch * self.hidden


def layer_of(node: ir.Node) -> Layer:
    """The extents of a node with static operands."""
    x, r = graph.operand(node, 0), graph.operand(node, 2)
    first, second, inputs = graph.static_shape(x)
    directions, *extents = graph.static_shape(r)
    hidden = min(extents)  # [gates · hidden, hidden], or transposed where quantized
    batch_first = graph.attribute(node, "layout", 0) == 1
    steps, batch = (second, first) if batch_first else (first, second)
    if batch_first:
        y_b, y_t, y_d = (steps * directions * hidden, directions * hidden, hidden)
        state = (hidden, directions * hidden)
    else:
        y_t, y_d, y_b = strides_of((steps, directions, batch, hidden))[:3]
        state = (batch * hidden, hidden)
    return Layer(
        steps,
        batch,
        inputs,
        hidden,
        directions,
        GATES[node.op_type],
        (1, steps) if batch_first else (batch, 1),
        (y_t, y_d, y_b),
        state,
    )


def _directions(node: ir.Node) -> int:
    return 2 if graph.attribute(node, "direction", "forward") == "bidirectional" else 1


def activations(node: ir.Node) -> tuple[str, ...]:
    """Names in small letters, those of the second direction after those of the first."""
    none: tuple[str, ...] = ()
    given = tuple(a.lower() for a in graph.attribute(node, "activations", none))
    return given or DEFAULT_ACTIVATIONS[node.op_type] * _directions(node)


@dataclass(frozen=True, slots=True)
class CellFunction:
    """An activation with its parameters, 0 where it lacks one, and the bound of what enters it."""

    name: str
    alpha: float
    beta: float
    bound: float


def cell_of(node: ir.Node) -> list[tuple[CellFunction, ...]]:
    """The activations of every direction; alpha and beta go, in order, to those that have such a parameter.

    Clipping bounds the operands of the gates' activations, not that of an LSTM's third, which sees the cell
    state: as in the reference evaluator and onnxruntime.
    """
    names = activations(node)
    none: tuple[float, ...] = ()
    per = len(names) // _directions(node)
    alphas, betas = (list(graph.attribute(node, f"activation_{n}", none)) for n in ("alpha", "beta"))
    clip = graph.attribute(node, "clip", 0.0) or math.inf
    made = []
    for position, name in enumerate(names):
        alpha, beta = ACTIVATIONS[name]
        alpha = alphas.pop(0) if alpha is not None and alphas else alpha
        beta = betas.pop(0) if beta is not None and betas else beta
        bound = math.inf if position % per == 2 else clip
        made.append(CellFunction(name, float(alpha or 0.0), float(beta or 0.0), bound))
    return [tuple(made[k : k + per]) for k in range(0, len(made), per)]


def unknown_activations(node: ir.Node) -> str | None:
    """Reason why the activations are not those of a cell, or None."""
    names, wanted = activations(node), len(DEFAULT_ACTIVATIONS[node.op_type]) * _directions(node)
    if len(names) == wanted and all(a in ACTIVATIONS for a in names):
        return None
    return f"activations are {names}, expected {wanted} of {', '.join(ACTIVATIONS)}"


def unsupported_cell(node: ir.Node) -> str | None:
    """Reason why kernels for the GPU lack the cell that the attributes describe, or None."""
    found = activations(node)
    if node.op_type == "RNN":
        if any(a not in RNN_ACTIVATIONS for a in found):
            return f"activations {found}, supported are {', '.join(RNN_ACTIVATIONS)}"
    elif found != DEFAULT_ACTIVATIONS[node.op_type] * _directions(node):
        return f"activations {found}, supported are the defaults {DEFAULT_ACTIVATIONS[node.op_type]}"
    if graph.attribute(node, "input_forget", 0):
        return "input_forget couples the gates"
    return None
