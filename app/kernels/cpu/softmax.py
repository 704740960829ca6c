"""Softmax, its logarithm and log-sum-exp along one axis of row-major tensors.

Exponentials are of differences to the largest element of a row, so they never overflow. `rows`
kernels work on the innermost axis, `emit_short` on one of few elements, which stay in registers;
`columns` kernels on another axis, with the innermost one in blocks of `columns` elements side by side.
"""

import math
import operator

from numba import float64, types

from app.kernels.cpu.access import read, write
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.inner import njit, overload
from app.kernels.cpu.codegen.intrinsics import select
from app.kernels.cpu.codegen.linking import local
from app.kernels.cpu.codegen.vectormath import exp_falling32
from app.kernels.cpu.codegen.vectors import Vector, both, lower_half, only_lane, splat, store, upper_half
from app.kernels.cpu.extrema import like, maximum
from app.kernels.cpu.sums import RUN, fold, inlined, largest

SHORT_LANES = 16  # float32 of the vectors of a short row, on every processor: its sums are the same


def exp(v):
    """E ** v for v <= 0, in the type of v: a number or a vector."""
    return math.exp(v)


@overload(exp)
def _exp(v):
    if getattr(v, "dtype", v) == types.float32:
        return lambda v: exp_falling32(v)
    if not isinstance(v, Vector):
        return lambda v: math.exp(v)
    if v.lanes == 1:
        return lambda v: splat(math.exp(only_lane(v)), 1)
    return lambda v: both(exp(lower_half(v)), exp(upper_half(v)))


@inlined
def larger(a, b):
    """The larger of two, or one of them where one is NaN; a row of Softmax with a NaN is NaN in any case."""
    return select(a > b, a, b)


@inlined
def _larger_element(m, v, _y, _p):
    return larger(m, v)


_largest_number = fold(_larger_element, larger)


@inlined
def joined(v, join):
    """The lanes of a vector of SHORT_LANES, one half joined with the other until one is left."""
    half = join(lower_half(v), upper_half(v))
    quarter = join(lower_half(half), upper_half(half))
    eighth = join(lower_half(quarter), upper_half(quarter))
    return only_lane(join(lower_half(eighth), upper_half(eighth)))


@inlined
def plus(a, b):
    """The sum of two numbers or vectors."""
    return a + b


@inlined
def _kept_exponential(total, v, y, m):
    e = exp(v - m)
    store(y, 0, e)
    return total + e


@inlined
def _exponential(total, v, _y, m):
    return total + exp(v - m)


_keep_exponentials = fold(_kept_exponential, operator.add, (16, 4))
_add_exponentials = fold(_exponential, operator.add, (16, 4))


@local()
def _exponentials(x, y, start, stop, m):
    """Y = exp(x - m) from start to stop; their sum."""
    return _keep_exponentials(at(x, start), at(y, start), stop - start, 0, m)


@njit
def _sum_of_exponentials(x, start, stop, m):
    """Sum of exp(x - m) from start to stop as float64."""
    t = float64(0)
    for c in range(start, stop, RUN):
        t += _add_exponentials(at(x, c), x, min(RUN, stop - c), 0, m)
    return t


@njit
def _largest_of_columns(x, m, at, stride, n, s, width):
    """m[s + j] = maximum over i of x[at + i * stride + j]."""
    for j in range(s, s + width):
        m[j] = -math.inf
    for i in range(n):
        line = at + i * stride
        for j in range(width):
            m[s + j] = maximum(x[line + j], m[s + j])


def softmax_rows(x, y, n, begin, end):
    """Rows of y = exp(x - max) / sum. x, y: T[rows, n], y may be x; units are rows."""
    for row in range(begin, end):
        start = row * n
        stop = start + n
        m = _largest_number(at(x, start), x, n, -math.inf, 0)
        t = 0.0
        for c in range(start, stop, RUN):
            t += _exponentials(x, y, c, min(c + RUN, stop), m)
        scale = like(m, 1.0 / t)
        for i in range(start, stop):
            y[i] *= scale


def softmax_rows_apart(x, y, work, n, begin, end, thread):
    """As `softmax_rows`, but exponentials wait in work: T[threads, n], not in y, which may round them."""
    for row in range(begin, end):
        start = row * n
        stop = start + n
        mine = at(work, thread * n - start)
        m = _largest_number(at(x, start), x, n, -math.inf, 0)
        t = 0.0
        for c in range(start, stop, RUN):
            t += _exponentials(x, mine, c, min(c + RUN, stop), m)
        scale = like(m, 1.0 / t)
        for i in range(start, stop):
            y[i] = mine[i] * scale


