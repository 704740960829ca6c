"""RNN, GRU, LSTM and the dynamically quantized LSTM, with every attribute of their specifications.

Axes in comments: s steps, d directions, b batch, i input, h hidden, g gates. Each operator is a
cell, a function from the projected input of one step and the states to the next states.

Source: ONNX operator specifications of RNN-22, GRU-22, LSTM-22; com.microsoft.DynamicQuantizeLSTM
of ONNX Runtime's contrib operators.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from app.engine.reference.correction import Correction

Array: TypeAlias = np.ndarray[Any, Any]
Activation: TypeAlias = Callable[[Array], Array]
States: TypeAlias = tuple[Array, ...]  # hidden first; each [b, h]
Cell: TypeAlias = Callable[[Array, States], States]


def _sigmoid(x: Array) -> Array:
    y: Array = 0.5 * (1 + np.tanh(0.5 * x))  # does not overflow
    return y


@dataclass(frozen=True, slots=True)
class _Function:
    """An activation: `compute(x, alpha, beta)`; defaults are None for a parameter it lacks."""

    name: str
    compute: Callable[[Array, float, float], Any]
    alpha: float | None = None
    beta: float | None = None


_FUNCTIONS = (
    _Function("relu", lambda x, _a, _b: np.maximum(x, 0)),
    _Function("tanh", lambda x, _a, _b: np.tanh(x)),
    _Function("sigmoid", lambda x, _a, _b: _sigmoid(x)),
    _Function("affine", lambda x, a, b: a * x + b, 1.0, 0.0),
    _Function("leakyrelu", lambda x, a, _b: np.where(x >= 0, x, a * x), 0.01),
    _Function("thresholdedrelu", lambda x, a, _b: np.where(x > a, x, 0), 1.0),
    _Function("scaledtanh", lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    _Function("hardsigmoid", lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    _Function("elu", lambda x, a, _b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))), 1.0),
    _Function("softsign", lambda x, _a, _b: x / (1 + np.abs(x))),
    _Function("softplus", lambda x, _a, _b: np.logaddexp(x, 0)),
)
_BY_NAME = {f.name: f for f in _FUNCTIONS}


@dataclass(frozen=True, slots=True)
class Attributes:
    """Attributes that the three operators share; lists run over the activations of all directions."""

    direction: str = "forward"
    layout: int = 0
    clip: float | None = None
    activations: Sequence[str] | None = None
    activation_alpha: Sequence[float] | None = None
    activation_beta: Sequence[float] | None = None
    hidden_size: int | None = None
    output_sequence: int = 0
    linear_before_reset: int = 0  # of a GRU
    input_forget: int = 0  # of an LSTM

    def functions(self, defaults: Sequence[str], directions: int) -> list[list[Activation]]:
        """The activations of every direction; alpha and beta go to those that have such a parameter.

        Clipping bounds what enters the gates' activations. The third of an LSTM, which sees the
        cell state, is free of it in ONNX Runtime, and so it is here.
        """
        names = list(self.activations or list(defaults) * directions)
        if len(names) != len(defaults) * directions:
            raise ValueError(f"{len(defaults)} activations per direction expected, found {names}")
        alphas, betas = list(self.activation_alpha or ()), list(self.activation_beta or ())
        made = []
        for position, name in enumerate(names):
            row = _BY_NAME.get(name.lower())
            if row is None:
                raise ValueError(f"unknown activation {name!r}; known are {', '.join(_BY_NAME)}")
            alpha = alphas.pop(0) if row.alpha is not None and alphas else row.alpha
            beta = betas.pop(0) if row.beta is not None and betas else row.beta
            bound = None if position % len(defaults) == 2 else self.clip
            made.append(_activation(row, float(alpha or 0.0), float(beta or 0.0), bound))
        return [made[i : i + len(defaults)] for i in range(0, len(made), len(defaults))]


# From the activations, weights and bias of the hidden state, peepholes if there are any, of one direction.
CellOf: TypeAlias = Callable[[Sequence[Activation], Array, Array, Array | None, Attributes], Cell]
_LSTM = ("sigmoid", "tanh", "tanh")


def _activation(row: _Function, alpha: float, beta: float, bound: float | None) -> Activation:
    if bound is None:
        return lambda x: row.compute(x, alpha, beta)
    limit = float(bound)
    return lambda x: row.compute(np.clip(x, -limit, limit), alpha, beta)


def _operator(cell_of: CellOf, defaults: Sequence[str], states: int) -> Callable[..., list[Array]]:
    """The operator of a cell that has so many states and, by default, these activations."""

    def compute(
        x: Array,
        w: Array,
        r: Array,
        b: Array | None = None,
        lengths: Array | None = None,
        *rest: Array | None,  # initial states, then peepholes
        **attributes: Any,
    ) -> list[Array]:
        shared = Attributes(**attributes)
        functions = shared.functions(defaults, len(w))
        # [d, 2, g*h]: of the input, then of the hidden state.
        bias = np.zeros((len(w), 2, w.shape[1]), w.dtype) if b is None else b.reshape(len(w), 2, -1)

        def project(d: int, steps: Array) -> Array:
            gates: Array = steps @ w[d].T + bias[d, 0]
            return gates

        def cell(d: int) -> Cell:
            peepholes = next((p[d] for p in rest[states:] if p is not None), None)
            return cell_of(functions[d], r[d], bias[d, 1], peepholes, shared)

        initial = (*rest, *[None] * states)[:states]
        return _directions(x, project, cell, lengths, initial, len(w), r.shape[-1], shared)

    return compute


def rnn(functions: Sequence[Activation], r: Array, bias: Array, _peepholes: object, _shared: object) -> Cell:
    """H = f(x W' + H R' + b)."""
    (f,) = functions
    return lambda gates, states: (f(gates + states[0] @ r.T + bias),)


def gru(
    functions: Sequence[Activation], r: Array, bias: Array, _peepholes: object, shared: Attributes
) -> Cell:
    """Gates in the order z, r, h."""
    f, g = functions
    size = r.shape[-1]
    gate_weights, gate_bias = r[: 2 * size].T, bias[: 2 * size]
    hidden_weights, hidden_bias = r[2 * size :].T, bias[2 * size :]

    def step(gates: Array, states: States) -> States:
        (h,) = states
        z, reset = np.split(f(gates[:, : 2 * size] + h @ gate_weights + gate_bias), 2, axis=1)
        if shared.linear_before_reset:
            recurrent = reset * (h @ hidden_weights + hidden_bias)
        else:
            recurrent = (reset * h) @ hidden_weights + hidden_bias
        return ((1 - z) * g(gates[:, 2 * size :] + recurrent) + z * h,)

    return step


def lstm(
    functions: Sequence[Activation], r: Array, bias: Array, peepholes: Array | None, shared: Attributes
) -> Cell:
    """Gates in the order i, o, f, c; peepholes i, o, f."""
    return _lstm(functions, lambda h: h @ r.T + bias, peepholes, shared)


def _lstm(
    functions: Sequence[Activation],
    recurrent: Callable[[Array], Array],
    peepholes: Array | None,
    shared: Attributes,
) -> Cell:
    f, g, h = functions
    peep_i, peep_o, peep_f = np.zeros(3) if peepholes is None else np.split(peepholes, 3)

    def step(gates: Array, states: States) -> States:
        hidden, old = states
        i, o, forget, c = np.split(gates + recurrent(hidden), 4, axis=1)
        i = f(i + peep_i * old)
        forget = 1 - i if shared.input_forget else f(forget + peep_f * old)
        new = forget * old + i * g(c)
        return f(o + peep_o * new) * h(new), new

    return step


def dynamic_quantize_lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    lengths: Array | None,
    initial_h: Array | None,
    initial_c: Array | None,
    peepholes: Array | None,
    *quantization: Array,
    **attributes: Any,
) -> list[Array]:
    """An LSTM with 8-bit weights w [d, i, 4h], r [d, h, 4h]; the left operands are quantized as they come.

    `quantization`: scale and zero point of w, then of r.
    """
    w_scale, w_zero, r_scale, r_zero = quantization
    shared = Attributes(**attributes)
    functions = shared.functions(_LSTM, len(w))
    size = r.shape[1]
    bias: Array = np.zeros((len(w), 2, 4 * size), np.float32) if b is None else b.reshape(len(w), 2, -1)

    def project(d: int, steps: Array) -> Array:
        gates: Array = _quantized_matmul(steps, w[d], w_scale[d], w_zero[d]) + bias[d, 0]
        return gates

    def cell(d: int) -> Cell:
        def recurrent(h: Array) -> Array:
            gates: Array = _quantized_matmul(h, r[d], r_scale[d], r_zero[d]) + bias[d, 1]
            return gates

        return _lstm(functions[d], recurrent, None if peepholes is None else peepholes[d], shared)

    return _directions(x, project, cell, lengths, (initial_h, initial_c), len(w), size, shared)


def _quantized_matmul(x: Array, w: Array, scale: Array, zero: Array) -> Array:
    """The product x @ (w - zero) * scale, with x rounded to uint8 over its own range, zero included."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    step = np.float32((high - low) / 255) or np.float32(1)
    origin = np.clip(np.rint(-low / step), 0, 255)
    q = np.clip(np.rint(x / step) + origin, 0, 255) - origin
    # Sums of products of 9-bit integers: exact in float64.
    product = q.astype(np.float64) @ (w.astype(np.float64) - zero.astype(np.float64))
    scaled: Array = (product * (step * scale)).astype(np.float32)
    return scaled


