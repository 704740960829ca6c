"""Searches along one axis: position of the extremum, largest k.

Tensors are row-major [outer, n, inner] with the axis in the middle; where `columns` appears, up
to that many neighbours on the innermost axis are worked on side by side, and units are
outer * blocks.
"""

import llvmlite.ir as ll
from numba import types
from numba.extending import intrinsic

from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.vectors import load, load_first, splat

LANES = 16  # neighbours that are compared with a number at once
CHUNK = 2048  # elements of which only the extremum is taken before the best chunk, still in L1, is searched
FEW = 8  # largest elements that are kept in order, and not as a heap

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


@njit
def _begin(x, source, y, indices, at, inner, k, is_few, largest):
    """The first k elements, in order or as a heap; the place of the worst of them."""
    for i in range(k):
        if is_few:
            _insert(x[source + i * inner], i, y, indices, at, inner, i, largest)
        else:
            y[at + i * inner] = x[source + i * inner]
            indices[at + i * inner] = i
    for i in range(0 if is_few else k // 2):
        _sift(y, indices, at, inner, k // 2 - 1 - i, k, largest)
    return at + (k - 1) * inner if is_few else at


@njit
def _ordered(y, indices, at, inner, k, largest):
    """A heap of k elements in the order of the result."""
    for size in range(k - 1, 0, -1):
        c = at + size * inner
        v, i = y[at], indices[at]
        y[at], indices[at] = y[c], indices[c]
        y[c], indices[c] = v, i
        _sift(y, indices, at, inner, 0, size, largest)


def top_k(x, y, indices, n, k, largest, begin, end):
    """The k largest or smallest elements of each row, in order; of equals the first ones.

    x: T[rows, n]; y: T[rows, k]; indices: int64 as y. The k best so far grow in the outputs: in order if they
    are few, else as a heap, its root the worst of them; vectors of neighbours without a better one are passed
    over. Units are rows.
    """
    if k == 0:
        return
    is_few = k <= FEW
    for unit in range(begin, end):
        source, at = unit * n, unit * k
        root = _begin(x, source, y, indices, at, 1, k, is_few, largest)
        worst = y[root]
        for low in range(k, n, LANES):
            left = _candidates(x, source + low, min(LANES, n - low), worst, largest)
            while left:
                i = low + _first_bit(left)
                left &= left - 1
                v = x[source + i]
                # The earlier one of equals stays; the worst may be another by now.
                if _before(v, i, worst, indices[root], largest):
                    worst = _take(v, i, y, indices, at, 1, k, is_few, largest)
        if not is_few:
            _ordered(y, indices, at, 1, k, largest)


def top_k_columns(x, y, indices, n, k, inner, largest, begin, end):
    """As `top_k` along the middle axis. x: T[outer, n, inner]; y: T[outer, k, inner].

    A row of up to LANES neighbours is compared with the worst ones of their columns at once. Units are blocks
    of so many columns.
    """
    if k == 0:
        return
    is_few = k <= FEW
    blocks = (inner + LANES - 1) // LANES
    for unit in range(begin, end):
        low = unit % blocks * LANES
        width = min(LANES, inner - low)
        source, at = unit // blocks * n * inner + low, unit // blocks * k * inner + low
        for c in range(width):
            _begin(x, source + c, y, indices, at + c, inner, k, is_few, largest)
        roots = at + (k - 1) * inner if is_few else at
        nothing = splat(y[roots], LANES)
        worst = load_first(y, roots, width, nothing)
        for i in range(k, n):
            row = source + i * inner
            v = load_first(x, row, width, nothing)
            left = _not_at_most(v, worst) if largest else _not_at_least(v, worst)
            left &= (1 << width) - 1
            if left:
                while left:
                    c = _first_bit(left)
                    left &= left - 1
                    if _before(x[row + c], i, y[roots + c], indices[roots + c], largest):
                        _take(x[row + c], i, y, indices, at + c, inner, k, is_few, largest)
                worst = load_first(y, roots, width, nothing)
        for c in range(0 if is_few else width):
            _ordered(y, indices, at + c, inner, k, largest)


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
