"""Products with few steps of reduction and few rows or columns: points times a matrix, and the like.

Nothing is packed, and no tile is left half empty: the small operand stays in registers, the large one and the
result are read and written once.
"""

BLOCK = 2048  # rows or columns of a unit
LANES = 8  # of vectors of columns
TOGETHER = 6  # rows of a result that are written side by side

_HEADER = """\
from app.kernels.cpu.access import read, write
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.intrinsics import muladd
from app.kernels.cpu.codegen.vectors import load, store

"""

_ROWS = """\
def kernel(a, b, y, offsets, m, b_row, b_column, begin, end):
    blocks = (m + {BLOCK} - 1) // {BLOCK}
    for unit in range(begin, end):
        batch, low = unit // blocks, unit % blocks * {BLOCK}
        t = offsets[2 * batch + 1]
        {weights}
        x = at(a, offsets[2 * batch] + low * {k})
        z = at(y, (batch * m + low) * {n})
        for i in range(min({BLOCK}, m - low)):
            {loads}
            {stores}
"""

_COLUMNS = """\
def kernel(a, b, y, offsets, n, a_row, a_k, b_row, begin, end):
    blocks = (n + {BLOCK} - 1) // {BLOCK}
    for unit in range(begin, end):
        batch, low = unit // blocks, unit % blocks * {BLOCK}
        s = offsets[2 * batch]
        {weights}
        x = at(b, offsets[2 * batch + 1] + low)
        z = at(y, batch * {m} * n + low)
        count = min({BLOCK}, n - low)
        whole = count // {LANES} * {LANES}
        {groups}
        for i in range(whole, count):
            {loads}
            {stores}
"""


# Rows of y at a time: those of one extent often begin in the same few lines of the first cache.
_GROUP = """\
for done in range(0, whole, {LANES}):
            {vectors}
            {stores}
"""


def _lines(lines: list[str], depth: int) -> str:
    return ("\n" + " " * depth).join(lines)


def _sum(terms: list[tuple[str, str]]) -> str:
    """Products added in order."""
    (first, second), *rest = terms
    total = f"{first} * {second}"
    for one, other in rest:
        total = f"muladd({one}, {other}, {total})"
    return total


def _pieces(n: int) -> list[tuple[int, int]]:
    """Places and widths of the vectors that n elements are."""
    found, at = [], 0
    for lanes in (2 * LANES, LANES, 4, 2, 1):
        while n - at >= lanes:
            found.append((at, lanes))
            at += lanes
    return found


def wide_rows(k: int, n: int) -> str:
    """Source of the kernel of `rows` where rows of y are vectors, and columns of b lie side by side."""
    pieces = _pieces(n)
    pairs = [(p, *piece) for p in range(k) for piece in pieces]
    sums = [_sum([(f"w{p}_{j}", f"x{p}") for p in range(k)]) for j, _ in pieces]
    return _HEADER + _ROWS.format(
        BLOCK=BLOCK, k=k, n=n,
        weights=_lines([f"w{p}_{j} = load(b, t + {p} * b_row + {j}, {lanes})" for p, j, lanes in pairs], 8),
        loads=_lines([f"x{p} = x[i * {k} + {p}]" for p in range(k)], 12),
        stores=_lines([f"store(z, i * {n} + {j}, {total})" for (j, _), total in zip(pieces, sums)], 12),
    )  # fmt: skip


def rows(k: int, n: int) -> str:
    """Source of a kernel y[batch, i, j] = sum of a[batch, i, :] b[batch, :, j], for few k and n.

    a: rows of k elements; b: rows `b_row` apart, columns `b_column`; offsets: int64[batches, 2]: of a and b;
    y: T[batches, m, n]. Units are blocks of rows of a product. Vectors are of rows.
    """
    pairs = [(p, j) for p in range(k) for j in range(n)]
    sums = [_sum([(f"x{p}", f"w{p}_{j}") for p in range(k)]) for j in range(n)]
    return _HEADER + _ROWS.format(
        BLOCK=BLOCK, k=k, n=n,
        weights=_lines([f"w{p}_{j} = b[t + {p} * b_row + {j} * b_column]" for p, j in pairs], 8),
        loads=_lines([f"x{p} = read(x, i * {k} + {p})" for p in range(k)], 12),
        stores=_lines([f"write(z, i * {n} + {j}, {total})" for j, total in enumerate(sums)], 12),
    )  # fmt: skip


def columns(k: int, m: int) -> str:
    """Source of a kernel y[batch, i, j] = sum of a[batch, i, :] b[batch, :, j], for few k and m.

    a: rows `a_row` apart, elements `a_k`; b: rows of contiguous elements, `b_row` apart; offsets:
    int64[batches, 2]: of a and b; y: T[batches, m, n]. Units are blocks of columns of a product.
    """
    pairs = [(i, p) for i in range(m) for p in range(k)]
    sums = [_sum([(f"x{p}", f"w{i}_{p}") for p in range(k)]) for i in range(m)]
    vectors = _lines([f"x{p} = load(x, {p} * b_row + done, {LANES})" for p in range(k)], 12)
    stores = [f"store(z, {i} * n + done, {total})" for i, total in enumerate(sums)]
    groups = [
        _GROUP.format(LANES=LANES, vectors=vectors, stores=_lines(stores[i : i + TOGETHER], 12))
        for i in range(0, m, TOGETHER)
    ]
    return _HEADER + _COLUMNS.format(
        BLOCK=BLOCK, LANES=LANES, m=m,
        weights=_lines([f"w{i}_{p} = a[s + {i} * a_row + {p} * a_k]" for i, p in pairs], 8),
        groups=_lines(groups, 8),
        loads=_lines([f"x{p} = x[{p} * b_row + i]" for p in range(k)], 12),
        stores=_lines([f"z[{row} * n + i] = {total}" for row, total in enumerate(sums)], 12),
    )  # fmt: skip
