"""Products of a constant sparse matrix and a dense one, by rows of the sparse one.

Rows of about equal length run side by side, `together` of them at a time, each with accumulators of
its own: this hides the latency of a sum that has few terms, and loops of one length are predicted.

Source: the sliced, sorted format is SELL-C-sigma of Kreutzer, Hager, Wellein, Fehske and Bishop, 2014,
"A unified sparse matrix data format for efficient general sparse matrix-vector multiplication".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ll
import numpy as np
from numba import types

from app.kernels.cpu.codegen.generator import outlined
from app.kernels.cpu.codegen.instructions import I32, I64, Vectors, number, repeat, typed
from app.kernels.cpu.codegen.tiles import CLAMP, COLUMN_BIAS, HIGH, LOW, ROW_BIAS

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
        places: int32[steps * together], columns of the elements, times how far apart lines of b are,
            step by step.
        values: T[steps * together], zeros where a row is shorter than its slice.
    """

    starts: Array
    rows: Array
    places: Array
    values: Array


def slices(matrix: Array, together: int, threads: int = 1, apart: int = 1) -> Sliced:
    """A dense matrix [rows, columns] in slices; longest rows first, dealt to `threads` equal parts.

    Lines that it is multiplied with are so many elements `apart`.
    """
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
            places[at, r] = column[own] * apart
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
        tile(places, values, steps, b, y, y_row, rows, row_bias, column_bias, scalars)
    and computes, for r < together, y[rows[r] * y_row + j] as the sum over s < steps of
    values[s * together + r] * b[places[s * together + r] + j], plus row_bias[rows[r]]
    (ROW_BIAS), plus column_bias[j] (COLUMN_BIAS), limited (CLAMP), as `flags` ask. There are
    `vectors` vectors of columns; of the last, `tail` elements are read and written.
    """
    signature_of = Vectors(None, dtype, lanes)
    address, size = types.CPointer(signature_of.scalar), types.int64
    numbers, small = types.CPointer(types.int64), types.CPointer(types.int32)
    signature = types.void(small, address, size, address, address, size, numbers, address, address, address)
    widths = [lanes] * (vectors - 1) + [tail]

    def write(b: Any, arguments: Any) -> None:
        places, values, steps, dense, y, y_row, rows, row_bias, column_bias, scalars = arguments
        v = Vectors(b, dtype, lanes)

        def step(state: list[Any]) -> list[Any]:
            place, value, *sums = state
            for r in range(together):
                line = v.at(dense, b.sext(b.load(v.at(place, r), align=4), I64))
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

    return typed(signature, outlined(f"slice_{dtype}_{together}x{vectors}x{lanes}", write))


_SOURCE = """\
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.sparse import slice_tile

TOGETHER, COLUMNS = {together}, {columns}
tile = slice_tile("{dtype}", {lanes}, TOGETHER, {vectors}, {tail}, {flags})


def kernel(starts, rows, places, values, b, y, row_bias, column_bias, scalars, slices, left, chunks,
           b_batch, y_row, y_batch, begin, end):
    for unit in range(begin, end):
        s = unit % slices
        j = left + unit // slices % chunks * COLUMNS
        batch = unit // (slices * chunks)
        first = starts[s]
        tile(at(places, first * TOGETHER), at(values, first * TOGETHER), starts[s + 1] - first,
             at(b, batch * b_batch + j), at(y, batch * y_batch + j), y_row,
             at(rows, s * TOGETHER), row_bias, at(column_bias, j), scalars)
"""


def emit(dtype: str, lanes: int, together: int, vectors: int, tail: int, flags: int) -> str:
    """The module of y[i, :] = sum over j of a[i, j] b[j, :], a in slices (see `Sliced`).

    b, y: T, matrices `b_batch` and `y_batch` elements apart, rows of y `y_row`; row_bias: T, one
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


