"""LSTM, GRU and RNN: projected inputs, then the time loop inside one call.

All are float32. `gates: [directions, rows, G·H]` holds the input projections with their bias, a row
for each (step, batch) in the order of x; loops may overwrite them. Weights are panels of columns
(`tiles.pack_columns`) of their transpose [directions, K, G·H], read from front to end once a step
for all sequences: at batch 1 a layer is as fast as its recurrent weights stream from cache.
Units of the time loops are (direction, batch) pairs; a thread advances its pairs together.
"""

from collections.abc import Sequence

import numpy as np

from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.gemm import product_library

_compiled = njit(error_model="numpy", boundscheck=False)
f32 = np.float32
ZERO = f32(0.0)
ONE = f32(1.0)
# Activations of v by their names in small letters; of alpha and beta they read those that they have.
ACTIVATIONS = {
    "tanh": "tanh32(v)",
    "sigmoid": "sigmoid32(v)",
    "relu": "max(v, ZERO)",
    "affine": "alpha * v + beta",
    "leakyrelu": "v if v >= ZERO else alpha * v",
    "thresholdedrelu": "v if v > alpha else ZERO",
    "scaledtanh": "alpha * tanh32(beta * v)",
    "hardsigmoid": "min(max(alpha * v + beta, ZERO), ONE)",
    "elu": "v if v >= ZERO else alpha * expm1_32(min(v, ZERO))",
    "softsign": "v / (ONE + abs(v))",
    "softplus": "softplus32(v)",
}
PARAMETERS = 3  # of an activation: alpha, beta, and the bound of the magnitude of what enters it
ROWS = 4  # of the tile for several sequences


def panel_width(lanes: int) -> int:
    """Columns of a panel of recurrent weights: what the sums of one row keep in registers."""
    return 8 * lanes


def pack(w, panels, k, n, width, w_d, w_0, panels_d, panels_0, begin, end):
    """`tiles.pack_columns` of a transpose. w: float32[n, k] for each direction, `w_d` apart from `w_0` on.

    Those of a direction lie `panels_d` apart from `panels_0` on. Units are panels of all directions.
    """
    each = (n + width - 1) // width
    for unit in range(begin, end):
        d = unit // each
        number = unit - d * each
        to = at(panels, panels_0 + d * panels_d + number * k * width)
        for j in range(width):
            column = number * width + j
            if column < n:
                row = at(w, w_0 + d * w_d + column * k)
                for p in range(k):
                    to[p * width + j] = row[p]
            else:
                for p in range(k):
                    to[p * width + j] = ZERO


def add_biases(bias, y, n, shared, begin, end):
    """y[d, j] = bias[d, j], plus the recurrent bias[d, n + j] for j < shared. Units are directions."""
    for d in range(begin, end):
        own, to = at(bias, d * 2 * n), at(y, d * n)
        for j in range(n):
            to[j] = own[j]
        for j in range(shared):
            to[j] += own[n + j]


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


def emit_projection(lanes: int) -> Sources:
    """The module of a kernel that puts x[row] · w[d] + bias[d] into gates[d, row].

    x: float32[rows, k]; w: panels of [d, k, n]; bias: float32[d, n]; scalars: as a tile wants
    them; spare: `tiles.spare` elements a thread. Units are blocks of rows: d · ceil(rows / block).
    """
    head = (
        "from app.kernels.cpu.codegen.generator import at\n"
        "from app.kernels.cpu.codegen.tiles import COLUMN_BIAS\n"
        "from LIBRARY0 import COLUMNS, product\n"
    )
    return product_library("float32", lanes), head + _PROJECTION


@_compiled
def _clipped(v, limit):
    return min(max(v, -limit), limit)


@_compiled
def _activated(f, d, p, x, more, n):
    """Put f(x + more) into x. p: parameters of f, an activation of direction d."""
    alpha, beta, limit = p[0], p[1], p[2]
    for j in range(n):
        x[j] = f(_clipped(x[j] + more[j], limit), d, alpha, beta)


@_compiled
def add_scaled(g, a, b, n):
    """Add a · b to g."""
    for j in range(n):
        g[j] += a[j] * b[j]


@_compiled
def copy(y, x, n):
    for j in range(n):
        y[j] = x[j]


@_compiled
def fill(y, value, n):
    for j in range(n):
        y[j] = value


