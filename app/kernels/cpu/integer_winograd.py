"""Winograd convolutions F(2 x 2, 3 x 3) of 8-bit integers, exact: 4 products for 9.

Sums of pixels less their zero point and four times the sums of weights fit int16 (1020 and 2295 at most),
so the products are those of `tiles.PAIRS`. All that follows is linear and holds modulo 2 ** 32; what it
leaves is four times the sums that the convolution asks for, exactly, as long as that fits int32.

Source: Lavin and Gray, 2015, "Fast algorithms for convolutional neural networks"; arXiv:1509.09308.
"""

from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ll
import numpy as np
from numba import types

from app.kernels.cpu.codegen.generator import outlined
from app.kernels.cpu.codegen.instructions import I16, I32, Vectors, number, typed
from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import PAIRED, PAIRS
from app.kernels.cpu.epilogue import ALONG, FIXED, converted_run_library
from app.kernels.cpu.gemm import product_library
from app.kernels.cpu.integer_products import CONV_PLACES
from app.kernels.expressions import Recipe

Array = np.ndarray[Any, Any]

POSITIONS = 16  # sums of a tile of 4 x 4 pixels
WEIGHTS = np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]])  # twice those of the transform


# What the kernel reads from its table of sizes.
@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerWinogradSizes(SizeTable):
    """Sizes of an integer Winograd convolution."""

    pairs: int  # of channels
    plane: int  # elements from one pair of channels to the next
    line: int  # from row to row
    outputs: int  # channels
    rows: int  # of the output
    columns: int
    high: int  # tiles in a column and in a row of an image
    wide: int
    lines: int  # of tiles in a block
    block_m: int
    part_m: int
    v_row: int
    v_size: int  # of a position
    v_whole: int  # of all of them
    m_size: int
    m_whole: int
    sums_size: int
    work_step: int


def transformed(weights: Array) -> Array:
    """Four times the sums of weights [outputs, channels, 3, 3] as int16[POSITIONS, outputs, channels]."""
    sums = np.einsum("ik,ockl,jl->ijoc", WEIGHTS, weights.astype(np.int32), WEIGHTS)
    narrow: Array = sums.reshape(POSITIONS, *weights.shape[:2]).astype(np.int16)
    return narrow


def fits(weights: Array) -> bool:
    """True if four times any sum of products with differences of 8-bit numbers fits int32."""
    most = np.abs(weights.astype(np.int64)).reshape(len(weights), -1).sum(1).max(initial=0)
    return bool(4 * 255 * most < 2**31)


def _halves(v: Vectors, pointer: Any) -> tuple[Any, Any]:
    """Elements at even and at odd places from an address on."""
    both = v.load(pointer, 2 * v.lanes)
    kind = ll.VectorType(I32, v.lanes)
    return tuple(
        v.b.shuffle_vector(both, both, ll.Constant(kind, list(range(first, 2 * v.lanes, 2))))
        for first in (0, 1)
    )


def spread_tile(lanes: int) -> Any:
    """An intrinsic that makes the sums of pixels of `lanes` neighboring tiles.

    It is called as spread(x, line, v, v_size): x: PAIRS, the first pixel of the first tile, rows
    `line` elements apart; v: PAIRS, position p of tile t at p * v_size + t. Reads 2 * lanes + 2
    pixels of 4 rows.
    """
    address, size = types.CPointer(types.int32), types.int64

    def write(b: Any, arguments: Any) -> None:
        x, line, y, y_size = arguments
        v = Vectors(b, PAIRS, lanes)
        narrow = ll.VectorType(I16, 2 * lanes)

        def differences(d: list[Any]) -> list[Any]:
            return [b.sub(d[0], d[2]), b.add(d[1], d[2]), b.sub(d[2], d[1]), b.sub(d[1], d[3])]

        rows = []
        for r in range(4):
            start = v.at(x, b.mul(line, number(r)))
            pixels = [*_halves(v, start), *_halves(v, v.at(start, 2))]
            rows.append(differences([b.bitcast(p, narrow) for p in pixels]))
        for j in range(4):
            for i, value in enumerate(differences([row[j] for row in rows])):
                v.store(b.bitcast(value, v.type), v.at(y, b.mul(y_size, number(4 * i + j))))
        b.ret_void()

    return typed(types.void(address, size, address, size), outlined(f"spread_{lanes}", write))


