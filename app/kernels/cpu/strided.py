"""Strided copies: y[y0 + Σ i·sy] = x[x0 + Σ i·sx] over a box of indices, by element size.

Transpose, Slice, Concat, Split, Expand, Tile and their kin are all this one loop nest with other
strides. The caller merges axes and hands over two inner axes as numbers and the outer ones as
`table: int64[rank, 3]` rows (size, sx, sy), outermost first. Strides count elements and may be
zero or negative for x. x and y must not overlap.
"""

import llvmlite.ir as ll
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.vectors import alternating, evens, load, store

LANES = 16  # elements of a vector


def _count(function):
    """Intrinsic that is a number known at compile time, by the type of the elements."""

    @intrinsic
    def count(_context, x):
        def generate(_context, _builder, _signature, _values):
            return ll.Constant(ll.IntType(64), function(x))

        return types.int64(x), generate

    return count


WIDE, NARROW = 32, 16  # bytes of the vectors of a copy: stores of 64 mostly touch two lines of the cache
LONG = 4096  # bytes from which the C library copies, which knows the sizes of caches
PAGE = 4096  # bytes
REPEATED = 512  # elements written in one copy of what repeats a short row: less than a vector of WIDE bytes


def _mover(nbytes):
    """Intrinsic that copies so many bytes: (y, y0, x, x0)."""

    @intrinsic
    def move(_context, y, y0, x, x0):
        def generate(_context, builder, _signature, values):
            kind = ll.VectorType(ll.IntType(8), nbytes)
            align = max(x.dtype.bitwidth // 8, 1)
            source, target = (_vector_at(builder, values[i], values[i + 1], kind) for i in (2, 0))
            builder.store(builder.load(source, align=align), target, align=align)
            return _context.get_dummy_value()

        return types.void(y, types.int64, x, types.int64), generate

    return move


_move_wide, _move_narrow = _mover(WIDE), _mover(NARROW)
_wide = _count(lambda x: 8 * WIDE // x.dtype.bitwidth)
_narrow = _count(lambda x: 8 * NARROW // x.dtype.bitwidth)


_long = _count(lambda x: 8 * LONG // x.dtype.bitwidth)


@intrinsic
def _move_long(_context, y, y0, x, x0, n):
    """Copy n elements by the C library."""

    def generate(context, builder, _signature, values):
        target, start_y, source, start_x, count = values
        ends = builder.gep(target, [start_y]), builder.gep(source, [start_x])
        cgutils.raw_memcpy(builder, *ends, count, max(x.dtype.bitwidth // 8, 1))
        return context.get_dummy_value()

    return types.void(y, types.int64, x, types.int64, types.int64), generate


@intrinsic
def _distance(_context, y, y0, x, x0):
    """Bytes from a source to its target."""

    def generate(_context, builder, _signature, values):
        target, start_y, source, start_x = values
        places = builder.gep(target, [start_y]), builder.gep(source, [start_x])
        return builder.sub(*(builder.ptrtoint(place, start_y.type) for place in places))

    return types.int64(y, types.int64, x, types.int64), generate


@njit
def copy(y, y0, x, x0, n):
    """y[y0 + i] = x[x0 + i] for i < n, of memory that does not overlap, or is the same.

    The last vector overlaps the one before. The string instruction of the C library takes 10 times as long
    on Zen 4 where the target begins 1 to 63 bytes after the source, but for whole pages.
    """
    wide, narrow, distance = _wide(x), _narrow(x), _distance(y, y0, x, x0)
    if distance == 0:
        return
    if n >= _long(x) and (distance - 1) & (PAGE - 1) >= 63:
        _move_long(y, y0, x, x0, n)
    elif n >= wide:
        for i in range(0, n - wide, wide):
            _move_wide(y, y0 + i, x, x0 + i)
        _move_wide(y, y0 + n - wide, x, x0 + n - wide)
    elif n >= narrow:
        for i in range(0, n - narrow, narrow):
            _move_narrow(y, y0 + i, x, x0 + i)
        _move_narrow(y, y0 + n - narrow, x, x0 + n - narrow)
    else:
        for i in range(n):
            y[y0 + i] = x[x0 + i]


def line(x, y, x0, y0, sx, sy, begin, end):
    """One axis. Units are elements."""
    if sx == 1 and sy == 1:
        copy(y, y0 + begin, x, x0 + begin, end - begin)
    elif sx == 0 and sy == 1:
        value = x[x0]
        for i in range(begin, end):
            y[y0 + i] = value
    elif sy == 1 and sx > 1:
        thinned(x, x0 + begin * sx, sx, y, y0 + begin, end - begin)
    else:
        for i in range(begin, end):
            y[y0 + i * sy] = x[x0 + i * sx]


@njit
def thinned(x, x0, step, y, y0, n):
    """y[y0 + i] = x[x0 + i · step] for i < n; vectors stay within what is copied."""
    done = 0
    if step == 2:
        while done + LANES < n:
            low = load(x, x0 + 2 * done, LANES)
            store(y, y0 + done, evens(low, load(x, x0 + 2 * done + LANES, LANES)))
            done += LANES
        for i in range(done, n):
            y[y0 + i] = x[x0 + 2 * i]
    elif step == 3:
        for i in range(n):  # a stride that is known becomes shuffles
            y[y0 + i] = x[x0 + 3 * i]
    elif step == 4:
        for i in range(n):
            y[y0 + i] = x[x0 + 4 * i]
    else:
        for i in range(n):
            y[y0 + i] = x[x0 + step * i]


@njit
def doubled(x, x0, y, y0, n):
    """Each element of x twice: y[y0 + 2 i] = y[y0 + 2 i + 1] = x[x0 + i], i < n; the last vector overlaps."""
    if n < LANES:
        for i in range(n):
            y[y0 + 2 * i] = x[x0 + i]
            y[y0 + 2 * i + 1] = x[x0 + i]
        return
    for i in range(0, n - LANES, LANES):
        v = load(x, x0 + i, LANES)
        store(y, y0 + 2 * i, alternating(v, v))
    v = load(x, x0 + n - LANES, LANES)
    store(y, y0 + 2 * (n - LANES), alternating(v, v))


@njit
def _repeat(y, y0, x, x0, n, times):
    """The elements x[x0] to x[x0 + n], so many times from y[y0] on; what is written is copied in turn."""
    copy(y, y0, x, x0, n)
    done = n
    while done < n * times:
        size = min(done, n * times - done, REPEATED // n * 8 * n)
        copy(y, y0 + done, y, y0, size)
        done += size


@njit
def _start(table, rank, rest, x0, y0):
    """Where the part of number `rest` of a copy begins in x and in y."""
    for axis in range(rank - 1, 0, -1):
        n = table[3 * axis]
        before = rest // n
        i = rest - before * n
        rest = before
        x0 += i * table[3 * axis + 1]
        y0 += i * table[3 * axis + 2]
    return x0 + rest * table[1], y0 + rest * table[2]


def rows(x, y, table, rank, x0, y0, n1, sx1, sy1, n0, sx0, sy0, begin, end):
    """Outer axes by `table`, then axis 1, then axis 0 innermost. Units are rows: outer · n1."""
    part = begin // n1
    first = begin - part * n1
    left = end - begin
    while left > 0:
        last = min(n1, first + left)
        xb, yb = _start(table, rank, part, x0, y0)
        if sx0 == 1 and sy0 == 1 and sx1 == 0 and sy1 == n0 and 0 < n0 < _wide(x):
            _repeat(y, yb + first * n0, x, xb, n0, last - first)
        elif sx0 == 1 and sy0 == 1:
            for r in range(first, last):
                copy(y, yb + r * sy1, x, xb + r * sx1, n0)
        elif sx0 == 0 and sy0 == 1:
            for r in range(first, last):
                value = x[xb + r * sx1]
                yr = yb + r * sy1
                for i in range(n0):
                    y[yr + i] = value
        elif sy0 == 1 and sx0 > 1:
            for r in range(first, last):
                thinned(x, xb + r * sx1, sx0, y, yb + r * sy1, n0)
        else:
            for r in range(first, last):
                xr = xb + r * sx1
                yr = yb + r * sy1
                for i in range(n0):
                    y[yr + i * sy0] = x[xr + i * sx0]
        left -= last - first
        part += 1
        first = 0


def transpose(x, y, table, rank, x0, y0, n1, sy1, n0, sx0, block, begin, end):
    """Outer axes by `table`, then a matrix: y[a·sy1 + b] = x[a + b·sx0], a < n1, b < n0.

    Square tiles go through registers; the last ones overlap those before them. n1 and n0 are no less than
    the extent of a tile. Units are blocks of rows of y: outer · ceil(n1 / block).
    """
    tile = _tile_extent(x)
    blocks = (n1 + block - 1) // block
    for unit in range(begin, end):
        a0 = unit % blocks * block
        xb, yb = _start(table, rank, unit // blocks, x0, y0)
        last = min(a0 + block, n1)
        wide = _tile_width(x)
        for b0 in range(0, n0, tile):
            b = min(b0, n0 - tile)
            a = a0
            while a + wide <= last:
                _transpose_tiles(x, xb + a + b * sx0, sx0, y, yb + a * sy1 + b, sy1, tile, wide)
                a += wide
            while a < last:
                a = min(a, n1 - tile)
                _transpose_tile(x, xb + a + b * sx0, sx0, y, yb + a * sy1 + b, sy1, tile, tile)
                a += tile


def transpose_few(x, y, table, rank, x0, y0, n1, sy1, n0, sx0, block, begin, end):
    """As `transpose`, where n1 or n0 is less than the extent of a tile and its rows lie without gaps.

    Rows of a tile are read or written whole where elements follow that are read, or written again, by the
    rows after them. Units are blocks of the longer side.
    """
    tile = _tile_extent(x)
    blocks = (max(n1, n0) + block - 1) // block
    for unit in range(begin, end):
        low = unit % blocks * block
        high = min(low + block, max(n1, n0))
        xb, yb = _start(table, rank, unit // blocks, x0, y0)
        if n1 >= n0:
            while (low + tile - 1) * n0 + tile <= high * n0:
                _transpose_tile(x, xb + low, sx0, y, yb + low * n0, n0, n0, tile)
                low += tile
            for a in range(low, high):
                for b in range(n0):
                    y[yb + a * sy1 + b] = x[xb + a + b * sx0]
        else:
            while low + tile <= high and (low + tile - 1) * n1 + tile <= n0 * n1:
                _transpose_tile(x, xb + low * n1, n1, y, yb + low, sy1, tile, n1)
                low += tile
            for a in range(n1):
                for b in range(low, high):
                    y[yb + a * sy1 + b] = x[xb + a + b * sx0]


_PLANES = """\
from app.kernels.cpu.strided import _start, {move}


def kernel(x, y, table, rank, x0, y0, n, stride, block, begin, end):
    blocks = (n + block - 1) // block
    for unit in range(begin, end):
        i = unit % blocks * block
        last = min(i + block, n)
        xb, yb = _start(table, rank, unit // blocks, x0, y0)
        while i + {lanes} <= last:
            {move}(x, xb + {x_at}, y, yb + {y_at}, stride, {count}, {lanes})
            i += {lanes}
        while i < last:
            for c in range({count}):
                y[yb + {y_one}] = x[xb + {x_one}]
            i += 1
"""


def planes(count: int, lanes: int, joined: bool) -> str:
    """Source of a kernel that joins a few planes to pixels, or pixels to planes.

    Joined: y[i · count + c] = x[c · stride + i], else y[c · stride + i] = x[i · count + c], for i < n. Units
    are blocks of pixels.
    """
    pixel, plane = f"i * {count}", "i"
    pixel_one, plane_one = f"i * {count} + c", "i + c * stride"
    return _PLANES.format(
        move="join_planes" if joined else "part_planes",
        count=count,
        lanes=lanes,
        x_at=plane if joined else pixel,
        y_at=pixel if joined else plane,
        x_one=plane_one if joined else pixel_one,
        y_one=pixel_one if joined else plane_one,
    )


def _vector_at(builder, base, offset, kind):
    return builder.bitcast(builder.gep(base, [offset]), kind.as_pointer())


def _joined(builder, vectors):
    """One vector of the lanes of all, filled up to a power of two of them."""
    while len(vectors) > 1:
        vectors = vectors if len(vectors) % 2 == 0 else [*vectors, vectors[-1]]
        mask = _constant(list(range(2 * vectors[0].type.count)))
        vectors = [builder.shuffle_vector(a, b, mask) for a, b in zip(vectors[::2], vectors[1::2])]
    return vectors[0]


@intrinsic(prefer_literal=True)
def join_planes(_context, x, x0, y, y0, stride, count, lanes):
    """y[y0 + i · count + c] = x[x0 + c · stride + i] for i < lanes."""
    many, width = count.literal_value, lanes.literal_value

    def generate(context, builder, _signature, values):
        source, start_x, target, start_y, step, *_ = values
        element, nbytes = context.get_data_type(x.dtype), x.dtype.bitwidth // 8
        kind = ll.VectorType(element, width)
        rows = [
            builder.load(
                _vector_at(
                    builder, source, builder.add(start_x, builder.mul(step, ll.Constant(step.type, c))), kind
                ),
                align=nbytes,
                typ=kind,
            )
            for c in range(many)
        ]
        every = [i % many * width + i // many for i in range(many * width)]
        whole = _joined(builder, rows)
        pixels = builder.shuffle_vector(whole, whole, _constant(every))
        builder.store(pixels, _vector_at(builder, target, start_y, pixels.type), align=nbytes)
        return context.get_dummy_value()

    return types.void(x, types.int64, y, types.int64, types.int64, count, lanes), generate


@intrinsic(prefer_literal=True)
def part_planes(_context, x, x0, y, y0, stride, count, lanes):
    """y[y0 + c · stride + i] = x[x0 + i · count + c] for i < lanes."""
    many, width = count.literal_value, lanes.literal_value

    def generate(context, builder, _signature, values):
        source, start_x, target, start_y, step, *_ = values
        element, nbytes = context.get_data_type(x.dtype), x.dtype.bitwidth // 8
        kind = ll.VectorType(element, many * width)
        pixels = builder.load(_vector_at(builder, source, start_x, kind), align=nbytes, typ=kind)
        for c in range(many):
            plane = builder.shuffle_vector(pixels, pixels, _constant([i * many + c for i in range(width)]))
            at = builder.add(start_y, builder.mul(step, ll.Constant(step.type, c)))
            builder.store(plane, _vector_at(builder, target, at, plane.type), align=nbytes)
        return context.get_dummy_value()

    return types.void(x, types.int64, y, types.int64, types.int64, count, lanes), generate


def _extent(pointer):
    """Rows and columns of a register tile: 128 or 256 bits a row."""
    return {8: 16, 16: 16, 32: 8, 64: 4}[pointer.dtype.bitwidth]


def _width(pointer):
    """Elements of a register of tiles side by side: 256 bits, one tile at least."""
    return max(256 // pointer.dtype.bitwidth, _extent(pointer))


_tile_extent = _count(_extent)
_tile_width = _count(_width)


def _tiles(width_of):
    """Intrinsic that transposes the tiles side by side in a register, so many elements in all.

    y[y0 + a·sy + b] = x[x0 + a + b·sx] for a < rows, at most all, and b < columns, at most a tile's extent.
    Where there are fewer columns, other elements are written after those of a row. Rows are written in turn.

    A butterfly network: stage s swaps the off-diagonal s×s blocks of every 2s×2s block, which
    takes one shuffle a row.
    """

    @intrinsic
    def transpose_tiles(_context, x, x0, sx, y, y0, sy, columns, rows):
        extent, width = _extent(x), width_of(x)

        def generate(context, builder, _signature, values):
            source, start_x, stride_x, target, start_y, stride_y, columns, rows = values
            element = context.get_data_type(x.dtype)
            nbytes = x.dtype.bitwidth // 8

            def place(base, start, stride, row, lanes):
                at = builder.add(start, builder.mul(stride, row))
                return _vector_at(builder, base, at, ll.VectorType(element, lanes))

            last = builder.sub(columns, ll.Constant(columns.type, 1))
            tile = []
            for i in range(extent):
                row = ll.Constant(last.type, i)
                row = builder.select(builder.icmp_signed("<", row, last), row, last)
                tile.append(builder.load(place(source, start_x, stride_x, row, width), align=nbytes))
            for i, row in enumerate(_butterfly(builder, tile, extent)):
                for first in range(0, width, extent):
                    number = ll.Constant(rows.type, first + i)
                    lanes = _constant([first + j for j in range(extent)])
                    with builder.if_then(builder.icmp_signed("<", number, rows)):
                        part = builder.shuffle_vector(row, row, lanes)
                        builder.store(part, place(target, start_y, stride_y, number, extent), align=nbytes)
            return context.get_dummy_value()

        return types.void(x, *[types.int64] * 2, y, *[types.int64] * 4), generate

    return transpose_tiles


_transpose_tile = _tiles(_extent)
_transpose_tiles = _tiles(_width)


def _constant(lanes):
    return ll.Constant(ll.VectorType(ll.IntType(32), len(lanes)), lanes)


def _butterfly(builder, tile, extent):
    """The transposed tiles of `extent` rows, in the same registers."""
    every = range(tile[0].type.count)
    step = extent // 2
    while step:
        swapped = list(tile)
        for row in range(extent):
            if not row & step:
                pair = tile[row], tile[row + step]
                first = [i if not i & step else len(every) + i - step for i in every]
                second = [i + step if not i & step else len(every) + i for i in every]
                swapped[row] = builder.shuffle_vector(*pair, _constant(first))
                swapped[row + step] = builder.shuffle_vector(*pair, _constant(second))
        tile = swapped
        step //= 2
    return tile
