"""Winograd convolutions of 3 x 3 taps of 8-bit integers, exact: 4 products for 9, or 36 for 144.

Matrices of the transforms are multiplied by what makes them whole. Transformed pixels less their zero point
and transformed weights fit int16, so the products are those of `tiles.PAIRS`. All that follows is linear and
holds modulo 2 ** 32; what it leaves is a multiple of the sums that the convolution asks for: 4 times (F(2,3))
or 576 times (F(4,3)). Modulo 2 ** 32 an odd factor has an inverse, so 576 = 9 * 64 leaves 64 times the sums.
They are exact as long as 4 or 64 times each fits int32.

Source: Lavin and Gray, 2015, "Fast algorithms for convolutional neural networks"; arXiv:1509.09308.
"""

from collections.abc import Callable
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
from app.kernels.cpu.epilogue import ALONG, FIXED
from app.kernels.cpu.gemm import product_library
from app.kernels.cpu.integer_products import CONV_PLACES
from app.kernels.cpu.requantize import converted_run_library
from app.kernels.expressions import Recipe

Array = np.ndarray[Any, Any]


def _differences_2(d: Any) -> list[Any]:
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _pixels_2(m: Any) -> list[Any]:
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


def _differences_4(d: Any) -> list[Any]:
    even, odd, near, far = d[4] - d[2] * 4, d[3] - d[1] * 4, d[4] - d[2], (d[3] - d[1]) * 2
    first, last = (d[i] * 4 - d[i + 2] * 5 + d[i + 4] for i in (0, 1))
    return [first, even + odd, even - odd, near + far, near - far, last]


def _pixels_4(m: Any) -> list[Any]:
    both, apart = (m[1] + m[2]) * 4, (m[1] - m[2]) * 4
    far, turned = m[3] + m[4], m[3] - m[4]
    return [m[0] * 6 - both + far, turned * 2 - apart, far * 4 - both, turned * 8 - apart + m[5] * 24]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """Whole transforms along one axis; `pixels` gives `scale` times the sums.

    Attributes:
        outputs: pixels of the output of a tile.
        weights: transforms three weights.
        differences: transforms `size` pixels.
        pixels: makes `outputs` of the products of both.
        scale: see above.
    """

    outputs: int
    weights: tuple[tuple[int, int, int], ...]
    differences: Callable[[Any], list[Any]]
    pixels: Callable[[Any], list[Any]]
    scale: int

    @property
    def size(self) -> int:
        """Pixels of the input of a tile, along one axis."""
        return self.outputs + 2

    @property
    def positions(self) -> int:
        """Products of a tile."""
        return self.size**2

    @property
    def shift(self) -> int:
        """Power of two in the square of `scale`."""
        return 2 * ((self.scale & -self.scale).bit_length() - 1)

    @property
    def inverse(self) -> int:
        """Inverse modulo 2 ** 32 of the odd part of the square of `scale`, as int32."""
        found = pow(self.scale**2 >> self.shift, -1, 2**32)
        return found - 2**32 if found >= 2**31 else found


ALGORITHMS = {
    2: Algorithm(2, ((2, 0, 0), (1, 1, 1), (1, -1, 1), (0, 0, 2)), _differences_2, _pixels_2, 2),
    4: Algorithm(
        4,
        ((1, 0, 0), (1, 1, 1), (1, -1, 1), (1, 2, 4), (1, -2, 4), (0, 0, 1)),
        _differences_4,
        _pixels_4,
        24,
    ),
}


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


def transformed(weights: Array, algorithm: Algorithm) -> Array:
    """Transformed weights [outputs, channels, 3, 3] as int16[positions, outputs, channels]."""
    matrix = np.array(algorithm.weights)
    sums = np.einsum("ik,ockl,jl->ijoc", matrix, weights.astype(np.int32), matrix)
    narrow: Array = sums.reshape(algorithm.positions, *weights.shape[:2]).astype(np.int16)
    return narrow


def fits(weights: Array, algorithm: Algorithm, low: int, high: int) -> bool:
    """True if sums of products with pixels of low <= 0 to high fit int32 as the kernel leaves them."""
    rows = weights.astype(np.int64).reshape(len(weights), -1)
    up, down = (np.maximum(sign * rows, 0).sum(1) for sign in (1, -1))
    most = np.maximum(up * high - down * low, down * high - up * low).max(initial=0)
    return bool(most << algorithm.shift < 2**31)


