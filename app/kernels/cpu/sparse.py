"""Products of a constant sparse matrix and a dense one, by rows of the sparse one.

Rows of about equal length run side by side, `together` of them at a time, each with accumulators of
its own: this hides the latency of a sum that has few terms, and loops of one length are predicted.

Source: the sliced, sorted format is SELL-C-sigma of Kreutzer, Hager, Wellein, Fehske and Bishop, 2014,
"A unified sparse matrix data format for efficient general sparse matrix-vector multiplication".
"""

from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ll
import numpy as np
from numba import types
from numba.extending import intrinsic

from app.kernels.cpu.generator import outlined
from app.kernels.cpu.instructions import I32, I64, Vectors, number, repeat
from app.kernels.cpu.tiles import CLAMP, COLUMN_BIAS, HIGH, LOW, ROW_BIAS

Array = np.ndarray[Any, Any]

ACCUMULATORS = 8  # of a tile: what hides the latency of products on two ports
MOST = 8  # vectors of columns in a tile


@dataclass(frozen=True, slots=True)
class Sliced:
    """A sparse matrix in slices of `together` rows.

    Attributes:
        starts: int64[slices + 1], the first step of each slice.
        rows: int64[slices * together], which row of the result a row of a slice is; rows that fill
            up the last slice repeat the one before.
        places: int32[steps * together], columns of the elements, step by step.
        values: T[steps * together], zeros where a row is shorter than its slice.
    """

    starts: Array
    rows: Array
    places: Array
    values: Array


def slices(matrix: Array, together: int, threads: int = 1) -> Sliced:
    """A dense matrix [rows, columns] in slices; longest rows first, dealt to `threads` equal parts."""
    m = matrix.shape[0]
    counts = np.count_nonzero(matrix, axis=1)
    order = np.argsort(-counts, kind="stable")
    order = np.concatenate([order, np.repeat(order[-1:], -m % together)])
    grouped = order.reshape(-1, together)
    grouped = np.concatenate([grouped[t::threads] for t in range(threads)])
    steps = counts[grouped].max(axis=1, initial=0)
    starts = np.concatenate([[0], np.cumsum(steps)]).astype(np.int64)
    places = np.zeros((int(starts[-1]), together), np.int32)
    values = np.zeros((int(starts[-1]), together), matrix.dtype)
    owner, column = np.nonzero(matrix)
    first = np.concatenate([[0], np.cumsum(counts)])
    for s, members in enumerate(grouped):
        for r, row in enumerate(members):
            own = slice(first[row], first[row + 1])
            at = slice(starts[s], starts[s] + counts[row])
            places[at, r] = column[own]
            values[at, r] = matrix[owner[own], column[own]]
    return Sliced(starts, grouped.reshape(-1).astype(np.int64), places.reshape(-1), values.reshape(-1))


