"""Matrix products with 7 multiplications of half-size blocks instead of 8: Strassen's, as Winograd has it.

With A = [A11 A12; A21 A22] and B, C alike, B constant:
    S1 = A21 + A22   S2 = S1 - A11   S3 = A11 - A21   S4 = A12 - S2
    T1 = B12 - B11   T2 = B22 - T1   T3 = B22 - B12   T4 = T2 - B21
    U1 = A11 B11     U2 = U1 + S2 T2     U3 = U2 + S3 T3     U4 = U2 + S1 T1
    C11 = U1 + A12 B21   C12 = U4 + S4 B22   C21 = U3 - A22 T4   C22 = U3 + U4 - U2
Every product but the first starts from the sums of an earlier one, so only C22 takes a pass of
additions. A last odd row is two rows of products with blocks that are there: B12 = B22 - T3.

Source: Winograd's variant, as in Huss-Lederman et al., 1996, "Implementation of Strassen's algorithm
for matrix multiplication"; S and T are theirs.
"""

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.tiles import WIDE
from app.kernels.cpu.epilogue import ALONG, FIXED, run_library
from app.kernels.cpu.gemm import PLACES, product_library
from app.kernels.expressions import Recipe

Array = np.ndarray[Any, Any]

# Blocks of A: offsets in rows and columns of halves where they lie in A, else their number among the sums.
A11, A12, A22 = (0, 0), (0, 1), (1, 1)
S1, S2, S3, S4 = range(4)
NOTHING = -1

# A step: factor of A, buffer it starts from, buffer it ends in, quadrant of C that it completes.
# The factors of B lie in memory in this order: see `factors`.
STEPS: tuple[tuple[tuple[int, int] | int, int, int, tuple[int, int] | None], ...] = (
    (A11, NOTHING, 0, None),
    (S2, 0, 1, None),
    (A12, 0, 0, (0, 0)),
    (S3, 1, 0, None),
    (S1, 1, 2, None),
    (A22, 0, 0, (1, 0)),  # buffer 1 takes U3 + U4 - U2 before
    (S4, 2, 2, (0, 1)),
)
BEFORE_C22 = 5  # the step before which buffers 0, 1, 2 hold U3, U2, U4
BUFFERS = 3
# The odd row (x1, x2): rows x1, x2, x1 + x2 and -x1, the step whose factor of B they meet, half of C.
ODD = ((0, 0, 0), (1, 2, 0), (2, 6, 1), (3, 3, 1))


def factors(b: Array) -> Array:
    """The 7 constant factors of b[k, n] in the order of STEPS: [7, k / 2, n / 2], computed in float64."""
    k, n = b.shape[0] // 2, b.shape[1] // 2
    wide = b.astype(np.float64)
    b11, b12, b21, b22 = wide[:k, :n], wide[:k, n:], wide[k:, :n], wide[k:, n:]
    t1 = b12 - b11
    t2 = b22 - t1
    return np.stack([b11, t2, b21, b22 - b12, t1, b21 - t2, b22]).astype(b.dtype)


def multiply(a: Array, b: Array) -> Array:
    """a[m, k] b[k, n] by one level of the algorithm in the type of the operands; m, k, n even."""
    m, k, n = a.shape[0] // 2, a.shape[1] // 2, b.shape[1] // 2
    a11, a21 = a[:m, :k], a[m:, :k]
    s1 = a21 + a[m:, k:]
    s2 = s1 - a11
    sums = (s1, s2, a11 - a21, a[:m, k:] - s2)
    buffers = [np.zeros((m, n), a.dtype)] * (BUFFERS + 1)
    c = np.empty((2 * m, 2 * n), a.dtype)
    for step, ((factor, start, end, quadrant), t) in enumerate(zip(STEPS, factors(b))):
        if step == BEFORE_C22:
            c[m:, n:] = buffers[2] - buffers[1] + buffers[0]
        if isinstance(factor, int):
            x = sums[factor]
        else:
            x = a[factor[0] * m : (factor[0] + 1) * m, factor[1] * k : (factor[1] + 1) * k]
        buffers[end] = (buffers[start] if start != NOTHING else 0) + x @ t
        if quadrant is not None:
            c[quadrant[0] * m : (quadrant[0] + 1) * m, quadrant[1] * n : (quadrant[1] + 1) * n] = buffers[end]
    return c


