"""Matrix products: C = A B over blocks that stay in cache, register tiles inside.

The loops follow Goto and van de Geijn, 2008, "Anatomy of high-performance matrix
multiplication": a k x columns panel of B in the first cache, a block of A in the second.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from app.kernels.cpu import matrix_tiles
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.intrinsics import muladd
from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import (
    FIXED_POINT,
    HALF_RIGHTS,
    LINE,
    SCALED_PAIRS,
    SHAPES,
    TILED_BFLOATS,
    Shapes,
    element,
    lanes_of,
    panel_sizes,
    right_bytes,
    right_element,
    shapes_of,
    symbol,
)
from app.kernels.cpu.epilogue import ALONG, FIXED, run_library
from app.kernels.cpu.extrema import like
from app.kernels.cpu.sums import dot
from app.kernels.expressions import Recipe


class Stream(NamedTuple):
    """How one row streams the second operand."""

    panels: int  # at once
    ahead: int  # elements, that it asks for; 0 for not at all
    level: int  # of the cache, that it asks for them into
    unroll: int


# By float32 lanes. With 16 registers two panels are what the sums leave room for, and prefetches compete with
# those of the hardware (Zen 3). A core of Sapphire Rapids reads 10.0 GB/s in two streams, 11.2 in four, 12.0
# in four that ask 4 KB ahead.
STREAMS: Mapping[int, Stream] = {8: Stream(2, 0, 2, 2), 16: Stream(4, 1024, 2, 2)}
# Fixed point takes more instructions for each cache line, so fewer loads are under way unless they are asked
# for 6 KB ahead into the first cache: 37 GB/s of memory, not 31, on a core of Zen 5, in any number of them.
FIXED_STREAMS: Mapping[int, Stream] = {8: Stream(2, 1536, 1, 1), 16: Stream(1, 1536, 1, 1)}

# Defines `product` and its tiles. `a` holds rows `a_row` apart with elements `a_k` apart, or, when
# `packed`, one [k][rows] panel for each group of rows; k0 is where this chunk of the reduction begins.
# A ragged tile is computed whole into `spare` (T[ROWS * COLUMNS]) and finished by plain loops.
_PRODUCT = """\
from numba import types
from app.kernels.cpu.codegen.generator import at, stream_tile, tile
from app.kernels.cpu.codegen.linking import shared
from app.kernels.cpu.codegen.memory import pointer
from app.kernels.cpu.ragged import finish

