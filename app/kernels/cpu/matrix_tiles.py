"""Products of bfloat16 by the tile registers of AMX: 16 x 32 times 32 x 16, summed in float32.

A step of a reduction multiplies 16 pairs of each of 16 or 32 rows with a panel of 16 pairs of each of up
to three vectors of columns. Rows lie in memory at equal distances; a tile always has 16 of them, of which
those that nobody asked for hold anything and are dropped: no sum takes from another row. Sums go through a
buffer in the first cache, from where vectors take them through the epilogue.

Panels are those of the other kernels of pairs (`tiles.pack_columns`, `tiles.pack_blocks`), of a multiple of
16 pairs. The state of the tiles is a thread's own and dear to keep: a product configures them and gives
them back. The operating system has to permit their use, see `app.engine.types.target`.

Source: Intel Architecture Instruction Set Extensions, AMX (ldtilecfg, tdpbf16ps).
"""

from typing import Any

import llvmlite.ir as ll
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from app.kernels.cpu.codegen.generator import Epilogue, outlined
from app.kernels.cpu.codegen.instructions import I8, I32, Vectors, choose, number, repeat, typed
from app.kernels.cpu.codegen.tiles import CLAMP, COLUMN_BIAS, HIGH, LOW, RESIDUAL

ROWS = 16  # of a tile register; as many pairs are a step
LANES = 16  # columns of a tile register
REGISTERS = 8
SUMS = 2 * ROWS * LANES  # of one vector of columns in the buffer: two tiles, rows one after the other
BEHIND = 2 * ROWS  # rows from the last that is asked for on, which must be there to be read
# Cache lines of the next panel that a step asks for, where its panel meets up to SHORT rows, and more: all
# that comes from memory should come while it is multiplied with, and no faster than memory gives.
LINES, FEW, SHORT = 16, 4, 6 * ROWS

_SCALAR = types.CPointer(types.float32)
_SIZE, _TABLE = types.int64, types.CPointer(types.int64)
# Palette 1; first row 0; then for each register the bytes of a row, and its rows.
_SHAPE = bytes([1]) + bytes(15) + bytes([64, 0]) * 8 + bytes(16) + bytes([ROWS]) * 8 + bytes(8)


def instruction(builder: Any, name: str, *arguments: Any) -> None:
    """An instruction of x86 by the name of its intrinsic."""
    kind = ll.FunctionType(ll.VoidType(), [a.type for a in arguments])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), arguments)


def flat(builder: Any, pointer: Any) -> Any:
    """The same address, of bytes."""
    return builder.bitcast(pointer, I8.as_pointer())


