"""Running sums and products along one axis, of tensors [outer, n, inner]."""

_STEPS = {"sum": (0, "+"), "prod": (1, "*")}  # of a scan: what it starts from, and its operation

_SCAN_ROWS = """\
from numba import float64, int32, int64


def kernel(x, y, n, exclusive, reverse, begin, end):
    first, way = (n - 1, -1) if reverse else (0, 1)
    row = begin
    while row + 4 <= end:
        i = row * n + first
        a, b, c, d = {wide}({start}), {wide}({start}), {wide}({start}), {wide}({start})
        for _ in range(n):
            e, f, g, h = a {step} x[i], b {step} x[i + n], c {step} x[i + 2 * n], d {step} x[i + 3 * n]
            y[i] = a if exclusive else e
            y[i + n] = b if exclusive else f
            y[i + 2 * n] = c if exclusive else g
            y[i + 3 * n] = d if exclusive else h
            a, b, c, d = e, f, g, h
            i += way
        row += 4
    while row < end:
        i = row * n + first
        a = {wide}({start})
        for _ in range(n):
            e = a {step} x[i]
            y[i] = a if exclusive else e
            a = e
            i += way
        row += 1
"""

_SCAN = """\
{head}from app.kernels.cpu.access import read, write


{inner}def {name}(x, y, running, columns, n, inner, blocks, exclusive, reverse, begin, end, thread):
    s = thread * columns
    for unit in range(begin, end):
        low = unit % blocks * columns
        width = min(columns, inner - low)
        at = unit // blocks * n * inner + low
        for j in range(s, s + width):
            running[j] = {start}
        for k in range(n):
            line = at + (n - 1 - k if reverse else k) * inner
            if exclusive:
                for j in range(width):
                    v = x[line + j]
                    y[line + j] = running[s + j]
                    running[s + j] = running[s + j] {step} v
            elif k % 4 == 0 and k + 4 <= n:  # the totals are loaded and stored once for four rows
                step = -inner if reverse else inner
                for j in range(width):
                    i = line + j
                    p = read(running, s + j) {step} read(x, i)
                    q = p {step} read(x, i + step)
                    r = q {step} read(x, i + 2 * step)
                    t = r {step} read(x, i + 3 * step)
                    write(y, i, p)
                    write(y, i + step, q)
                    write(y, i + 2 * step, r)
                    write(y, i + 3 * step, t)
                    write(running, s + j, t)
            elif k >= n // 4 * 4:
                for j in range(width):
                    t = read(running, s + j) {step} read(x, line + j)
                    write(running, s + j, t)
                    write(y, line + j, t)
"""

_SCAN_LINES = """\
from app.kernels.cpu.codegen.vectors import load, load_first, splat, store, store_first
from app.kernels.cpu.extrema import like


def kernel(x, y, n, inner, blocks, exclusive, reverse, begin, end):
    way = -inner if reverse else inner
    start = splat(like(x[0], {start}), {lanes})
    for unit in range(begin, end):
        low = unit % blocks * {width}
        left = min({width}, inner - low)
        first = unit // blocks * n * inner + low + (n - 1) * inner * reverse
        if left == {width}:
            i = first
            a = b = c = d = start
            for _ in range(n):
                p, q = a {step} load(x, i, {lanes}), b {step} load(x, i + {lanes}, {lanes})
                r = c {step} load(x, i + 2 * {lanes}, {lanes})
                s = d {step} load(x, i + 3 * {lanes}, {lanes})
                store(y, i, a if exclusive else p)
                store(y, i + {lanes}, b if exclusive else q)
                store(y, i + 2 * {lanes}, c if exclusive else r)
                store(y, i + 3 * {lanes}, d if exclusive else s)
                a, b, c, d = p, q, r, s
                i += way
            continue
        for j in range(0, left, {lanes}):
            i, count = first + j, min({lanes}, left - j)
            a = start
            for _ in range(n):
                p = a {step} load_first(x, i, count, start)
                store_first(y, i, count, a if exclusive else p)
                a = p
                i += way
"""

_SCAN_ALONG = """


def kernel(x, y, axis, shape, beyond, running, columns, rank, exclusive, reverse, begin, end, thread):
    for _ in range(begin, end):
        given = int(axis[0])
        at = given + rank if given < 0 else given
        if at < 0 or at >= rank:
            beyond[0] = given
            continue
        outer, inner = 1, 1
        for i in range(at):
            outer *= shape[i]
        for i in range(at + 1, rank):
            inner *= shape[i]
        blocks = (inner + columns - 1) // columns
        along(x, y, running, columns, shape[at], inner, blocks, exclusive, reverse, 0, outer * blocks, thread)
"""
_INNER = '@njit(error_model="numpy", boundscheck=False)\n'


def scan_rows(op: str, wide: str) -> str:
    """Source of a kernel for running sums or products along each row, four rows side by side.

    x, y: T[rows, n], y may be x; `op` is sum or prod, `wide` the type they are held in: float64, int32 or
    int64.
    Units are rows.
    """
    start, step = _STEPS[op]
    return _SCAN_ROWS.format(start=start, step=step, wide=wide)


def scan(op: str) -> str:
    """Source of a kernel for running sums or products along the middle axis.

    x, y: T[outer, n, inner], y may be x; running: [threads, columns], float64, int32 or int64.
    `op` is sum or prod.
    """
    return _scan(op, "", "", "kernel")


def scan_lines(op: str, lanes: int) -> str:
    """Source of a kernel for running sums or products along the middle axis, in the type of elements.

    x, y: T[outer, n, inner], y may be x; `op` is sum or prod. Units are outer * blocks, of 4 * `lanes`
    neighbours each, whose totals stay in registers.
    """
    start, step = _STEPS[op]
    return _SCAN_LINES.format(start=start, step=step, lanes=lanes, width=4 * lanes)


def scan_along(op: str) -> str:
    """Source of a kernel for running sums or products along an axis that it reads. One unit.

    x, y: T[shape], y may be x; axis: T[1]; shape: int64[rank]; beyond: int64[1], which becomes an axis that
    is none: y is not written then. running: as of `scan`.
    """
    return _scan(op, "from app.kernels.cpu.codegen.inner import njit\n", _INNER, "along") + _SCAN_ALONG


def _scan(op: str, head: str, inner: str, name: str) -> str:
    start, step = _STEPS[op]
    return _SCAN.format(start=start, step=step, head=head, inner=inner, name=name)
