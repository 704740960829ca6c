"""LSTM, GRU and RNN: projected inputs, then the time loop inside one call.

All are float32; the weights of `add_product` may be any type that converts to it exactly.
`gates: [directions, rows, G·H]` holds the input projections, a row for each (step, batch) in the
order of x, and is overwritten. Weights are transposed, [directions, K, G·H], so that the innermost
loop runs over hidden units with unit stride. Units of the time loops are (direction, batch) pairs;
a thread advances its pairs together and reads the weights once for two.
"""

import numpy as np
from numba import njit

from app.kernels.cpu.gemm import product_library
from app.kernels.cpu.generator import at
from app.kernels.cpu.vectormath import sigmoid32, tanh32

_compiled = njit(error_model="numpy", boundscheck=False)
# A product and a sum may become one instruction, which rounds once; nothing is reordered.
_fused = njit(error_model="numpy", boundscheck=False, fastmath={"contract"})
f32 = np.float32
ZERO = f32(0.0)
ONE = f32(1.0)
TANH, RELU, SIGMOID = 0, 1, 2  # activations of RNN


@_fused
def add_product(a, w, w_row, y, k, n):
    """y[j] += Σ_p a[p] · w[p · w_row + j]. Eight rows of w a pass, so that y is touched seldom."""
    p = 0
    while p + 8 <= k:
        a0, a1, a2, a3, a4, a5, a6, a7 = (
            a[p],
            a[p + 1],
            a[p + 2],
            a[p + 3],
            a[p + 4],
            a[p + 5],
            a[p + 6],
            a[p + 7],
        )
        w0 = at(w, p * w_row)
        w1, w2, w3 = at(w0, w_row), at(w0, 2 * w_row), at(w0, 3 * w_row)
        w4, w5, w6, w7 = at(w0, 4 * w_row), at(w0, 5 * w_row), at(w0, 6 * w_row), at(w0, 7 * w_row)
        for j in range(n):
            low = a0 * f32(w0[j]) + a1 * f32(w1[j]) + a2 * f32(w2[j]) + a3 * f32(w3[j])
            y[j] += low + (a4 * f32(w4[j]) + a5 * f32(w5[j]) + a6 * f32(w6[j]) + a7 * f32(w7[j]))
        p += 8
    while p < k:
        a0 = a[p]
        w0 = at(w, p * w_row)
        for j in range(n):
            y[j] += a0 * f32(w0[j])
        p += 1


@_fused
def add_products(a, b, w, w_row, y, z, k, n):
    """`add_product` of a into y and of b into z, reading w once."""
    p = 0
    while p + 4 <= k:
        a0, a1, a2, a3 = a[p], a[p + 1], a[p + 2], a[p + 3]
        b0, b1, b2, b3 = b[p], b[p + 1], b[p + 2], b[p + 3]
        w0, w1, w2, w3 = (
            at(w, p * w_row),
            at(w, (p + 1) * w_row),
            at(w, (p + 2) * w_row),
            at(w, (p + 3) * w_row),
        )
        for j in range(n):
            v0, v1, v2, v3 = w0[j], w1[j], w2[j], w3[j]
            y[j] += a0 * v0 + a1 * v1 + (a2 * v2 + a3 * v3)
            z[j] += b0 * v0 + b1 * v1 + (b2 * v2 + b3 * v3)
        p += 4
    while p < k:
        a0, b0 = a[p], b[p]
        w0 = at(w, p * w_row)
        for j in range(n):
            v0 = w0[j]
            y[j] += a0 * v0
            z[j] += b0 * v0
        p += 1


