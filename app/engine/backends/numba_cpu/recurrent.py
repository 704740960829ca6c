"""Rows of LSTM, GRU and RNN: one call projects the inputs, one walks through time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine import graph
from app.engine.backends.numba_cpu.operands import unsuited
from app.engine.backends.numba_cpu.strided import StridedCopy, calls, strides_of
from app.engine.cost import roofline
from app.engine.plan import Argument, Call, Constant, Group, KernelCall, Workspace
from app.engine.registry import Implementation, Known
from app.kernels.cpu import tiles

Array: TypeAlias = np.ndarray[Any, Any]
Operands: TypeAlias = tuple[tuple[str, Argument], ...]  # (type, argument)

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1, "DynamicQuantizeLSTM": 4}
DEFAULT_ACTIVATIONS = {
    "LSTM": ("sigmoid", "tanh", "tanh"),
    "GRU": ("sigmoid", "tanh"),
    "RNN": ("tanh",),
    "DynamicQuantizeLSTM": ("sigmoid", "tanh", "tanh"),
}
RNN_ACTIVATIONS = {"tanh": 0, "relu": 1, "sigmoid": 2}  # as app.kernels.cpu.recurrent numbers them
# Positions of inputs after x, w, r, b, sequence_lens.
INITIAL_H, INITIAL_C, PEEPHOLES = 5, 6, 7
POINTER = "float32*"
TILED_ROWS = 4  # below, a tile has too few sums under way to hide the latency of an addition
BLOCK_TILES = 4
EFFICIENCY = 0.3  # of peak arithmetic, by plain loops over rows of weights


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
    x, w, r = node.inputs[:3]
    assert x is not None
    assert w is not None
    assert r is not None
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


def _activations(node: ir.Node) -> tuple[str, ...]:
    """Names in small letters, those of the second direction after those of the first."""
    none: tuple[str, ...] = ()
    given = tuple(a.lower() for a in graph.attribute(node, "activations", none))
    return given or DEFAULT_ACTIVATIONS[node.op_type] * _directions(node)


def _unless(group: Group, _known: Known) -> str | None:
    node = group.anchor
    reason = unsuited(group)
    if reason:
        return reason
    floats = [v for i, v in enumerate(node.inputs) if v is not None and i != 4]
    for value in (*floats, *group.outputs):
        if str(graph.dtype(value)) != "float32":
            return f"value {value.name!r} is {graph.dtype(value)}, this kernel computes float32"
    return unsupported_cell(node)


def unsupported_cell(node: ir.Node) -> str | None:
    """Why the kernels lack the cell that the attributes describe, or None."""
    found = _activations(node)
    if node.op_type == "RNN":
        if any(a not in RNN_ACTIVATIONS for a in found):
            return f"activations {found}, supported are {', '.join(RNN_ACTIVATIONS)}"
    elif found != DEFAULT_ACTIVATIONS[node.op_type] * _directions(node):
        return f"activations {found}, supported are the defaults {DEFAULT_ACTIVATIONS[node.op_type]}"
    if graph.attribute(node, "input_forget", 0):
        return "input_forget couples the gates"
    return None


def fixed_projection(
    x: Argument, weights: Array, bias: Array, gates: Workspace, layer: Layer, known: Known, name: str = ""
) -> KernelCall:
    """gates[d, row] = x[row] · weights[d] + bias[d] with weights [d, inputs, n] and bias [d, n] constant."""
    d, k, n = weights.shape
    if layer.rows < TILED_ROWS:
        both = np.concatenate([bias, np.zeros_like(bias)], axis=1)
        operands: Operands = ((POINTER, x), _array(weights, name), _array(both), (POINTER, gates))
        return _call("project", operands, (layer.rows, k, n, 0), d * layer.rows)
    lanes = known.target.vector_lanes
    panels = tiles.pack_columns(weights, tiles.columns_of("float32", lanes))
    scalars = np.array([1, 1, -np.inf, np.inf])  # a tile's alpha, beta and limits, none of them used
    block = tiles.SHAPES[lanes][0] * BLOCK_TILES
    ragged = tiles.spare("float32", lanes)
    spare = (POINTER, Workspace(4 * ragged, per_thread=True))
    operands = ((POINTER, x), _array(panels, name), _array(bias), _array(scalars), (POINTER, gates), spare)
    return _call(
        "emit_projection",
        operands,
        (layer.rows, k, n, block, ragged),
        d * -(-layer.rows // block),
        static=(lanes,),
        takes_thread=True,
    )


def _projection(node: ir.Node, layer: Layer, gates: Workspace, known: Known) -> tuple[Call, ...]:
    """The input projection with its bias, and the recurrent one where the step does not need it apart."""
    x, w = node.inputs[:2]
    assert x is not None
    assert w is not None
    d, n = layer.directions, layer.columns
    both = node.op_type != "GRU"
    weights, bias = graph.constant(w), graph.input_at(node, 3)
    fixed = np.zeros((d, 2 * n)) if bias is None else graph.constant(bias)
    if weights is not None and fixed is not None:
        summed = fixed[:, :n] + fixed[:, n:] if both else fixed[:, :n]
        return (fixed_projection(x, weights.transpose(0, 2, 1), summed, gates, layer, known, w.name or ""),)
    packed, packing = _transposed(w, layer.inputs, d, n)
    operands = ((POINTER, x), (POINTER, packed), or_zeros(node, 3, d * 2 * n), (POINTER, gates))
    return (*packing, _call("project", operands, (layer.rows, layer.inputs, n, int(both)), d * layer.rows))


def _call(
    function: str,
    operands: Operands,
    numbers: Sequence[int],
    units: int,
    *,
    static: tuple[object, ...] | None = None,
    takes_thread: bool = False,
    module: str = "recurrent",
) -> KernelCall:
    return KernelCall(
        f"app.kernels.cpu.{module}:{function}",
        (*(kind for kind, _ in operands), *["int64"] * len(numbers)),
        (*(operand for _, operand in operands), *numbers),
        units=units,
        static=static,
        takes_thread=takes_thread,
    )


def _array(array: Array, name: str = "") -> tuple[str, Argument]:
    return POINTER, Constant(np.ascontiguousarray(array, np.float32), name)


def _transposed(value: ir.Value, k: int, directions: int, n: int) -> tuple[Argument, tuple[Call, ...]]:
    """Weights [d, n, k] as [d, k, n]: packed when planning if constant, else by a call of their own."""
    array = graph.constant(value)
    if array is not None:
        return Constant(np.ascontiguousarray(array.transpose(0, 2, 1)), value.name or ""), ()
    target = Workspace(4 * directions * k * n)
    copy = StridedCopy((directions, k, n), (k * n, 1, k), strides_of((directions, k, n)))
    return target, calls(copy, 4, value, target)


def or_zeros(node: ir.Node, position: int, size: int) -> tuple[str, Argument]:
    """An optional operand, or as many zeros."""
    value = graph.input_at(node, position)
    return _array(np.zeros(max(size, 1))) if value is None else (POINTER, value)


def scratch(size: int) -> tuple[str, Argument]:
    """Workspace of float32."""
    return POINTER, Workspace(4 * size)


def _lstm_operands(node: ir.Node, layer: Layer) -> tuple[Operands, Operands, tuple[int, ...]]:
    peepholes = or_zeros(node, PEEPHOLES, layer.directions * 3 * layer.hidden)
    return (peepholes,), (scratch(layer.states),), ()


def _gru_operands(node: ir.Node, layer: Layer) -> tuple[Operands, Operands, tuple[int, ...]]:
    bias = or_zeros(node, 3, layer.directions * 2 * layer.columns)
    sums = scratch(layer.directions * layer.batch * layer.columns)
    return (bias,), (sums,), (graph.attribute(node, "linear_before_reset", 0),)


def _rnn_operands(node: ir.Node, _layer: Layer) -> tuple[Operands, Operands, tuple[int, ...]]:
    codes = np.array([RNN_ACTIVATIONS[a] for a in _activations(node)], np.int64)
    return (("int64*", Constant(codes)),), (), ()


# What a kernel takes besides what all take: after the weights, after the state, after the numbers.
_OPERANDS = {"LSTM": _lstm_operands, "GRU": _gru_operands, "RNN": _rnn_operands}


def loop_call(
    group: Group,
    layer: Layer,
    gates: Workspace,
    weights: Operands,
    own: tuple[Operands, Operands, tuple[int, ...]],
    *,
    units: int,
    function: str,
    module: str = "recurrent",
) -> KernelCall:
    """The call that walks through time, with the operands that all layers share.

    Args:
        group: of the node.
        layer: its extents.
        gates: the projected inputs.
        weights: recurrent ones.
        own: operands after the weights, scratch after that of the hidden state, numbers at the end.
        units: of work.
        function: name of the kernel.
        module: where it is.
    """
    node = group.anchor
    has_cell = "LSTM" in node.op_type
    lengths = graph.input_at(node, 4)
    every = Constant(np.full(max(layer.batch, 1), layer.steps, np.int32))
    state = Workspace(4 * layer.states)
    results = [v if v in group.outputs else None for v in node.outputs]
    results += [None] * (2 + has_cell - len(results))
    initial = [or_zeros(node, i, layer.states) for i in (INITIAL_H, INITIAL_C)[: 1 + has_cell]]
    operands = (
        (POINTER, gates),
        *weights,
        *own[0],
        *initial,
        ("int32*", every if lengths is None else lengths),
        _array(np.array([graph.attribute(node, "clip", math.inf)])),
        (POINTER, state),
        *own[1],
        *((POINTER, state if v is None else v) for v in results),  # not written where not wanted
    )
    numbers = (
        *(layer.steps, layer.batch, layer.hidden),
        *layer.gates_strides,
        *layer.y_strides,
        *layer.state_strides,
        int(graph.attribute(node, "direction", "forward") == "reverse"),
        sum(1 << i for i, v in enumerate(results) if v is not None),
        *own[2],
    )
    return _call(function, operands, numbers, units, module=module)


def _lower(group: Group, known: Known) -> tuple[Call, ...]:
    node = group.anchor
    layer = layer_of(node)
    r = node.inputs[2]
    assert r is not None
    weights, packing = _transposed(r, layer.hidden, layer.directions, layer.columns)
    gates = Workspace(4 * layer.directions * layer.rows * layer.columns)
    loop = loop_call(
        group,
        layer,
        gates,
        ((POINTER, weights),),
        _OPERANDS[node.op_type](node, layer),
        units=layer.directions * layer.batch,
        function=node.op_type.lower(),
    )
    return (*packing, *_projection(node, layer, gates, known), loop)


def recurrent_seconds(group: Group, known: Known) -> float:
    """Predicted time: products of every step, and weights and gates moved once."""
    layer = layer_of(group.anchor)
    columns = layer.columns
    operations = 2.0 * layer.directions * layer.rows * (layer.inputs + layer.hidden) * columns
    weights = 4.0 * layer.directions * (layer.inputs + layer.hidden) * columns
    return roofline(
        known.target,
        flops=operations,
        nbytes=weights + 8.0 * layer.directions * layer.rows * columns,
        efficiency=EFFICIENCY,
        threads=min(known.threads, layer.directions * layer.batch),
    )


IMPLEMENTATIONS = tuple(
    Implementation(f"{op.lower()}.loop", op, "numba-cpu", _unless, _lower, cost=recurrent_seconds)
    for op in ("LSTM", "GRU", "RNN")
)
