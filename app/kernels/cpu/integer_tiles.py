"""Products of 8-bit integers by the tile registers of AMX: 16 x 64 times 64 x 16, exact sums in int32.

An element is four steps of the reduction, of which a step of the tiles takes 16: rows of the first operand
lie at equal distances, or as whole tiles one after the other (`tiles.pack_row_tiles`); of the second, an
element of 32 columns after the other, at any distance. Steps beyond the last and rows beyond the
last are read, whatever they hold: the constant operand has zeros there, and no sum takes from another row.
Sums begin as what is to be added to them, so that a tile is stored once.

Source: Intel Architecture Instruction Set Extensions, AMX (tdpbusd, tdpbsud).
"""

from typing import Any

from numba import types

from app.kernels.cpu.codegen.generator import outlined
from app.kernels.cpu.codegen.instructions import I8, Vectors, number, repeat, typed
from app.kernels.cpu.codegen.tiles import LEFT_UNSIGNED, TILE, TILE_DOT
from app.kernels.cpu.matrix_tiles import flat, instruction

# Elements of the scratch memory of a product: a ragged tile of 32 x 32, and where sums begin, up to 32 x 16.
SPARE = 6 * TILE * TILE

_T, _N = types.CPointer(types.int32), types.int64


def tiles_product(dtype: str, rows: int, columns: int) -> Any:
    """An intrinsic that multiplies `rows` tiles of rows with `columns` tiles of columns, 1 or 2 of each.

    It is called as
        product(a, a_row, a_tile, a_step, b, b_row, steps, start, start_row, start_tile, start_column,
                c, c_row)
    and makes c[i * c_row + j], for tiles r, t and rows i = 16 r + p, columns j = 16 t + q, the sum of
    start[r * start_tile + p * start_row + t * start_column + q] and, over s < steps and e < 16, products of
    the four bytes of a[r * a_tile + s * a_step + p * a_row + e] and b[(16 s + e) * b_row + j].
    """
    signature = types.void(_T, _N, _N, _N, _T, _N, _N, _T, _N, _N, _N, _T, _N)
    name = "tdpbusd" if dtype.startswith(LEFT_UNSIGNED) else "tdpbsud"
    cells = rows * columns

    def write(b: Any, values: Any) -> None:
        (a, a_row, a_tile, a_step, right, b_row, steps, start, start_row, start_tile, start_column,
         c, c_row) = values  # fmt: skip
        v = Vectors(b, "int32", TILE)

        def tile(index: int) -> Any:
            return I8(index)

        def move(kind: str, index: int, pointer: Any, row: Any) -> None:
            instruction(b, kind, tile(index), flat(b, pointer), b.mul(row, number(4)))

        def step(state: list[Any]) -> list[Any]:
            first, second = state
            for r in range(rows):
                move("tileloadd64", cells + r, v.at(first, b.mul(a_tile, number(r))), a_row)
            for t in range(columns):
                move("tileloadd64", cells + rows + t, v.at(second, t * TILE), b_row)
            for r in range(rows):
                for t in range(columns):
                    instruction(b, name, *map(tile, (r * columns + t, cells + r, cells + rows + t)))
            return [v.at(first, a_step), v.at(second, b.mul(b_row, number(TILE)))]

        for r in range(rows):
            for t in range(columns):
                place = b.add(b.mul(start_tile, number(r)), b.mul(start_column, number(t)))
                move("tileloadd64", r * columns + t, v.at(start, place), start_row)
        repeat(b, steps, [a, right], step)
        for r in range(rows):
            for t in range(columns):
                place = b.add(b.mul(c_row, number(r * TILE)), number(t * TILE))
                move("tilestored64", r * columns + t, v.at(c, place), c_row)
        b.ret_void()

    return typed(signature, outlined(f"integer_tiles_{rows}x{columns}", write))


_PRODUCT = """\
from numba import types
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.linking import shared
from app.kernels.cpu.codegen.tiles import ACCUMULATE, COLUMN_BIAS, ROW_BIAS
from app.kernels.cpu.integer_tiles import tiles_product
from app.kernels.cpu.matrix_tiles import configure, release

T, N = types.CPointer(types.int32), types.int64
TILE, ROWS, COLUMNS = 16, 32, 32
MAIN = "integer_tiles_"  # takes nearly all the time
both, wide = tiles_product("{dtype}", 2, 2), tiles_product("{dtype}", 1, 2)
high, one = tiles_product("{dtype}", 2, 1), tiles_product("{dtype}", 1, 1)


@shared(types.void(T, N, N, N, N, T, N, N, N, T, N, N, N, T, T, N, T, N, T, T, N, T, N))
def product(a, packed, a_row, _a_k, k0, b, b_k, b_panel, k, c, c_row, m, n, spare,
            sums, sums_row, rows, rows_step, columns, _residual, _residual_row, _scalars, flags):
    configure()
    steps = (k + TILE - 1) // TILE
    row, step, k_row = (TILE, TILE * TILE, TILE) if packed else (a_row, TILE, 1)
    begin = at(spare, ROWS * COLUMNS)
    begin_row = begin_tile = begin_column = 0
    for j in range(TILE):
        begin[j] = 0
    for j in range(0, n, COLUMNS):
        panel, width = at(b, j // COLUMNS * b_panel), min(COLUMNS, n - j)
        if flags & COLUMN_BIAS:
            begin_column = TILE
            for t in range(width):
                begin[t] = columns[j + t]
        for i in range(0, m, ROWS):
            count, first = min(ROWS, m - i), at(a, i * a_row + k0 * k_row)
            start = begin
            if flags & ACCUMULATE:
                start = at(sums, i * sums_row + j)
                begin_row, begin_tile, begin_column = sums_row, TILE * sums_row, TILE
            elif flags & ROW_BIAS:
                begin_row, begin_tile = TILE, TILE * TILE
                for r in range(count):
                    for t in range(TILE):
                        begin[r * TILE + t] = rows[(i + r) * rows_step]
            whole = count % TILE == 0 and width % TILE == 0
            to, to_row = (at(c, i * c_row + j), c_row) if whole else (spare, COLUMNS)
            if count > TILE and width > TILE:
                both(first, row, TILE * a_row, step, panel, b_k, steps, start, begin_row, begin_tile,
                     begin_column, to, to_row)
            elif width > TILE:
                wide(first, row, TILE * a_row, step, panel, b_k, steps, start, begin_row, begin_tile,
                     begin_column, to, to_row)
            elif count > TILE:
                high(first, row, TILE * a_row, step, panel, b_k, steps, start, begin_row, begin_tile,
                     begin_column, to, to_row)
            else:
                one(first, row, TILE * a_row, step, panel, b_k, steps, start, begin_row, begin_tile,
                    begin_column, to, to_row)
            if not whole:
                for r in range(count):
                    for t in range(width):
                        c[(i + r) * c_row + j + t] = spare[r * COLUMNS + t]
    release()
"""


def product_library(dtype: str) -> str:
    """Defines the `product` of `gemm` for `tiles.TILE_DOTS`, and ROWS, COLUMNS of its tiles.

    Adds to sums, and knows no other epilogue: flags are ACCUMULATE, or ROW_BIAS, or COLUMN_BIAS. Where
    `packed`, `a` is whole tiles (`tiles.pack_row_tiles`) and a_row the elements of a row of them; `spare` has
    SPARE elements. Up to 31 rows of `a`, and of `sums`, and 15 of `b`, behind the last are read.
    """
    assert dtype.endswith(TILE_DOT), dtype
    return _PRODUCT.format(dtype=dtype)
