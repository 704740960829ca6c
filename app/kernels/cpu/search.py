"""Searches and scans along one axis: position of the extremum, largest k, running sums and products.

Tensors are row-major [outer, n, inner] with the axis in the middle; where `columns` appears, up
to that many neighbours on the innermost axis are worked on side by side, and units are
outer * blocks.
"""

import llvmlite.ir as ll
from numba import types
from numba.extending import intrinsic

from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.vectors import load, splat

LANES = 16  # neighbours that are compared with a number at once
CHUNK = 2048  # elements of which only the extremum is taken before the best chunk, still in L1, is searched
FEW = 8  # largest elements that are kept in order, and not as a heap
_STEPS = {"sum": (0, "+"), "prod": (1, "*")}  # of a scan: what it starts from, and its operation

_ARG_ROWS = """\
from app.kernels.cpu.codegen.inner import njit

from app.kernels.cpu.extrema import maximum, minimum
from app.kernels.cpu.search import place_of


@njit
def extremum(x, start, stop):
    b = x[start]
    for i in range(start + 1, stop):
        b = {function}(b, x[i])
    return b


def kernel(x, y, n, begin, end):
    for row in range(begin, end):
        at = row * n
        where = 0
        b = extremum(x, at, at + min({CHUNK}, n))
        for c in range({CHUNK}, n, {CHUNK}):
            v = extremum(x, at + c, at + min(c + {CHUNK}, n))
            if {better}:
                b = v
                where = c
        y[row] = place_of(b, x, at + where, at + min(where + {CHUNK}, n), {last}) - at
"""

_ARG_COLUMNS = """\
def kernel(x, y, best, columns, n, inner, blocks, begin, end, thread):
    s = thread * columns
    for unit in range(begin, end):
        low = unit % blocks * columns
        width = min(columns, inner - low)
        at = unit // blocks * n * inner + low
        out = unit // blocks * inner + low
        for j in range(width):
            best[s + j] = x[at + j]
            y[out + j] = 0
        for i in range(1, n):
            line = at + i * inner
            for j in range(width):
                v = x[line + j]
                b = best[s + j]
                found = {better}
                best[s + j] = v if found else b
                y[out + j] = i if found else y[out + j]
"""


def _better(op: str, last: bool) -> str:
    """When a later element `v` takes over from the best one `b`; NaN wins over every number."""
    order = {"max": ">", "min": "<"}[op]
    return f"(v {order}= b) | (v != v)" if last else f"(v {order} b) | ((v != v) & (b == b))"


def arg_rows(op: str, last: bool) -> str:
    """Source of a kernel for the position of each row's maximum or minimum.

    x: T[rows, n], n > 0; y: int64[rows]. `op` is max or min; of equals the first, or the last.
    Units are rows.
    """
    return _ARG_ROWS.format(
        function={"max": "maximum", "min": "minimum"}[op],
        better=_better(op, last),
        last=last,
        CHUNK=CHUNK,
    )


def arg_columns(op: str, last: bool) -> str:
    """Source of a kernel for the positions along the middle axis.

    x: T[outer, n, inner], n > 0; y: int64[outer, inner]; best: T[threads, columns].
    """
    return _ARG_COLUMNS.format(better=_better(op, last))


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


def scan_along(op: str) -> str:
    """Source of a kernel for running sums or products along an axis that it reads. One unit.

    x, y: T[shape], y may be x; axis: T[1]; shape: int64[rank]; beyond: int64[1], which becomes an axis that
    is none: y is not written then. running: as of `scan`.
    """
    return _scan(op, "from app.kernels.cpu.codegen.inner import njit\n", _INNER, "along") + _SCAN_ALONG


def _scan(op: str, head: str, inner: str, name: str) -> str:
    start, step = _STEPS[op]
    return _SCAN.format(start=start, step=step, head=head, inner=inner, name=name)


@njit
def _before(a, i, b, j, largest):
    """True if (a, position i) comes before (b, position j) in the result; NaN counts as the largest."""
    a_is_nan = a != a
    b_is_nan = b != b
    if a == b or (a_is_nan and b_is_nan):
        return i < j
    is_larger = a_is_nan or (a > b and not b_is_nan)
    return is_larger == (largest != 0)


@njit
def _sift(y, indices, at, inner, root, size, largest):
    """Restore the heap below `root`: every parent comes after its children in the result."""
    while True:
        child = 2 * root + 1
        if child >= size:
            return
        c = at + child * inner
        if child + 1 < size and _before(y[c], indices[c], y[c + inner], indices[c + inner], largest):
            child += 1
            c += inner
        r = at + root * inner
        if not _before(y[r], indices[r], y[c], indices[c], largest):
            return
        v, i = y[r], indices[r]
        y[r], indices[r] = y[c], indices[c]
        y[c], indices[c] = v, i
        root = child


def _lanes(sign, *, negated):
    """Intrinsic for the lanes, as bits, of which `v sign w` holds, or does not; with NaN it does not hold."""

    @intrinsic
    def bits(_context, v, w):
        def generate(_context, builder, _signature, values):
            if isinstance(v.dtype, types.Float):
                compare = builder.fcmp_ordered
            else:
                compare = builder.icmp_signed if v.dtype.signed else builder.icmp_unsigned
            found = compare(sign, *values)
            found = builder.not_(found) if negated else found
            return builder.zext(builder.bitcast(found, ll.IntType(v.lanes)), ll.IntType(64))

        return types.int64(v, w), generate

    return bits


_not_at_most, _not_at_least = _lanes("<=", negated=True), _lanes(">=", negated=True)
_equal = _lanes("==", negated=False)


