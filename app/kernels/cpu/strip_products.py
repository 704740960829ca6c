"""Strips of matrix products: rows of the result at a time, between rings of rows.

Tiles begin at the rows where those of `gemm` begin, and sums have its order: results are equal bit by bit.
"""

from dataclasses import dataclass

from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import shapes_of
from app.kernels.cpu.epilogue import ALONG, FIXED, run_library
from app.kernels.cpu.gemm import product_library
from app.kernels.cpu.strips import PIECE, RingSizes
from app.kernels.expressions import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class StripProductSizes(SizeTable):
    """Sizes of a product; rows of `a` and of the result lie side by side in their rings."""

    rows: int  # of the whole result
    n: int
    k: int
    residual_row: int  # elements; 0 for one row that all have
    block_n: int  # columns of a unit
    block_k: int
    sums_size: int  # elements of the workspace of a thread
    work_step: int
    flags: int


# Where operands of a recipe begin for row i of a piece: by their name, the offset.
PLACES = {"same": "(first + i) * n + j", "channel": "j", "row": "first + i", "scalar": "0"}

_SOURCE = """\
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.tiles import ACCUMULATE
from LIBRARY0 import COLUMNS, STEP, product
{imports}

def kernel(a, b, y, bias, residual, scalars, sizes, rings, cursors, most, work{operands}, begin, end, thread):
    {unpack}
    {unpack_rings}
    first = cursors[operator]
    last = min(first + most, rows)
    if shares == 1:
        cursors[operator] += most
    first = max(first, 0)
    x, y, residual = at(a, x_at), at(y, y_at), at(residual, r_at)
    x_origin, y_origin, r_origin = first if x_moves else 0, first if y_moves else 0, first if r_moves else 0
    mine = at(work, work_at + thread * work_step)
    spare = at(mine, sums_size)
    panel = k * STEP
    while first < last:
{piece}
        x_slot = (first - x_origin) % x_ring
        count = min(count, x_ring - x_slot)
        source, to = at(x, x_slot * k), at(y, y_slot * n)
        add = at(residual, r_slot * residual_row)
        for j in range(begin * block_n, min(end * block_n, n), block_n):
            width = min(block_n, n - j)
            for k0 in range(0, k, block_k):
                depth = min(block_k, k - k0)
                ends = k0 + depth == k
                out, out_row = (at(to, j), n) if ends and {direct} else (mine, block_n)
                place = j // COLUMNS * panel + k0 * STEP
                product(source, False, k, 1, k0, at(b, place), STEP, panel, depth, out,
                        out_row, count, width, spare, mine, block_n, scalars, 0, at(bias, j), at(add, j),
                        residual_row, scalars, (ACCUMULATE if k0 else 0) | (flags if ends else 0))
{finish}
        first += count
"""

_RUNS = """\
            for i in range(count):
                run(at(mine, i * block_n), 1, at(to, i * n + j), 1, width, scalars[0], residual, scalars, 0,
                    spare{places})
"""


def emit(
    lanes: int, recipe: Recipe = (), operands: tuple[tuple[str, str], ...] = (), vectors: int = 3
) -> Sources:
    """The module of a kernel that computes the next rows of a float32 product.

    a: float32[x_ring, k]; b: panels of `vectors` registers of columns; y: float32[y_ring, n]; residual:
    float32[r_ring, n], or a row; bias and scalars as in `gemm.emit`; sizes: StripProductSizes; rings:
    RingSizes; cursors: int64[operators], the next rows; most: rows of the call;
    work: per thread; then the operands of the recipe. Units are blocks of columns.
    """
    names = "".join(f", at(x{i}, {PLACES[place]})" for i, (place, _) in enumerate(operands))
    library = product_library("float32", lanes, shapes_of("float32", vectors))
    source = _SOURCE.format(
        imports="from LIBRARY1 import run\n" if recipe else "",
        operands="".join(f", x{i}" for i in range(len(operands))),
        unpack=StripProductSizes.unpack(),
        unpack_rings=RingSizes.unpack("rings"),
        piece=PIECE,
        direct=not recipe,
        finish=_RUNS.format(places=names) if recipe else "",
    )
    if not recipe:
        return library, source
    advances = tuple((FIXED if place in ("row", "scalar") else ALONG, kind) for place, kind in operands)
    return library, run_library("float32", recipe, advances), source
