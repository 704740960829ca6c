"""Rows of LSTM, GRU and RNN: one call projects the inputs, one walks through time."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.calls import Operand, Operands, kernel_call, of_type, typed_call
from app.engine.backends.cpu.rows import after, single_rejection
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators.recurrent import (
    INITIAL_C,
    INITIAL_H,
    PEEPHOLES,
    Layer,
    cell_of,
    layer_of,
    unknown_activations,
)
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.recurrent import ROWS, panel_width

Array: TypeAlias = np.ndarray[Any, Any]
Typed: TypeAlias = tuple[Operand, ...]

POINTER = "float32*"
BLOCK_TILES = 4
EFFICIENCY = 0.3  # of peak arithmetic, by plain loops over rows of weights


@after(single_rejection)
def _rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    floats = [v for i, v in enumerate(node.inputs) if v is not None and i != 4]
    for value in (*floats, *group.outputs):
        if str(graph.dtype(value)) != "float32":
            return f"value {value.name!r} is {graph.dtype(value)}, this kernel computes float32"
    return unknown_activations(node)


def _projection_call(
    x: Argument,
    panels: tuple[str, Argument],
    bias: tuple[str, Argument],
    gates: Workspace,
    layer: Layer,
    context: PlanningContext,
) -> KernelCall:
    lanes = context.target.vector_lanes
    scalars = np.array([1, 1, -np.inf, np.inf])  # a tile's alpha, beta and limits, none of them used
    block = tiles.SHAPES[lanes][0] * BLOCK_TILES
    ragged = tiles.spare("float32", lanes)
    operands: Operands = (
        *((POINTER, x), panels, bias, _array(scalars)),
        *of_type(POINTER, gates, Workspace(4 * ragged, per_thread=True)),
        *(layer.rows, layer.inputs, layer.columns, block, ragged),
    )
    units = layer.directions * -(-layer.rows // block)
    return typed_call("app.kernels.cpu.recurrent:emit_projection", operands, units, static=(lanes,))


def _projection(node: ir.Node, layer: Layer, gates: Workspace, context: PlanningContext) -> tuple[Call, ...]:
    """The input projection with its bias, and the recurrent one where the step does not need it apart."""
    x, w = graph.operand(node, 0), graph.operand(node, 1)
    width = tiles.columns_of("float32", context.target.vector_lanes)
    panels, packing = _panels(w, layer, layer.inputs, (layer.columns,), width)
    apart = layer.hidden if graph.attribute(node, "linear_before_reset", 0) else 0
    bias, adding = _bias(node, layer, layer.columns - apart)
    return (*packing, *adding, _projection_call(x, panels, bias, gates, layer, context))


def _panels(
    value: ir.Value, layer: Layer, k: int, parts: Sequence[int], width: int
) -> tuple[tuple[str, Argument], tuple[Call, ...]]:
    """Weights [d, n, k] as panels of columns of their transpose, each part of n beginning anew.

    They are packed when planning if constant, else by calls of their own.
    """
    ends = list(itertools.accumulate(parts))
    array = graph.constant(value)
    if array is not None:
        columns = np.split(array.transpose(0, 2, 1), ends[:-1], axis=2)
        packed = np.concatenate([tiles.pack_columns(c, width) for c in columns], axis=1)
        return _array(packed, value.name or ""), ()
    size = _padded(parts, width) * k
    target = Workspace(4 * layer.directions * size)
    packing = []
    for i, (end, n) in enumerate(zip(ends, parts, strict=True)):
        numbers = (k, n, width, layer.columns * k, (end - n) * k, size, _padded(parts[:i], width) * k)
        units = layer.directions * -(-n // width)
        operands: Operands = (*of_type(POINTER, value, target), *numbers)
        packing.append(kernel_call("app.kernels.cpu.recurrent:pack", operands, units))
    return (POINTER, target), tuple(packing)


def _padded(parts: Sequence[int], width: int) -> int:
    """Columns in panels, those of each part filled up."""
    return sum(-(-n // width) * width for n in parts)


def _bias(node: ir.Node, layer: Layer, shared: int) -> tuple[tuple[str, Argument], tuple[Call, ...]]:
    """The input bias [d, n], plus the recurrent one in the first `shared` columns."""
    value = graph.input_at(node, 3)
    d, n = layer.directions, layer.columns
    if value is None:
        return _array(np.zeros((d, n))), ()
    fixed = graph.constant(value)
    if fixed is not None:
        summed = fixed[:, :n].copy()
        summed[:, :shared] += fixed[:, n : n + shared]
        return _array(summed), ()
    target = Workspace(4 * d * n)
    operands: Operands = (*of_type(POINTER, value, target), n, shared)
    return (POINTER, target), (kernel_call("app.kernels.cpu.recurrent:add_biases", operands, d),)


def _array(array: Array, name: str = "") -> tuple[str, Argument]:
    return POINTER, Constant(np.ascontiguousarray(array, np.float32), name)


def or_zeros(node: ir.Node, position: int, size: int) -> tuple[str, Argument]:
    """An optional operand, or as many zeros."""
    value = graph.input_at(node, position)
    return _array(np.zeros(max(size, 1))) if value is None else (POINTER, value)


def scratch(size: int) -> tuple[str, Argument]:
    """Workspace of float32."""
    return POINTER, Workspace(4 * size)


@dataclass(frozen=True, slots=True)
class Loop:
    """Parameters of a kernel that walks through time, besides those that all of them take.

    Attributes:
        kernel: its generator, which is given `static`.
        weights: recurrent ones, and what follows them.
        scratch: after that of the hidden state.
        numbers: at the end.
        units: of work.
    """

    kernel: str
    weights: Typed
    scratch: Typed
    numbers: tuple[int, ...]
    units: int
    static: tuple[object, ...]


def loop_call(group: Group, layer: Layer, gates: Workspace, own: Loop) -> KernelCall:
    """The call that walks through time over the projected inputs."""
    node = group.anchor
    has_cell = "LSTM" in node.op_type
    lengths = graph.input_at(node, 4)
    every = Constant(np.full(max(layer.batch, 1), layer.steps, np.int32))
    state = Workspace(4 * layer.states)
    results = [v if v in group.outputs else None for v in node.outputs]
    results += [None] * (2 + has_cell - len(results))
    operands: Operands = (
        (POINTER, gates),
        *own.weights,
        *(or_zeros(node, i, layer.states) for i in (INITIAL_H, INITIAL_C)[: 1 + has_cell]),
        ("int32*", lengths or every),
        _array(np.array([[(f.alpha, f.beta, f.bound) for f in functions] for functions in cell_of(node)])),
        (POINTER, state),
        *own.scratch,
        *of_type(POINTER, *(state if v is None else v for v in results)),  # not written where not wanted
        *(layer.steps, layer.batch, layer.hidden),
        *layer.gates_strides,
        *layer.y_strides,
        *layer.state_strides,
        int(graph.attribute(node, "direction", "forward") == "reverse"),
        sum(1 << i for i, v in enumerate(results) if v is not None),
        *own.numbers,
    )
    return typed_call(own.kernel, operands, own.units, own.static)


def _lstm_operands(node: ir.Node, layer: Layer, _width: int) -> tuple[Typed, Typed, tuple[int, ...]]:
    peepholes = or_zeros(node, PEEPHOLES, layer.directions * 3 * layer.hidden)
    has_peepholes = int(graph.input_at(node, PEEPHOLES) is not None)
    is_coupled = graph.attribute(node, "input_forget", 0)
    return (peepholes,), (scratch(layer.states),), (has_peepholes, is_coupled)


def _gru_operands(node: ir.Node, layer: Layer, width: int) -> tuple[Typed, Typed, tuple[int, ...]]:
    bias = or_zeros(node, 3, layer.directions * 2 * layer.columns)
    first, *rest = _parts(node, layer)
    second = _padded([first], width) if rest else 2 * layer.hidden
    return (bias,), (scratch(layer.states),), (first, second, int(not rest))


def _rnn_operands(_node: ir.Node, _layer: Layer, _width: int) -> tuple[Typed, Typed, tuple[int, ...]]:
    return (), (), ()


# What a kernel takes besides what all take: after the weights, scratch, numbers.
_OPERANDS = {"LSTM": _lstm_operands, "GRU": _gru_operands, "RNN": _rnn_operands}


def functions_of(node: ir.Node) -> tuple[tuple[str, ...], ...]:
    """Names of the activations of every direction."""
    return tuple(tuple(f.name for f in functions) for functions in cell_of(node))


def _parts(node: ir.Node, layer: Layer) -> tuple[int, ...]:
    """Columns of the recurrent products of a step, in their order: a GRU resets before the last."""
    if node.op_type == "GRU" and not graph.attribute(node, "linear_before_reset", 0):
        return 2 * layer.hidden, layer.hidden
    return (layer.columns,)


def _lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    layer = layer_of(node)
    r = graph.operand(node, 2)
    lanes = context.target.vector_lanes
    width, parts = panel_width(lanes), _parts(node, layer)
    panels, packing = _panels(r, layer, layer.hidden, parts, width)
    operands, own_scratch, numbers = _OPERANDS[node.op_type](node, layer, width)
    s_row = _padded(parts, width)
    rows = 1 if layer.batch <= 1 else -(-layer.batch // ROWS) * ROWS
    sums = Workspace(4 * rows * s_row, per_thread=True)
    gates = Workspace(4 * layer.directions * layer.rows * layer.columns)
    own = Loop(
        "app.kernels.cpu.recurrent:emit_loop",
        (panels, *operands),
        ((POINTER, sums), *own_scratch),
        (s_row * layer.hidden, s_row, rows * s_row, *numbers),
        layer.directions * layer.batch,
        (node.op_type, lanes, functions_of(node)),
    )
    return (*packing, *_projection(node, layer, gates, context), loop_call(group, layer, gates, own))


def recurrent_seconds(group: Group, context: PlanningContext) -> float:
    """Predicted time: products of every step, and weights and gates moved once."""
    layer = layer_of(group.anchor)
    columns = layer.columns
    operations = 2.0 * layer.directions * layer.rows * (layer.inputs + layer.hidden) * columns
    weights = 4.0 * layer.directions * (layer.inputs + layer.hidden) * columns
    return roofline(
        context.target,
        flops=operations,
        nbytes=weights + 8.0 * layer.directions * layer.rows * columns,
        efficiency=EFFICIENCY,
        threads=min(context.threads, layer.directions * layer.batch),
    )


IMPLEMENTATIONS = tuple(
    Implementation(f"{op.lower()}.loop", op, "numba-cpu", _rejection, _lower, cost=recurrent_seconds)
    for op in ("LSTM", "GRU", "RNN")
)