def woven(v: Vectors, lines: list[Any]) -> list[Any]:
    """The elements of so many vectors taken in turn: perfect shuffles, log2(lines) times.

    Of as many vectors as there are lanes this exchanges rows and columns.
    """
    half = len(lines) // 2
    low, high = (
        _shuffle(v, [first + i // 2 + (v.lanes if i % 2 else 0) for i in range(v.lanes)])
        for first in (0, v.lanes // 2)
    )
    for _ in range(len(lines).bit_length() - 1):
        pairs = list(zip(lines[:half], lines[half:]))
        lines = [v.b.shuffle_vector(a, b, mask) for a, b in pairs for mask in (low, high)]
    return lines


def unwoven(v: Vectors, lines: list[Any]) -> list[Any]:
    """Matrix that `woven` was made of."""
    even, odd = (_shuffle(v, list(range(first, 2 * v.lanes, 2))) for first in (0, 1))
    for _ in range(len(lines).bit_length() - 1):
        pairs = list(zip(lines[::2], lines[1::2]))
        lines = [v.b.shuffle_vector(a, b, mask) for mask in (even, odd) for a, b in pairs]
    return lines


def _shuffle(v: Vectors, places: list[int]) -> Any:
    return ll.Constant(ll.VectorType(I32, v.lanes), places)


def turn_tile(dtype: str, lanes: int) -> Any:
    """An intrinsic that copies a tile of `lanes` rows and columns, rows and columns exchanged.

    It is called as
        tile(x, x_row, rows, y, y_row, columns)
    and computes y[j * y_row + i] = x[i * x_row + j] for i, j < lanes. Rows of x from `rows` on repeat
    the last; of y only the first `columns` lines are written.
    """

    def copy(v: Vectors, x: Any, x_row: Any, rows: Any, y: Any, y_row: Any, columns: Any) -> None:
        v.store_lines(woven(v, _lines(v, x, x_row, rows, lanes)), y, y_row, columns)

    return _tile(f"turn_{dtype}_{lanes}", dtype, lanes, copy)


def weave_tile(dtype: str, lanes: int, few: int) -> Any:
    """The same of `few` rows and `lanes` columns, where lines of y lie together: y_row = few.

    All lines of y are written.
    """

    def copy(v: Vectors, x: Any, x_row: Any, rows: Any, y: Any, _y_row: Any, _columns: Any) -> None:
        for j, line in enumerate(woven(v, _lines(v, x, x_row, rows, few))):
            v.store(line, v.at(y, j * lanes))

    return _tile(f"weave_{dtype}_{few}x{lanes}", dtype, lanes, copy)


def unweave_tile(dtype: str, lanes: int, few: int) -> Any:
    """The same of `lanes` rows and `few` columns, where rows of x lie together: x_row = few.

    All rows of x are read.
    """

    def copy(v: Vectors, x: Any, _x_row: Any, _rows: Any, y: Any, y_row: Any, columns: Any) -> None:
        lines = [v.load(v.at(x, j * lanes)) for j in range(few)]
        v.store_lines(unwoven(v, lines), y, y_row, columns)

    return _tile(f"unweave_{dtype}_{few}x{lanes}", dtype, lanes, copy)


def _tile(name: str, dtype: str, lanes: int, copy: Callable[..., None]) -> Any:
    address, size = types.CPointer(Vectors(None, dtype, lanes).scalar), types.int64
    signature = types.void(address, size, size, address, size, size)

    def write(b: Any, arguments: Any) -> None:
        copy(Vectors(b, dtype, lanes), *arguments)
        b.ret_void()

    return typed(signature, outlined(name, write))


def _lines(v: Vectors, x: Any, x_row: Any, rows: Any, count: int) -> list[Any]:
    """So many rows of x; those from `rows` on are the last one again."""
    last = v.b.sub(rows, number(1))
    numbers = (v.b.select(v.b.icmp_signed("<", number(i), rows), number(i), last) for i in range(count))
    return [v.load(v.at(x, v.b.mul(i, x_row))) for i in numbers]


_TURN = """\
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.sparse import turn_tile, unweave_tile, weave_tile

ROWS, COLUMNS = {rows}, {columns}
tile = {tile}


def kernel(x, y, m, n, x_row, y_row, begin, end):
    for unit in range(begin, end):
        i = unit * ROWS
        rows = min(ROWS, m - i)
        done = 0
        if {into} or rows == ROWS:
            done = n if {out_of} else n // COLUMNS * COLUMNS
            for j in range(0, done, COLUMNS):
                tile(at(x, i * x_row + j), x_row, rows, at(y, j * y_row + i), y_row, min(COLUMNS, n - j))
        for j in range(done, n):
            for r in range(rows):
                y[j * y_row + i + r] = x[(i + r) * x_row + j]
"""


def turned_rows(lanes: int, few: int, into: bool) -> int:
    """Rows of x in a unit of `emit_turn`."""
    return few if into else lanes


def emit_turn(dtype: str, lanes: int, few: int, into: bool) -> str:
    """The module of y[j, i] = x[i, j] for i < m, j < n; units are `turned_rows` of x.

    Args:
        dtype: T.
        lanes: elements in a vector.
        few: elements in a line of whole vectors; where less than `lanes`, such lines lie together.
        into: whether it is lines of y, rather than those of x, that consist of whole vectors; what is
            beyond the sizes may hold anything.
    """
    kind = "turn" if few == lanes else "weave" if into else "unweave"
    static = f'"{dtype}", {lanes}' if few == lanes else f'"{dtype}", {lanes}, {few}'
    return _TURN.format(
        tile=f"{kind}_tile({static})",
        rows=turned_rows(lanes, few, into),
        columns=lanes if into else few,
        into=into,
        out_of=not into,
    )
