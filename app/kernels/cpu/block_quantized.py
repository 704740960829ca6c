"""Products with weights of 4 or 8 bits that have a scale for each block of the reduction.

Weights stay small in memory and are unpacked in registers. Activations are rounded, block by block, to
signed digits of 8 bits: one digit where int8 activations are asked for, three (21 bits below the largest of
the block, about what a float32 sum loses anyway) where they are not. Sums over a block are integers, exact.

A panel holds `lanes` columns: block after block `lines` vectors of int32 and one of float32 scales, then
the zero points of all blocks where there are some (int8 or float32, `lanes` a block). A byte of a line holds
one weight of 8 bits, or two of 4: those of steps 8 l + i and, above, 8 l + 4 + i in byte i of line l.
"""

from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ll
import numpy as np
from numba import types

from app.kernels.cpu.codegen.generator import outlined
from app.kernels.cpu.codegen.instructions import I8, I32, Vectors, number, repeat, typed
from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import LEFT_UNSIGNED
from app.kernels.cpu.epilogue import ALONG, FIXED, run_library
from app.kernels.expressions import Recipe

Array = np.ndarray[Any, Any]

LIMIT = 127  # magnitude of a digit
BASE = 254.0  # of digits: half a unit of one is the limit of the next
SMALLEST = 1e-36  # magnitude that is told from zero: its inverse is a float32
CHUNK = 4  # lines that are unrolled, and whose sums of products of 4 bits fit int16
# Zero points of a block: the same for all columns, one a column as int8, one a column as float32.
NO_ZEROS, BYTE_ZEROS, FLOAT_ZEROS = "none", "bytes", "floats"
BUFFER = 256  # float32 that a recipe works in


def lines_of(block: int, bits: int) -> int:
    """Vectors of weights of a block."""
    return block * bits // 32


def panel_words(blocks: int, block: int, bits: int, zeros: str, lanes: int) -> int:
    """int32 of a panel."""
    return blocks * lanes * (lines_of(block, bits) + 1) + blocks * _zero_words(zeros, lanes)