def log_softmax_rows(x, y, n, begin, end):
    """Rows of y = x - max - log(sum(exp(x - max))). x, y: T[rows, n], y may be x; units are rows."""
    for row in range(begin, end):
        start = row * n
        stop = start + n
        m = _largest_number(at(x, start), x, n, -math.inf, 0)
        shift = like(m, math.log(_sum_of_exponentials(x, start, stop, m)))
        for i in range(start, stop):
            write(y, i, (read(x, i) - m) - shift)


_SHORT = """\
import math

from numba import float32

from app.kernels.cpu.codegen.vectors import load, load_first, splat, store, store_first
from app.kernels.cpu.softmax import exp, joined, larger, plus


def kernel(x, y, n, begin, end):
    nothing = splat(float32(-math.inf), {L})
    left = n - {whole}
    for row in range(begin, end):
        start = row * n
{loads}
        m = joined({largest}, larger)
{differences}
        {scale}
{stores}
"""


def emit_short(op: str, vectors: int) -> str:
    """The module of a kernel of rows that `vectors` vectors hold, the last one in part or whole.

    x, y: T[rows, n] of float32 or 16-bit floats, y may be x if of its type; units are rows.

    Args:
        op: `softmax` or `log_softmax`.
        vectors: of SHORT_LANES elements, n of them in all but the last.
    """
    last, places = vectors - 1, [f"start + {v * SHORT_LANES}" for v in range(vectors)]
    is_log = op == "log_softmax"
    exponentials = [f"exp(a{v})" if is_log else f"a{v}" for v in range(vectors)]
    total = " + ".join(exponentials)
    result = "a{} - scale" if is_log else "a{} * scale"

    def each(line: str, count: int = vectors) -> list[str]:
        return [line.format(v, places[v]) for v in range(count)]

    def indented(lines: list[str]) -> str:
        return "\n".join(f"{'':8}{line}" for line in lines)

    return _SHORT.format(
        L=SHORT_LANES,
        whole=last * SHORT_LANES,
        loads=indented(
            [*each(f"a{{}} = load(x, {{}}, {SHORT_LANES})", last),
             f"a{last} = load_first(x, {places[last]}, left, nothing)"]
        ),
        largest="".join(f"larger(a{v}, " for v in range(last)) + f"a{last}" + ")" * last,
        differences=indented(each("a{0} = a{0} - m" if is_log else "a{0} = exp(a{0} - m)")),
        scale=(
            f"scale = float32(math.log(joined({total}, plus)))" if is_log
            else f"scale = float32(1.0) / joined({total}, plus)"
        ),
        stores=indented(
            [*each(f"store(y, {{1}}, {result.format('{0}')})", last),
             f"store_first(y, {places[last]}, left, {result.format(last)})"]
        ),
    )  # fmt: skip


def softmax_columns(x, y, sums, m, columns, n, inner, blocks, begin, end, thread):
    """Softmax along the middle axis. x, y: T[outer, n, inner], y may be x.

    sums: float64[threads, columns]; m: T[threads, columns]. Units are outer * blocks.
    """
    s = thread * columns
    for unit in range(begin, end):
        low = unit % blocks * columns
        width = min(columns, inner - low)
        at = unit // blocks * n * inner + low
        _largest_of_columns(x, m, at, inner, n, s, width)
        for j in range(s, s + width):
            sums[j] = 0.0
        for i in range(n):
            line = at + i * inner
            for j in range(width):
                write(y, line + j, exp(read(x, line + j) - read(m, s + j)))
            for j in range(width):
                sums[s + j] += y[line + j]
        for j in range(s, s + width):
            m[j] = 1.0 / sums[j]
        for i in range(n):
            line = at + i * inner
            for j in range(width):
                y[line + j] *= m[s + j]


