"""Winograd convolutions F(m x m, r x r) over channel-blocked images: F(2, 3), F(4, 3) and F(2, 5).

An n x n tile of the input (n = m + r - 1) becomes n * n sums of its pixels, one vector of channels
each; a matrix product over the channels for each of them; and m x m output pixels are sums of
the products. A block of tiles goes through the three steps while it stays in the second cache.

With products of bfloat16 (`tiles.BFLOAT_PAIRS`) the sums of pixels and the weights are rounded, pairs of
channels in one element; the products and what follows stay float32. Weights may also lie in fixed point
(`tiles.FIXED_POINT`), which are float32 again in registers.

Source: Lavin and Gray, 2015, "Fast algorithms for convolutional neural networks"; arXiv:1509.09308.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils

from app.kernels.cpu.codegen.generator import outlined
from app.kernels.cpu.codegen.instructions import Vectors, number, repeat, typed
from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import (
    BFLOAT_PAIRS,
    FIXED_POINT,
    FIXED_STEPS,
    pack_bfloats,
    pack_fixed,
    panel_sizes,
)
from app.kernels.cpu.epilogue import lanes_run_library
from app.kernels.cpu.winograd_transforms import tiles_of
from app.kernels.expressions import Recipe

Array = np.ndarray[Any, Any]

# Rows of the register tiles with 2 vectors of columns, or 1, and of the one with 3, for odd numbers of
# blocks; by float32 lanes of a register, of which there are 16, and 32 of the widest. Above 10 rows their
# addresses take all scalar registers, and compiled for Zen 4 12 rows keep 36 to 60 vectors on the stack.
ROWS: dict[int, tuple[tuple[int, ...], int]] = {4: ((4, 5, 6), 4), 8: ((4, 5, 6), 4), 16: ((4, 6, 8, 10), 8)}
# The same of weights in fixed point, which take three registers more for a vector of columns: 10 rows, or 5
# with 3 vectors, keep 4 vectors on the stack.
FIXED_ROWS: dict[int, tuple[tuple[int, ...], int]] = {4: ((2, 4), 2), 8: ((2, 4), 2), 16: ((4, 6, 8), 4)}

LINE = 16  # elements of a cache line


@dataclass(frozen=True, slots=True, kw_only=True)
class WinogradSizes(SizeTable):
    """Sizes of a Winograd convolution."""

    channels: int  # of the input, or pairs of them, or fours
    blocks: int  # of channels, of the input
    filters: int  # blocks of channels of the output
    h: int
    w: int
    rows: int  # of the output
    columns: int
    top: int  # padding
    left: int
    high: int  # tiles in a column and in a row of an image
    wide: int
    tiles: int  # of the batch
    parts: int  # blocks of tiles
    groups: int  # of output channels that a register tile computes
    v_row: int  # distances in elements
    v_plane: int
    m_plane: int
    m_size: int
    work_step: int  # elements of workspace per thread
    flags: int


def product_tiles(lanes: int, rows: int, vectors: int, unroll: int = 2, dtype: str = "float32") -> Any:
    """An intrinsic for tiles of `rows` x `vectors * lanes` elements of a product, one below another.

    It is called as
        multiply(a, a_row, b, k, c, step, count, before)
    and computes, for i < count, rows i * step to i * step + rows of c, `vectors * lanes` elements
    apart, from the same rows of a, a_row apart with k elements each, and b, which is
    [k][vectors * lanes]; in fixed point k counts fours, and b is as `tiles.pack_fixed` has it. The matrix
    that lies after b, which is needed next and comes from the third cache or from memory, is asked for
    meanwhile, every other cache line by one tile: `before` counts those that went before on the same b.
    """
    address, size = types.CPointer(types.float32), types.int64
    signature = types.void(address, size, address, size, address, size, size, size)
    width = vectors * lanes

    def write(builder, values):
        a, a_row, b, k, c, step, count, earlier = values
        v = Vectors(builder, dtype, lanes)
        words, tail = panel_sizes(dtype, width)

        def steps(starts: Sequence[Any], ahead: Any, turns: int) -> Any:
            def body(state: list[Any]) -> list[Any]:
                p, *sums = state
                asked = v.at(v.at(b, ahead), builder.mul(p, number(words)))
                for line in range(0, turns * words, 2 * LINE):
                    v.prefetch(v.at(asked, line), level=2)
                for turn in range(turns):
                    q = builder.add(p, number(turn))
                    panel = v.at(b, builder.mul(q, number(words)))
                    columns = [v.load_steps(v.right(panel, j * lanes)) for j in range(vectors)]
                    first = builder.mul(q, number(v.together))
                    for t, r in itertools.product(range(v.together), range(rows)):
                        x = v.broadcast(v.at(v.at(starts[r], first), t))
                        for j in range(vectors):
                            sums[r * vectors + j] = v.dot(x, columns[j][t], sums[r * vectors + j])
                return [builder.add(p, number(turns)), *sums]

            return body

        with cgutils.for_range(builder, count) as loop:
            place = builder.mul(loop.index, step)
            first = v.at(a, builder.mul(place, a_row))
            starts = [v.at(first, builder.mul(a_row, number(r))) for r in range(rows)]
            length = builder.mul(k, number(words))
            odd = builder.and_(builder.add(earlier, loop.index), number(1))
            ahead = builder.add(builder.add(length, number(tail)), builder.mul(odd, number(LINE)))
            state = [number(0), *[v.zero] * (rows * vectors)]
            state = repeat(builder, builder.sdiv(k, number(unroll)), state, steps(starts, ahead, unroll))
            _, *sums = repeat(builder, builder.srem(k, number(unroll)), state, steps(starts, ahead, 1))
            sums = v.scale(sums, v.at(b, length), vectors)
            target = v.at(c, builder.mul(place, number(width)))
            for i, x in enumerate(sums):
                v.store(x, v.at(target, i * lanes))
        builder.ret_void()

    return typed(signature, outlined(f"product_{rows}x{vectors}x{lanes}", write))


_LIBRARY = """\
from numba import types
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.linking import shared
from app.kernels.cpu.winograd import product_tiles
from app.kernels.cpu.winograd_transforms import input_tile, output_tile