def _zero_words(zeros: str, lanes: int) -> int:
    """int32 of the zero points of a block."""
    return {NO_ZEROS: 0, BYTE_ZEROS: lanes // 4, FLOAT_ZEROS: lanes}[zeros]


def words_of(block: int, digits: int) -> int:
    """int32 of a block of rounded activations: digits, their sums, scale, sum in units of it."""
    return digits * (block // 4 + 1) + 2


def pack(q: Array, scales: Array, zeros: Array | None, bits: int, lanes: int) -> Array:
    """Panels as int32[ceil(n / lanes), ...].

    Args:
        q: uint8[n, blocks, block], weights of `bits` bits.
        scales: float32[n, blocks].
        zeros: uint8 or float32 [n, blocks].
        bits: 4 or 8.
        lanes: columns of a panel.
    """
    n, blocks, block = q.shape
    panels = -(-n // lanes)

    def whole(array: Array) -> Array:
        padded = np.zeros((panels * lanes, *array.shape[1:]), array.dtype)
        padded[:n] = array
        return np.ascontiguousarray(np.moveaxis(padded.reshape(panels, lanes, *array.shape[1:]), 1, 2))

    weights = whole(q)  # panel, block, lane, step
    if bits == 4:
        halves = weights.reshape(panels, blocks, lanes, block // 8, 2, 4)
        weights = halves[..., 0, :] | halves[..., 1, :] << np.uint8(4)
    lines = np.ascontiguousarray(weights).view(np.int32).reshape(panels, blocks, lanes, -1)
    parts = [
        np.concatenate(
            (np.moveaxis(lines, 2, 3), whole(scales.astype(np.float32)).view(np.int32)[:, :, None]), 2
        ).reshape(panels, -1)
    ]
    if zeros is not None:
        kept = zeros if zeros.dtype == np.float32 else (zeros.astype(np.int16) - 128).astype(np.int8)
        parts.append(whole(kept).reshape(panels, -1).view(np.int32))
    return np.concatenate(parts, 1)


def block_rounder(digits: int, lanes: int) -> Any:
    """An intrinsic that rounds one block of a row.

    It is called as rounded(x, n, y, block, origin): x: float32, of which n <= block elements are there, the
    others are zeros; block: a multiple of 16; y: int32, see `emit_rounding`.
    """
    signature = types.void(
        types.CPointer(types.float32), types.int64, types.CPointer(types.int32), types.int64, types.int64
    )

    def write(b: Any, values: Any) -> None:
        x, n, y, block, origin = values
        v = Vectors(b, "float32", lanes)
        chunks = b.sdiv(block, number(lanes))

        def real(value: float) -> ll.Constant:
            return ll.Constant(v.element, value)

        def step(place: Any, left: Any) -> tuple[Any, list[Any]]:
            return v.masked_load(place, v.below(left)), [v.at(place, lanes), b.sub(left, number(lanes))]

        def compare(state: list[Any]) -> list[Any]:
            value, moved = step(*state[:2])
            return [*moved, v.maximum(v.absolute(value), state[2])]

        *_, most = repeat(b, chunks, [x, n, v.zero], compare)
        largest = v.largest(most)
        # NaN where an element is infinite or no number.
        scale = b.fadd(b.fdiv(largest, real(LIMIT)), b.fmul(largest, real(0)))
        usable = b.and_(b.fcmp_ordered(">", largest, real(SMALLEST)), b.fcmp_ordered("ord", scale, scale))
        inverse = v.splat(b.select(usable, b.fdiv(real(LIMIT), largest), real(0)))
        whole = ll.VectorType(I32, lanes)
        base, bytes_ = ll.Constant(v.type, [BASE] * lanes), ll.VectorType(I8, lanes)

        def spread(state: list[Any]) -> list[Any]:
            value, moved = step(*state[:2])
            to, *sums = state[2:]
            rest = b.select(usable, b.fmul(value, inverse), v.zero)
            for digit in range(digits):
                nearest = v.rounded(rest)
                found = b.fptosi(nearest, whole)
                place = b.gep(to, [b.mul(block, number(digit))])
                b.store(b.trunc(found, bytes_), b.bitcast(place, bytes_.as_pointer()), align=1)
                sums[digit] = b.add(sums[digit], found)
                rest = b.fmul(b.fsub(rest, nearest), base)
            return [*moved, b.gep(to, [number(lanes)]), *sums]

        none = ll.Constant(whole, [0] * lanes)
        start = [x, n, b.bitcast(y, I8.as_pointer()), *[none] * digits]
        _, _, _, *sums = repeat(b, chunks, start, spread)
        after = b.gep(y, [b.mul(b.sdiv(block, number(4)), number(digits))])
        total, unit, less = real(0), np.float32(1), b.trunc(b.sub(number(0), origin), I32)
        for digit, vector in enumerate(sums):
            found = v.sum_of(vector)
            b.store(b.mul(found, less), b.gep(after, [number(digit)]))
            total = b.fadd(total, b.fmul(b.sitofp(found, v.element), real(float(unit))))
            unit /= np.float32(BASE)
        ends = b.bitcast(b.gep(after, [number(digits)]), v.element.as_pointer())
        b.store(scale, ends)
        b.store(total, b.gep(ends, [number(1)]))
        b.ret_void()

    return typed(signature, outlined(f"round_block_{digits}", write))


_ROUNDING = """\
from app.kernels.cpu.block_quantized import block_rounder
from app.kernels.cpu.codegen.generator import at

rounded = block_rounder({digits}, {lanes})


def kernel(x, y, k, block, origin, begin, end):
    blocks = (k + block - 1) // block
    own = {digits} * (block // 4 + 1) + 2
    for unit in range(begin, end):
        row, first = unit // blocks, unit % blocks * block
        rounded(at(x, row * k + first), k - first, at(y, own * unit), block, origin)
"""


def emit_rounding(digits: int, lanes: int) -> Sources:
    """The module that rounds blocks of rows. x: float32[m, k]; y: int32[m, blocks, words_of(block, digits)].

    Of each block `digits` times int8[block], as many int32: the sums of these times -origin, then as float32
    the scale of the first digit, and the sum of all in units of it; absent elements are zeros. Units are
    blocks.
    """
    return (_ROUNDING.format(digits=digits, lanes=lanes),)


@dataclass(frozen=True, slots=True)
class Tile:
    """Parameters of a tile, and the code that they give.

    Attributes:
        dtype: LEFT_UNSIGNED, saturating, for weights of 4 bits only, or one of DOTS with weights on the left.
        bits: of a weight.
        lines: vectors of weights of a block.
        digits: of an activation.
        zeros: one of NO_ZEROS, BYTE_ZEROS, FLOAT_ZEROS.
        lanes: columns of a panel.
        rows, panels: of the tile.
    """

    dtype: str
    bits: int
    lines: int
    digits: int
    zeros: str
    lanes: int
    rows: int
    panels: int

    @property
    def quads(self) -> int:
        """Fours of steps in a block."""
        return self.lines * 8 // self.bits

    def write(self, builder: Any, values: Any) -> None:
        """Code of a function that takes what `tile` says."""
        x, x_row, b, b_panel, blocks, c, c_row = values
        v, f = Vectors(builder, self.dtype, self.lanes), Vectors(builder, "float32", self.lanes)
        step, words = (self.lines + 1) * self.lanes, self.digits * (self.quads + 1) + 2
        rows = [v.at(x, builder.mul(number(r), x_row)) for r in range(self.rows)]
        panels = [v.at(b, builder.mul(number(p), b_panel)) for p in range(self.panels)]
        each = _zero_words(self.zeros, self.lanes)

        def block(state: list[Any]) -> list[Any]:
            line, row, zero, *sums = state
            inputs, weights = [v.at(p, row) for p in rows], [v.at(p, line) for p in panels]
            origins = [v.at(p, zero) for p in panels]
            found = self._block(v, f, inputs, weights, origins)
            ends = (number(i) for i in (step, words, each))
            moved = [builder.add(place, by) for place, by in zip((line, row, zero), ends)]
            scales = [f.load(builder.bitcast(v.at(w, step - self.lanes), c.type)) for w in weights]
            for i, total in enumerate(found):
                r, p = divmod(i, self.panels)
                factor = f.broadcast(builder.bitcast(v.at(inputs[r], words - 2), c.type))
                sums[i] = f.fma(f.multiply(total, factor), scales[p], sums[i])
            return [*moved, *sums]

        first = [number(0), number(0), builder.mul(blocks, number(step))]
        _, _, _, *sums = repeat(builder, blocks, [*first, *[f.zero] * (self.rows * self.panels)], block)
        for i, total in enumerate(sums):
            r, p = divmod(i, self.panels)
            f.store(total, f.at(f.at(c, builder.mul(number(r), c_row)), p * self.lanes))
        builder.ret_void()

    def _block(
        self, v: Vectors, f: Vectors, inputs: list[Any], weights: list[Any], origins: list[Any]
    ) -> list[Any]:
        """float32 sums of a block, in units of the scales: rows of panels."""
        sums = []
        for r in range(self.rows):
            for p in range(self.panels):
                sums += self._first(v, inputs[r], origins[p])
        chunk = next(n for n in range(min(CHUNK, self.lines), 0, -1) if self.lines % n == 0)

        def lines(state: list[Any]) -> list[Any]:
            place, row, *old = state
            new = self._lines(
                v, [v.at(x, row) for x in inputs], [v.at(w, place) for w in weights], chunk, old
            )
            row = v.b.add(row, number(chunk * 8 // self.bits))
            return [v.b.add(place, number(chunk * self.lanes)), row, *new]

        if chunk == self.lines:
            found = self._lines(v, inputs, weights, chunk, sums)
        else:
            count = number(self.lines // chunk)
            _, _, *found = repeat(v.b, count, [number(0), number(0), *sums], lines)
        together = []
        inverse = ll.Constant(f.type, [1 / BASE] * f.lanes)
        for i in range(0, len(found), self.digits):
            *higher, last = (v.b.sitofp(x, f.type) for x in found[i : i + self.digits])
            for x in reversed(higher):
                last = f.fma(last, inverse, x)
            if self.zeros == FLOAT_ZEROS:
                r, p = divmod(i // self.digits, self.panels)
                place = v.at(inputs[r], self.digits * (self.quads + 1) + 1)
                total = f.broadcast(v.b.bitcast(place, f.element.as_pointer()))
                zero = f.load(v.b.bitcast(origins[p], f.element.as_pointer()))
                last = f.fma(v.b.fneg(total), zero, last)
            together.append(last)
        return together

    def _first(self, v: Vectors, row: Any, origin: Any) -> list[Any]:
        """Terms that a zero point adds to the sums of each digit."""
        if self.zeros == FLOAT_ZEROS:
            return [v.zero] * self.digits
        sums = [v.broadcast(v.at(row, self.digits * self.quads + d)) for d in range(self.digits)]
        if self.zeros == NO_ZEROS:
            return sums
        narrow = ll.VectorType(I8, v.lanes)
        zero = v.b.sext(v.b.load(v.b.bitcast(origin, narrow.as_pointer()), align=1), v.type)
        zero = v.b.add(zero, ll.Constant(v.type, [128] * v.lanes))
        return [v.multiply(x, zero) for x in sums]

    def _lines(
        self, v: Vectors, inputs: list[Any], weights: list[Any], count: int, sums: list[Any]
    ) -> list[Any]:
        """Sums with so many lines added."""
        saturating = self.dtype == LEFT_UNSIGNED
        halves = ll.VectorType(ll.IntType(16), 2 * v.lanes)
        new = [ll.Constant(halves, [0] * 2 * v.lanes)] * len(sums) if saturating else list(sums)
        for line in range(count):
            for p, start in enumerate(weights):
                place = v.at(start, line * self.lanes)
                for part, quad in enumerate(self._unpacked(v, v.load(place))):
                    at_quad = line * 8 // self.bits + part
                    for r, d in ((r, d) for r in range(self.rows) for d in range(self.digits)):
                        i = (r * self.panels + p) * self.digits + d
                        x = v.broadcast(v.at(inputs[r], d * self.quads + at_quad))
                        new[i] = (
                            v.b.add(new[i], v.byte_products(quad, x))
                            if saturating
                            else v.dot(quad, x, new[i])
                        )
        if not saturating:
            return new
        ones = ll.Constant(v.type, [65537] * v.lanes)
        return [v.b.add(x, v.pair_products(v.b.bitcast(y, v.type), ones)) for x, y in zip(sums, new)]

    def _unpacked(self, v: Vectors, line: Any) -> list[Any]:
        """Vectors of four weights each, as unsigned bytes."""
        if self.bits == 8:
            return [line]
        mask, four = (ll.Constant(v.type, [n] * v.lanes) for n in (0x0F0F0F0F, 4))
        return [v.b.and_(line, mask), v.b.and_(v.b.lshr(line, four), mask)]


def tile(*parameters: Any) -> Any:
    """An intrinsic that computes rows x panels * lanes elements of a product; takes what makes a `Tile`.

    It is called as tile(x, x_row, b, b_panel, blocks, c, c_row). x: rounded rows as int32, `x_row` apart; b:
    panels as int32, `b_panel` apart; c: float32, rows `c_row` apart.
    """
    made = Tile(*parameters)
    word, size = types.CPointer(types.int32), types.int64
    signature = types.void(word, size, word, size, size, types.CPointer(types.float32), size)
    return typed(signature, outlined(f"tile_block_{made.rows}x{made.panels}", made.write))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes(SizeTable):
    """Sizes of a product."""

    m: int
    n: int
    blocks: int  # of the reduction
    x_row: int  # int32 from one rounded row to the next
    b_panel: int  # int32
    unit_panels: int
    unit_rows: int
    work_step: int  # float32 of workspace a thread


# Where operands of a recipe begin for row i + r and column j: by their name, the offset.
PLACES = {"same": "place", "channel": "j", "row": "row", "scalar": "0"}

_PRODUCT = """\
from numba import types
from app.kernels.cpu.block_quantized import tile
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.linking import shared

X, C, N = types.CPointer(types.int32), types.CPointer(types.float32), types.int64
PARAMETERS, ROWS, PANELS, LANES = {parameters}, {rows}, {panels}, {lanes}
MAIN = f"tile_block_{{ROWS}}x{{PANELS}}"
wide = tile(*PARAMETERS, LANES, ROWS, PANELS)
last = tile(*PARAMETERS, LANES, ROWS, 1)
# One row takes every weight once, from memory: fastest in one stream (a core of Zen 4 reads 29 GB/s so in all
# forms, 14 to 28 in two or four streams, and less where they are asked for ahead).
single = tile(*PARAMETERS, LANES, 1, 1)


@shared(types.void(X, N, X, N, N, C, N, N, N))
def product(x, x_row, b, b_panel, blocks, c, c_row, rows, panels):
    # rows x panels * LANES elements of c.
    i = 0
    while i < rows:
        size = ROWS if rows - i >= ROWS else 1
        row, to = at(x, i * x_row), at(c, i * c_row)
        p = 0
        while p < panels:
            start, target, left = at(b, p * b_panel), at(to, p * LANES), panels - p
            if size > 1 and left >= PANELS:
                wide(row, x_row, start, b_panel, blocks, target, c_row)
                p += PANELS
            elif size > 1:
                last(row, x_row, start, b_panel, blocks, target, c_row)
                p += 1
            else:
                single(row, x_row, start, b_panel, blocks, target, c_row)
                p += 1
        i += size
"""

_KERNEL = """\
from app.kernels.cpu.codegen.generator import at
from LIBRARY0 import LANES, product
{imports}


def kernel(x, b, y, sizes, work{operands}, begin, end, thread):
    {unpack}
    panels = (n + LANES - 1) // LANES
    parts = (panels + unit_panels - 1) // unit_panels
    mine = at(work, thread * work_step)
    width = unit_panels * LANES
    buffer = at(mine, unit_rows * width)
    for unit in range(begin, end):
        first = unit % parts * unit_panels
        i = unit // parts * unit_rows
        rows, count, j = min(unit_rows, m - i), min(unit_panels, panels - first), first * LANES
        columns = min(count * LANES, n - j)
        if {direct} and columns == count * LANES:
            product(at(x, i * x_row), x_row, at(b, first * b_panel), b_panel, blocks, at(y, i * n + j), n,
                    rows, count)
            continue
        product(at(x, i * x_row), x_row, at(b, first * b_panel), b_panel, blocks, mine, width, rows, count)
        for r in range(rows):
            source, place, row = at(mine, r * width), (i + r) * n + j, i + r
            {finish}
"""


def emit(
    parameters: tuple[Any, ...],
    shape: tuple[int, int, int],
    recipe: Recipe = (),
    operands: tuple[tuple[str, str], ...] = (),
) -> Sources:
    """The module of a product: y = f(x b).

    x: int32, see `emit_rounding`; b: int32, see `pack`; y: float32[m, n]; sizes: BlockSizes;
    work: float32, a unit's sums and a buffer per thread; then the operands of the recipe. Units are
    `unit_panels` panels (fastest) of `unit_rows` rows.

    Args:
        parameters: the first of `Tile`, up to `zeros`.
        shape: lanes, rows and panels of a tile; a single row takes one panel after the other.
        recipe: what makes an element of y of a sum, its input 0.
        operands: (place, element type) of the recipe's other inputs; see PLACES.
    """
    lanes, rows, panels = shape
    library = _PRODUCT.format(parameters=parameters, rows=rows, panels=panels, lanes=lanes)
    places = "".join(f", at(x{i}, {PLACES[place]})" for i, (place, _) in enumerate(operands))
    ends = f"run(source, 1, at(y, place), 1, columns, 0, mine, mine, 0, buffer{places})"
    kernel = _KERNEL.format(
        imports="from LIBRARY1 import run\n" if recipe else "",
        operands="".join(f", x{i}" for i in range(len(operands))),
        unpack=BlockSizes.unpack(),
        direct=not recipe,
        finish=ends if recipe else "for c in range(columns):\n                y[place + c] = source[c]",
    )
    if not recipe:
        return library, kernel
    advances = tuple((FIXED if place in ("row", "scalar") else ALONG, kind) for place, kind in operands)
    return library, run_library("float32", recipe, advances), kernel
