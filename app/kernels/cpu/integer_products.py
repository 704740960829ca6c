"""Matrix products and convolutions of 8-bit integers: exact 32-bit sums.

`gemm.product` takes several steps of a reduction at once: two of PAIRS (`pairs` widens operands to
them), or four of 8-bit numbers as they are: by one instruction (`tiles.DOTS`), or where the weights are known
not to saturate on the way; or 64 by tile registers (`integer_tiles`). Zero points of all but pairs are
corrected by what they add to the sums.
"""

from dataclasses import dataclass

from app.kernels.cpu import integer_tiles
from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import BOTH_SIGNED, BYTE_PAIRS, PAIRED, PAIRS, QUADS, TILE_DOTS
from app.kernels.cpu.epilogue import ALONG, FIXED
from app.kernels.cpu.gemm import product_library
from app.kernels.cpu.requantize import converted_run_library
from app.kernels.expressions import Recipe

_HEAD = """\
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.copies import copier
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.tiles import ACCUMULATE, COLUMN_BIAS, ROW_BIAS
from LIBRARY0 import COLUMNS, product
"""


# What the kernel of a matrix product reads from its table of sizes; k counts pairs.
@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerMatmulSizes(SizeTable):
    """Sizes of an integer matrix product."""

    m: int
    n: int
    k: int
    a_row: int  # elements from one row of a to the next
    block_m: int
    block_n: int
    block_k: int
    sums_size: int
    spare_size: int
    work_step: int
    lack_count: int  # numbers in `lacks`: 0 where nothing lacks, 1 for all columns, or one a column


# Where operands of a recipe begin for row r of the block.
MATMUL_PLACES = {"same": "place + r * n", "channel": "j", "row": "batch * m + i + r", "scalar": "0"}

_MATMUL = """
def kernel(a, b, corrections, y, offsets, lacks, sizes, work{operands}, begin, end, thread):
    {unpack}
    blocks_m, blocks_n = (m + block_m - 1) // block_m, (n + block_n - 1) // block_n
    chunks = max((k + block_k - 1) // block_k, 1)
    mine = at(work, thread * work_step)
    spare = at(mine, sums_size)
    lacking = at(spare, spare_size)
    for unit in range(begin, end):
        i = unit % blocks_m * block_m
        j = unit // blocks_m % blocks_n * block_n
        batch = unit // (blocks_m * blocks_n)
        rows, width = min(block_m, m - i), min(block_n, n - j)
        first = at(a, offsets[2 * batch] + i * a_row)
        whole = at(b, offsets[2 * batch + 1] + j * k)
        place = batch * m * n + i * n + j
        for r in range(rows if lack_count > 0 else 0):
            row, total = at(first, r * a_row), 0
            for p in range(k):
                v = row[p]
                total += {numbers}
            lacking[r] = lacks[0] * total
            begin_with, of_columns, added = at(mine, r * block_n), at(lacks, j), at(corrections, j)
            for c in range(width if lack_count > 1 else 0):
                begin_with[c] = of_columns[c] * total{corrected}
        for chunk in range(chunks):
            k0 = chunk * block_k
            last = chunk == chunks - 1
            to, step = (at(y, place), n) if {direct} and last else (mine, block_n)
            flags = ACCUMULATE if chunk > 0 or lack_count > 1 else COLUMN_BIAS if {corrects} else 0
            if lack_count == 1 and chunk == 0:
                flags |= ROW_BIAS
            product(first, False, a_row, 1, k0, at(whole, k0 * COLUMNS), COLUMNS, k * COLUMNS,
                    min(block_k, k - k0), to, step, rows, width, spare, mine, block_n,
                    lacking, 1, at(corrections, j), mine, 0, mine, flags)
{finish}
"""

_MATMUL_RUNS = """\
        for r in range(rows):
            run(at(mine, r * block_n), at(y, place + r * n), width{places})
"""


