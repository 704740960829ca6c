"""Rows of LSTM, GRU and RNN: one call projects the inputs, one walks through time."""

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from app.engine import graph
from app.engine.backends.numba_cpu.operands import unsuited
from app.engine.backends.numba_cpu.strided import StridedCopy, calls, strides_of
from app.engine.cost import roofline
from app.engine.plan import Argument, Call, Constant, Group, KernelCall, Workspace
from app.engine.registry import Implementation, Known
from app.kernels.cpu import tiles

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULT_ACTIVATIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
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
    gates: int  # times hidden: columns of a projected row
    gates_strides: tuple[int, int]  # of step and batch
    y_strides: tuple[int, int, int]  # of step, direction and batch
    state_strides: tuple[int, int]  # of direction and batch

    @property
    def rows(self) -> int:
        """Projected rows of one direction."""
        return self.steps * self.batch


def layer_of(node: ir.Node) -> Layer:
    """The extents of a node with static operands."""
    x, w, r = node.inputs[:3]
    assert x is not None
    assert w is not None
    assert r is not None
    first, second, inputs = graph.static_shape(x)
    directions, _, hidden = graph.static_shape(r)
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
    found = _activations(node)
    if node.op_type == "RNN":
        if any(a not in RNN_ACTIVATIONS for a in found):
            return f"activations {found}, supported are {', '.join(RNN_ACTIVATIONS)}"
    elif found != DEFAULT_ACTIVATIONS[node.op_type] * _directions(node):
        return f"activations {found}, supported are the defaults {DEFAULT_ACTIVATIONS[node.op_type]}"
    if node.op_type == "LSTM" and graph.attribute(node, "input_forget", 0):
        return "input_forget couples the gates"
    return None


