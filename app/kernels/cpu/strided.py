"""Strided copies: y[y0 + Σ i·sy] = x[x0 + Σ i·sx] over a box of indices, by element size.

Transpose, Slice, Concat, Split, Expand, Tile and their kin are all this one loop nest with other
strides. The caller merges axes and hands over two inner axes as numbers and the outer ones as
`table: int64[rank, 3]` rows (size, sx, sy), outermost first. Strides count elements and may be
zero or negative for x. x and y must not overlap.
"""

import llvmlite.ir as ll
from numba import types
from numba.extending import intrinsic

from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.vectors import evens, load, store

LANES = 16  # elements of a vector


def line(x, y, x0, y0, sx, sy, begin, end):
    """One axis. Units are elements."""
    if sx == 1 and sy == 1:
        for i in range(begin, end):
            y[y0 + i] = x[x0 + i]
    elif sx == 0 and sy == 1:
        value = x[x0]
        for i in range(begin, end):
            y[y0 + i] = value
    elif sy == 1 and (sx == 2 or sx == 3):
        _thinned(x, x0 + begin * sx, sx, y, y0 + begin, end - begin)
    else:
        for i in range(begin, end):
            y[y0 + i * sy] = x[x0 + i * sx]


@njit
def _thinned(x, x0, step, y, y0, n):
    """Every second or third element of x, by loads of vectors that stay within what is copied."""
    done = 0
    if step == 2:
        while done + LANES < n:
            low = load(x, x0 + 2 * done, LANES)
            store(y, y0 + done, evens(low, load(x, x0 + 2 * done + LANES, LANES)))
            done += LANES
        for i in range(done, n):
            y[y0 + i] = x[x0 + 2 * i]
    else:
        for i in range(n):  # a stride that is known becomes shuffles
            y[y0 + i] = x[x0 + 3 * i]


def rows(x, y, table, rank, x0, y0, n1, sx1, sy1, n0, sx0, sy0, begin, end):
    """Outer axes by `table`, then axis 1, then axis 0 innermost. Units are rows: outer · n1."""
    unit = begin
    while unit < end:
        rest = unit // n1
        first = unit - rest * n1
        last = min(n1, first + end - unit)
        unit += last - first
        xb = x0
        yb = y0
        for axis in range(rank - 1, -1, -1):
            n = table[3 * axis]
            i = rest % n
            rest = rest // n
            xb += i * table[3 * axis + 1]
            yb += i * table[3 * axis + 2]
        if sx0 == 1 and sy0 == 1:
            for r in range(first, last):
                xr = xb + r * sx1
                yr = yb + r * sy1
                for i in range(n0):
                    y[yr + i] = x[xr + i]
        elif sx0 == 0 and sy0 == 1:
            for r in range(first, last):
                value = x[xb + r * sx1]
                yr = yb + r * sy1
                for i in range(n0):
                    y[yr + i] = value
        elif sy0 == 1 and (sx0 == 2 or sx0 == 3):
            for r in range(first, last):
                _thinned(x, xb + r * sx1, sx0, y, yb + r * sy1, n0)
        else:
            for r in range(first, last):
                xr = xb + r * sx1
                yr = yb + r * sy1
                for i in range(n0):
                    y[yr + i * sy0] = x[xr + i * sx0]


def transpose(x, y, table, rank, x0, y0, n1, sy1, n0, sx0, block, begin, end):
    """Outer axes by `table`, then a matrix: y[a·sy1 + b] = x[a + b·sx0], a < n1, b < n0.

    Square tiles go through registers. Units are blocks of rows of y: outer · ceil(n1 / block).
    """
    tile = _tile_extent(x)
    blocks = (n1 + block - 1) // block
    for unit in range(begin, end):
        rest = unit // blocks
        a0 = (unit - rest * blocks) * block
        a1 = min(a0 + block, n1)
        xb = x0
        yb = y0
        for axis in range(rank - 1, -1, -1):
            n = table[3 * axis]
            i = rest % n
            rest = rest // n
            xb += i * table[3 * axis + 1]
            yb += i * table[3 * axis + 2]
        full = a0 + (a1 - a0) // tile * tile
        b0 = 0
        while b0 + tile <= n0:
            for a in range(a0, full, tile):
                _transpose_tile(x, xb + a + b0 * sx0, sx0, y, yb + a * sy1 + b0, sy1)
            b0 += tile
        for a in range(full, a1):
            for b in range(b0):
                y[yb + a * sy1 + b] = x[xb + a + b * sx0]
        for b in range(b0, n0):
            for a in range(a0, a1):
                y[yb + a * sy1 + b] = x[xb + a + b * sx0]


def _extent(pointer):
    """Rows and columns of a register tile: 128 or 256 bits a row."""
    return {8: 16, 16: 8, 32: 8, 64: 4}[pointer.dtype.bitwidth]


@intrinsic
def _tile_extent(_context, x):
    """Rows and columns of the square tile that `_transpose_tile` moves, known at compile time."""
    extent = _extent(x)

    def generate(_context, _builder, _signature, _values):
        return ll.Constant(ll.IntType(64), extent)

    return types.int64(x), generate


@intrinsic
def _transpose_tile(_context, x, x0, sx, y, y0, sy):
    """y[y0 + a·sy + b] = x[x0 + a + b·sx] for a, b below the tile's extent.

    A butterfly network: stage s swaps the off-diagonal s×s blocks of every 2s×2s block, which
    takes one shuffle a row.
    """
    extent = _extent(x)

    def generate(context, builder, _signature, values):
        source, start_x, stride_x, target, start_y, stride_y = values
        element = context.get_data_type(x.dtype)
        nbytes = x.dtype.bitwidth // 8
        vector = ll.VectorType(element, extent)
        index = ll.VectorType(ll.IntType(32), extent)

        def place(base, start, stride, row):
            offset = builder.add(start, builder.mul(stride, ll.Constant(start.type, row)))
            return builder.bitcast(builder.gep(base, [offset]), vector.as_pointer())

        tile = [
            builder.load(place(source, start_x, stride_x, row), align=nbytes, typ=vector)
            for row in range(extent)
        ]
        step = extent // 2
        while step:
            swapped = list(tile)
            for row in range(extent):
                if not row & step:
                    low, high = tile[row], tile[row + step]
                    first = [i if not i & step else extent + i - step for i in range(extent)]
                    second = [i + step if not i & step else extent + i for i in range(extent)]
                    swapped[row] = builder.shuffle_vector(low, high, ll.Constant(index, first))
                    swapped[row + step] = builder.shuffle_vector(low, high, ll.Constant(index, second))
            tile = swapped
            step //= 2
        for row in range(extent):
            builder.store(tile[row], place(target, start_y, stride_y, row), align=nbytes)
        return context.get_dummy_value()

    return types.void(x, x0, sx, y, y0, sy), generate