def emit_matmul(
    dtype: str,
    lanes: int,
    recipe: Recipe = (),
    operands: tuple[tuple[str, str], ...] = (),
    result: str = "int32",
) -> Sources:
    """The module of a matrix product.

    a: rows of k elements, a_row apart; b: panels of COLUMNS columns (`tiles.right_element`), of which each
    number lacks one of `lacks` (none for TILE_DOTS);
    corrections: int32[n], not of pairs;
    offsets: int64[batches, 2], where a and b of a batch begin; lacks: int32[1] or int32[n];
    y: [batches, m, n] of type `result`; sizes: IntegerMatmulSizes; work: int32, per thread; then the operands
    of the recipe. Units are blocks of m (fastest), n, batch.

    Args:
        dtype: of the elements of operands: PAIRS, BYTE_PAIRS, or four numbers in one, TILE_DOTS among them.
        lanes: int32 in a register.
        recipe: what makes an element of y of a sum, its input 0; empty where y takes the sums.
        operands: (place, dtype) of the recipe's other inputs; see MATMUL_PLACES.
        result: dtype of y.
    """
    fixed = ("row", "scalar")
    return _module(
        _MATMUL,
        IntegerMatmulSizes,
        _MATMUL_RUNS,
        MATMUL_PLACES,
        fixed,
        dtype,
        lanes,
        recipe,
        operands,
        result,
    )


# What the kernel of a convolution reads from its table of sizes.
@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerConvSizes(SizeTable):
    """Sizes of an integer convolution."""

    packed_image: int  # whether pixels are gathered, or lie one after the other as they are
    pairs: int  # or quads, of channels, per group
    plane: int  # elements from one pair of channels to the next
    layer: int  # from one slice of depth to the next
    line: int  # from row to row
    rows: int  # of the output
    columns: int
    stride_d: int
    stride_h: int
    stride_w: int
    tap_count: int
    groups: int
    outputs: int  # channels of the output, per group
    weight_rows: int  # rows of weights of a group, and their elements
    weight_row: int
    pixels: int
    block_m: int
    part_m: int
    block_n: int
    block_k: int
    panel_row: int
    sums_row: int
    sums_size: int
    spare_size: int
    work_step: int


# Where operands of a recipe begin for output channel j of the block.
CONV_PLACES = {"same": "place + j * pixels", "channel": "row + j", "plane": "channel + j", "scalar": "0"}

_CONV = """
copy1 = copier("int32", {lanes}, 1)
copy2 = copier("int32", {lanes}, 2)


@njit(error_model="numpy", boundscheck=False)
def pack(x, taps, tap_count, first, count, plane, layer, line, rows, columns,
         stride_d, stride_h, stride_w, start, n, out, out_row):
    # out[k * out_row + i]: pair first + k of the reduction at output pixel start + i.
    channel, tap = first // tap_count, first % tap_count
    for k in range(count):
        source = at(x, channel * plane + taps[tap])
        to = at(out, k * out_row)
        row, column, done = start // columns, start % columns, 0
        while done < n:
            length = min(columns - column, n - done)
            from_ = at(source, row // rows * stride_d * layer + row % rows * stride_h * line
                       + column * stride_w)
            if stride_w == 1:
                copy1(at(to, done), from_, 0, length, length)
            elif stride_w == 2:
                copy2(at(to, done), from_, 0, length, length)
            else:
                for i in range(length):
                    to[done + i] = from_[i * stride_w]
            done += length
            column = 0
            row += 1
        tap += 1
        if tap == tap_count:
            tap = 0
            channel += 1


def kernel(x, weights, corrections, y, taps, sizes, work{operands}, begin, end, thread):
    {unpack}
    depth = pairs * tap_count
    parts = (outputs + part_m - 1) // part_m
    blocks = (pixels + block_n - 1) // block_n
    chunks = max((depth + block_k - 1) // block_k, 1)
    sums = at(work, thread * work_step)
    spare = at(sums, sums_size)
    panels = at(spare, spare_size)
    before = -1
    for unit in range(begin, end):
        part, image = unit % parts, unit // parts
        start = image % blocks * block_n
        image //= blocks  # of batch and groups
        group = image % groups
        n = min(block_n, pixels - start)
        m0 = part * part_m
        m1 = min(m0 + part_m, outputs)
        source = at(x, image * pairs * plane)
        for chunk in range(chunks):
            k0 = chunk * block_k
            k = min(block_k, depth - k0)
            if packed_image:
                panel, panel_k = panels, panel_row
                if chunks > 1 or unit // parts != before:
                    pack(source, taps, tap_count, k0, k, plane, layer, line, rows, columns,
                         stride_d, stride_h, stride_w, start, n, panels, panel_row)
                    before = unit // parts
            else:
                panel, panel_k = at(source, k0 * plane + start), plane
            last = chunk == chunks - 1
            flags = ACCUMULATE if chunk > 0 else ROW_BIAS if {corrects} else 0
            for i in range(m0, m1, block_m):
                m = min(block_m, m1 - i)
                row, channel = group * outputs + i, image * outputs + i
                place = channel * pixels + start
                mine = at(sums, (i - m0) * sums_row * (chunks > 1))
                to, step = (at(y, place), pixels) if {direct} and last else (mine, sums_row)
                product(at(weights, (group * weight_rows + i) * weight_row), True, weight_row, 1, k0,
                        panel, panel_k, COLUMNS, k, to, step, m, n, spare, mine, sums_row,
                        at(corrections, row), 1, mine, mine, 0, mine, flags)
                if last:
{finish}
"""