@_compiled
def lstm_cell(of_gates, of_input, of_cell, d, p, g, s, peepholes, c, h, n, has_peepholes, is_coupled):
    """One step. g: gates i, o, f, c of the step; s: what the state adds to them.

    of_*: activations of direction d; p: their parameters; peepholes: of i, o, f, if there are any; c, h:
    state, overwritten. Coupled, the forget gate is 1 - i.
    """
    i, o, f, new = g, at(g, n), at(g, 2 * n), at(g, 3 * n)
    if has_peepholes:
        add_scaled(i, peepholes, c, n)
        add_scaled(f, at(peepholes, 2 * n), c, n)
    _activated(of_gates, d, p, i, s, n)
    if is_coupled:
        for j in range(n):
            f[j] = ONE - i[j]
    else:
        _activated(of_gates, d, p, f, at(s, 2 * n), n)
    more, alpha, beta, limit = at(s, 3 * n), p[3], p[4], p[5]
    for j in range(n):
        c[j] = f[j] * c[j] + i[j] * of_input(_clipped(new[j] + more[j], limit), d, alpha, beta)
    if has_peepholes:
        add_scaled(o, at(peepholes, n), c, n)
    more, alpha, beta, limit = at(s, n), p[0], p[1], p[2]
    cell_alpha, cell_beta, cell_limit = p[6], p[7], p[8]
    for j in range(n):
        out = of_cell(_clipped(c[j], cell_limit), d, cell_alpha, cell_beta)
        h[j] = of_gates(_clipped(o[j] + more[j], limit), d, alpha, beta) * out


@_compiled
def gru_gates(of_gates, d, p, g, s, h, scaled, n):
    """Put the gates z and r of a step into g, and r · h into `scaled`; s: what the state adds to them."""
    _activated(of_gates, d, p, g, s, 2 * n)
    reset = at(g, n)
    for j in range(n):
        scaled[j] = reset[j] * h[j]


@_compiled
def gru_state(of_state, d, p, g, s, bias, h, n, linear_before_reset):
    """The new state h. g: gates z, r and the projected h; s: what the state adds to the last.

    bias: what is added to s with `linear_before_reset`, which resets after the product.
    """
    z, reset, new = g, at(g, n), at(g, 2 * n)
    if linear_before_reset:
        for j in range(n):
            new[j] += reset[j] * (s[j] + bias[j])
    else:
        for j in range(n):
            new[j] += s[j]
    alpha, beta, limit = p[3], p[4], p[5]
    for j in range(n):
        v = of_state(_clipped(new[j], limit), d, alpha, beta)
        h[j] = (ONE - z[j]) * v + z[j] * h[j]


@_compiled
def rnn_cell(of_state, d, p, g, s, h, n):
    """One step. g: the gate; s: what the state adds to it; h: state, overwritten."""
    alpha, beta, limit = p[0], p[1], p[2]
    for j in range(n):
        h[j] = of_state(_clipped(g[j] + s[j], limit), d, alpha, beta)


@_compiled
def scaled_sums(sums, scales, scale, y, n):
    """y[j] = sums[j] · scale · scales[j]. sums: int32."""
    for j in range(n):
        y[j] = f32(sums[j]) * (scale * scales[j])


@_compiled
def load_states(h, source, d, b0, b1, state_d, state_b, n):
    for b in range(b0, b1):
        copy(at(h, (b - b0) * n), at(source, d * state_d + b * state_b), n)


@_compiled
def store_states(target, h, d, b0, b1, state_d, state_b, n):
    for b in range(b0, b1):
        copy(at(target, d * state_d + b * state_b), at(h, (b - b0) * n), n)


@_compiled
def time_of(step, length, backwards):
    """The time that a sequence is at in a step of the loop."""
    return length - 1 - step if backwards else step


@_compiled
def store_step(y, h, lengths, step, d, b0, b1, y_t, y_d, y_b, backwards, n):
    """The states after a step, and zeros for the sequences that have ended."""
    for b in range(b0, b1):
        if step < lengths[b]:
            t = time_of(step, lengths[b], backwards)
            copy(at(y, t * y_t + d * y_d + b * y_b), at(h, (b - b0) * n), n)
        else:
            fill(at(y, step * y_t + d * y_d + b * y_b), ZERO, n)


