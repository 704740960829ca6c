"""The row of com.microsoft::DynamicQuantizeLSTM: 8-bit weights, activations quantized as they come.

Inputs after those of LSTM (weights lie transposed: [d, inputs, 4h] and [d, h, 4h]): scale and zero
point of w, scale and zero point of r, for each direction or each of its columns.
"""

import numpy as np

from app.engine import graph
from app.engine.backends.numba_cpu.dynamic_quantize import round_trip_calls
from app.engine.backends.numba_cpu.operands import data, fixed_inputs, unsuited
from app.engine.backends.numba_cpu.recurrent import (
    PEEPHOLES,
    POINTER,
    Array,
    Loop,
    fixed_projection,
    layer_of,
    loop_call,
    or_zeros,
    recurrent_seconds,
    scratch,
    unsupported_cell,
)
from app.engine.plan import Call, Constant, Group, Workspace
from app.engine.registry import Implementation, Known

W, R, BIAS = 1, 2, 3
W_SCALE, W_ZERO, R_SCALE, R_ZERO = 8, 9, 10, 11


def _unless(group: Group, _known: Known) -> str | None:
    node = group.anchor
    reason = unsuited(group) or fixed_inputs(node, (W, R, BIAS, W_SCALE, W_ZERO, R_SCALE, R_ZERO))
    if reason:
        return reason
    if str(graph.dtype(data(node))) != "float32":
        return f"input of dtype {graph.dtype(data(node))}, this kernel computes float32"
    if graph.elements(data(node)) == 0:
        return "an empty sequence has no range"
    return unsupported_cell(node)


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


def _lower(group: Group, known: Known) -> tuple[Call, ...]:
    node = group.anchor
    x = data(node)
    layer = layer_of(node)
    d, n = layer.directions, layer.columns
    gates = Workspace(4 * d * layer.rows * n)
    rounded = Workspace(graph.nbytes(x))
    w, w_scales = _dequantized(group, W, W_SCALE, W_ZERO)
    bias = graph.constant(graph.input_at(node, BIAS))
    summed = np.zeros((d, n)) if bias is None else bias[:, :n] + bias[:, n:]
    project = fixed_projection(rounded, w * w_scales[:, None, :], summed, gates, layer, known)
    r, r_scales = _dequantized(group, R, R_SCALE, R_ZERO)
    # A zero point may carry 8-bit weights to 9 bits; they then go as what the kernel computes in.
    narrow = r.min(initial=0) >= -128 and r.max(initial=0) <= 127
    kind = "int8" if narrow else "float32"
    own = Loop(
        "lstm",
        "quantized_lstm",
        (
            (f"{kind}*", Constant(r.astype(kind))),
            (POINTER, Constant(r_scales)),
            or_zeros(node, PEEPHOLES, d * 3 * layer.hidden),
        ),
        (scratch(layer.states), scratch(layer.states), scratch(d * n)),
        (),
        d,
    )
    loop = loop_call(group, layer, gates, own)
    return (*round_trip_calls(x, rounded, graph.elements(x)), project, loop)


IMPLEMENTATIONS = (
    Implementation(
        "dynamic_quantize_lstm.loop",
        "DynamicQuantizeLSTM",
        "numba-cpu",
        _unless,
        _lower,
        cost=recurrent_seconds,
        domain="com.microsoft",
    ),
)