_CONV_RUNS = """\
                    for j in range(m):
                        run(at(mine, j * sums_row), at(y, place + j * pixels), n{places})
"""


def emit_conv(
    dtype: str,
    lanes: int,
    recipe: Recipe = (),
    operands: tuple[tuple[str, str], ...] = (),
    result: str = "int32",
) -> Sources:
    """The module of a convolution as an implicit matrix product.

    x: channels with a border, several in one element (`pairs`); weights: [elements * taps][rows] panels
    for every group of rows (`tiles.pack_rows`), or tiles of TILE_DOTS (`tiles.pack_row_tiles`);
    corrections: int32[groups * outputs], not of PAIRS;
    y: [batch, groups * outputs, ...] of type `result`; taps: int64, offset of each tap in a plane;
    sizes: IntegerConvSizes; work: int32, per thread; then the operands of the recipe. Units are
    parts of `part_m` output channels (fastest), blocks of `block_n` pixels, groups, batch.

    Args:
        dtype: of the elements of operands: PAIRS, or four numbers in one, TILE_DOTS among them.
        lanes: int32 in a register.
        recipe: what makes an element of y of a sum, its input 0; empty where y takes the sums.
        operands: (place, dtype) of the recipe's other inputs; see CONV_PLACES.
        result: dtype of y.
    """
    fixed = ("channel", "plane", "scalar")
    return _module(
        _CONV, IntegerConvSizes, _CONV_RUNS, CONV_PLACES, fixed, dtype, lanes, recipe, operands, result
    )


def _numbers(dtype: str) -> str:
    """Source text: the sum of the numbers of an element `v` of the first operand."""
    bits = 16 if dtype in (PAIRS, BYTE_PAIRS) else 8
    parts = [f"(v >> {shift} & {2**bits - 1})" for shift in range(0, 32, bits)]
    if bits == 16 or dtype.startswith(BOTH_SIGNED):
        parts = [f"(({part} ^ {2 ** (bits - 1)}) - {2 ** (bits - 1)})" for part in parts]
    return " + ".join(parts)


def _module(
    kernel: str,
    sizes: type[SizeTable],
    runs: str,
    places: dict[str, str],
    fixed: tuple[str, ...],
    dtype: str,
    lanes: int,
    recipe: Recipe,
    operands: tuple[tuple[str, str], ...],
    result: str,
) -> Sources:
    begins = "".join(f", at(x{i}, {places[place]})" for i, (place, _) in enumerate(operands))
    text = kernel.format(
        lanes=lanes,
        unpack=sizes.unpack(),
        operands="".join(f", x{i}" for i in range(len(operands))),
        direct=not recipe,
        corrects=dtype not in (PAIRS, BYTE_PAIRS),
        corrected="" if dtype in (PAIRS, BYTE_PAIRS) else " + added[c]",
        numbers=_numbers(dtype),
        finish=runs.format(places=begins) if recipe else "                    pass" * ("last:" in kernel),
    )
    product: str | tuple[str, ...]
    if dtype in TILE_DOTS:
        product = integer_tiles.product_library(dtype)
    else:
        product = product_library(dtype, lanes, PAIRED if dtype in (PAIRS, BYTE_PAIRS) else QUADS)
    if not recipe:
        return product, _HEAD + text
    advances = tuple((FIXED if place in fixed else ALONG, kind) for place, kind in operands)
    run = converted_run_library("int32", result, recipe, advances, lanes)
    return product, run, f"{_HEAD}from LIBRARY1 import run\n{text}"
