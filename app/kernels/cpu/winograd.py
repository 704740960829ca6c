"""Winograd convolutions F(m x m, r x r) over channel-blocked images: F(2, 3), F(4, 3) and F(2, 5).

An n x n tile of the input (n = m + r - 1) becomes n * n sums of its pixels, one vector of channels
each; a matrix product over the channels for each of them; and m x m output pixels are sums of
the products. A block of tiles goes through the three steps while it stays in the second cache.

With products of bfloat16 (`tiles.BFLOAT_PAIRS`) the sums of pixels and the weights are rounded, pairs of
channels in one element; the products and what follows stay float32. Weights may also lie in fixed point
(`tiles.FIXED_POINT`), which are float32 again in registers.

Source: Lavin and Gray, 2015, "Fast algorithms for convolutional neural networks"; arXiv:1509.09308.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import llvmlite.ir as ll
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from app.kernels.cpu.codegen.generator import outlined
from app.kernels.cpu.codegen.instructions import Vectors, number
from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import (
    BETA,
    BFLOAT_PAIRS,
    FIXED_POINT,
    FIXED_STEPS,
    HIGH,
    LOW,
    RESIDUAL,
    pack_bfloats,
    pack_fixed,
    panel_sizes,
)
from app.kernels.cpu.epilogue import lanes_run_library
from app.kernels.expressions import Recipe

Array = np.ndarray[Any, Any]

# By n: interpolation points are 0, infinity and plus and minus these. Of the sets with short fractions
# these have half the error of the customary 1, 2 (F(4, 3): relative rms 0.9e-6 and 2.0e-6).
POINTS = {4: (Fraction(1),), 6: (Fraction(5, 8), Fraction(3, 2))}

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


@functools.cache
def matrices(m: int, taps: int = 3) -> tuple[Array, Array, Array]:
    """float64 B^T[n, n], G[n, taps], A^T[m, n] with y = A^T ((G g) * (B^T d)), a convolution by g of d.

    Rows of B^T are monic, so that many of their coefficients are one.
    """
    n = m + taps - 1
    points = [Fraction(0), *(sign * p for p in POINTS[n] for sign in (1, -1))]
    b, g = [], []
    for p in [*points, None]:
        others = [q for q in points if q != p]
        polynomial = [Fraction(1)]
        for q in others:
            polynomial = [
                high - q * low for high, low in zip([Fraction(0), *polynomial], [*polynomial, Fraction(0)])
            ]
        b.append(polynomial + [Fraction(0)] * (n - len(polynomial)))
        if p is None:
            g.append([Fraction(int(k == taps - 1)) for k in range(taps)])
        else:
            scale = Fraction(1)
            for q in others:
                scale *= p - q
            g.append([p**k / scale for k in range(taps)])
    a = [[p**k for p in points] + [Fraction(int(k == m - 1))] for k in range(m)]
    found = [np.array([[float(x) for x in row] for row in rows]) for rows in (b, g, a)]
    for matrix in found:
        matrix.flags.writeable = False
    return found[0], found[1], found[2]


def _sum(v: Vectors, coefficients: Sequence[float], vectors: Sequence[Any]) -> Any:
    """The sum of vectors times coefficients, one operation less for each that is one."""
    terms = [(float(c), x) for c, x in zip(coefficients, vectors) if c]
    terms.sort(key=lambda term: term[0] != 1)
    c, total = terms[0]
    if c != 1:
        total = v.multiply(total, _constant(v, c))
    for c, x in terms[1:]:
        if abs(c) == 1:
            total = v.add(total, x) if c > 0 else v.b.fsub(total, x)
        else:
            total = v.fma(x, _constant(v, c), total)
    return total


def _constant(v: Vectors, value: float) -> Any:
    return ll.Constant(v.type, [value] * v.lanes)


def _input_sums(v: Vectors, b: Array, x: Sequence[Any]) -> list[Any]:
    """B^T x. The rows of a point and its negative have the same even part and opposite odd parts."""
    first, last = _sum(v, b[0], x), _sum(v, b[-1], x)
    inner = []
    for p, q in zip(b[1:-1:2], b[2:-1:2]):
        odd = (p - q) / 2
        lead = odd[np.flatnonzero(odd)[-1]]
        even_part, odd_part = _sum(v, (p + q) / 2, x), _sum(v, odd / lead, x)
        inner += [_sum(v, (1, sign * lead), (even_part, odd_part)) for sign in (1, -1)]
    return [first, *inner, last]


def _output_sums(v: Vectors, a: Array, t: Sequence[Any]) -> list[Any]:
    """A^T t. The columns of a point and its negative are equal in even rows and opposite in odd ones."""
    vectors, columns = [t[0], t[-1]], [a[:, 0], a[:, -1]]
    for j in range(1, len(t) - 1, 2):
        vectors += [v.add(t[j], t[j + 1]), v.b.fsub(t[j], t[j + 1])]
        columns += [(a[:, j] + a[:, j + 1]) / 2, (a[:, j] - a[:, j + 1]) / 2]
    return [_sum(v, row, vectors) for row in np.array(columns).T]


def input_tile(lanes: int, n: int, dtype: str = "float32") -> Any:
    """An intrinsic that transforms a tile of one block of channels.

    It is called as
        transform(x, x_row, r0, r1, c0, c1, zeros, buffer, to, plane)
    where row i and column j of the tile are at x[i * x_row + j * lanes] for r0 <= i < r1 and
    c0 <= j < c1, and zero elsewhere; nothing is read there. Element (i, j) of the result goes to
    to[(i * n + j) * plane], rounded to half as many elements where dtype is of pairs. zeros: n * lanes
    zeros; buffer: n * n * lanes elements.
    """
    b = matrices(2, n - 1)[0]  # that of every F(m, r) with this n
    address, size = types.CPointer(types.float32), types.int64
    signature = types.void(address, size, size, size, size, size, address, address, address, size)

    def write(builder, values):
        x, x_row, r0, r1, c0, c1, zeros, buffer, to, plane = values
        v, pairs = Vectors(builder, "float32", lanes), Vectors(builder, dtype, lanes)
        starts = []
        for i in range(n):
            inside = builder.and_(
                builder.icmp_signed("<=", r0, number(i)), builder.icmp_signed("<", number(i), r1)
            )
            row = builder.gep(x, [builder.mul(x_row, number(i))])
            starts.append(builder.select(inside, row, zeros))

        def column(j: Any) -> Any:
            return v.at(buffer, builder.mul(j, number(n * lanes)))

        for begin, end in ((number(0), c0), (c1, number(n))):
            with cgutils.for_range_slice(builder, begin, end, number(1)) as (j, _):
                for i in range(n):
                    v.store(v.zero, v.at(column(j), i * lanes))
        with cgutils.for_range_slice(builder, c0, c1, number(1)) as (j, _):
            place = builder.mul(j, number(lanes))
            sums = _input_sums(v, b, [v.load(v.at(start, place)) for start in starts])
            for i, x_ in enumerate(sums):
                v.store(x_, v.at(column(j), i * lanes))
        with cgutils.for_range(builder, number(n)) as loop:
            own = v.at(buffer, builder.mul(loop.index, number(lanes)))
            target = v.at(to, builder.mul(loop.index, builder.mul(plane, number(n))))
            sums = _input_sums(v, b, [v.load(v.at(own, j * n * lanes)) for j in range(n)])
            for j, x_ in enumerate(sums):
                x_ = pairs.narrow(x_) if dtype in BFLOAT_PAIRS else x_
                v.store(x_, v.at(target, builder.mul(plane, number(j))))
        builder.ret_void()

    def body(_context, x, x_row, r0, r1, c0, c1, zeros, buffer, to, plane):
        return signature, outlined(f"input_{n}x{lanes}", write)

    return intrinsic(body)


def output_tile(lanes: int, m: int, n: int) -> Any:
    """An intrinsic that makes a tile of output pixels of one block of channels.

    It is called as
        transform(sums, plane, buffer, bias, scalars, residual, y, row, rows, columns, flags)
    with the products (i, j) at sums[(i * n + j) * plane]. Pixel (i, j) goes to
    y[i * row + j * lanes] where i < rows and j < columns. The vector at `bias` is added and, as
    `flags` say, beta times the residual, which lies like y and may be y; then limits apply.
    buffer: n * m * lanes elements.
    """
    a = matrices(m, n - m + 1)[2]
    address, size = types.CPointer(types.float32), types.int64
    signature = types.void(address, size, address, address, address, address, address, size, size, size, size)

    def write(builder, values):
        sums, plane, buffer, bias, scalars, residual, y, row, rows, columns, flags = values
        v = Vectors(builder, "float32", lanes)
        with cgutils.for_range(builder, number(n)) as loop:
            source = v.at(sums, builder.mul(loop.index, plane))
            down = builder.mul(plane, number(n))
            t = [v.load(v.at(source, builder.mul(down, number(i)))) for i in range(n)]
            own = v.at(buffer, builder.mul(loop.index, number(m * lanes)))
            for i, x in enumerate(_output_sums(v, a, t)):
                v.store(x, v.at(own, i * lanes))
        offset, low, high = v.load(bias), v.broadcast(v.at(scalars, LOW)), v.broadcast(v.at(scalars, HIGH))
        beta = v.broadcast(v.at(scalars, BETA))
        has_residual = builder.icmp_unsigned("!=", builder.and_(flags, number(RESIDUAL)), number(0))
        whole = builder.icmp_signed("==", columns, number(m))
        with cgutils.for_range(builder, rows) as loop:
            own = v.at(buffer, builder.mul(loop.index, number(lanes)))
            place = builder.mul(loop.index, row)
            target, extra = v.at(y, place), v.at(residual, place)
            pixels = _output_sums(v, a, [v.load(v.at(own, j * m * lanes)) for j in range(n)])
            pixels = [v.add(x, offset) for x in pixels]

            def finish(js: Sequence[int], target: Any = target, extra: Any = extra, pixels: Any = pixels):
                with builder.if_else(has_residual) as (then, otherwise):
                    with then:
                        for j in js:
                            x = v.fma(beta, v.load(v.at(extra, j * lanes)), pixels[j])
                            v.store(v.clamp(x, low, high), v.at(target, j * lanes))
                    with otherwise:
                        for j in js:
                            v.store(v.clamp(pixels[j], low, high), v.at(target, j * lanes))

            with builder.if_else(whole) as (then, otherwise):
                with then:
                    finish(range(m))
                with otherwise:
                    for j in range(m - 1):
                        with builder.if_then(builder.icmp_signed("<", number(j), columns)):
                            finish((j,))
        builder.ret_void()

    def body(_context, sums, plane, buffer, bias, scalars, residual, y, row, rows, columns, flags):
        return signature, outlined(f"output_{m}x{n}x{lanes}", write)

    return intrinsic(body)


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

        def reduction(
            starts: Sequence[Any], times: Any, index: Any, ahead: Any, sums: list[Any], turns: int
        ) -> Any:
            before = builder.block
            head, body, end = (builder.append_basic_block(s) for s in ("head", "body", "end"))
            builder.branch(head)
            builder.position_at_end(head)
            phis = [builder.phi(x.type) for x in (index, *sums)]
            for phi, x in zip(phis, (index, *sums)):
                phi.add_incoming(x, before)
            p, *new = phis
            builder.cbranch(builder.icmp_signed("<", p, times), body, end)
            builder.position_at_end(body)
            current, q = list(new), p
            asked = v.at(v.at(b, ahead), builder.mul(p, number(words)))
            for line in range(0, turns * words, 2 * LINE):
                v.prefetch(v.at(asked, line), level=2)
            for turn in range(turns):
                panel = v.at(b, builder.mul(q, number(words)))
                columns = [v.load_steps(v.right(panel, j * lanes)) for j in range(vectors)]
                first = builder.mul(q, number(v.together))
                for t in range(v.together):
                    for r in range(rows):
                        x = v.broadcast(v.at(v.at(starts[r], first), t))
                        for j in range(vectors):
                            current[r * vectors + j] = v.dot(x, columns[j][t], current[r * vectors + j])
                q = builder.add(p, number(turn + 1))
            done = builder.block
            for phi, x in zip(phis, (q, *current)):
                phi.add_incoming(x, done)
            builder.branch(head)
            builder.position_at_end(end)
            return p, new

        with cgutils.for_range(builder, count) as loop:
            place = builder.mul(loop.index, step)
            first = v.at(a, builder.mul(place, a_row))
            starts = [v.at(first, builder.mul(a_row, number(r))) for r in range(rows)]
            whole = builder.and_(k, number(-unroll))
            length = builder.mul(k, number(words))
            odd = builder.and_(builder.add(earlier, loop.index), number(1))
            ahead = builder.add(builder.add(length, number(tail)), builder.mul(odd, number(LINE)))
            index, sums = reduction(starts, whole, number(0), ahead, [v.zero] * (rows * vectors), unroll)
            _, sums = reduction(starts, k, index, ahead, sums, 1)
            sums = v.scale(sums, v.at(b, length), vectors)
            target = v.at(c, builder.mul(place, number(width)))
            for i, x in enumerate(sums):
                v.store(x, v.at(target, i * lanes))
        builder.ret_void()

    def body(_context, a, a_row, b, k, c, step, count, before):
        return signature, outlined(f"product_{rows}x{vectors}x{lanes}", write)

    return intrinsic(body)


_LIBRARY = """\
from numba import njit, types
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.linking import shared
from app.kernels.cpu.winograd import input_tile, output_tile, product_tiles

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
    # count rows of TILE * TILE products with [channels][vectors * LANES] matrices.
    most = {broad} if vectors == 3 else {largest}
    parts = (count + most - 1) // most
    size = count // parts
    larger = count - size * parts
    for point in range(TILE * TILE):
        a, b = at(v, point * v_plane), at(weights, point * (channels * WORDS + TAIL) * vectors * LANES)
        c, done = at(sums, point * m_plane), larger * (size + 1)
        rest, below = at(a, done * v_row), at(c, done * vectors * LANES)
        if larger:
            choose(size + 1, vectors, a, v_row, b, channels, c, larger, 0)
        choose(size, vectors, rest, v_row, b, channels, below, parts - larger, larger)


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
    sizes, broad = rows_of(dtype, lanes)
    step = lanes // 2 if dtype in BFLOAT_PAIRS else lanes
    library = _LIBRARY.format(
        m=m,
        n=m + taps - 1,
        lanes=lanes,
        step=step,
        dtype=dtype,
        panel=panel_sizes(dtype, 1),
        tiles=_tiles(dtype, sizes, broad, filters),
        broad=broad,
        largest=sizes[-1],
    )
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