# `product` puts h · w into s. h: [m, k], rows `h_row` apart; w: panels of [k, n]; s: rows `s_row`
# apart, with room for whole panels and, unless m is 1, for a multiple of ROWS rows.
PRODUCT = """
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.generator import at, tile
from app.kernels.cpu.codegen.vectormath import expm1_32, sigmoid32, softplus32, tanh32
from app.kernels.cpu.recurrent import (
    ONE, ROWS, ZERO, gru_gates, gru_state, load_states, lstm_cell, rnn_cell, store_states, store_step,
    time_of,
)

{functions}

LANES, WIDTH = {lanes}, {width}
# Weights stream in order, which the hardware sees best alone: each asks for its own cache lines.
one = tile("{dtype}", LANES, 1, WIDTH // LANES, 2)
several = tile("{dtype}", LANES, ROWS, 2, 2)


@njit(error_model="numpy", boundscheck=False)
def product(h, h_row, w, s, s_row, m, k, n):
    for j in range(0, n, WIDTH):
        panel = at(w, j * k)
        if m == 1:
            one(h, h_row, 1, 1, panel, WIDTH, k, panel, WIDTH, at(s, j), s_row, s, 0, s, 0, s, s, 0, s, 0)
            continue
        for i in range(0, m, ROWS):
            rows, left = at(h, i * h_row), min(ROWS, m - i)
            for q in range(0, WIDTH, 2 * LANES):
                to, part = at(s, i * s_row + j + q), at(panel, q)
                several(rows, h_row, 1, left, part, WIDTH, k, part, WIDTH, to, s_row, s, 0, s, 0, s, s, 0,
                        s, 0)

"""

_LSTM = """
def kernel(gates, r, peepholes, initial_h, initial_c, lengths, parameters, h, sums, c, y, y_h, y_c,
           steps, batch, hidden, gates_t, gates_b, y_t, y_d, y_b, state_d, state_b, reverse, wants,
           r_d, s_row, sums_step, has_peepholes, is_coupled, begin, end, thread):
    n = 4 * hidden
    mine = at(sums, thread * sums_step)
    unit = begin
    while unit < end:
        d = unit // batch
        b0 = unit - d * batch
        b1 = min(batch, b0 + end - unit)
        own, cells = at(h, unit * hidden), at(c, unit * hidden)
        backwards = d == 1 or reverse
        load_states(own, initial_h, d, b0, b1, state_d, state_b, hidden)
        load_states(cells, initial_c, d, b0, b1, state_d, state_b, hidden)
        for step in range(steps):
            product(own, hidden, at(r, d * r_d), mine, s_row, b1 - b0, hidden, n)
            for b in range(b0, b1):
                if step < lengths[b]:
                    t, i = time_of(step, lengths[b], backwards), b - b0
                    g = at(gates, (d * steps * batch + t * gates_t + b * gates_b) * n)
                    lstm_cell(f0, f1, f2, d, at(parameters, d * PARAMETERS), g, at(mine, i * s_row),
                              at(peepholes, d * 3 * hidden), at(cells, i * hidden), at(own, i * hidden),
                              hidden, has_peepholes, is_coupled)
            if wants & 1:
                store_step(y, own, lengths, step, d, b0, b1, y_t, y_d, y_b, backwards, hidden)
        if wants & 2:
            store_states(y_h, own, d, b0, b1, state_d, state_b, hidden)
        if wants & 4:
            store_states(y_c, cells, d, b0, b1, state_d, state_b, hidden)
        unit += b1 - b0
"""