def project(x, w, bias, gates, rows, k, n, add_recurrent, begin, end):
    """gates[d, row] = x[row] · w[d] + bias[d, :n] (+ bias[d, n:] with `add_recurrent`).

    x: float32[rows, k]; w: float32[d, k, n]; bias: float32[d, 2n]. Units are d · rows + row.
    """
    unit = begin
    while unit < end:
        d = unit // rows
        row = unit - d * rows
        own = at(bias, d * 2 * n)
        two = unit + 1 < end and row + 1 < rows
        for u in range(unit, unit + 2 if two else unit + 1):
            y = at(gates, u * n)
            if add_recurrent:
                for j in range(n):
                    y[j] = own[j] + own[n + j]
            else:
                for j in range(n):
                    y[j] = own[j]
        weights = at(w, d * k * n)
        first = at(x, row * k)
        if two:
            y, z = at(gates, unit * n), at(gates, (unit + 1) * n)
            add_products(first, at(first, k), weights, n, y, z, k, n)
            unit += 2
        else:
            add_product(first, weights, n, at(gates, unit * n), k, n)
            unit += 1


_PROJECTION = """
def kernel(x, w, bias, scalars, gates, spare, rows, k, n, block, spare_step, begin, end, thread):
    blocks = (rows + block - 1) // block
    panels = (n + COLUMNS - 1) // COLUMNS
    mine = at(spare, thread * spare_step)
    for unit in range(begin, end):
        d = unit // blocks
        row = (unit - d * blocks) * block
        y = at(gates, (d * rows + row) * n)
        product(at(x, row * k), False, k, 1, 0, at(w, d * panels * k * COLUMNS), COLUMNS, k * COLUMNS, k,
                y, n, min(block, rows - row), n, mine, y, 0, bias, 0, at(bias, d * n), y, 0, scalars,
                COLUMN_BIAS)
"""


def emit_projection(lanes: int) -> tuple[str, ...]:
    """The module of `project` for constant weights in panels (`tiles.pack_columns`), on register tiles.

    bias: float32[d, n]; scalars: as a tile wants them; spare: `tiles.spare` elements a thread.
    Units are blocks of rows: d · ceil(rows / block).
    """
    head = (
        "from app.kernels.cpu.generator import at\n"
        "from app.kernels.cpu.tiles import COLUMN_BIAS\n"
        "from LIBRARY0 import COLUMNS, product\n"
    )
    return product_library("float32", lanes), head + _PROJECTION


@_compiled
def _clipped(v, limit):
    return min(max(v, -limit), limit)


@_compiled
def _sigmoid(g, a, b, limit, n):
    """Put sigmoid(g + a · b) into g."""
    for j in range(n):
        g[j] = sigmoid32(_clipped(g[j] + a[j] * b[j], limit))


@_compiled
def _tanh(g, a, b, limit, n):
    """Put tanh(g + a · b) into g."""
    for j in range(n):
        g[j] = tanh32(_clipped(g[j] + a[j] * b[j], limit))


@_compiled
def copy(y, x, n):
    for j in range(n):
        y[j] = x[j]


@_compiled
def fill(y, value, n):
    for j in range(n):
        y[j] = value


@_compiled
def lstm_cell(g, p, c, h, limit, n):
    """One step. g: gates i, o, f, c of the step; p: peepholes i, o, f; c, h: state, overwritten."""
    i, o, f, new = g, at(g, n), at(g, 2 * n), at(g, 3 * n)
    _sigmoid(i, p, c, limit, n)
    _sigmoid(f, at(p, 2 * n), c, limit, n)
    for j in range(n):
        new[j] = tanh32(_clipped(new[j], limit))
    for j in range(n):
        c[j] = f[j] * c[j] + i[j] * new[j]
    _sigmoid(o, at(p, n), c, limit, n)
    for j in range(n):
        h[j] = o[j] * tanh32(c[j])