def softmax_columns_apart(x, y, work, sums, m, columns, n, inner, blocks, begin, end, thread):
    """As `softmax_columns`, but exponentials wait in work: T[threads, n, columns], not in y."""
    s = thread * columns
    mine = at(work, s * n)
    for unit in range(begin, end):
        low = unit % blocks * columns
        width = min(columns, inner - low)
        first = unit // blocks * n * inner + low
        _largest_of_columns(x, m, first, inner, n, s, width)
        for j in range(s, s + width):
            sums[j] = 0.0
        for i in range(n):
            line = first + i * inner
            for j in range(width):
                e = exp(x[line + j] - m[s + j])
                mine[i * columns + j] = e
                sums[s + j] += e
        for j in range(s, s + width):
            m[j] = 1.0 / sums[j]
        for i in range(n):
            line = first + i * inner
            for j in range(width):
                y[line + j] = mine[i * columns + j] * m[s + j]


def log_softmax_columns(x, y, sums, m, columns, n, inner, blocks, begin, end, thread):
    """Logarithm of the softmax along the middle axis; arguments as `softmax_columns`."""
    s = thread * columns
    for unit in range(begin, end):
        low = unit % blocks * columns
        width = min(columns, inner - low)
        at = unit // blocks * n * inner + low
        _largest_of_columns(x, m, at, inner, n, s, width)
        for j in range(s, s + width):
            sums[j] = 0.0
        for i in range(n):
            line = at + i * inner
            for j in range(width):
                sums[s + j] += exp(x[line + j] - m[s + j])
        for j in range(s, s + width):
            sums[j] = math.log(sums[j])
        for i in range(n):
            line = at + i * inner
            for j in range(width):
                write(y, line + j, (read(x, line + j) - read(m, s + j)) - read(sums, s + j))


@njit
def _log_sum_exp(largest, sum_of_exponentials):
    # An infinite maximum is the result itself; its differences would be NaN.
    if math.isinf(largest):
        return float64(largest)
    return math.log(sum_of_exponentials) + largest


def log_sum_exp_rows(x, y, n, k1, k2, a0, a1, a2, r0, r1, b0, b1, begin, end):
    """log(sum(exp(x))) of contiguous runs; arguments as `app.kernels.cpu.reduce:rows`."""
    for unit in range(begin, end):
        first = unit // k2 // k1 * a0 + unit // k2 % k1 * a1 + unit % k2 * a2
        m = like(x[0], -math.inf)
        for j0 in range(r0):
            for j1 in range(r1):
                at = first + j0 * b0 + j1 * b1
                m = maximum(m, largest(x, at, at + n))
        t = 0.0
        if not math.isinf(m):
            for j0 in range(r0):
                for j1 in range(r1):
                    at = first + j0 * b0 + j1 * b1
                    t += _sum_of_exponentials(x, at, at + n, m)
        y[unit] = _log_sum_exp(m, t)


def log_sum_exp_columns(
    x, y, sums, m, columns, inner, blocks, repeat, k1, k2, a0, a1, a2, r0, r1, r2, b0, b1, b2,
    begin, end, thread
):  # fmt: skip
    """log(sum(exp(x))) of whole rows; arguments as `app.kernels.cpu.reduce:columns`."""
    s = thread * columns
    for unit in range(begin, end):
        low = unit % blocks * columns
        width = inner * repeat if repeat > 1 else min(columns, inner - low)
        kept = unit // blocks
        first = kept // k2 // k1 * a0 + kept // k2 % k1 * a1 + kept % k2 * a2 + low
        for j in range(s, s + width):
            m[j] = -math.inf
            sums[j] = 0.0
        for j0 in range(r0):
            for j1 in range(r1):
                for j2 in range(r2):
                    at = first + j0 * b0 + j1 * b1 + j2 * b2
                    for j in range(width):
                        m[s + j] = maximum(x[at + j], m[s + j])
        for q in range(1, repeat):
            for j in range(s, s + inner):
                m[j] = maximum(m[j + q * inner], m[j])
        for q in range(1, repeat):
            for j in range(s, s + inner):
                m[j + q * inner] = m[j]
        for j0 in range(r0):
            for j1 in range(r1):
                for j2 in range(r2):
                    at = first + j0 * b0 + j1 * b1 + j2 * b2
                    for j in range(width):
                        sums[s + j] += exp(x[at + j] - m[s + j])
        for q in range(1, repeat):
            for j in range(s, s + inner):
                sums[j] += sums[j + q * inner]
        for j in range(min(width, inner)):
            y[kept * inner + low + j] = _log_sum_exp(m[s + j], sums[s + j])