T, B, N = types.CPointer(types.{element}), pointer("{right}"), types.int64
VECTOR, ROWS, SMALL, COLUMNS, PART = {vector}, {rows}, {small}, {columns}, {part}
STEP, TAIL = {sizes}  # right elements of a step of a panel and after its last, see `tiles.panel_sizes`
wide = tile("{dtype}", VECTOR, ROWS, COLUMNS // VECTOR, {unroll}, lines={wide_lines})
MAIN = f"tile_{symbol}_{{ROWS}}x{{COLUMNS // VECTOR}}x{{VECTOR}}"  # takes nearly all the time
small = tile("{dtype}", VECTOR, SMALL, COLUMNS // VECTOR, {unroll}, lines={small_lines})
narrow = tile("{dtype}", VECTOR, ROWS, 1, {unroll}, 1, PART)
# A single row streams b, from memory more often than not.
single = tile("{dtype}", VECTOR, 1, COLUMNS // VECTOR, 4, 2)
STREAMS, AHEAD, LEVEL, UNROLL = {stream}
stream = stream_tile("{dtype}", VECTOR, COLUMNS // VECTOR, STREAMS, AHEAD, LEVEL, UNROLL)
LEFT = 1024  # elements of a that are asked for ahead
NEAR, FAR = 16, 64  # steps ahead that are prefetched where rows of b lie apart, and where b streams


@shared(types.void(T, N, N, N, N, B, N, N, N, T, N, N, N, T, T, N, T, N, T, T, N, T, N))
def product(a, packed, a_row, a_k, k0, b, b_k, b_panel, k, c, c_row, m, n, spare,
            sums, sums_row, rows, rows_step, columns, residual, residual_row, scalars, flags):
    # Where panels are contiguous, the rows of one share the prefetching of the next.
    ahead_k = b_k
    if b_k == STEP and m > ROWS:
        ahead_k = (STEP * ROWS + m - 1) // m
    done = 0
    if m == 1 and b_k == STEP:
        step = 1 if packed else a_k
        for j in range(0, n - STREAMS * COLUMNS + 1, STREAMS * COLUMNS):
            stream(at(a, k0 * step), step, at(b, j // COLUMNS * b_panel), b_k, b_panel, k, at(c, j),
                   at(sums, j), rows, at(columns, j), at(residual, j), scalars, flags)
            done = j + STREAMS * COLUMNS
    for j in range(done, n, COLUMNS):
        width = min(COLUMNS, n - j)
        panel = at(b, j // COLUMNS * b_panel)
        i = 0
        while i < m:
            left = m - i
            size = SMALL if ROWS < left <= 2 * SMALL else min(left, ROWS)
            row, step = (1, size) if packed else (a_row, a_k)
            first = at(a, i * a_row + k0 * step)
            to, old = at(c, i * c_row + j), at(sums, i * sums_row + j)
            add = at(residual, i * residual_row + j)
            bias, columns_j = at(rows, i * rows_step), at(columns, j)
            ahead, step_ahead = at(panel, b_k * (FAR if size == 1 else NEAR)), ahead_k
            if ahead_k != b_k:
                ahead = at(panel, b_panel + STEP * k * i // m)
{left}            narrow_ = width <= VECTOR and (COLUMNS > VECTOR or PART > 0)
            if narrow_:  # a tile of ROWS rows
                whole = width == (PART or VECTOR) and size == ROWS
            else:
                whole = width == COLUMNS and (size == ROWS or size == SMALL or size == 1)
            target, target_row = (to, c_row) if whole else (spare, VECTOR if narrow_ else COLUMNS)
            f = flags if whole else 0
            if narrow_:
                narrow(first, row, step, size, panel, b_k, k, ahead, step_ahead, target, target_row,
                       old, sums_row, bias, rows_step, columns_j, add, residual_row, scalars, f)
            elif size == 1:
                single(first, row, step, size, panel, b_k, k, ahead, step_ahead, target, target_row,
                       old, sums_row, bias, rows_step, columns_j, add, residual_row, scalars, f)
            elif size > SMALL:
                wide(first, row, step, size, panel, b_k, k, ahead, step_ahead, target, target_row,
                     old, sums_row, bias, rows_step, columns_j, add, residual_row, scalars, f)
            else:
                small(first, row, step, size, panel, b_k, k, ahead, step_ahead, target, target_row,
                      old, sums_row, bias, rows_step, columns_j, add, residual_row, scalars, f)
            if not whole:
                finish(spare, target_row, to, c_row, size, width, old, sums_row, bias, rows_step,
                       columns_j, add, residual_row, scalars, flags)
            i += size
"""

# Panels of rows lie in the order of use: the first columns take them from further away than what they are
# multiplied by, and a tile has as many steps left as it takes to get them. Broadcasts of 4 byte alone do not
# have the hardware look ahead: F(2,3) in int16 of 512 x 7 x 7, 8 MB of weights, 3.5 ms and 1.5 so (a core of
# Sapphire Rapids).
_LEFT = """\
            if packed and j == 0:
                ahead, step_ahead = at(first, LEFT), size
"""


def _lines(dtype: str, lanes: int, columns: int) -> tuple[int, int]:
    """Cache lines that a step of the tiles of many and of few rows asks for.

    Few rows stream the second operand. With 32 registers a step takes three lines; the hardware alone keeps
    up with them in some processes and not in others: 21 or 33 microseconds for 4 x 1024 x 256 (Zen 4). With
    16 registers a step takes one line, and prefetches beside those of the hardware cost a tenth.
    """
    if dtype == FIXED_POINT:
        return 1, 1
    line = panel_sizes(dtype, columns)[0] * right_bytes(dtype) // LINE
    return (max(line, 1), max(line, 1)) if lanes > 8 else (1, 0)


def product_library(dtype: str, lanes: int, shapes: Shapes = SHAPES, part: int = 0) -> tuple[str, ...]:
    """Defines `product` for `lanes` float32 in a register, and ROWS, COLUMNS of its tiles.

    All columns of a result are `part`, less than a vector, where that is not 0.

    The texts differ in how far loops are unrolled, the one that is best where it was measured first.
    """
    rows, small, vectors, unroll = shapes[lanes]
    vector = lanes_of(dtype, lanes)
    stream = (FIXED_STREAMS if dtype == FIXED_POINT else STREAMS)[16 if lanes > 8 else 8]
    if dtype in HALF_RIGHTS:
        stream = stream._replace(ahead=2 * stream.ahead)
    wide_lines, small_lines = _lines(dtype, lanes, vectors * vector)
    return tuple(
        _PRODUCT.format(
            dtype=dtype,
            element=element(dtype),
            right=right_element(dtype),
            symbol=symbol(dtype),
            vector=vector,
            rows=rows,
            small=small,
            columns=vectors * vector,
            sizes=panel_sizes(dtype, vectors * vector),
            stream=tuple(stream),
            unroll=times,
            part=part,
            wide_lines=wide_lines,
            small_lines=small_lines,
            left=_LEFT if element(dtype) == right_element(dtype) else "",
        )
        for times in dict.fromkeys((unroll, 4, 2, 1))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmSizes(SizeTable):
    """Sizes of a matrix product."""

    m: int
    n: int
    k: int
    a_row: int  # distances in elements
    a_k: int
    b_packed: int  # b is panels of columns (`tiles.pack_columns`)
    b_row: int
    b_column: int
    rows_step: int
    residual_row: int
    by_rows: int  # blocks of the same rows follow one another, else those of the same columns
    block_m: int
    block_n: int
    block_k: int
    packed_row: int
    sums_size: int
    spare_size: int
    work_step: int  # elements of workspace per thread
    flags: int


def dot_products(a, b, y, offsets, m, k, a_row, block, begin, end):
    """y[batch, i] = a[batch, i, :] b[batch, :], rows times vectors.

    a: rows of k elements, `a_row` apart; b: k elements; offsets: int64[batches, 2]: of a and b; y:
    T[batches, m]. Units are blocks of `block` rows of a product.
    """
    blocks = (m + block - 1) // block
    for unit in range(begin, end):
        batch, first = unit // blocks, unit % blocks * block
        vector = at(b, offsets[2 * batch + 1])
        for i in range(first, min(first + block, m)):
            y[batch * m + i] = dot(at(a, offsets[2 * batch] + i * a_row), vector, k)


def row_products(a, b, y, offsets, k, n, a_k, b_row, width, begin, end):
    """y[batch, :] = a[batch, :] b[batch, :, :], rows times matrices.

    a: k elements, `a_k` apart; b: [k, n], rows `b_row` apart; offsets: int64[batches, 2]: of a and b; y:
    T[batches, n]. Rows of b are read once, eight side by side, and their sum waits in y, in the first cache.
    Units are blocks of `width` columns of a product.
    """
    blocks = (n + width - 1) // width
    for unit in range(begin, end):
        batch, column = unit // blocks, unit % blocks * width
        count = min(width, n - column)
        out = batch * n + column
        s = offsets[2 * batch]
        t = offsets[2 * batch + 1] + column
        for j in range(count):
            y[out + j] = like(y[0], 0)
        done = k // 8 * 8
        for _ in range(0, done, 8):
            x0, x1, x2, x3 = a[s], a[s + a_k], a[s + 2 * a_k], a[s + 3 * a_k]
            x4, x5, x6, x7 = a[s + 4 * a_k], a[s + 5 * a_k], a[s + 6 * a_k], a[s + 7 * a_k]
            for j in range(count):
                i = t + j
                v = muladd(x0, b[i], y[out + j])
                v = muladd(x1, b[i + b_row], v)
                v = muladd(x2, b[i + 2 * b_row], v)
                v = muladd(x3, b[i + 3 * b_row], v)
                v = muladd(x4, b[i + 4 * b_row], v)
                v = muladd(x5, b[i + 5 * b_row], v)
                v = muladd(x6, b[i + 6 * b_row], v)
                y[out + j] = muladd(x7, b[i + 7 * b_row], v)
            s += 8 * a_k
            t += 8 * b_row
        for _ in range(done, k):
            x0 = a[s]
            for j in range(count):
                y[out + j] = muladd(x0, b[t + j], y[out + j])
            s += a_k
            t += b_row


# Where operands of a recipe begin for row r of the block: by their name, the offset.
PLACES = {"same": "place + r * n", "channel": "j", "row": "batch * m + i + r", "scalar": "0"}

# Tiles of a second operand whose columns are contiguous.
_TURNED = """\
    elif b_row == 1 and k >= LANES:
        for j in range(0, n, LANES):
            for p in range(0, k, LANES):
                q = min(p, k - LANES)  # the last tile overlaps the one before
                turn(at(b, q + j * b_column), b_column, at(out, q * out_row + j), out_row, min(n - j, LANES))\
"""

_PACK = """
@njit(error_model="numpy", boundscheck=False)
def pack(b, b_row, b_column, k, n, out, out_row):
    # out[p * out_row + j] = b[p * b_row + j * b_column]
    if b_column == 1:
        for p in range(k):
            copy(at(out, p * out_row), at(b, p * b_row), 0, n, n)
{turned}
    else:
        for p in range(k):
            for j in range(n):
                out[p * out_row + j] = b[p * b_row + j * b_column]
"""

_MATMUL = """

def kernel(a, b, y, row_bias, column_bias, residual, scalars, offsets, sizes, work{operands},
           begin, end, thread):
    {unpack}
    blocks_m, blocks_n = (m + block_m - 1) // block_m, (n + block_n - 1) // block_n
    chunks = max((k + block_k - 1) // block_k, 1)
    mine = at(work, thread * work_step)
    spare = at(mine, sums_size)
    panels = at(spare, spare_size)
    for unit in range(begin, end):
        i, j = unit % blocks_m * block_m, unit // blocks_m % blocks_n * block_n
        if by_rows:
            i, j = unit // blocks_n % blocks_m * block_m, unit % blocks_n * block_n
        batch = unit // (blocks_m * blocks_n)
        rows, width = min(block_m, m - i), min(block_n, n - j)
        first = at(a, offsets[3 * batch] + i * a_row)
        whole = at(b, offsets[3 * batch + 1])
        place = batch * m * n + i * n + j
        extra = at(residual, offsets[3 * batch + 2] + i * residual_row + j)
        for chunk in range(chunks):
            k0 = chunk * block_k
            depth = min(block_k, k - k0)
            if {packed}:
                b_k, b_panel = STEP, k * STEP + {tails}TAIL
                panel = at(whole, j // COLUMNS * b_panel + k0 * STEP{behind})
{unpacked}
            last = chunk == chunks - 1
            f = (flags if last else 0) | (ACCUMULATE if chunk > 0 else 0)
            to, step = (at(y, place), n) if last and {direct} else (mine, block_n)
            product(first, False, a_row, a_k, k0{scales}, panel, b_k, b_panel, depth, to, step, rows, width,
                    spare, mine, block_n, at(row_bias, i * rows_step), rows_step, at(column_bias, j),
                    extra, residual_row, scalars, f)
{finish}
"""

# Of a second operand that lies as it came.
_UNPACKED = """\
            elif b_column == 1 and width % COLUMNS == 0 and rows <= 2 * ROWS:
                panel, b_k, b_panel = at(whole, k0 * b_row + j), b_row, COLUMNS
            else:
                pack(at(whole, k0 * b_row + j * b_column), b_row, b_column, depth, width, panels, packed_row)
                panel, b_k, b_panel = panels, packed_row, COLUMNS\
"""

_RUNS = """\
        for r in range(rows):
            run(at(mine, r * block_n), 1, at(y, place + r * n), 1, width, scalars[0], residual, scalars, 0,
                spare{places})
"""


def emit(
    dtype: str,
    lanes: int,
    recipe: Recipe = (),
    operands: tuple[tuple[str, str], ...] = (),
    vectors: int = 3,
    part: int = 0,
) -> Sources:
    """The module of a matrix product.

    a, b, y: T, batches of matrices at `offsets` (int64[batches, 3]: of a, b, residual; elements).
    a: m rows, `a_row` and `a_k` apart; b: constant panels when b_packed, else element (k, n) at
    k * b_row + n * b_column; y: [batches, m, n]; row_bias, column_bias, residual, scalars: see
    `generator.tile`; sizes: GemmSizes; work: per thread; then the operands of the recipe.
    Units are blocks of m (fastest; with `by_rows` second), n and batch.

    Args:
        dtype: T; of what a and b hold and k counts (`tiles.FLOAT_PAIRS`, `tiles.FIXED_POINT`) where T is
            float32; of T and what b holds (`tiles.HALF_RIGHTS`). Of `tiles.SCALED_PAIRS` each chunk of a
            row of a is followed by its scale.
        lanes: float32 in a register.
        recipe: what follows the tile's own epilogue.
        operands: (place, element type) of the recipe's inputs after the first; see PLACES.
        vectors: of the columns of a tile.
        part: all columns of y, if they are less than a vector, else 0.
    """
    places = "".join(f", at(x{i}, {PLACES[place]})" for i, (place, _) in enumerate(operands))
    scaled = dtype == SCALED_PAIRS  # in chunks, each with scales behind it
    offline = scaled or dtype == FIXED_POINT or dtype in HALF_RIGHTS  # b is always panels
    turned = _TURNED if lanes_of(dtype, lanes) % 4 == 0 else ""
    kernel = ("" if offline else _PACK.format(turned=turned)) + _MATMUL.format(
        unpack=GemmSizes.unpack(),
        operands="".join(f", x{i}" for i in range(len(operands))),
        direct=not recipe,
        packed="True" if offline else "b_packed",
        unpacked="" if offline else _UNPACKED,
        tails="chunks * " if scaled else "",
        behind=" + chunk * TAIL" if scaled else "",
        scales=" + chunk" if scaled else "",
        finish=_RUNS.format(places=places) if recipe else "",
    )
    head = (
        "from app.kernels.cpu.codegen.inner import njit\n"
        "from app.kernels.cpu.copies import copier, turner\n"
        "from app.kernels.cpu.codegen.generator import at\n"
        "from app.kernels.cpu.codegen.tiles import ACCUMULATE\n"
        "from LIBRARY0 import COLUMNS, ROWS, STEP, TAIL, product\n"
        f"LANES = {lanes_of(dtype, lanes)}\n"
        f'copy = copier("{element(dtype)}", LANES, 1)\n'
        + (f'turn = turner("{element(dtype)}", LANES)\n' if turned else "")
    )
    advances = tuple((FIXED if place in ("row", "scalar") else ALONG, kind) for place, kind in operands)
    tiled = dtype == TILED_BFLOATS
    shapes = shapes_of(dtype, vectors)
    library = matrix_tiles.rows_library() if tiled else product_library(dtype, lanes, shapes, part)
    if not recipe:
        return library, head + kernel
    runs = "from LIBRARY1 import run\n"
    run = run_library(element(dtype), recipe, advances)
    return library, run, head + runs + kernel
