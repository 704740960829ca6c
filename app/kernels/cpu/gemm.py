"""Matrix products: C = A B over blocks that stay in cache, register tiles inside.

The loops follow Goto and van de Geijn, 2008, "Anatomy of high-performance matrix
multiplication": a k x columns panel of B in the first cache, a block of A in the second.
"""

from app.kernels.cpu.tiles import SHAPES, lanes_of

# Defines `product` and its tiles. `a` holds rows `a_row` apart with elements `a_k` apart, or, when
# `packed`, one [k][rows] panel for each group of rows; k0 is where this chunk of the reduction begins.
_PRODUCT = """\
from numba import njit
from app.kernels.cpu.generator import at, copier, selector, tile

VECTOR, ROWS, SMALL, COLUMNS = {vector}, {rows}, {small}, {columns}
_wide = tile("{dtype}", VECTOR, ROWS, COLUMNS // VECTOR, {unroll})
_wide_small = tile("{dtype}", VECTOR, SMALL, COLUMNS // VECTOR, {unroll})
_narrow = tile("{dtype}", VECTOR, ROWS, 1, {unroll})
_narrow_small = tile("{dtype}", VECTOR, SMALL, 1, {unroll})

{tiles}
@njit(error_model="numpy", boundscheck=False)
def product(a, packed, a_row, a_k, k0, b, b_k, b_panel, k, c, c_row, m, n,
            sums, sums_row, rows, rows_step, columns, residual, residual_row, scalars, flags):
    for j in range(0, n, COLUMNS):
        width = min(COLUMNS, n - j)
        panel = at(b, j // COLUMNS * b_panel)
        i = 0
        while i < m:
            left = m - i
            size = SMALL if ROWS < left <= 2 * SMALL else min(left, ROWS)
            row, step = (1, size) if packed else (a_row, a_k)
            first = at(a, i * a_row + k0 * step)
            to, old, add = at(c, i * c_row + j), at(sums, i * sums_row + j), at(residual, i * residual_row + j)
            bias, columns_j = at(rows, i * rows_step), at(columns, j)
            if width > VECTOR:
                if size > SMALL:
                    wide(first, row, step, panel, b_k, k, to, c_row, size, width, old, sums_row, bias,
                         rows_step, columns_j, add, residual_row, scalars, flags)
                else:
                    wide_small(first, row, step, panel, b_k, k, to, c_row, size, width, old, sums_row, bias,
                               rows_step, columns_j, add, residual_row, scalars, flags)
            elif size > SMALL:
                narrow(first, row, step, panel, b_k, k, to, c_row, size, width, old, sums_row, bias,
                       rows_step, columns_j, add, residual_row, scalars, flags)
            else:
                narrow_small(first, row, step, panel, b_k, k, to, c_row, size, width, old, sums_row, bias,
                             rows_step, columns_j, add, residual_row, scalars, flags)
            i += size
"""

_TILE = """\
@njit(error_model="numpy", boundscheck=False, inline="never")
def {name}(a, a_row, a_k, b, b_k, k, c, c_row, m, n, sums, sums_row, rows, rows_step, columns,
           residual, residual_row, scalars, flags):
    _{name}(a, a_row, a_k, b, b_k, k, c, c_row, m, n, sums, sums_row, rows, rows_step, columns,
            residual, residual_row, scalars, flags)

"""


def product_source(dtype: str, lanes: int) -> str:
    """The text that defines `product` for `lanes` float32 in a register."""
    rows, small, vectors, unroll = SHAPES[lanes]
    vector = lanes_of(dtype, lanes)
    names = ("wide", "wide_small", "narrow", "narrow_small")
    return _PRODUCT.format(
        dtype=dtype,
        vector=vector,
        rows=rows,
        small=small,
        columns=vectors * vector,
        unroll=unroll,
        tiles="\n".join(_TILE.format(name=name) for name in names),
    )


_MATMUL = '''
@njit(error_model="numpy", boundscheck=False)
def pack(b, b_row, b_column, k, n, out, out_row):
    """out[p * out_row + j] = b[p * b_row + j * b_column]."""
    if b_column == 1:
        for p in range(k):
            copy(at(out, p * out_row), at(b, p * b_row), 0, n, n)
    else:
        for p in range(k):
            for j in range(n):
                out[p * out_row + j] = b[p * b_row + j * b_column]


def kernel(a, b, y, row_bias, column_bias, residual, scalars, offsets, work,
           batches, m, n, k, a_row, a_k, b_packed, b_row, b_column, rows_step, residual_row,
           block_m, block_n, block_k, packed_row, sums_size, work_step, flags, begin, end, thread):
    blocks_m, blocks_n = (m + block_m - 1) // block_m, (n + block_n - 1) // block_n
    chunks = max((k + block_k - 1) // block_k, 1)
    mine = at(work, thread * work_step)
    panels = at(mine, sums_size)
    for unit in range(begin, end):
        i = unit % blocks_m * block_m
        j = unit // blocks_m % blocks_n * block_n
        batch = unit // (blocks_m * blocks_n)
        rows, width = min(block_m, m - i), min(block_n, n - j)
        first = at(a, offsets[3 * batch] + i * a_row)
        whole = at(b, offsets[3 * batch + 1])
        place = batch * m * n + i * n + j
        extra = at(residual, offsets[3 * batch + 2] + i * residual_row + j)
        for chunk in range(chunks):
            k0 = chunk * block_k
            depth = min(block_k, k - k0)
            if b_packed:
                panel, b_k, b_panel = at(whole, j * k + k0 * COLUMNS), COLUMNS, k * COLUMNS
            elif b_column == 1 and width % COLUMNS == 0 and rows <= 2 * ROWS:
                panel, b_k, b_panel = at(whole, k0 * b_row + j), b_row, COLUMNS
            else:
                pack(at(whole, k0 * b_row + j * b_column), b_row, b_column, depth, width, panels, packed_row)
                panel, b_k, b_panel = panels, packed_row, COLUMNS
            last = chunk == chunks - 1
            f = (flags if last else 0) | (ACCUMULATE if chunk > 0 else 0)
            to, step = (at(y, place), n) if last else (mine, block_n)
            product(first, False, a_row, a_k, k0, panel, b_k, b_panel, depth, to, step, rows, width,
                    mine, block_n, at(row_bias, i * rows_step), rows_step, at(column_bias, j),
                    extra, residual_row, scalars, f)
'''


def emit(dtype: str, lanes: int) -> str:
    """The module of a matrix product: kernel(a, b, y, ...), see `_MATMUL` for the arguments.

    a, b, y: T, batches of matrices at `offsets` (int64[batches, 3]: of a, b, residual; elements).
    a: m rows, `a_row` and `a_k` apart; b: constant panels (`tiles.pack_columns`) when b_packed, else
    element (k, n) at k * b_row + n * b_column; y: [batches, m, n].
    Units are blocks of m (fastest), n and batch; `work` is per thread.
    """
    head = "from app.kernels.cpu.generator import ACCUMULATE\n"
    copy = f'copy = copier("{dtype}", {lanes_of(dtype, lanes)}, 1)\n'
    return head + product_source(dtype, lanes) + copy + _MATMUL