def pack(b: Array, width: int, block: int, depth: int) -> Array:
    """The factors of b as the kernel streams them, one after the other.

    For every block of `block` columns, every factor, every `depth` rows: panels [depth, width]. The
    halves of b must be a multiple of `width` wide.
    """
    t = factors(b)
    _, k, n = t.shape
    pieces = [
        t[i, p : p + depth, j : j + width].ravel()
        for first in range(0, n, block)
        for i in range(len(STEPS))
        for p in range(0, k, depth)
        for j in range(first, min(first + block, n), width)
    ]
    return np.concatenate(pieces)


def combine(a, s, h, k, odd, begin, end):
    """The sums of blocks of A that are multiplied. a: T[2h + odd, 2k]; s: T[(4h + 4 odd) * k].

    s holds S1 to S4, [h, k] each, then of an odd row (x1, x2): x1, x2, x1 + x2, -x1. Units are
    rows h, and the odd one.
    """
    for i in range(begin, end):
        if i < h:
            top, low = 2 * k * i, 2 * k * (h + i)
            for j in range(k):
                s[i * k + j] = a[low + j] + a[low + k + j]
            for j in range(k):
                s[(h + i) * k + j] = s[i * k + j] - a[top + j]
            for j in range(k):
                s[(2 * h + i) * k + j] = a[top + j] - a[low + j]
            for j in range(k):
                s[(3 * h + i) * k + j] = a[top + k + j] - s[(h + i) * k + j]
        else:
            last, to = 4 * k * h, 4 * h * k
            for j in range(k):
                s[to + j] = a[last + j]
                s[to + k + j] = a[last + k + j]
                s[to + 2 * k + j] = a[last + j] + a[last + k + j]
                s[to + 3 * k + j] = -a[last + j]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrassenSizes(SizeTable):
    """Sizes of a product by Strassen's algorithm."""

    h: int  # rows, columns and depth of a block
    columns: int
    k: int
    odd: int
    residual_row: int
    block_m: int
    block_n: int
    block_k: int
    spare_size: int
    work_step: int  # elements of workspace per thread
    flags: int


_KERNEL = """
@njit(error_model="numpy", boundscheck=False)
def whole(a, a_row, b, k, block_k, width, start, end, to, to_row, rows, block_n, spare,
          columns, residual, residual_row, scalars, flags):
    # One product over all of the reduction: from the sums `start`, by way of `end`, to `to`.
    for k0 in range(0, k, block_k):
        depth = min(block_k, k - k0)
        last = k0 + depth == k
        f = (flags if last else 0) | ACCUMULATE
        target, step = (to, to_row) if last else (end, block_n)
        product(at(a, k0), False, a_row, 1, 0, at(b, k0 * width), COLUMNS, depth * COLUMNS, depth,
                target, step, rows, width, spare, end if k0 else start, block_n, columns, 0, columns,
                residual, residual_row, scalars, f)


def kernel(a, s, b, y, zeros, column_bias, residual, scalars, steps, odds, sizes, work{operands},
           begin, end, thread):
    {unpack}
    n, m, batch = 2 * columns, 2 * h + odd, 0
    blocks_m, blocks_n = (h + block_m - 1) // block_m, (columns + block_n - 1) // block_n
    area = block_m * block_n
    mine = at(work, thread * work_step)
    spare = at(mine, {buffers} * area)
    for unit in range(begin, end):
        first = unit % blocks_m * block_m
        column = unit // blocks_m * block_n
        rows, width = min(block_m, h - first), min(block_n, columns - column)
        panels = at(b, {count} * k * column)
        for turn in range({count} + 1):
            # C22 comes before step {before_c22}, whose product overwrites a sum of it.
            index = turn - (turn > {before_c22})
            combining = turn == {before_c22}
            in_a, x, start, buffer, final, down, right = (
                steps[7 * index], steps[7 * index + 1], steps[7 * index + 2], steps[7 * index + 3],
                steps[7 * index + 4], steps[7 * index + 5], steps[7 * index + 6])
            if combining:
                final, down, right, buffer = 1, 1, 1, 1
            i, j = down * h + first, right * columns + column
            place = i * n + j
            own = at(mine, buffer * area)
            extra = at(residual, i * residual_row + j)
            bias = at(column_bias, j)
            to, step = (at(y, place), n) if {direct} and final else (own, block_n)
            f = flags if final else 0
            if combining:
                for r in range(rows):
                    u2, u4 = at(own, r * block_n), at(mine, 2 * area + r * block_n)
                    for c in range(width):
                        u2[c] = u4[c] - u2[c]
                finish(own, block_n, to, step, rows, width, mine, block_n, zeros, 0, bias, extra,
                       residual_row, scalars, ACCUMULATE | f)
            else:
                source, row = (at(a, x + first * 2 * k), 2 * k) if in_a else (at(s, x + first * k), k)
                sums = at(mine, start * area) if start >= 0 else zeros
                whole(source, row, at(panels, index * k * width), k, block_k, width, sums, own, to, step,
                      rows, block_n, spare, bias, extra, residual_row, scalars, f)
{finish}
        if odd and first + rows == h:
            for half in range(2):
                i, j = m - 1, half * columns + column
                place = i * n + j
                extra = at(residual, i * residual_row + j)
                bias = at(column_bias, j)
                to, step = (at(y, place), n) if {direct} else (mine, block_n)
                for part in range(2):
                    at_row, factor = odds[4 * half + 2 * part], odds[4 * half + 2 * part + 1]
                    source, block = at(s, (4 * h + at_row) * k), at(panels, factor * k * width)
                    if part == 0:
                        whole(source, k, block, k, block_k, width, zeros, mine, mine, block_n, 1, block_n,
                              spare, bias, extra, residual_row, scalars, 0)
                    else:
                        whole(source, k, block, k, block_k, width, mine, mine, to, step, 1, block_n,
                              spare, bias, extra, residual_row, scalars, flags)
                own = mine
{finish_odd}
"""