def shape_of(columns: int, lanes: int, most: int = MOST) -> tuple[int, int]:
    """(rows together, vectors) of the tile for a result of so many columns."""
    vectors = min(max(-(-columns // lanes), 1), most)
    return max(ACCUMULATORS // vectors, 1), vectors


def finished(v: Vectors, value: Any, flags: int, column_bias: Any, scalars: Any, count: int = 0) -> Any:
    """The sum with the bias of its columns, and limited, as `flags` ask."""
    if flags & COLUMN_BIAS:
        value = v.add(value, v.load_part(column_bias, count or v.lanes))
    if flags & CLAMP:
        value = v.clamp(value, v.broadcast(v.at(scalars, LOW)), v.broadcast(v.at(scalars, HIGH)))
    return value


def slice_tile(dtype: str, lanes: int, together: int, vectors: int, tail: int, flags: int) -> Any:
    """An intrinsic that computes some columns of the rows of a slice.

    It is called as
        tile(places, values, steps, b, b_row, y, y_row, rows, row_bias, column_bias, scalars)
    and computes, for r < together, y[rows[r] * y_row + j] as the sum over s < steps of
    values[s * together + r] * b[places[s * together + r] * b_row + j], plus row_bias[rows[r]]
    (ROW_BIAS), plus column_bias[j] (COLUMN_BIAS), limited (CLAMP), as `flags` ask. There are
    `vectors` vectors of columns; of the last, `tail` elements are read and written.
    """
    signature_of = Vectors(None, dtype, lanes)
    address, size = types.CPointer(signature_of.scalar), types.int64
    numbers, small = types.CPointer(types.int64), types.CPointer(types.int32)
    signature = types.void(
        small, address, size, address, size, address, size, numbers, address, address, address
    )
    widths = [lanes] * (vectors - 1) + [tail]

    def write(b: Any, arguments: Any) -> None:
        places, values, steps, dense, b_row, y, y_row, rows, row_bias, column_bias, scalars = arguments
        v = Vectors(b, dtype, lanes)

        def step(state: list[Any]) -> list[Any]:
            place, value, *sums = state
            for r in range(together):
                column = b.sext(b.load(v.at(place, r), align=4), I64)
                line = v.at(dense, b.mul(column, b_row))
                x = v.broadcast(v.at(value, r))
                for j, width in enumerate(widths):
                    i = r * vectors + j
                    sums[i] = v.fma(x, v.load_part(v.at(line, j * lanes), width), sums[i])
            return [v.at(place, together), v.at(value, together), *sums]

        _, _, *sums = repeat(b, steps, [places, values, *[v.zero] * (together * vectors)], step)
        for r in range(together):
            row = b.load(v.at(rows, r), align=8)
            line = v.at(y, b.mul(row, y_row))
            for j, width in enumerate(widths):
                found = sums[r * vectors + j]
                if flags & ROW_BIAS:
                    found = v.add(found, v.broadcast(v.at(row_bias, row)))
                bias = v.at(column_bias, j * lanes)
                found = finished(v, found, flags, bias, scalars, width)
                v.store_part(found, v.at(line, j * lanes), width)
        b.ret_void()

    def body(_context, places, values, steps, b, b_row, y, y_row, rows, row_bias, column_bias, scalars):
        return signature, outlined(f"slice_{dtype}_{together}x{vectors}x{lanes}", write)

    return intrinsic(body)


_SOURCE = """\
from app.kernels.cpu.generator import at
from app.kernels.cpu.sparse import slice_tile

TOGETHER, COLUMNS = {together}, {columns}
tile = slice_tile("{dtype}", {lanes}, TOGETHER, {vectors}, {tail}, {flags})


def kernel(starts, rows, places, values, b, y, row_bias, column_bias, scalars, slices, left, chunks, b_row,
           b_batch, y_row, y_batch, begin, end):
    for unit in range(begin, end):
        s = unit % slices
        j = left + unit // slices % chunks * COLUMNS
        batch = unit // (slices * chunks)
        first = starts[s]
        tile(at(places, first * TOGETHER), at(values, first * TOGETHER), starts[s + 1] - first,
             at(b, batch * b_batch + j), b_row, at(y, batch * y_batch + j), y_row,
             at(rows, s * TOGETHER), row_bias, at(column_bias, j), scalars)
"""


def emit(dtype: str, lanes: int, together: int, vectors: int, tail: int, flags: int) -> str:
    """The module of y[i, :] = sum over j of a[i, j] b[j, :], a in slices (see `Sliced`).

    b, y: T, rows `b_row` and `y_row` elements apart, matrices `b_batch` and `y_batch`; row_bias: T, one
    element per row of y; column_bias: T, one per column. Columns from `left` on are computed. Units
    are slices (fastest), chunks of columns, and batches.

    Args:
        dtype: T.
        lanes: elements in a vector.
        together: rows of a slice.
        vectors: of a chunk of columns.
        tail: columns of the last of them.
        flags: what follows the sums, see `slice_tile`.
    """
    columns = (vectors - 1) * lanes + tail
    return _SOURCE.format(
        dtype=dtype, lanes=lanes, together=together, vectors=vectors, tail=tail, flags=flags, columns=columns
    )


def turned(v: Vectors, lines: list[Any]) -> list[Any]:
    """As many vectors as there are lanes, rows and columns exchanged: perfect shuffles, log2(lanes) times."""
    half = v.lanes // 2
    low, high = (
        ll.Constant(
            ll.VectorType(I32, v.lanes),
            [first + i // 2 + (v.lanes if i % 2 else 0) for i in range(v.lanes)],
        )
        for first in (0, half)
    )
    for _ in range(v.lanes.bit_length() - 1):
        pairs = list(zip(lines[:half], lines[half:]))
        lines = [v.b.shuffle_vector(a, b, mask) for a, b in pairs for mask in (low, high)]
    return lines


def turn_tile(dtype: str, lanes: int) -> Any:
    """An intrinsic that copies a tile of `lanes` rows and columns, rows and columns exchanged.

    It is called as
        tile(x, x_row, rows, y, y_row, columns)
    and computes y[j * y_row + i] = x[i * x_row + j] for i, j < lanes. Rows of x from `rows` on repeat
    the last; of y only the first `columns` lines are written.
    """
    address, size = types.CPointer(Vectors(None, dtype, lanes).scalar), types.int64
    signature = types.void(address, size, size, address, size, size)

    def write(b: Any, arguments: Any) -> None:
        x, x_row, rows, y, y_row, columns = arguments
        v = Vectors(b, dtype, lanes)
        last = b.sub(rows, number(1))
        lines = []
        for i in range(lanes):
            row = b.select(b.icmp_signed("<", number(i), rows), number(i), last)
            lines.append(v.load(v.at(x, b.mul(row, x_row))))
        ended = b.append_basic_block("ended")
        for j, line in enumerate(turned(v, lines)):
            go = b.append_basic_block("line")
            b.cbranch(b.icmp_signed("<", number(j), columns), go, ended)
            b.position_at_end(go)
            v.store(line, v.at(y, b.mul(number(j), y_row)))
        b.branch(ended)
        b.position_at_end(ended)
        b.ret_void()

    def body(_context, x, x_row, rows, y, y_row, columns):
        return signature, outlined(f"turn_{dtype}_{lanes}", write)

    return intrinsic(body)


_TURN = """\
from app.kernels.cpu.generator import at
from app.kernels.cpu.sparse import turn_tile

LANES = {lanes}
tile = turn_tile("{dtype}", LANES)


def kernel(x, y, m, n, x_row, y_row, begin, end):
    for unit in range(begin, end):
        i = unit * LANES
        rows = min(LANES, m - i)
        done = 0
        if {into} or rows == LANES:
            done = n if {out_of} else n // LANES * LANES
            for j in range(0, done, LANES):
                tile(at(x, i * x_row + j), x_row, rows, at(y, j * y_row + i), y_row, min(LANES, n - j))
        for j in range(done, n):
            for r in range(rows):
                y[j * y_row + i + r] = x[(i + r) * x_row + j]
"""


def emit_turn(dtype: str, lanes: int, into: bool) -> str:
    """The module of y[j, i] = x[i, j] for i < m, j < n; units are `lanes` rows of x.

    Args:
        dtype: T.
        lanes: elements in a vector.
        into: whether it is lines of y, rather than those of x, that consist of whole vectors; what is
            beyond the sizes may hold anything.
    """
    return _TURN.format(dtype=dtype, lanes=lanes, into=into, out_of=not into)