def _end_bit(name):
    """Intrinsic for the number of zeros below the lowest bit that is set, or above the highest; one is."""

    @intrinsic
    def zeros(_context, bits):
        def generate(_context, builder, _signature, values):
            return getattr(builder, name)(values[0], ll.Constant(ll.IntType(1), 1))

        return types.int64(types.int64), generate

    return zeros


_first_bit, _zeros_above = _end_bit("cttz"), _end_bit("ctlz")


@njit
def place_of(b, x, start, stop, last):
    """The first, or the last, i from start to stop with x[i] = b; NaN is equal to NaN. There is one."""
    found = start
    if b != b:
        for i in range(start, stop):
            if x[i] != x[i]:
                found = i
                if not last:
                    break
        return found
    whole = (stop - start) // LANES * LANES
    if last:
        for i in range(stop - 1, start + whole - 1, -1):
            if x[i] == b:
                return i
        for i in range(start + whole - LANES, start - 1, -LANES):
            bits = _equal(load(x, i, LANES), splat(b, LANES))
            if bits:
                return i + 63 - _zeros_above(bits)
        return found
    for i in range(start, start + whole, LANES):
        bits = _equal(load(x, i, LANES), splat(b, LANES))
        if bits:
            return i + _first_bit(bits)
    for i in range(start + whole, stop):
        if x[i] == b:
            return i
    return found


@njit
def _candidates(x, at, n, worst, largest):
    """Bits of those of up to LANES elements from x[at] that may come before the worst one that is kept."""
    if n >= LANES:
        v, w = load(x, at, LANES), splat(worst, LANES)
        return _not_at_most(v, w) if largest else _not_at_least(v, w)
    found = 0
    for i in range(n):
        is_after = x[at + i] <= worst if largest else x[at + i] >= worst
        found |= int(not is_after) << i
    return found


@njit
def _insert(v, i, y, indices, at, inner, size, largest):
    """Put (v, i) among the first `size` elements, which are in order; the last of as many and one is lost."""
    j = at + size * inner
    while j > at and _before(v, i, y[j - inner], indices[j - inner], largest):
        y[j], indices[j] = y[j - inner], indices[j - inner]
        j -= inner
    y[j], indices[j] = v, i


@njit
def _take(v, i, y, indices, at, inner, k, is_few, largest):
    """Put (v, i), which comes before the worst, in its place; the worst of the elements that are left."""
    if is_few:
        _insert(v, i, y, indices, at, inner, k - 1, largest)
        return y[at + (k - 1) * inner]
    y[at], indices[at] = v, i
    _sift(y, indices, at, inner, 0, k, largest)
    return y[at]


def top_k(x, y, indices, n, k, inner, largest, begin, end):
    """The k largest or smallest elements along the middle axis, in order; of equals the first ones.

    x: T[outer, n, inner]; y: T[outer, k, inner]; indices: int64 as y. The k best so far grow in the outputs:
    in order if they are few, else as a heap, its root the worst of them; vectors of neighbours without a
    better one are passed over. Units are outer * inner.
    """
    if k == 0:
        return
    is_few = k <= FEW
    for unit in range(begin, end):
        column = unit % inner
        source = unit // inner * n * inner + column
        at = unit // inner * k * inner + column
        for i in range(k):
            if is_few:
                _insert(x[source + i * inner], i, y, indices, at, inner, i, largest)
            else:
                y[at + i * inner] = x[source + i * inner]
                indices[at + i * inner] = i
        for i in range(0 if is_few else k // 2):
            _sift(y, indices, at, inner, k // 2 - 1 - i, k, largest)
        root = at + (k - 1) * inner if is_few else at
        worst = y[root]
        for i in range(k, n if inner > 1 else k):
            v = x[source + i * inner]
            is_after = v <= worst if largest else v >= worst
            if not is_after and _before(v, i, worst, indices[root], largest):
                worst = _take(v, i, y, indices, at, inner, k, is_few, largest)
        for low in range(k, n if inner == 1 else k, LANES):
            left = _candidates(x, source + low, min(LANES, n - low), worst, largest)
            while left:
                i = low + _first_bit(left)
                left &= left - 1
                v = x[source + i]
                # The earlier one of equals stays; the worst may be another by now.
                if _before(v, i, worst, indices[root], largest):
                    worst = _take(v, i, y, indices, at, 1, k, is_few, largest)
        for size in range(0 if is_few else k - 1, 0, -1):
            c = at + size * inner
            v, i = y[at], indices[at]
            y[at], indices[at] = y[c], indices[c]
            y[c], indices[c] = v, i
            _sift(y, indices, at, inner, 0, size, largest)


def hardmax(where, y, n, inner, begin, end):
    """One at the position along the middle axis that is told, else zero.

    where: int64[outer, inner]; y: T[outer, n, inner]. Units are outer.
    """
    for o in range(begin, end):
        for i in range(n):
            at = (o * n + i) * inner
            for j in range(inner):
                y[at + j] = 1 if where[o * inner + j] == i else 0


def hardmax_rows(where, y, n, begin, end):
    """As `hardmax` along the innermost axis. where: int64[rows]; y: T[rows, n]. Units are rows."""
    for row in range(begin, end):
        for i in range(n):
            y[row * n + i] = 0
        y[row * n + where[row]] = 1


def encode(x, y, keys, values, count, begin, end):
    """The value of each element's key: y[i] = values[k] where x[i] = keys[k].

    x: T[n]; keys: T[count], ascending; values: U[count + 2], that of what is no key and that of NaN last.
    """
    for i in range(begin, end):
        v = x[i]
        low = 0
        high = count
        while low < high:
            middle = (low + high) // 2
            if keys[middle] < v:
                low = middle + 1
            else:
                high = middle
        found = low if low < count and keys[low] == v else count
        y[i] = values[count + 1 if v != v else found]
