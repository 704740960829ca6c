"""The row of com.microsoft::DynamicQuantizeLSTM: 8-bit weights, activations quantized as they come.

Inputs after those of LSTM (weights lie transposed: [d, inputs, 4h] and [d, h, 4h]): scale and zero
point of w, scale and zero point of r, for each direction or each of its columns.
"""

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.dynamic_quantize import center_calls
from app.engine.backends.cpu.integer import PAIRS_FORM, Finish, RecipeOperand
from app.engine.backends.cpu.integer_matmul import NOTHING, Product, product_call
from app.engine.backends.cpu.recurrent import (
    POINTER,
    Array,
    Loop,
    functions_of,
    loop_call,
    or_zeros,
    recurrent_seconds,
    scratch,
)
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.operands import data, fixed_inputs, group_rejection
from app.engine.operators.recurrent import PEEPHOLES, Layer, layer_of, unknown_activations
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.codegen.tiles import BYTE_PAIRS, PAIRS
from app.kernels.cpu.recurrent import ROWS, panel_width
from app.kernels.expressions import Recipe

W, R, BIAS = 1, 2, 3
W_SCALE, W_ZERO, R_SCALE, R_ZERO = 8, 9, 10, 11


def _rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    reason = group_rejection(group) or fixed_inputs(node, (W, R, BIAS, W_SCALE, W_ZERO, R_SCALE, R_ZERO))
    if reason:
        return reason
    if str(graph.dtype(data(node))) != "float32":
        return f"input of dtype {graph.dtype(data(node))}, this kernel computes float32"
    if graph.elements(data(node)) == 0:
        return "an empty sequence has no range"
    return unknown_activations(node)


def _dequantized(group: Group, weights: int, scale: int, zero: int) -> tuple[Array, Array]:
    """Integers less their zero [d, k, n], and their scales [d, n] in float32."""
    arrays = [graph.constant(group.anchor.inputs[i]) for i in (weights, scale)]
    origin = graph.constant(graph.input_at(group.anchor, zero))
    values, scales = (a for a in arrays if a is not None)
    d, _, n = values.shape
    integers = values.astype(np.int32)
    if origin is not None:
        integers -= origin.astype(np.int32).reshape(d, 1, -1)
    return integers, np.broadcast_to(scales.reshape(d, -1), (d, n)).astype(np.float32)


def _projection(group: Group, layer: Layer, gates: Workspace, context: PlanningContext) -> tuple[Call, ...]:
    """Quantized inputs by quantized weights, with the biases: gates[row, d, 4h]."""
    node = group.anchor
    columns = layer.directions * layer.columns
    w, scales = _dequantized(group, W, W_SCALE, W_ZERO)
    bias = graph.constant(graph.input_at(node, BIAS))
    n = layer.columns
    summed = np.zeros(columns) if bias is None else bias[:, :n] + bias[:, n:]
    before, x, scale = center_calls(data(node), layer.rows, layer.inputs)
    width = tiles.columns_of(PAIRS, context.target.vector_lanes, tiles.PAIRED)
    steps = tiles.pack_steps(w.transpose(1, 0, 2).reshape(layer.inputs, columns), 2)
    panels = Constant(tiles.pack_columns(steps, width), _name(node, W))
    nothing = Constant(np.zeros(1, np.int32))
    operands = Product(
        x, panels, nothing, gates, layer.rows, columns, len(steps), len(steps), [(0, 0)], NOTHING
    )
    recipe: Recipe = (
        ("Cast", (0,), ("float32",)),
        ("Mul", (1, 2), ()),
        ("Mul", (4, 5), ()),
        ("Add", (6, 3), ()),
    )
    added = (
        RecipeOperand(scale, "float32", "scalar"),
        RecipeOperand(_floats(scales), "float32", "channel"),
        RecipeOperand(_floats(summed), "float32", "channel"),
    )
    return (*before, product_call(operands, Finish(recipe, added, "float32"), PAIRS_FORM, context))


def _name(node: ir.Node, position: int) -> str:
    value = node.inputs[position]
    return (value and value.name) or ""


def _floats(array: Array) -> Constant:
    return Constant(np.ascontiguousarray(array, np.float32).reshape(-1))


def _lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    layer, lanes = layer_of(node), context.target.vector_lanes
    d, n, width = layer.directions, layer.columns, panel_width(lanes)
    gates = Workspace(4 * d * layer.rows * n)
    r, r_scales = _dequantized(group, R, R_SCALE, R_ZERO)
    # A zero point may carry 8-bit weights to 9 bits.
    narrow = r.min(initial=0) >= -128 and r.max(initial=0) <= 127
    steps = tiles.pack_steps(r, 2)
    depth = steps.shape[1]
    panels = tiles.pack_columns(steps, width)
    if narrow:
        panels = tiles.narrowed(panels)
    rows = 1 if layer.batch <= 1 else -(-layer.batch // ROWS) * ROWS
    s_row = -(-n // width) * width
    pairs = Workspace(4 * d * max(layer.batch, 1) * depth)
    peepholes = or_zeros(node, PEEPHOLES, d * 3 * layer.hidden)
    own = Loop(
        "app.kernels.cpu.quantized_lstm:emit_loop",
        (
            (f"{panels.dtype}*", Constant(panels, _name(node, R))),
            (POINTER, _floats(r_scales)),
            peepholes,
        ),
        (
            scratch(layer.states),
            ("int16*", pairs),
            ("int32*", pairs),
            ("int32*", Workspace(4 * d * rows * s_row)),
            (POINTER, Workspace(4 * n, per_thread=True)),
        ),
        (
            *(d, s_row * depth, s_row, rows * s_row),
            *(int(graph.input_at(node, PEEPHOLES) is not None), graph.attribute(node, "input_forget", 0)),
        ),
        d,
        (BYTE_PAIRS if narrow else PAIRS, lanes, functions_of(node)),
    )
    return (*_projection(group, layer, gates, context), loop_call(group, layer, gates, own))


IMPLEMENTATIONS = (
    Implementation(
        "dynamic_quantize_lstm.loop",
        "DynamicQuantizeLSTM",
        "numba-cpu",
        _rejection,
        _lower,
        cost=recurrent_seconds,
        domain="com.microsoft",
    ),
)