def gather_tile(lanes: int, row: int) -> Any:
    """An intrinsic that makes one of the two rows of pixels of `lanes` neighboring tiles.

    It is called as gather(m, m_size, y): m: int32, position p of tile t at p * m_size + t; y: int32,
    2 * lanes pixels.
    """
    address, size = types.CPointer(types.int32), types.int64

    def write(b: Any, arguments: Any) -> None:
        m, m_size, y = arguments
        v = Vectors(b, "int32", lanes)

        def pixel(x: list[Any], second: bool) -> Any:
            return b.sub(b.sub(x[1], x[2]), x[3]) if second else b.add(b.add(x[0], x[1]), x[2])

        def at(i: int, j: int) -> Any:
            skipped = 0 if row else 3
            return None if i == skipped else v.load(v.at(m, b.mul(m_size, number(4 * i + j))))

        sums = [pixel([at(i, j) for i in range(4)], bool(row)) for j in range(4)]
        two = ll.Constant(v.type, [2] * lanes)
        left, right = (b.ashr(pixel(sums, second), two) for second in (False, True))
        turns = ll.Constant(
            ll.VectorType(I32, 2 * lanes), [i // 2 + (lanes if i % 2 else 0) for i in range(2 * lanes)]
        )
        v.store(b.shuffle_vector(left, right, turns), y)
        b.ret_void()

    return typed(types.void(address, size, address), outlined(f"gather_{row}_{lanes}", write))


_KERNEL = """\
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.integer_winograd import POSITIONS, gather_tile, spread_tile
from LIBRARY0 import COLUMNS, product
{imports}
LANES = {lanes}
spread = spread_tile(LANES)
upper, lower = gather_tile(LANES, 0), gather_tile(LANES, 1)


def kernel(x, weights, scalars, y, sizes, work{operands}, begin, end, thread):
    {unpack}
    parts = (outputs + part_m - 1) // part_m
    blocks = (high + lines - 1) // lines
    pixels = rows * columns
    v = at(work, thread * work_step)
    m = at(v, v_whole)
    sums = at(m, m_whole)
    spare = at(sums, sums_size)
    before = -1
    for unit in range(begin, end):
        part, image = unit % parts, unit // parts
        first = image % blocks * lines
        image //= blocks
        count = min(lines, high - first)
        n = count * wide
        if unit // parts != before:
            for p in range(pairs):
                for r in range(count):
                    # What a line writes too much the next one writes again.
                    line_x = at(x, (image * pairs + p) * plane + 2 * (first + r) * line)
                    line_v = at(v, p * v_row + r * wide)
                    for t in range(0, wide, LANES):
                        spread(at(line_x, 2 * t), line, at(line_v, t), v_size)
            before = unit // parts
        start = 2 * first * columns
        length = min(2 * count, rows - 2 * first) * columns
        end_m = min((part + 1) * part_m, outputs)
        for row in range(part * part_m, end_m, block_m):
            size = min(block_m, end_m - row)
            for i in range(POSITIONS):
                product(at(weights, (i * outputs + row) * pairs), True, pairs, 1, 0, at(v, i * v_size), v_row,
                        COLUMNS, pairs, at(m, i * m_size), v_row, size, n, spare, m, 0, m, 0, m, m, 0,
                        scalars, 0)
            channel = image * outputs + row
            place = channel * pixels + start
            for j in range(size):
                for r in range(count):
                    tiles, to = at(m, j * v_row + r * wide), at(sums, 2 * r * columns)
                    for t in range(0, wide, LANES):
                        upper(at(tiles, t), m_size, at(to, 2 * t))
                    if 2 * (first + r) + 1 < rows:
                        for t in range(0, wide, LANES):
                            lower(at(tiles, t), m_size, at(to, columns + 2 * t))
{finish}
"""

_RUN = "                run(sums, at(y, place + j * pixels), length{places})"
_COPY = """\
                to = at(y, place + j * pixels)
                for i in range(length):
                    to[i] = sums[i]"""


def emit(
    lanes: int, recipe: Recipe = (), operands: tuple[tuple[str, str], ...] = (), result: str = "int32"
) -> Sources:
    """The module of a convolution of 3 x 3 taps, one apart.

    x: PAIRS of channels with a border (`pairs.widen_planes`); weights: [POSITIONS][pairs][rows] panels for
    every group of rows (`tiles.pack_rows`); scalars: int32, not read; y: [batch, outputs, rows, columns]
    of type `result`; sizes: IntegerWinogradSizes; work: int32, per thread; then the operands of the recipe.
    Units are parts of `part_m` output channels (fastest), blocks of `lines` lines of tiles, batch.

    Args:
        lanes: int32 in a register.
        recipe: what makes an element of y of a sum, its input 0; empty where y takes the sums.
        operands: (place, dtype) of the recipe's other inputs; see `integer_products.CONV_PLACES`.
        result: dtype of y.
    """
    places = "".join(f", at(x{i}, {CONV_PLACES[place]})" for i, (place, _) in enumerate(operands))
    text = _KERNEL.format(
        imports="from LIBRARY1 import run" if recipe else "",
        lanes=lanes,
        unpack=IntegerWinogradSizes.unpack(),
        operands="".join(f", x{i}" for i in range(len(operands))),
        finish=_RUN.format(places=places) if recipe else _COPY,
    )
    product = product_library(PAIRS, lanes, PAIRED)
    if not recipe:
        return product, text
    advances = tuple((ALONG if place == "same" else FIXED, kind) for place, kind in operands)
    return product, converted_run_library("int32", result, recipe, advances, lanes), text