@dataclass(frozen=True, slots=True, eq=False)
class _Lanes:
    """Integers side by side, which the operators of Python compute with, as code."""

    b: Any
    value: Any

    def __add__(self, other: "_Lanes") -> "_Lanes":
        return _Lanes(self.b, self.b.add(self.value, other.value))

    def __sub__(self, other: "_Lanes") -> "_Lanes":
        return _Lanes(self.b, self.b.sub(self.value, other.value))

    def __mul__(self, factor: int) -> "_Lanes":
        kind = self.value.type
        return _Lanes(self.b, self.b.mul(self.value, ll.Constant(kind, [factor] * kind.count)))


def _apart(v: Vectors, pointer: Any, step: int, count: int) -> list[Any]:
    """The first `count` of the vectors of elements at i, i + step, i + 2 step ... from an address on."""
    whole = v.load(pointer, step * v.lanes)
    kind = ll.VectorType(I32, v.lanes)
    return [
        v.b.shuffle_vector(whole, whole, ll.Constant(kind, list(range(i, step * v.lanes, step))))
        for i in range(count)
    ]


def spread_tile(outputs: int, lanes: int) -> Any:
    """An intrinsic that transforms the pixels of `lanes` neighboring tiles.

    It is called as spread(x, line, v, v_size): x: PAIRS, the first pixel of the first tile, rows
    `line` elements apart; v: PAIRS, position p of tile t at p * v_size + t. Reads outputs * (lanes + 1)
    pixels of outputs + 2 rows.
    """
    address, size = types.CPointer(types.int32), types.int64
    algorithm = ALGORITHMS[outputs]

    def write(b: Any, arguments: Any) -> None:
        x, line, y, y_size = arguments
        v = Vectors(b, PAIRS, lanes)
        narrow = ll.VectorType(I16, 2 * lanes)
        rows = []
        for r in range(algorithm.size):
            start = v.at(x, b.mul(line, number(r)))
            pixels = _apart(v, start, outputs, outputs) + _apart(v, v.at(start, outputs), outputs, 2)
            rows.append(algorithm.differences([_Lanes(b, b.bitcast(p, narrow)) for p in pixels]))
        for j in range(algorithm.size):
            for i, found in enumerate(algorithm.differences([row[j] for row in rows])):
                place = v.at(y, b.mul(y_size, number(algorithm.size * i + j)))
                v.store(b.bitcast(found.value, v.type), place)
        b.ret_void()

    return typed(types.void(address, size, address, size), outlined(f"spread_{outputs}_{lanes}", write))


def gather_tile(outputs: int, lanes: int) -> Any:
    """An intrinsic that makes the pixels of `lanes` neighboring tiles, row after row.

    It is called as gather(m, m_size, y, y_row): m: int32, position p of tile t at p * m_size + t; y: int32,
    rows of outputs * lanes pixels, `y_row` apart.
    """
    address, size = types.CPointer(types.int32), types.int64
    algorithm = ALGORITHMS[outputs]

    def write(b: Any, arguments: Any) -> None:
        m, m_size, y, y_row = arguments
        v = Vectors(b, "int32", lanes)
        shift = ll.Constant(v.type, [algorithm.shift] * lanes)

        def column(j: int) -> list[Any]:
            places = (b.mul(m_size, number(algorithm.size * i + j)) for i in range(algorithm.size))
            return algorithm.pixels([_Lanes(b, v.load(v.at(m, place))) for place in places])

        columns = [column(j) for j in range(algorithm.size)]
        for row in range(outputs):
            sums = algorithm.pixels([each[row] for each in columns])
            if algorithm.inverse != 1:
                sums = [x * algorithm.inverse for x in sums]
            v.store(
                _interleaved(b, [b.ashr(x.value, shift) for x in sums]), v.at(y, b.mul(y_row, number(row)))
            )
        b.ret_void()

    return typed(types.void(address, size, address, size), outlined(f"gather_{outputs}_{lanes}", write))


