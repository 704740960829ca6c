"""Rows of LSTM, GRU and RNN: one product projects the inputs of all steps, one kernel walks through time."""

import math

import numpy as np

from app.engine.backends.cuda import dispatch, tensor_views
from app.engine.backends.cuda.launch_calls import BACKEND, Array, calls, repacked, seconds
from app.engine.backends.cuda.matmul import placed
from app.engine.backends.cuda.tensor_views import element
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, Constant, LaunchCall, Workspace
from app.engine.core.group import Group, of_group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.recurrent import (
    INITIAL_C,
    INITIAL_H,
    PEEPHOLES,
    activations,
    layer_of,
    unsupported_cell,
)
from app.kernels.cuda.epilogue import Epilogue
from app.kernels.cuda.gemm import gemm
from app.kernels.cuda.product import Product
from app.kernels.cuda.recurrent import Recurrent, packed_weights, recurrent, recurrent_rejection

LENGTHS = 4  # position of the input
RESULTS = ("y", "y_h", "y_c")
STEP = 2e-6  # seconds of a step at least: two barriers and the latency of the second cache (estimate)
STREAMS = 3.0  # times a multiprocessor's share of the memory's bandwidth that its cache gives it (estimate)


def _rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    reason = tensor_views.group_rejection(group, (*tensor_views.FLOATS, "int32"))
    if reason is not None:
        return reason
    floats = [v for i, v in enumerate(node.inputs) if v is not None and i != LENGTHS]
    reason = tensor_views.not_floats(group, *floats, *group.outputs) or unsupported_cell(node)
    if reason is not None:
        return reason
    for value in (*node.inputs[1:3], graph.input_at(node, 3)):
        if value is not None and not graph.is_constant(value):
            return f"{value.name!r} changes between runs; this one packs it offline"
    return tensor_views.empty(group) or recurrent_rejection(_layer(group))


@of_group
def _layer(group: Group) -> Recurrent:
    node = group.anchor
    found = layer_of(node)

    def has(position: int) -> bool:
        return graph.input_at(node, position) is not None

    wants = tuple(role for role, v in zip(RESULTS, node.outputs) if v in group.outputs)
    return Recurrent(
        node.op_type,
        found.steps,
        found.batch,
        found.hidden,
        found.directions,
        found.gates_strides,
        found.y_strides,
        found.state_strides,
        element(graph.operand(node, 0)),
        graph.attribute(node, "direction", "forward") == "reverse",
        float(graph.attribute(node, "clip", math.inf)),
        activations(node),
        bool(graph.attribute(node, "linear_before_reset", 0)),
        has(INITIAL_H),
        has(INITIAL_C),
        has(LENGTHS),
        has(PEEPHOLES),
        wants,
    )


def _biases(group: Group) -> tuple[Array | None, Array | None]:
    """Biases of the projections, a float32 a column, and of a GRU state that resets after the product."""
    array, layer = graph.constant(graph.input_at(group.anchor, 3)), _layer(group)
    if array is None:
        return None, np.zeros((layer.directions, layer.hidden), np.float32) if layer.resets_after else None
    own, state = np.split(array.astype(np.float64), 2, axis=1)
    if not layer.resets_after:
        return (own + state).astype(np.float32), None
    apart = state[:, -layer.hidden :].copy()
    state[:, -layer.hidden :] = 0
    return (own + state).astype(np.float32), apart.astype(np.float32)


def _projection(group: Group, context: PlanningContext, to: Workspace) -> tuple[LaunchCall, ...]:
    """Rows of x times the weights of all gates and directions, with their bias."""
    node, layer = group.anchor, _layer(group)
    x, weights = graph.operand(node, 0), graph.operand(node, 1)
    rows, k = layer.steps * layer.batch, graph.static_shape(x)[2]
    n, dtype = layer.directions * layer.gates * layer.hidden, layer.dtype
    precision = dispatch.HALVES.get(dtype, "tf32" if context.precision == "tf32" else "f32")
    a = placed(x, rows, k, (k, 1), 0, 1)
    exact = precision == "f32"
    width = tensor_views.aligned(n if exact else k, dtype)

    def pack(array: Array) -> Array:
        found = array.reshape(n, k)
        found = found.T if exact else found
        return np.pad(found, ((0, 0), (0, width - found.shape[1])))

    bias, _ = _biases(group)
    tiles = dispatch.offered(precision, k, context.target.isa)
    way = dispatch.cut(precision, tiles, rows, n, k, 1, context.target)
    product = Product(rows, n, k, a.row, width, n)
    launches = gemm(product, precision, Epilogue(bias=bias is not None), way.tile, way.splits)
    roles: dict[str, Argument] = {"a": a.argument, "b": repacked(weights, pack), "y": to}
    if bias is not None:
        roles["bias"] = Constant(bias)
    return (*a.calls(), *calls(launches, roles))


def _lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    node, layer = group.anchor, _layer(group)
    columns = layer.directions * layer.gates * layer.hidden
    gates = Workspace(4 * layer.steps * layer.batch * columns)
    weights = repacked(graph.operand(node, 2), lambda w: packed_weights(w, layer.gates))
    _, bias = _biases(group)
    given = {
        "bias": None if bias is None else Constant(bias),
        "h0": graph.input_at(node, INITIAL_H),
        "c0": graph.input_at(node, INITIAL_C),
        "lengths": graph.input_at(node, LENGTHS),
        "peepholes": graph.input_at(node, PEEPHOLES),
    }
    roles: dict[str, Argument] = {"gates": gates, "w": weights}
    roles |= {role: argument for role, argument in given.items() if argument is not None}
    roles |= {role: v for role, v in zip(RESULTS, node.outputs) if role in layer.wants}
    return (*_projection(group, context, gates), *calls(recurrent(layer), roles))


def _seconds(group: Group, context: PlanningContext) -> float:
    layer, target = _layer(group), context.target
    k = graph.static_shape(graph.operand(group.anchor, 0))[2]
    rows, columns = layer.steps * layer.batch, layer.directions * layer.gates * layer.hidden
    projected = seconds(context, nbytes=4.0 * rows * (k + columns), flops=2.0 * rows * k * columns, rate=0.5)
    weights = layer.gates * layer.hidden**2 * (4 if layer.dtype == "float32" else 2)
    share = target.memories[0].bandwidth / target.cores * STREAMS
    waves = -(-layer.batch * layer.directions // target.cores)
    return projected + target.launch + waves * layer.steps * (STEP + weights / share)


IMPLEMENTATIONS = tuple(
    Implementation(f"cuda.{op.lower()}", op, BACKEND, _rejection, _lower, _seconds)
    for op in ("LSTM", "GRU", "RNN")
)