def lstm(gates, r, peepholes, initial_h, initial_c, lengths, limits, h, c, y, y_h, y_c,
         steps, batch, hidden, gates_t, gates_b, y_t, y_d, y_b, state_d, state_b, reverse, wants,
         begin, end):  # fmt: skip
    """The time loop. gates: projections with both biases; r: [d, H, 4H]; peepholes: [d, 3H].

    h, c: scratch [d, b, H]. `gates_t`, `gates_b`: rows of gates a step and a batch apart; y_*,
    state_*: strides of y and of the initial and last states. `reverse`: the first direction runs
    backwards. `wants`: bits for y, y_h, y_c. Units are d · batch + b.
    """
    rows = steps * batch
    limit = limits[0]
    unit = begin
    while unit < end:
        d = unit // batch
        b0 = unit - d * batch
        b1 = min(batch, b0 + end - unit)
        weights = at(r, d * hidden * 4 * hidden)
        p = at(peepholes, d * 3 * hidden)
        backwards = d == 1 or reverse
        for b in range(b0, b1):
            start = d * state_d + b * state_b
            copy(at(h, (d * batch + b) * hidden), at(initial_h, start), hidden)
            copy(at(c, (d * batch + b) * hidden), at(initial_c, start), hidden)
        for step in range(steps):
            b = b0
            while b < b1:
                pair = 2 if b + 1 < b1 and step < lengths[b] and step < lengths[b + 1] else 1
                own = at(h, (d * batch + b) * hidden)
                if step >= lengths[b]:
                    if wants & 1:
                        fill(at(y, step * y_t + d * y_d + b * y_b), ZERO, hidden)
                    b += 1
                    continue
                t = lengths[b] - 1 - step if backwards else step
                g = at(gates, (d * rows + t * gates_t + b * gates_b) * 4 * hidden)
                if pair == 2:
                    u = lengths[b + 1] - 1 - step if backwards else step
                    other = at(gates, (d * rows + u * gates_t + (b + 1) * gates_b) * 4 * hidden)
                    add_products(own, at(own, hidden), weights, 4 * hidden, g, other, hidden, 4 * hidden)
                else:
                    add_product(own, weights, 4 * hidden, g, hidden, 4 * hidden)
                for q in range(b, b + pair):
                    t = lengths[q] - 1 - step if backwards else step
                    g = at(gates, (d * rows + t * gates_t + q * gates_b) * 4 * hidden)
                    own = at(h, (d * batch + q) * hidden)
                    lstm_cell(g, p, at(c, (d * batch + q) * hidden), own, limit, hidden)
                    if wants & 1:
                        copy(at(y, t * y_t + d * y_d + q * y_b), own, hidden)
                b += pair
        for b in range(b0, b1):
            start = d * state_d + b * state_b
            if wants & 2:
                copy(at(y_h, start), at(h, (d * batch + b) * hidden), hidden)
            if wants & 4:
                copy(at(y_c, start), at(c, (d * batch + b) * hidden), hidden)
        unit += b1 - b0


@_compiled
def _gru_cell(g, s, r, h, limit, n, linear_before_reset):
    """One step. g: gates z, r, h; s: their recurrent parts with bias; h: state, overwritten.

    With `linear_before_reset` s holds the recurrent part of the hidden gate too, else its bias,
    and r[:, 2n:] are the weights.
    """
    z, reset, new = g, at(g, n), at(g, 2 * n)
    for j in range(n):
        z[j] = sigmoid32(_clipped(z[j] + s[j], limit))
    own = at(s, n)
    for j in range(n):
        reset[j] = sigmoid32(_clipped(reset[j] + own[j], limit))
    hidden = at(s, 2 * n)
    if linear_before_reset:
        _tanh(new, reset, hidden, limit, n)
    else:
        for j in range(n):
            s[j] = reset[j] * h[j]
        add_product(s, at(r, 2 * n), 3 * n, hidden, n, n)
        for j in range(n):
            new[j] = tanh32(_clipped(new[j] + hidden[j], limit))
    for j in range(n):
        h[j] = (ONE - z[j]) * new[j] + z[j] * h[j]