_GRU = """
def kernel(gates, r, bias, initial_h, lengths, parameters, h, sums, scaled, y, y_h,
           steps, batch, hidden, gates_t, gates_b, y_t, y_d, y_b, state_d, state_b, reverse, wants,
           r_d, s_row, sums_step, first, second, linear_before_reset, begin, end, thread):
    # The first product gives `first` columns; the state's own lie at `second` of the sums.
    n = 3 * hidden
    mine = at(sums, thread * sums_step)
    unit = begin
    while unit < end:
        d = unit // batch
        b0 = unit - d * batch
        b1 = min(batch, b0 + end - unit)
        own, reset = at(h, unit * hidden), at(scaled, unit * hidden)
        weights = at(r, d * r_d)
        extra = at(bias, d * 2 * n + n + 2 * hidden)
        backwards = d == 1 or reverse
        load_states(own, initial_h, d, b0, b1, state_d, state_b, hidden)
        for step in range(steps):
            product(own, hidden, weights, mine, s_row, b1 - b0, hidden, first)
            for b in range(b0, b1):
                if step < lengths[b]:
                    t, i = time_of(step, lengths[b], backwards), b - b0
                    g = at(gates, (d * steps * batch + t * gates_t + b * gates_b) * n)
                    gru_gates(f0, d, at(parameters, d * PARAMETERS), g, at(mine, i * s_row),
                              at(own, i * hidden), at(reset, i * hidden), hidden)
            if not linear_before_reset:
                product(reset, hidden, at(weights, second * hidden), at(mine, second), s_row, b1 - b0, hidden,
                        hidden)
            for b in range(b0, b1):
                if step < lengths[b]:
                    t, i = time_of(step, lengths[b], backwards), b - b0
                    g = at(gates, (d * steps * batch + t * gates_t + b * gates_b) * n)
                    gru_state(f1, d, at(parameters, d * PARAMETERS), g, at(mine, i * s_row + second),
                              extra, at(own, i * hidden), hidden, linear_before_reset)
            if wants & 1:
                store_step(y, own, lengths, step, d, b0, b1, y_t, y_d, y_b, backwards, hidden)
        if wants & 2:
            store_states(y_h, own, d, b0, b1, state_d, state_b, hidden)
        unit += b1 - b0
"""

_RNN = """
def kernel(gates, r, initial_h, lengths, parameters, h, sums, y, y_h,
           steps, batch, hidden, gates_t, gates_b, y_t, y_d, y_b, state_d, state_b, reverse, wants,
           r_d, s_row, sums_step, begin, end, thread):
    mine = at(sums, thread * sums_step)
    unit = begin
    while unit < end:
        d = unit // batch
        b0 = unit - d * batch
        b1 = min(batch, b0 + end - unit)
        own = at(h, unit * hidden)
        backwards = d == 1 or reverse
        load_states(own, initial_h, d, b0, b1, state_d, state_b, hidden)
        for step in range(steps):
            product(own, hidden, at(r, d * r_d), mine, s_row, b1 - b0, hidden, hidden)
            for b in range(b0, b1):
                if step < lengths[b]:
                    t, i = time_of(step, lengths[b], backwards), b - b0
                    g = at(gates, (d * steps * batch + t * gates_t + b * gates_b) * hidden)
                    rnn_cell(f0, d, at(parameters, d * PARAMETERS), g, at(mine, i * s_row),
                             at(own, i * hidden), hidden)
            if wants & 1:
                store_step(y, own, lengths, step, d, b0, b1, y_t, y_d, y_b, backwards, hidden)
        if wants & 2:
            store_states(y_h, own, d, b0, b1, state_d, state_b, hidden)
        unit += b1 - b0
"""

_LOOPS = {"LSTM": _LSTM, "GRU": _GRU, "RNN": _RNN}


def functions_text(names: Sequence[tuple[str, ...]]) -> str:
    """Source text: activations f0, f1 ... of (v, direction, alpha, beta), by the names of each direction."""
    lines = []
    for i, (first, *second) in enumerate(zip(*names, strict=True)):
        value = ACTIVATIONS[first]
        if second and second[0] != first:
            value = f"({value}) if d == 0 else ({ACTIVATIONS[second[0]]})"
        lines += ["@njit", f"def f{i}(v, d, alpha, beta):", f"    return {value}", ""]
    return "\n".join([*lines, f"PARAMETERS = {PARAMETERS * len(names[0])}  # of a direction"])


def emit_loop(op: str, lanes: int, names: tuple[tuple[str, ...], ...]) -> str:
    """The module of a time loop; `names` are the activations of each direction.

    r: for each direction, `r_d` apart, panels of its columns; those of a GRU's hidden gate begin
    anew unless `linear_before_reset`. peepholes: [d, 3H]; bias: of the GRU node, [d, 6H], of which
    the last H count with `linear_before_reset`; parameters: float32[d, activations, PARAMETERS].
    h, c, scaled: scratch [d, b, H]; sums: `sums_step` elements a thread, rows `s_row` apart.
    `gates_t`, `gates_b`: rows of gates a step and a batch apart; y_*, state_*: strides of y and of
    the initial and last states. `reverse`: the first direction runs backwards. `wants`: bits for
    y, y_h, y_c. Units are d · batch + b.
    """
    return (
        PRODUCT.format(
            dtype="float32", lanes=lanes, width=panel_width(lanes), functions=functions_text(names)
        )
        + _LOOPS[op]
    )