def _interleaved(b: Any, vectors: list[Any]) -> Any:
    """The first elements of two or four vectors, then the second ones, and so on."""
    if len(vectors) > 2:
        vectors = [_interleaved(b, vectors[i::2]) for i in (0, 1)]
    count = vectors[0].type.count
    turns = [i // 2 + i % 2 * count for i in range(2 * count)]
    return b.shuffle_vector(*vectors, ll.Constant(ll.VectorType(I32, 2 * count), turns))


_KERNEL = """\
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.integer_winograd import gather_tile, spread_tile
from LIBRARY0 import COLUMNS, product
{imports}
LANES, OUTPUTS, POSITIONS = {lanes}, {outputs}, {positions}
spread, gather = spread_tile(OUTPUTS, LANES), gather_tile(OUTPUTS, LANES)


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
                    line_x = at(x, (image * pairs + p) * plane + OUTPUTS * (first + r) * line)
                    line_v = at(v, p * v_row + r * wide)
                    for t in range(0, wide, LANES):
                        spread(at(line_x, OUTPUTS * t), line, at(line_v, t), v_size)
            before = unit // parts
        start = OUTPUTS * first * columns
        length = min(OUTPUTS * count, rows - OUTPUTS * first) * columns
        end_m = min((part + 1) * part_m, outputs)
        for row in range(part * part_m, end_m, block_m):
            size = min(block_m, end_m - row)
            for i in range(POSITIONS):
                panel = at(weights, (row * POSITIONS + i * size) * pairs)
                product(panel, True, pairs, 1, 0, at(v, i * v_size), v_row, COLUMNS, pairs,
                        at(m, i * m_size), v_row, size, n, spare, m, 0, m, 0, m, m, 0, scalars, 0)
            channel = image * outputs + row
            place = channel * pixels + start
            for j in range(size):
                # The next row, or the first tiles of the line, write again what a row writes too much.
                for r in range(count):
                    tiles, to = at(m, j * v_row + r * wide), at(sums, OUTPUTS * r * columns)
                    for t in range((wide - 1) // LANES * LANES, -1, -LANES):
                        gather(at(tiles, t), m_size, at(to, OUTPUTS * t), columns)
{finish}
"""

_RUN = "                run(sums, at(y, place + j * pixels), length{places})"
_COPY = """\
                to = at(y, place + j * pixels)
                for i in range(length):
                    to[i] = sums[i]"""


def emit(
    lanes: int,
    outputs: int,
    recipe: Recipe = (),
    operands: tuple[tuple[str, str], ...] = (),
    result: str = "int32",
) -> Sources:
    """The module of a convolution of 3 x 3 taps, one apart.

    x: PAIRS of channels with a border (`pairs.widen_planes`); weights: of every `block_m` output channels
    [positions][pairs][rows] panels for every group of rows (`tiles.pack_rows`); scalars: int32, not read;
    y: [batch, outputs, rows, columns] of type `result`; sizes: IntegerWinogradSizes; work: int32, per thread;
    then the operands of the recipe.
    Units are parts of `part_m` output channels (fastest), blocks of `lines` lines of tiles, batch.

    Args:
        lanes: int32 in a register.
        outputs: of the algorithm.
        recipe: what makes an element of y of a sum, its input 0; empty where y takes the sums.
        operands: (place, dtype) of the recipe's other inputs; see `integer_products.CONV_PLACES`.
        result: dtype of y.
    """
    places = "".join(f", at(x{i}, {CONV_PLACES[place]})" for i, (place, _) in enumerate(operands))
    text = _KERNEL.format(
        imports="from LIBRARY1 import run" if recipe else "",
        lanes=lanes,
        outputs=outputs,
        positions=ALGORITHMS[outputs].positions,
        unpack=IntegerWinogradSizes.unpack(),
        operands="".join(f", x{i}" for i in range(len(operands))),
        finish=_RUN.format(places=places) if recipe else _COPY,
    )
    product = product_library(PAIRS, lanes, PAIRED)
    if not recipe:
        return product, text
    advances = tuple((ALONG if place == "same" else FIXED, kind) for place, kind in operands)
    return product, converted_run_library("int32", result, recipe, advances, lanes), text