_RUNS = """\
            for r in range({rows}):
                run(at(own, r * block_n), 1, at(y, place + r * n), 1, width, scalars[0], residual, scalars, 0,
                    spare{places})
"""


def emit(dtype: str, lanes: int, recipe: Recipe = (), operands: tuple[tuple[str, str], ...] = ()) -> Sources:
    """The module of a matrix product C[m, n] = A[m, 2k] B by one level of the algorithm.

    a: T[m, 2k]; s: what `combine` made of it; b: see `pack`; y: T[m, n], may be the residual; zeros:
    T[block_m * block_n]; column_bias, residual, scalars: see `generator.tile`; steps: int64, see
    `schedule`; odds: int64, see ODD; sizes: StrassenSizes; work: per thread; then the operands
    of the recipe. Units are blocks of h rows (fastest) and of columns, of a quarter of y.

    Args:
        dtype: T.
        lanes: float32 in a register.
        recipe: what follows the tile's own epilogue.
        operands: (place, element type) of the recipe's inputs after the first; see `gemm.PLACES`.
    """
    places = "".join(f", at(x{i}, {PLACES[place]})" for i, (place, _) in enumerate(operands))
    kernel = _KERNEL.format(
        unpack=StrassenSizes.unpack(),
        operands="".join(f", x{i}" for i in range(len(operands))),
        buffers=BUFFERS,
        count=len(STEPS),
        before_c22=BEFORE_C22,
        direct=not recipe,
        finish=_RUNS.format(rows="rows if final else 0", places=places) if recipe else "",
        finish_odd=textwrap.indent(_RUNS.format(rows="1", places=places), "    ") if recipe else "",
    )
    head = (
        "from app.kernels.cpu.codegen.inner import njit\n"
        "from app.kernels.cpu.codegen.generator import at\n"
        "from app.kernels.cpu.codegen.tiles import ACCUMULATE\n"
        "from LIBRARY0 import COLUMNS, finish, product\n"
    )
    advances = tuple((FIXED if place in ("row", "scalar") else ALONG, kind) for place, kind in operands)
    libraries: list[str | tuple[str, ...]] = [product_library(dtype, lanes, WIDE)]
    if recipe:
        libraries.append(run_library(dtype, recipe, advances))
        head += "from LIBRARY1 import run\n"
    return *libraries, head + kernel


def schedule(h: int, k: int) -> Array:
    """STEPS with offsets: in A or not, where the factor begins, start, end, final, down, right."""
    rows = []
    for factor, start, end, quadrant in STEPS:
        if isinstance(factor, int):
            source = (0, factor * h * k)
        else:
            source = (1, (factor[0] * h * 2 + factor[1]) * k)
        rows.append((*source, start, end, int(quadrant is not None), *(quadrant or (0, 0))))
    return np.array(rows, np.int64)