def _projection(node: ir.Node, layer: Layer, gates: Workspace, known: Known) -> tuple[Call, ...]:
    """gates[d, row] = x[row] · w[d] + bias: on register tiles if weights and bias are constant."""
    x, w = node.inputs[:2]
    assert x is not None
    assert w is not None
    columns = layer.gates * layer.hidden
    both = node.op_type != "GRU"  # the recurrent bias of GRU is added within the step
    weights, bias = graph.constant(w), graph.input_at(node, 3)
    fixed = np.zeros((layer.directions, 2 * columns)) if bias is None else graph.constant(bias)
    if weights is None or fixed is None or layer.rows < TILED_ROWS:
        packed, packing = _transposed(w, layer.inputs, layer.directions, columns)
        call = KernelCall(
            "app.kernels.cpu.recurrent:project",
            (*[POINTER] * 4, *["int64"] * 4),
            (
                x,
                packed,
                _or_zeros(node, 3, layer.directions * 2 * columns),
                gates,
                layer.rows,
                layer.inputs,
                columns,
                int(both),
            ),
            units=layer.directions * layer.rows,
        )
        return (*packing, call)
    lanes = known.target.vector_lanes
    panels = tiles.pack_columns(weights.transpose(0, 2, 1), tiles.columns_of("float32", lanes))
    summed = fixed[:, :columns] + fixed[:, columns:] if both else fixed[:, :columns]
    block = tiles.SHAPES[lanes][0] * BLOCK_TILES
    return (
        KernelCall(
            "app.kernels.cpu.recurrent:emit_projection",
            (*[POINTER] * 5, *["int64"] * 4),
            (
                x,
                Constant(panels, w.name or ""),
                Constant(np.ascontiguousarray(summed, np.float32)),
                Constant(np.array([1, 1, -np.inf, np.inf], np.float32)),
                gates,
                layer.rows,
                layer.inputs,
                columns,
                block,
            ),
            units=layer.directions * -(-layer.rows // block),
            static=(lanes,),
        ),
    )


def _transposed(value: ir.Value, k: int, directions: int, n: int) -> tuple[Argument, tuple[Call, ...]]:
    """Weights [d, n, k] as [d, k, n]: packed when planning if constant, else by a call of their own."""
    array = graph.constant(value)
    if array is not None:
        return Constant(np.ascontiguousarray(array.transpose(0, 2, 1)), value.name or ""), ()
    target = Workspace(4 * directions * k * n)
    copy = StridedCopy((directions, k, n), (k * n, 1, k), strides_of((directions, k, n)))
    return target, calls(copy, 4, value, target)


def _or_zeros(node: ir.Node, position: int, size: int) -> Argument:
    value = graph.input_at(node, position)
    return Constant(np.zeros(max(size, 1), np.float32)) if value is None else value


def _wanted(group: Group, count: int) -> tuple[int, list[ir.Value | None]]:
    """Bits of the outputs that somebody reads, and those outputs."""
    outputs = list(group.anchor.outputs)
    found = [v if v in group.outputs else None for v in outputs] + [None] * (count - len(outputs))
    return sum(1 << i for i, v in enumerate(found) if v is not None), found


def _lower(group: Group, known: Known) -> tuple[Call, ...]:
    node = group.anchor
    layer = layer_of(node)
    r = node.inputs[2]
    assert r is not None
    d, hidden, columns = layer.directions, layer.hidden, layer.gates * layer.hidden
    recurrent_weights, packing = _transposed(r, hidden, d, columns)
    gates = Workspace(4 * d * layer.rows * columns)
    projection = _projection(node, layer, gates, known)
    state = Workspace(4 * d * layer.batch * hidden)
    lengths = graph.input_at(node, 4)
    if lengths is None:
        fixed = Constant(np.full(max(layer.batch, 1), layer.steps, np.int32))
    limit = graph.attribute(node, "clip", math.inf)
    wants, outputs = _wanted(group, 3 if node.op_type == "LSTM" else 2)
    results = [state if v is None else v for v in outputs]  # never written where not wanted
    initial_h = _or_zeros(node, INITIAL_H, d * layer.batch * hidden)
    limits = Constant(np.array([limit], np.float32))
    common: list[Argument] = [lengths if lengths is not None else fixed, limits, state]
    numbers = [
        *(layer.steps, layer.batch, hidden),
        *layer.gates_strides,
        *layer.y_strides,
        *layer.state_strides,
        int(graph.attribute(node, "direction", "forward") == "reverse"),
        wants,
    ]
    pointers: list[Argument]
    types = {"int32*": 3}  # position of the lengths
    if node.op_type == "LSTM":
        peepholes = _or_zeros(node, PEEPHOLES, d * 3 * hidden)
        initial_c = _or_zeros(node, INITIAL_C, d * layer.batch * hidden)
        cell = Workspace(4 * d * layer.batch * hidden)
        pointers = [gates, recurrent_weights, peepholes, initial_h, initial_c, *common, cell, *results]
        types = {"int32*": 5}
    elif node.op_type == "GRU":
        sums = Workspace(4 * d * layer.batch * columns)
        bias = _or_zeros(node, 3, d * 2 * columns)
        pointers = [gates, recurrent_weights, bias, initial_h, *common, sums, *results]
        types = {"int32*": 4}
        numbers.append(graph.attribute(node, "linear_before_reset", 0))
    else:
        codes = [RNN_ACTIVATIONS[a] for a in _activations(node)]
        activations = Constant(np.array(codes, np.int64))
        pointers = [gates, recurrent_weights, activations, initial_h, *common, *results]
        types = {"int64*": 2, "int32*": 4}
    places = {position: kind for kind, position in types.items()}
    loop = KernelCall(
        f"app.kernels.cpu.recurrent:{node.op_type.lower()}",
        (*(places.get(i, POINTER) for i in range(len(pointers))), *["int64"] * len(numbers)),
        (*pointers, *numbers),
        units=d * layer.batch,
    )
    return (*packing, *projection, loop)


def _cost(group: Group, known: Known) -> float:
    layer = layer_of(group.anchor)
    columns = layer.gates * layer.hidden
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
    Implementation(f"{op.lower()}.loop", op, "numba-cpu", _unless, _lower, cost=_cost) for op in GATES
)
