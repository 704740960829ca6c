"""The time loop of an LSTM whose states are quantized to 8 bits before every product."""

import numpy as np
from numba import njit

from app.kernels.cpu.generator import at
from app.kernels.cpu.quantize import LEVELS, highest, lowest, rounded, scale_of, zero_of
from app.kernels.cpu.recurrent import add_product, copy, fill, lstm_cell

ZERO = np.float32(0.0)


@njit(error_model="numpy", boundscheck=False)
def _quantized(h, q, n):
    """Put into q integers of h over its own range, less the one for zero; return the step."""
    low = lowest(h, n)
    step = scale_of(low, highest(h, n))
    origin = zero_of(low, step)
    for i in range(n):
        q[i] = min(max(rounded(h[i] / step) + origin, ZERO), LEVELS) - origin
    return step


def lstm(gates, r, r_scale, peepholes, initial_h, initial_c, lengths, limits, h, c, q, sums, y, y_h, y_c,
         steps, batch, hidden, gates_t, gates_b, y_t, y_d, y_b, state_d, state_b, reverse, wants,
         begin, end):  # fmt: skip
    """See `recurrent.lstm`. r: 8-bit integers less their zero [d, H, 4H]; r_scale: float32[d, 4H].

    q: scratch [d, b, H]; sums: scratch [d, 4H]. All sequences of a batch share one range, so units
    are directions. Sums of products of integers stay exact up to 2 ** 24.
    """
    rows = steps * batch
    limit = limits[0]
    n = 4 * hidden
    for d in range(begin, end):
        weights = at(r, d * hidden * n)
        scales = at(r_scale, d * n)
        total = at(sums, d * n)
        states = at(h, d * batch * hidden)
        cells = at(c, d * batch * hidden)
        integers = at(q, d * batch * hidden)
        backwards = d == 1 or reverse
        for b in range(batch):
            start = d * state_d + b * state_b
            copy(at(states, b * hidden), at(initial_h, start), hidden)
            copy(at(cells, b * hidden), at(initial_c, start), hidden)
        for t in range(steps):
            scale = _quantized(states, integers, batch * hidden)
            for b in range(batch):
                if t >= lengths[b]:
                    if wants & 1:
                        fill(at(y, t * y_t + d * y_d + b * y_b), ZERO, hidden)
                    continue
                place = lengths[b] - 1 - t if backwards else t
                g = at(gates, (d * rows + place * gates_t + b * gates_b) * n)
                fill(total, ZERO, n)
                add_product(at(integers, b * hidden), weights, n, total, hidden, n)
                for j in range(n):
                    total[j] *= scale * scales[j]
                own = at(states, b * hidden)
                lstm_cell(
                    g, total, at(peepholes, d * 3 * hidden), at(cells, b * hidden), own, limit, hidden, True
                )
                if wants & 1:
                    copy(at(y, place * y_t + d * y_d + b * y_b), own, hidden)
        for b in range(batch):
            start = d * state_d + b * state_b
            if wants & 2:
                copy(at(y_h, start), at(states, b * hidden), hidden)
            if wants & 4:
                copy(at(y_c, start), at(cells, b * hidden), hidden)
