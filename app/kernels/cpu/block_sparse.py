"""Products of a dense matrix and a constant one that is sparse in a regular way.

Both hold panels of `WIDTH` columns of the constant matrix. In block storage a panel lists the rows in
which it has any element, so blocks of any height and 16 columns are stored as they are, and so are
whole rows. In 2:4 storage a panel has, for every four rows, two elements a column with their places
among the four: a permutation within a register picks the operands.
"""

from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ll
import numpy as np
from numba import types

from app.kernels.cpu.codegen.generator import outlined
from app.kernels.cpu.codegen.instructions import I8, I32, I64, Vectors, number, repeat, typed
from app.kernels.cpu.sparse import finished

Array = np.ndarray[Any, Any]

WIDTH = 16  # columns of a panel
GROUP, KEPT = 4, 2  # of each four rows, two elements are kept
ROWS = 4  # of a tile: 8 accumulators beside their operands


@dataclass(frozen=True, slots=True)
class Panels:
    """A matrix in panels of `WIDTH` columns.

    Attributes:
        starts: int64[panels + 1], the first step of each panel.
        places: int32[steps], rows of the matrix.
        values: T[steps, WIDTH].
    """

    starts: Array
    places: Array
    values: Array


def panels(matrix: Array) -> Panels:
    """A dense matrix [k, n] in block storage."""
    k, n = matrix.shape
    count = -(-n // WIDTH)
    wide = np.zeros((k, count * WIDTH), matrix.dtype)
    wide[:, :n] = matrix
    blocks = wide.reshape(k, count, WIDTH).transpose(1, 0, 2)
    panel, row = np.nonzero(blocks.any(axis=2))
    starts = np.searchsorted(panel, np.arange(count + 1)).astype(np.int64)
    return Panels(starts, row.astype(np.int32), np.ascontiguousarray(blocks[panel, row]))


def stored_rows(matrix: Array) -> int:
    """Rows of all panels that block storage holds of a matrix [k, n]."""
    k, n = matrix.shape
    whole = n // WIDTH * WIDTH
    full = matrix[:, :whole].reshape(k, -1, WIDTH).any(axis=2)
    return int(np.count_nonzero(full) + np.count_nonzero(matrix[:, whole:].any(axis=1)))


def is_two_of_four(matrix: Array) -> bool:
    """True if every four neighbours down a column of [k, n] hold at most two elements."""
    k, n = matrix.shape
    if k % GROUP:
        return False
    return bool(np.all(np.count_nonzero(matrix.reshape(k // GROUP, GROUP, n), axis=1) <= KEPT))


def two_of_four(matrix: Array) -> tuple[Array, Array]:
    """Values of a 2:4 matrix [k, n], T[panels, k / 4, 2, WIDTH], and their places, int8 from 0 to 3."""
    k, n = matrix.shape
    count = -(-n // WIDTH)
    wide = np.zeros((k, count * WIDTH), matrix.dtype)
    wide[:, :n] = matrix
    groups = wide.reshape(k // GROUP, GROUP, count, WIDTH).transpose(2, 0, 1, 3)
    kept = np.argsort(groups == 0, axis=2, kind="stable")[:, :, :KEPT]
    return np.ascontiguousarray(np.take_along_axis(groups, kept, axis=2)), kept.astype(np.int8)


def _starts(v: Vectors, a: Any, a_row: Any, m: Any, rows: int) -> list[Any]:
    """Addresses of the rows of a tile; those from m on are the last one again."""
    b = v.b
    last = b.sub(m, number(1))
    found = [a]
    for r in range(1, rows):
        row = b.select(b.icmp_signed("<", number(r), m), number(r), last)
        found.append(v.at(a, b.mul(row, a_row)))
    return found


def block_tile(dtype: str, lanes: int, rows: int, columns: int, flags: int) -> Any:
    """An intrinsic that computes `rows` rows of a panel's columns, the first `columns` of them.

    It is called as
        tile(a, a_row, m, places, values, steps, y, y_row, bias, scalars)
    and computes y[i * y_row + j] as the sum over s < steps of a[i * a_row + places[s]] *
    values[s * WIDTH + j], plus bias[j], limited, as `flags` ask. Rows from m on repeat row m - 1.
    """
    outline = Vectors(None, dtype, lanes)
    address, size, small = types.CPointer(outline.scalar), types.int64, types.CPointer(types.int32)
    signature = types.void(address, size, size, small, address, size, address, size, address, address)

    def write(b: Any, arguments: Any) -> None:
        a, a_row, m, places, values, steps, y, y_row, bias, scalars = arguments
        v = Vectors(b, dtype, lanes)
        vectors = WIDTH // lanes
        lines, results = _starts(v, a, a_row, m, rows), _starts(v, y, y_row, m, rows)

        def step(state: list[Any]) -> list[Any]:
            place, value, *sums = state
            row = b.sext(b.load(place, align=4), I64)
            own = [v.load(v.at(value, j * lanes)) for j in range(vectors)]
            for r in range(rows):
                x = v.broadcast(v.at(lines[r], row))
                for j in range(vectors):
                    sums[r * vectors + j] = v.fma(x, own[j], sums[r * vectors + j])
            return [v.at(place, 1), v.at(value, WIDTH), *sums]

        _, _, *sums = repeat(b, steps, [places, values, *[v.zero] * (rows * vectors)], step)
        _store(v, sums, results, columns, flags, bias, scalars)
        b.ret_void()

    return typed(signature, outlined(f"block_{dtype}_{rows}x{columns}x{lanes}", write))


def _store(
    v: Vectors, sums: list[Any], results: list[Any], columns: int, flags: int, bias: Any, scalars: Any
) -> None:
    vectors = WIDTH // v.lanes
    for r, line in enumerate(results):
        for j in range(vectors):
            width = min(columns - j * v.lanes, v.lanes)
            if width <= 0:
                continue
            found = finished(v, sums[r * vectors + j], flags, v.at(bias, j * v.lanes), scalars, width)
            v.store_part(found, v.at(line, j * v.lanes), width)


_PERMUTES = {4: "avx.vpermilvar.ps", 8: "avx.vpermilvar.ps.256", 16: "avx512.vpermilvar.ps.512"}


def half_tile(lanes: int, rows: int, columns: int, flags: int) -> Any:
    """An intrinsic that computes `rows` rows of a panel in 2:4 storage, float32 on x86.

    It is called as
        tile(a, a_row, m, places, values, groups, y, y_row, bias, scalars)
    and computes y[i * y_row + j] as the sum over g < groups and t < 2 of
    a[i * a_row + 4 * g + places[(2 * g + t) * WIDTH + j]] * values[(2 * g + t) * WIDTH + j], plus
    bias[j], limited, as `flags` ask. Rows from m on repeat row m - 1.
    """
    address, size, small = types.CPointer(types.float32), types.int64, types.CPointer(types.int8)
    signature = types.void(address, size, size, small, address, size, address, size, address, address)

    def write(b: Any, arguments: Any) -> None:
        a, a_row, m, places, values, groups, y, y_row, bias, scalars = arguments
        v = Vectors(b, "float32", lanes)
        vectors = WIDTH // lanes
        lines, results = _starts(v, a, a_row, m, rows), _starts(v, y, y_row, m, rows)
        bytes_, numbers = ll.VectorType(I8, lanes), ll.VectorType(I32, lanes)
        four = ll.Constant(ll.VectorType(I32, lanes), [i % GROUP for i in range(lanes)])
        permute = v._function(f"llvm.x86.{_PERMUTES[lanes]}", v.type, [v.type, numbers])

        def step(state: list[Any]) -> list[Any]:
            place, value, column, *sums = state
            quads = []
            for r in range(rows):
                quad = v.load(v.at(lines[r], column), GROUP)
                quads.append(quad if lanes == GROUP else b.shuffle_vector(quad, quad, four))
            for t in range(KEPT):
                for j in range(vectors):
                    at = t * WIDTH + j * lanes
                    packed = b.load(b.bitcast(v.at(place, at), bytes_.as_pointer()), align=1)
                    which = b.zext(packed, numbers)
                    own = v.load(v.at(value, at))
                    for r in range(rows):
                        x = b.call(permute, [quads[r], which])
                        sums[r * vectors + j] = v.fma(x, own, sums[r * vectors + j])
            return [v.at(place, KEPT * WIDTH), v.at(value, KEPT * WIDTH), b.add(column, number(GROUP)), *sums]

        carried = [places, values, number(0), *[v.zero] * (rows * vectors)]
        _, _, _, *sums = repeat(b, groups, carried, step)
        _store(v, sums, results, columns, flags, bias, scalars)
        b.ret_void()

    return typed(signature, outlined(f"half_{rows}x{columns}x{lanes}", write))


_HEAD = """\
from app.kernels.cpu.block_sparse import {factory}
from app.kernels.cpu.codegen.generator import at

ROWS, WIDTH = {rows}, {width}
whole = {factory}({static}{lanes}, ROWS, WIDTH, {flags})
part = {factory}({static}{lanes}, ROWS, {tail}, {flags})

"""
_BLOCKS = """\

def kernel(a, starts, places, values, y, bias, scalars, m, n, a_row, begin, end):
    tiles = (m + ROWS - 1) // ROWS
    for unit in range(begin, end):
        panel, i = unit // tiles, unit % tiles * ROWS
        first, j = starts[panel], panel * WIDTH
        if j + WIDTH <= n:
            whole(at(a, i * a_row), a_row, m - i, at(places, first), at(values, first * WIDTH),
                  starts[panel + 1] - first, at(y, i * n + j), n, at(bias, j), scalars)
        else:
            part(at(a, i * a_row), a_row, m - i, at(places, first), at(values, first * WIDTH),
                 starts[panel + 1] - first, at(y, i * n + j), n, at(bias, j), scalars)
"""
_HALVES = """\

def kernel(a, places, values, y, bias, scalars, m, n, groups, a_row, begin, end):
    tiles = (m + ROWS - 1) // ROWS
    for unit in range(begin, end):
        panel, i = unit // tiles, unit % tiles * ROWS
        j, first = panel * WIDTH, panel * groups * 2 * WIDTH
        if j + WIDTH <= n:
            whole(at(a, i * a_row), a_row, m - i, at(places, first), at(values, first), groups,
                  at(y, i * n + j), n, at(bias, j), scalars)
        else:
            part(at(a, i * a_row), a_row, m - i, at(places, first), at(values, first), groups,
                 at(y, i * n + j), n, at(bias, j), scalars)
"""


def rows_of(m: int) -> int:
    """Rows of the tiles that cut m rows most evenly."""
    return min(max(m, 1), ROWS)


def emit_blocks(dtype: str, lanes: int, rows: int, tail: int, flags: int) -> str:
    """The module of y = a w, w in block storage (see `Panels`).

    a: T[m, .] with rows `a_row` apart; y: T[m, n]; bias: T, one element per column. Units are tiles
    of rows (fastest) and panels.

    Args:
        dtype: T.
        lanes: elements in a vector, WIDTH at most.
        rows: of a tile.
        tail: columns of the last panel.
        flags: what follows the sums, of COLUMN_BIAS and CLAMP.
    """
    text = _HEAD.format(
        factory="block_tile",
        static=f'"{dtype}", ',
        lanes=lanes,
        rows=rows,
        tail=tail,
        flags=flags,
        width=WIDTH,
    )
    return text + _BLOCKS


def emit_halves(lanes: int, rows: int, tail: int, flags: int) -> str:
    """The module of y = a w, w in 2:4 storage (see `two_of_four`), float32; arguments as of `emit_blocks`."""
    text = _HEAD.format(
        factory="half_tile", static="", lanes=lanes, rows=rows, tail=tail, flags=flags, width=WIDTH
    )
    return text + _HALVES
