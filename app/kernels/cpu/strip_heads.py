"""Strips of projections: the columns of one head of attention at a time.

Sums have the order of `gemm`: results are equal bit by bit.
"""

from dataclasses import dataclass

from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import shapes_of
from app.kernels.cpu.gemm import product_library


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadProductSizes(SizeTable):
    """Sizes of the product of a head; distances in elements."""

    operator: int  # number of the cursor
    m: int
    k: int
    head: int  # columns
    y_at: int
    y_ring: int  # heads that lie side by side in a row of y
    y_row: int
    share: int  # rows of a unit
    block_n: int  # columns that are computed before the next ones
    block_k: int
    work_at: int
    work_step: int  # elements of the workspace of a thread
    flags: int


_SOURCE = """\
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.tiles import ACCUMULATE
from LIBRARY0 import COLUMNS, STEP, product


def kernel(a, b, y, bias, scalars, sizes, cursors, work, begin, end, thread):
    {unpack}
    turn = cursors[operator]
    first = turn * head
    spare = at(work, work_at + thread * work_step)
    panel = k * STEP
    for unit in range(begin, end):
        i = unit * share
        rows = min(share, m - i)
        to = at(y, y_at + i * y_row + turn % y_ring * head)
        for j in range(0, head, block_n):
            width = min(block_n, head - j)
            for k0 in range(0, k, block_k):
                depth = min(block_k, k - k0)
                out = at(to, j)  # holds the sums so far
                place = (first + j) // COLUMNS * panel + k0 * STEP
                product(at(a, i * k), False, k, 1, k0, at(b, place), STEP, panel, depth, out, y_row, rows,
                        width, spare, out, y_row, scalars, 0, at(bias, first + j), scalars, 0, scalars,
                        (ACCUMULATE if k0 else 0) | (flags if k0 + depth == k else 0))
"""


def emit(lanes: int, vectors: int) -> Sources:
    """The module of a kernel that computes the columns of the next head of a float32 product.

    a: float32[m, k]; b: panels of `vectors` registers of columns; y: float32[m, y_ring, head] by y_row;
    bias and scalars as in `gemm.emit`; sizes: HeadProductSizes; cursors: int64[operators], the number of the
    head, which it leaves as it is; work: per thread. Units are blocks of rows.
    """
    library = product_library("float32", lanes, shapes_of("float32", vectors))
    return library, _SOURCE.format(unpack=HeadProductSizes.unpack())