def _directions(
    x: Array,
    project: Callable[[int, Array], Array],
    cell: Callable[[int], Cell],
    lengths: Array | None,
    initial: Sequence[Array | None],
    directions: int,
    size: int,
    shared: Attributes,
) -> list[Array]:
    """Y [s, d, b, h], then the last of every state [d, b, h]; with layout 1 the batch comes first.

    Steps beyond a sequence's length leave its states alone and give zeros.
    """
    if shared.direction not in ("forward", "reverse", "bidirectional"):
        raise ValueError(f"unknown direction {shared.direction!r}")
    expected = 2 if shared.direction == "bidirectional" else 1
    if directions != expected:
        raise ValueError(f"{shared.direction}: weights of {expected} directions expected, found {directions}")
    steps = x.swapaxes(0, 1) if shared.layout else x
    length, batch = steps.shape[:2]
    limits = np.full(batch, length) if lengths is None else lengths.astype(np.int64)
    every = np.arange(length)[:, None]
    backwards = np.where(every < limits, limits - 1 - every, every)  # its own inverse
    items = np.arange(batch)
    y = np.zeros((length, directions, batch, size), x.dtype)
    last = [np.zeros((directions, batch, size), x.dtype) for _ in initial]
    for d in range(directions):
        reverse = shared.direction == "reverse" or d == 1
        gates = project(d, steps[backwards, items] if reverse else steps)
        step = cell(d)
        states = tuple(
            np.zeros((batch, size), x.dtype) if s is None else (s[:, d] if shared.layout else s[d])
            for s in initial
        )
        for t in range(length):
            active = (t < limits)[:, None]
            computed = step(gates[t], states)
            states = tuple(np.where(active, n, o).astype(x.dtype) for n, o in zip(computed, states))
            y[t, d] = np.where(active, states[0], 0)
        if reverse:
            y[:, d] = y[backwards, d, items]
        for final, state in zip(last, states):
            final[d] = state
    if shared.layout:
        return [y.transpose(2, 0, 1, 3), *(s.swapaxes(0, 1) for s in last)]
    return [y, *last]


_LACKS = "ignores sequence lengths, activations and clipping"

CORRECTIONS = (
    Correction("RNN", _operator(rnn, ("tanh",), 1), _LACKS),
    Correction("GRU", _operator(gru, ("sigmoid", "tanh"), 1), _LACKS),
    Correction("LSTM", _operator(lstm, _LSTM, 2), _LACKS),
    Correction("DynamicQuantizeLSTM", dynamic_quantize_lstm, "is absent", domain="com.microsoft"),
)
