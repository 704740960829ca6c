"""The time loop of an LSTM whose states are quantized to 8 bits before every product.

The products are of integers, two steps of a reduction at a time (`tiles.BYTE_PAIRS`): weights stay
bytes in memory, so that those of a layer may stay in the second cache from step to step.
"""

from app.kernels.cpu.recurrent import PRODUCT, functions_text, panel_width

_LOOP = """
from app.kernels.cpu.quantize import centered, range_of
from app.kernels.cpu.recurrent import scaled_sums

def kernel(gates, r, r_scale, peepholes, initial_h, initial_c, lengths, parameters, h, c, q, pairs, sums,
           added, y, y_h, y_c, steps, batch, hidden, gates_t, gates_b, y_t, y_d, y_b, state_d, state_b,
           reverse, wants, directions, r_d, s_row, s_d, has_peepholes, is_coupled, begin, end, thread):
    n, depth = 4 * hidden, (hidden + 1) // 2
    extra = at(added, thread * n)
    for d in range(begin, end):
        own, cells = at(h, d * batch * hidden), at(c, d * batch * hidden)
        integers, found = at(q, 2 * d * batch * depth), at(sums, d * s_d)
        backwards = d == 1 or reverse
        load_states(own, initial_h, d, 0, batch, state_d, state_b, hidden)
        load_states(cells, initial_c, d, 0, batch, state_d, state_b, hidden)
        for step in range(steps):
            low, high = range_of(own, batch * hidden)
            for b in range(batch):
                scale = centered(at(own, b * hidden), at(integers, 2 * b * depth), hidden, low, high)
            product(at(pairs, d * batch * depth), depth, at(r, d * r_d), found, s_row, batch, depth, n)
            for b in range(batch):
                if step < lengths[b]:
                    t = time_of(step, lengths[b], backwards)
                    g = at(gates, ((t * gates_t + b * gates_b) * directions + d) * n)
                    scaled_sums(at(found, b * s_row), at(r_scale, d * n), scale, extra, n)
                    lstm_cell(f0, f1, f2, d, at(parameters, d * PARAMETERS), g, extra,
                              at(peepholes, d * 3 * hidden), at(cells, b * hidden), at(own, b * hidden),
                              hidden, has_peepholes, is_coupled)
            if wants & 1:
                store_step(y, own, lengths, step, d, 0, batch, y_t, y_d, y_b, backwards, hidden)
        if wants & 2:
            store_states(y_h, own, d, 0, batch, state_d, state_b, hidden)
        if wants & 4:
            store_states(y_c, cells, d, 0, batch, state_d, state_b, hidden)
"""


def emit_loop(dtype: str, lanes: int, names: tuple[tuple[str, ...], ...]) -> str:
    """The module of the time loop; see `recurrent.emit_loop` for what is not said here.

    gates: float32[rows, d, 4H]; r: pairs of rows of integers less their zero, in panels of columns,
    `r_d` elements a direction; r_scale: float32[d, 4H]. q: scratch int16[d, b, 2 ceil(H / 2)], and
    `pairs` the same memory as int32; sums: scratch int32, `s_d` a direction, rows `s_row` apart;
    added: scratch, 4H a thread. All sequences of a batch share one range, so units are directions.
    Sums of products are exact.

    Args:
        dtype: PAIRS or, for weights that fit 8 bits, BYTE_PAIRS.
        lanes: int32 in a register.
        names: activations of each direction.
    """
    text = functions_text(names)
    return PRODUCT.format(dtype=dtype, lanes=lanes, width=panel_width(lanes), functions=text) + _LOOP