T, N = types.CPointer(types.float32), types.int64
M, TILE, LANES = {m}, {n}, {lanes}
WORDS, TAIL = {panel}  # elements of a column of weights: of a step, and of what follows the last
STEP = {step}  # elements of a block of channels in v
LINE = max(16 // STEP, 1)  # blocks whose vectors share a cache line
input_transform = input_tile(LANES, TILE, "{dtype}")
output_transform = output_tile(LANES, M, TILE)
{tiles}


@shared(types.void(T, N, N, N, N, N, N, N, N, N, N, N, T, N, N, T, T))
def transform_input(x, blocks, h, w, top, left, high, wide, begin, end, first, last, v, v_row, v_plane,
                    zeros, buffer):
    # Tiles begin..end of blocks first..last to v[TILE * TILE][end - begin][channels, or pairs of them].
    image, i, j = begin // (high * wide), begin // wide % high, begin % wide
    for tile in range(end - begin):
        row, column = i * M - top, j * M - left
        r0, r1 = max(-row, 0), min(h - row, TILE)
        c0, c1 = max(-column, 0), min(w - column, TILE)
        for block in range(first, last):
            source = at(x, (((image * blocks + block) * h + row) * w + column) * LANES)
            input_transform(source, w * LANES, r0, r1, c0, c1, zeros, buffer,
                            at(v, tile * v_row + block * STEP), v_plane)
        j += 1
        if j == wide:
            i, j = i + 1, 0
        if i == high:
            image, i = image + 1, 0


@shared(types.void(T, N, N, T, N, N, N, T, N))
def multiply(v, v_row, v_plane, weights, channels, vectors, count, sums, m_plane):
    # count rows of TILE * TILE products with [channels][vectors * LANES] matrices. Tiles differ by one step
    # of their numbers of rows, so that all but the last compute rows that there are.
    most, step = ({broad}, 1) if vectors == 3 else ({largest}, {between})
    steps = (count + step - 1) // step
    parts = (count + most - 1) // most
    size = steps // parts * step
    larger = steps - steps // parts * parts
    for point in range(TILE * TILE):
        a, b = at(v, point * v_plane), at(weights, point * (channels * WORDS + TAIL) * vectors * LANES)
        c = at(sums, point * m_plane)
        for turn in range(2):
            # One call: numba would compile the tiles for each.
            rows, tiles = size + (0 if turn else step), parts - larger if turn else larger
            if tiles:
                choose(rows, vectors, a, v_row, b, channels, c, tiles, turn * larger)
            a, c = at(a, tiles * rows * v_row), at(c, tiles * rows * vectors * LANES)


@shared(types.void(T, N, N, N, N, N, N, N, T, T, T, T, N, T))
def transform_output(sums, sums_row, m_plane, begin, end, rows, columns, wide, bias, scalars, residual, y,
                     flags, buffer):
    # Tiles begin..end, which lie in one row of tiles whose first pixel is y[0].
    first = begin % wide
    for tile in range(end - begin):
        column = (first + tile) * M
        place = column * LANES
        output_transform(at(sums, tile * sums_row), m_plane, buffer, bias, scalars, at(residual, place),
                         at(y, place), columns * LANES, rows, min(M, columns - column), flags)
"""

_KERNEL = """\
from app.kernels.cpu.codegen.generator import at
from LIBRARY0 import LANES, LINE, M, TAIL, TILE, WORDS, multiply, transform_input, transform_output
{imports}

def kernel(x, weights, y, bias, residual, scalars, sizes, work{operands}, begin, end, thread):
    {unpack}
    sums = at(work, thread * work_step)
    zeros = at(sums, m_size)
    buffer = at(zeros, TILE * LANES)
    v = at(buffer, {buffer})
    for i in range(TILE * LANES):
        zeros[i] = 0
    current = -1
    for unit in range(begin, end):
        part, group = unit // groups, unit % groups
        low, high_ = part * tiles // parts, (part + 1) * tiles // parts
        if part != current:
            current = part
            for block in range(0, blocks, LINE):
                transform_input(x, blocks, h, w, top, left, high, wide, low, high_, block,
                                min(block + LINE, blocks), v, v_row, v_plane, zeros, buffer)
        own = filters - 2 * group
        vectors = own if own == 3 else min(own, 2)
        matrices = at(weights, group * TILE * TILE * (channels * WORDS + TAIL) * 2 * LANES)
        multiply(v, v_row, v_plane, matrices, channels, vectors, high_ - low, sums, m_plane)
        for i in range(vectors):
            block = 2 * group + i
            tile = low
            while tile < high_:
                stop = min(tile - tile % wide + wide, high_)
                plane = tile // (high * wide) * filters + block
                row = tile // wide % high * M
                count = min(M, rows - row)
                start = (plane * rows + row) * columns * LANES
                transform_output(at(sums, ((tile - low) * vectors + i) * LANES), vectors * LANES, m_plane,
                                 tile, stop, count, columns, wide, at(bias, block * LANES), scalars,
                                 at(residual, start), at(y, start), flags, buffer)
{finish}
                tile = stop
"""

_RUN = """\
                column = tile % wide * M
                n = (min((stop - 1) % wide * M + M, columns) - column) * LANES
                for r in range(count):
                    place = start + (r * columns + column) * LANES
                    run(at(y, place), n, buffer{places})
"""


def emit(
    lanes: int,
    m: int,
    taps: int,
    filters: int,
    buffer: int,
    recipe: Recipe = (),
    operands: tuple[tuple[str, str], ...] = (),
    dtype: str = "float32",
) -> Sources:
    """The module of a Winograd convolution over images with blocks of `lanes` channels.

    x: float32[batch, blocks, h, w, lanes]; weights: see `packed`; y, residual: float32[batch,
    filters, rows, columns, lanes], may be the same; bias: float32[filters * lanes]; scalars:
    float32[4], see `tiles`; sizes: WinogradSizes; work: per thread; then the operands of the
    recipe. Units are groups of output channels (fastest) of blocks of tiles.

    Args:
        lanes: float32 in a register, and channels in a block.
        m: rows and columns of a tile of the output.
        taps: rows and columns of a filter.
        filters: blocks of output channels that tiles are for: 1, or 2 for any larger number.
        buffer: elements of scratch for tiles and for the recipe.
        recipe: what follows bias, residual and limits.
        operands: (how it advances, its offset in terms of place, block and plane) of each of the
            recipe's inputs after the first.
        dtype: of what is multiplied: of pairs of channels, of which there is an even number, or of fours, or
            float32.
    """
    library = library_text(lanes, m, taps, filters, dtype)
    places = "".join(f", at(x{i}, {offset})" for i, (_, offset) in enumerate(operands))
    kernel = _KERNEL.format(
        imports="from LIBRARY1 import run\n" if recipe else "",
        unpack=WinogradSizes.unpack(),
        operands="".join(f", x{i}" for i in range(len(operands))),
        buffer=buffer,
        finish=_RUN.format(places=places) if recipe else "",
    )
    if not recipe:
        return library, kernel
    advances = tuple((way, "float32") for way, _ in operands)
    return library, lanes_run_library("float32", lanes, recipe, advances), kernel


def library_text(lanes: int, m: int, taps: int, filters: int, dtype: str) -> str:
    """Defines the transforms and products of tiles; arguments are those of `emit`."""
    sizes, broad = rows_of(dtype, lanes)
    return _LIBRARY.format(
        m=m,
        n=m + taps - 1,
        lanes=lanes,
        step=lanes // 2 if dtype in BFLOAT_PAIRS else lanes,
        dtype=dtype,
        panel=panel_sizes(dtype, 1),
        tiles=_tiles(dtype, sizes, broad, filters),
        broad=broad,
        largest=sizes[-1],
        between=sizes[-1] - sizes[-2],
    )


def rows_of(dtype: str, lanes: int) -> tuple[tuple[int, ...], int]:
    """Rows of register tiles, see ROWS."""
    return (FIXED_ROWS if dtype == FIXED_POINT else ROWS)[lanes]


def _tiles(dtype: str, sizes: Sequence[int], broad: int, filters: int) -> str:
    """Defines `choose`: register tiles of as many rows, and vectors, as are asked for."""
    unroll = 1 if dtype == FIXED_POINT else 2
    made = [f'tile{rows} = product_tiles(LANES, {rows}, {filters}, {unroll}, "{dtype}")' for rows in sizes]
    lines = ["def choose(size, vectors, a, a_row, b, k, c, count, before):"]
    if filters > 1:
        made.append(f'broad = product_tiles(LANES, {broad}, 3, {unroll}, "{dtype}")')
        lines += [
            "    if vectors == 3:",
            "        broad(a, a_row, b, k, c, size, count, before)",
            "        return",
        ]
    for rows, smaller in zip(reversed(sizes), [*reversed(sizes[:-1]), 0]):
        lines += [f"    if size > {smaller}:", f"        tile{rows}(a, a_row, b, k, c, size, count, before)"]
        lines += ["        return"] * (smaller > 0)
    return "\n".join([*made, "", "", '@njit(error_model="numpy", boundscheck=False)', *lines])


def groups_of(blocks: int) -> tuple[int, ...]:
    """Vectors of each group of output blocks: two, three in the last of an odd number; one of one."""
    groups = max(blocks // 2, 1)
    return (*(2,) * (groups - 1), blocks - 2 * (groups - 1))


def packed(weights: Array, m: int, lanes: int, dtype: str = "float32") -> Array:
    """The transformed weights, [n * n][channels][vectors * lanes] for each group, filled up with zeros.

    Pairs of bfloat16 are two channels (of an even number) in one element. In fixed point the matrices of a
    group, of a multiple of 4 channels, are panels as `tiles.pack_fixed` has them, as bits of float32.
    """
    outputs, channels, *_, count = weights.shape
    points = (m + count - 1) ** 2
    widths = [vectors * lanes for vectors in groups_of(-(-outputs // lanes))]
    together = {FIXED_POINT: FIXED_STEPS, "float32": 1}.get(dtype, 2)
    word, tail = panel_sizes(dtype, 1)
    flat = np.empty(points * (channels // together * word + tail) * sum(widths), np.float32)
    first = at = 0
    for width in widths:
        own = weights[first : first + width]
        taps = np.zeros((count, count, channels, width))
        taps[..., : len(own)] = own.transpose(2, 3, 1, 0)
        piece = tiles_of(taps, m)  # in float64, rounded once
        if dtype == FIXED_POINT:
            columns = piece.reshape(-1, channels, width).swapaxes(0, 1).reshape(channels, -1)
            piece = pack_fixed(columns.astype(np.float32), width, lanes).view(np.float32)
        elif dtype != "float32":
            piece = pack_bfloats(piece.astype(np.float32))
        flat[at : at + piece.size].reshape(piece.shape)[:] = piece
        first, at = first + width, at + piece.size
    return flat