@intrinsic
def configure(_context):
    """Give this thread the tile registers, all of 16 rows of 64 bytes."""

    def generate(context, builder, _signature, _values):
        shape = ll.Constant(ll.ArrayType(I8, len(_SHAPE)), bytearray(_SHAPE))
        place = cgutils.global_constant(builder.module, "tile_shape", shape)
        place.align = 64
        instruction(builder, "ldtilecfg", flat(builder, place))
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def release(_context):
    """Give the tile registers back: the system saves and restores those that are in use."""

    def generate(context, builder, _signature, _values):
        instruction(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


def buffer(columns: int) -> Any:
    """An intrinsic: the address of a buffer of this frame, for the sums of so many vectors of columns."""

    def generate(_context, builder, _signature, _values):
        place = cgutils.alloca_once(builder, ll.ArrayType(ll.FloatType(), columns * SUMS))
        place.align = 64
        return builder.bitcast(place, ll.FloatType().as_pointer())

    return typed(_SCALAR(), generate)


@intrinsic
def origin(_context):
    """A table of one offset, 0: the taps of a product without any."""

    def generate(_context, builder, _signature, _values):
        return cgutils.global_constant(builder.module, "origin", number(0))

    return _TABLE(), generate


def tiles_product(rows: int, columns: int, lines: int) -> Any:
    """An intrinsic that multiplies `rows` tiles of rows with `columns` vectors of columns.

    It is called as
        product(a, a_row, taps, tap_count, blocks, block_step, panel, ahead, sums)
    and makes sums[j * SUMS + r * LANES + l], for r < 16 * rows, j < columns, l < 16, the sum over taps t,
    c < 16 * blocks and both halves of pairs of
    a[r * a_row + taps[t] + c // 16 * block_step + c % 16] * panel[t][c][j * LANES + l].
    Each step asks for the next cache lines from `ahead` on, which need not be valid.

    Args:
        rows: 1 or 2.
        columns: 1 to 3.
        lines: that a step asks for.
    """
    signature = types.void(
        _SCALAR, _SIZE, _TABLE, _SIZE, _SIZE, _SIZE, _SCALAR, _SCALAR, _SCALAR
    )  # fmt: skip
    cells = rows * columns
    spare = REGISTERS - cells
    # Registers of the left and right operands: one for each where there are so many.
    own_left = min(rows, spare - 1)
    own_right = min(columns, spare - own_left)

    def write(b: Any, values: Any) -> None:
        a, a_row, taps, tap_count, blocks, block_step, panel, ahead, sums = values
        v = Vectors(b, "float32", LANES)

        def tile(index: int) -> Any:
            return ll.Constant(I8, index)

        def prefetch(pointer: Any) -> None:
            kind = ll.FunctionType(ll.VoidType(), [I8.as_pointer(), I32, I32, I32])
            function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
            b.call(function, [flat(b, pointer), *(ll.Constant(I32, i) for i in (0, 2, 1))])

        stride, panel_stride = b.mul(a_row, number(4)), number(columns * LANES * 4)
        starts = [v.at(a, b.mul(a_row, number(r * ROWS))) for r in range(rows)]

        def block(state: list[Any]) -> list[Any]:
            index, right, asked = state
            loaded: dict[int, int] = {}  # column that a register holds
            for line in range(lines):
                prefetch(v.at(asked, line * LANES))
            for r in range(rows):
                left = cells + r % own_left
                place = flat(b, v.at(starts[r], index))
                instruction(b, "tileloadd64", tile(left), place, stride)
                # Back and forth, so that an operand whose register another one will take is used twice.
                for j in range(columns) if r % 2 == 0 else reversed(range(columns)):
                    register = cells + own_left + j % own_right
                    if loaded.get(register) != j:
                        place = flat(b, v.at(right, j * LANES))
                        instruction(b, "tileloadd64", tile(register), place, panel_stride)
                        loaded[register] = j
                    instruction(b, "tdpbf16ps", *map(tile, (r * columns + j, left, register)))
            step = ROWS * columns * LANES
            return [b.add(index, block_step), v.at(right, step), v.at(asked, lines * LANES)]

        def tap(state: list[Any]) -> list[Any]:
            place, right, asked = state
            _, right, asked = repeat(b, blocks, [b.load(place), right, asked], block)
            return [v.at(place, 1), right, asked]

        for cell in range(cells):
            instruction(b, "tilezero", tile(cell))
        repeat(b, tap_count, [taps, panel, ahead], tap)
        for r in range(rows):
            for j in range(columns):
                place = flat(b, v.at(sums, j * SUMS + r * ROWS * LANES))
                instruction(b, "tilestored64", tile(r * columns + j), place, number(LANES * 4))
        b.ret_void()

    return typed(signature, outlined(f"tiles_{rows}x{columns}_{lines}", write))


def pixels_finish(columns: int, spacing: int, unroll: int = 4) -> Any:
    """An intrinsic that takes sums of pixels through the epilogue of a convolution.

    It is called as
        finish(sums, pixels, first, n, y, y_row, y_block, bias, residual, scalars, flags)
    and makes y[i * y_row + j * y_block + l], for i < n, j < columns, l < 16, what
    `nchwc_tile.pixels_tile` makes of sums[j * SUMS + (pixels[i] - first) // spacing * 16 + l]; see there.
    """
    signature = types.void(
        _SCALAR, _TABLE, _SIZE, _SIZE, _SCALAR, _SIZE, _SIZE, _SCALAR, _SCALAR, _SCALAR, _SIZE
    )  # fmt: skip

    def write(b: Any, values: Any) -> None:
        sums, pixels, first, n, y, y_row, y_block, bias, residual, scalars, flags = values
        v = Vectors(b, "float32", LANES)

        def has(flag: int) -> Any:
            return b.icmp_unsigned("!=", b.and_(flags, number(flag)), number(0))

        def limit(place: int, without: float) -> Any:
            asked = v.broadcast(v.at(scalars, place))
            return b.select(has(CLAMP), asked, ll.Constant(v.type, [without] * LANES))

        low, high = limit(LOW, float("-inf")), limit(HIGH, float("inf"))
        added = [v.zero] * columns
        added = choose(b, has(COLUMN_BIAS), added, lambda j, _: v.load(v.at(bias, j * LANES)))
        adds = has(RESIDUAL)

        def some(times: int) -> Any:
            def body(state: list[Any]) -> list[Any]:
                place, to, add = state
                found, places = [], []
                for i in range(times):
                    tile_row = b.sdiv(b.sub(b.load(v.at(place, i)), first), number(spacing), flags=["exact"])
                    row = v.at(sums, b.mul(tile_row, number(LANES)))
                    for j in range(columns):
                        found.append(v.add(v.load(v.at(row, j * SUMS)), added[j]))
                        places.append(b.add(b.mul(number(i), y_row), b.mul(number(j), y_block)))
                found = choose(b, adds, found, lambda c, u: v.add(u, v.load(v.at(add, places[c]))))
                for u, at in zip(found, places):
                    v.store(v.clamp(u, low, high), v.at(to, at))
                step = b.mul(number(times), y_row)
                return [v.at(place, times), v.at(to, step), v.at(add, step)]

            return body

        state = repeat(b, b.sdiv(n, number(unroll)), [pixels, y, residual], some(unroll))
        repeat(b, b.srem(n, number(unroll)), state, some(1))
        b.ret_void()

    return typed(signature, outlined(f"finish_{columns}", write))


_PIXELS = """\
from numba import types
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.linking import shared
from app.kernels.cpu.matrix_tiles import (
    FEW, LANES, LINES, ROWS, SHORT, buffer, configure, pixels_finish, release, tiles_product,
)

T, N, I = types.CPointer(types.float32), types.int64, types.CPointer(types.int64)
COLUMNS, SPACING = {columns}, {spacing}
MAIN = "tiles_"  # takes nearly all the time
two, one, sums_of = tiles_product(2, COLUMNS, LINES), tiles_product(1, COLUMNS, LINES), buffer(COLUMNS)
two_few, one_few = tiles_product(2, COLUMNS, FEW), tiles_product(1, COLUMNS, FEW)
finish = pixels_finish(COLUMNS, SPACING)


@shared(types.void(T, I, N, I, N, N, N, N, T, N, T, N, N, T, T, T, N))
def product(x, pixels, n, taps, tap_count, blocks, block_step, _tail, weights, following, y, y_row, y_block,
            bias, residual, scalars, flags):
    # `nchwc_tile.pixels_tile` for n pixels. Those of a line of the strip are neighbors, and so are its
    # lines: a tile has 32 pixels from the first one that is left, of which some are padding.
    configure()
    sums = sums_of()
    steps = tap_count * blocks
    lines = LINES if n <= SHORT else FEW
    i = asked = 0  # asked: lines of the next panel for each step
    while i < n:
        first = pixels[i]
        end = i + 2 * ROWS
        if end > n or pixels[end - 1] - first >= 2 * ROWS * SPACING:
            end = i + 1
            while end < n and pixels[end] - first < 2 * ROWS * SPACING:
                end += 1
        ahead = at(weights, following + asked * steps * LANES if asked < ROWS * COLUMNS else 0)
        place, single = at(x, first), pixels[end - 1] - first < ROWS * SPACING
        if lines == FEW and single:
            one_few(place, SPACING, taps, tap_count, blocks, block_step, weights, ahead, sums)
        elif lines == FEW:
            two_few(place, SPACING, taps, tap_count, blocks, block_step, weights, ahead, sums)
        elif single:
            one(place, SPACING, taps, tap_count, blocks, block_step, weights, ahead, sums)
        else:
            two(place, SPACING, taps, tap_count, blocks, block_step, weights, ahead, sums)
        finish(sums, at(pixels, i), first, end - i, at(y, i * y_row), y_row, y_block, bias,
               at(residual, i * y_row), scalars, flags)
        i = end
        asked += lines
    release()
"""


def pixels_library(columns: int, spacing: int = LANES) -> str:
    """Defines the `product` of `nchwc_conv` over a strip of pairs, for tiles of so many vectors.

    `_tail` is 0. What neighboring output pixels read lies `spacing` pairs apart; lines lie a multiple of that
    apart. As much as up to 31 pixels behind the last would read is read.
    """
    return _PIXELS.format(columns=columns, spacing=spacing)


def rows_finish(columns: int, unroll: int = 4) -> Any:
    """An intrinsic that takes sums of rows through the epilogue of a matrix product.

    It is called as
        finish(found, m, c, c_row,
               sums, sums_row, row_bias, row_bias_step, column_bias, residual, residual_row, scalars, flags)
    and makes c[i * c_row + 16 * j + l], for i < m, j < columns, l < 16, what `generator.tile` makes of
    found[j * SUMS + 16 * i + l]; see there.
    """
    signature = types.void(
        _SCALAR, _SIZE, _SCALAR, _SIZE,
        _SCALAR, _SIZE, _SCALAR, _SIZE, _SCALAR, _SCALAR, _SIZE, _SCALAR, _SIZE,
    )  # fmt: skip

    def write(b: Any, values: Any) -> None:
        (found, m, c, c_row, sums, sums_row, row_bias, row_bias_step, column_bias, residual,
         residual_row, scalars, flags) = values  # fmt: skip
        v = Vectors(b, "float32", LANES)
        # Addresses that advance, by how much a row.
        steps = number(LANES), c_row, sums_row, row_bias_step, residual_row

        def some(times: int) -> Any:
            places = [(i, j * LANES) for i in range(times) for j in range(columns)]

            def body(state: list[Any]) -> list[Any]:
                row, to, old, bias, add = state
                epilogue = Epilogue(
                    old, sums_row, bias, row_bias_step, column_bias, add, residual_row, scalars, flags
                )
                values = [v.load(v.at(row, i * LANES + j // LANES * SUMS)) for i, j in places]
                for u, (i, j) in zip(epilogue.apply(v, values, places), places):
                    v.store(u, v.at(v.at(to, b.mul(number(i), c_row)), j))
                return [v.at(p, b.mul(number(times), step)) for p, step in zip(state, steps)]

            return body

        state = [found, c, sums, row_bias, residual]
        state = repeat(b, b.sdiv(m, number(unroll)), state, some(unroll))
        repeat(b, b.srem(m, number(unroll)), state, some(1))
        b.ret_void()

    return typed(signature, outlined(f"rows_finish_{columns}", write))


_ROWS = """\
from numba import types
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.linking import shared
from app.kernels.cpu.matrix_tiles import (
    FEW, LANES, LINES, SHORT, buffer, configure, origin, release, rows_finish, tiles_product,
)
from app.kernels.cpu.ragged import finish

T, N = types.CPointer(types.float32), types.int64
ROWS, COLUMNS = 32, 32
STEP, TAIL = COLUMNS, 0
MAIN = "tiles_"  # takes nearly all the time
two, one, sums_of = tiles_product(2, 2, LINES), tiles_product(1, 2, LINES), buffer(2)
two_few, one_few = tiles_product(2, 2, FEW), tiles_product(1, 2, FEW)
finish_whole = rows_finish(2)


@shared(types.void(T, N, N, N, N, T, N, N, N, T, N, N, N, T, T, N, T, N, T, T, N, T, N))
def product(a, _packed, a_row, _a_k, k0, b, _b_k, b_panel, k, c, c_row, m, n, spare,
            sums, sums_row, rows, rows_step, columns, residual, residual_row, scalars, flags):
    configure()
    found, nowhere = sums_of(), origin()
    steps, lines = k // LANES, LINES if m <= SHORT else FEW
    for j in range(0, n, COLUMNS):
        panel, width = at(b, j // COLUMNS * b_panel), min(COLUMNS, n - j)
        for i in range(0, m, ROWS):
            count, first = min(ROWS, m - i), at(a, i * a_row + k0)
            asked = i // ROWS * lines  # of the next panel, for each step
            ahead = at(panel, b_panel + asked * steps * LANES if asked < ROWS else 0)
            single = count <= ROWS // 2
            if lines == FEW and single:
                one_few(first, a_row, nowhere, 1, steps, LANES, panel, ahead, found)
            elif lines == FEW:
                two_few(first, a_row, nowhere, 1, steps, LANES, panel, ahead, found)
            elif single:
                one(first, a_row, nowhere, 1, steps, LANES, panel, ahead, found)
            else:
                two(first, a_row, nowhere, 1, steps, LANES, panel, ahead, found)
            to, old = at(c, i * c_row + j), at(sums, i * sums_row + j)
            add, bias, columns_j = at(residual, i * residual_row + j), at(rows, i * rows_step), at(columns, j)
            if width == COLUMNS:
                finish_whole(found, count, to, c_row, old, sums_row, bias, rows_step, columns_j, add,
                             residual_row, scalars, flags)
            else:
                finish_whole(found, count, spare, COLUMNS, old, sums_row, bias, rows_step, columns_j, add,
                             residual_row, scalars, 0)
                finish(spare, COLUMNS, to, c_row, count, width, old, sums_row, bias, rows_step,
                       columns_j, add, residual_row, scalars, flags)
    release()
"""


def rows_library() -> str:
    """Defines the `product` of `gemm`, and ROWS, COLUMNS of its tiles.

    Rows of `a` are pairs side by side and lie an even number of them apart, up to 31 rows behind the last
    are read; `b` is packed; k counts pairs, a multiple of 16.
    """
    return _ROWS