def transformed(weights: Array, m: int) -> Array:
    """float32[n * n, outputs, channels] of weights[outputs, channels, taps, taps]; rounded once."""
    taps = weights.shape[-1]
    g = matrices(m, taps)[1]
    wide = np.kron(g, g) @ weights.reshape(-1, taps * taps).T.astype(np.float64)
    return wide.reshape(-1, *weights.shape[:2]).astype(np.float32)


def packed(weights: Array, m: int, lanes: int, dtype: str = "float32") -> Array:
    """The transformed weights, [n * n][channels][vectors * lanes] for each group, filled up with zeros.

    Pairs of bfloat16 are two channels (of an even number) in one element. In fixed point the matrices of a
    group, of a multiple of 4 channels, are panels as `tiles.pack_fixed` has them, as bits of float32.
    """
    outputs, channels, *_, count = weights.shape
    g = matrices(m, count)[1]
    widths = [vectors * lanes for vectors in groups_of(-(-outputs // lanes))]
    together = {FIXED_POINT: FIXED_STEPS, "float32": 1}.get(dtype, 2)
    word, tail = panel_sizes(dtype, 1)
    flat = np.empty(len(g) ** 2 * (channels // together * word + tail) * sum(widths), np.float32)
    first = at = 0
    for width in widths:
        own = weights[first : first + width]
        taps = np.zeros((count, count, channels, width))
        taps[..., : len(own)] = own.transpose(2, 3, 1, 0)
        down = _rows_product(g, taps)
        piece = _rows_product(g, down.swapaxes(0, 1)).swapaxes(0, 1)  # in float64, rounded once
        if dtype == FIXED_POINT:
            columns = piece.reshape(-1, channels, width).swapaxes(0, 1).reshape(channels, -1)
            piece = pack_fixed(columns.astype(np.float32), width, lanes).view(np.float32)
        elif dtype != "float32":
            piece = pack_bfloats(piece.astype(np.float32))
        flat[at : at + piece.size].reshape(piece.shape)[:] = piece
        first, at = first + width, at + piece.size
    return flat


def _rows_product(g: Array, x: Array) -> Array:
    """g[n, taps] x[taps, ...], by sums of whole arrays: threads of a BLAS wait longer than these take."""
    y = np.zeros((len(g), *x.shape[1:]))
    for row, total in zip(g, y):
        for factor, part in zip(row, x):
            if factor:
                total += factor * part
    return y