def gru(gates, r, bias, initial_h, lengths, limits, h, sums, y, y_h,
        steps, batch, hidden, gates_t, gates_b, y_t, y_d, y_b, state_d, state_b, reverse, wants,
        linear_before_reset, begin, end):  # fmt: skip
    """The time loop; see `lstm`. gates: projections with the input bias; r: [d, H, 3H].

    bias: [d, 6H], of which the second half is recurrent; sums: scratch [d, b, 3H].
    """
    rows = steps * batch
    n = 3 * hidden
    columns = n if linear_before_reset else 2 * hidden
    limit = limits[0]
    unit = begin
    while unit < end:
        d = unit // batch
        b0 = unit - d * batch
        b1 = min(batch, b0 + end - unit)
        weights = at(r, d * hidden * n)
        recurrent_bias = at(bias, d * 2 * n + n)
        backwards = d == 1 or reverse
        for b in range(b0, b1):
            copy(at(h, (d * batch + b) * hidden), at(initial_h, d * state_d + b * state_b), hidden)
        for step in range(steps):
            b = b0
            while b < b1:
                pair = 2 if b + 1 < b1 and step < lengths[b] and step < lengths[b + 1] else 1
                if step >= lengths[b]:
                    if wants & 1:
                        fill(at(y, step * y_t + d * y_d + b * y_b), ZERO, hidden)
                    b += 1
                    continue
                own = at(h, (d * batch + b) * hidden)
                s = at(sums, (d * batch + b) * n)
                for q in range(pair):
                    copy(at(s, q * n), recurrent_bias, n)
                if pair == 2:
                    add_products(own, at(own, hidden), weights, n, s, at(s, n), hidden, columns)
                else:
                    add_product(own, weights, n, s, hidden, columns)
                for q in range(b, b + pair):
                    t = lengths[q] - 1 - step if backwards else step
                    g = at(gates, (d * rows + t * gates_t + q * gates_b) * n)
                    own = at(h, (d * batch + q) * hidden)
                    _gru_cell(
                        g, at(sums, (d * batch + q) * n), weights, own, limit, hidden, linear_before_reset
                    )
                    if wants & 1:
                        copy(at(y, t * y_t + d * y_d + q * y_b), own, hidden)
                b += pair
        if wants & 2:
            for b in range(b0, b1):
                copy(at(y_h, d * state_d + b * state_b), at(h, (d * batch + b) * hidden), hidden)
        unit += b1 - b0


@_compiled
def _activated(h, g, limit, n, activation):
    if activation == TANH:
        for j in range(n):
            h[j] = tanh32(_clipped(g[j], limit))
    elif activation == RELU:
        for j in range(n):
            h[j] = max(_clipped(g[j], limit), ZERO)
    else:
        for j in range(n):
            h[j] = sigmoid32(_clipped(g[j], limit))


def rnn(gates, r, activations, initial_h, lengths, limits, h, y, y_h,
        steps, batch, hidden, gates_t, gates_b, y_t, y_d, y_b, state_d, state_b, reverse, wants,
        begin, end):  # fmt: skip
    """The time loop; see `lstm`. gates: projections with both biases; r: [d, H, H].

    activations: int64[d], each TANH, RELU or SIGMOID.
    """
    rows = steps * batch
    limit = limits[0]
    for unit in range(begin, end):
        d = unit // batch
        b = unit - d * batch
        weights = at(r, d * hidden * hidden)
        own = at(h, unit * hidden)
        backwards = d == 1 or reverse
        copy(own, at(initial_h, d * state_d + b * state_b), hidden)
        for step in range(steps):
            if step >= lengths[b]:
                if wants & 1:
                    fill(at(y, step * y_t + d * y_d + b * y_b), ZERO, hidden)
                continue
            t = lengths[b] - 1 - step if backwards else step
            g = at(gates, (d * rows + t * gates_t + b * gates_b) * hidden)
            add_product(own, weights, hidden, g, hidden, hidden)
            _activated(own, g, limit, hidden, activations[d])
            if wants & 1:
                copy(at(y, t * y_t + d * y_d + b * y_b), own, hidden)
        if wants & 2:
            copy(at(y_h, d * state_d + b * state_b), own, hidden)
