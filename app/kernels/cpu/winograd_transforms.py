"""Transforms of Winograd convolutions: their matrices, and the tiles of input and output as vector IR.

Source: Lavin and Gray, 2015, "Fast algorithms for convolutional neural networks"; arXiv:1509.09308.
"""

import functools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import llvmlite.ir as ll
import numpy as np
from numba import types
from numba.core import cgutils

from app.kernels.cpu.codegen.generator import outlined
from app.kernels.cpu.codegen.instructions import Vectors, number, typed
from app.kernels.cpu.codegen.tiles import BETA, BFLOAT_PAIRS, HIGH, LOW, RESIDUAL

Array = np.ndarray[Any, Any]

# By n: interpolation points are 0, infinity and plus and minus these. Of the sets with short fractions
# these have half the error of the customary 1, 2 (F(4, 3): relative rms 0.9e-6 and 2.0e-6).
POINTS = {4: (Fraction(1),), 6: (Fraction(5, 8), Fraction(3, 2))}


@functools.cache
def matrices(m: int, taps: int = 3) -> tuple[Array, Array, Array]:
    """float64 B^T[n, n], G[n, taps], A^T[m, n] with y = A^T ((G g) * (B^T d)), a convolution by g of d.

    Rows of B^T are monic, so that many of their coefficients are one.
    """
    n = m + taps - 1
    points = [Fraction(0), *(sign * p for p in POINTS[n] for sign in (1, -1))]
    b, g = [], []
    for p in [*points, None]:
        others = [q for q in points if q != p]
        polynomial = [Fraction(1)]
        for q in others:
            polynomial = [
                high - q * low for high, low in zip([Fraction(0), *polynomial], [*polynomial, Fraction(0)])
            ]
        b.append(polynomial + [Fraction(0)] * (n - len(polynomial)))
        if p is None:
            g.append([Fraction(int(k == taps - 1)) for k in range(taps)])
        else:
            scale = Fraction(1)
            for q in others:
                scale *= p - q
            g.append([p**k / scale for k in range(taps)])
    a = [[p**k for p in points] + [Fraction(int(k == m - 1))] for k in range(m)]
    found = [np.array([[float(x) for x in row] for row in rows]) for rows in (b, g, a)]
    for matrix in found:
        matrix.flags.writeable = False
    return found[0], found[1], found[2]


def _sum(v: Vectors, coefficients: Sequence[float], vectors: Sequence[Any]) -> Any:
    """The sum of vectors times coefficients, one operation less for each that is one."""
    terms = [(float(c), x) for c, x in zip(coefficients, vectors) if c]
    terms.sort(key=lambda term: term[0] != 1)
    c, total = terms[0]
    if c != 1:
        total = v.multiply(total, _constant(v, c))
    for c, x in terms[1:]:
        if abs(c) == 1:
            total = v.add(total, x) if c > 0 else v.b.fsub(total, x)
        else:
            total = v.fma(x, _constant(v, c), total)
    return total


def _constant(v: Vectors, value: float) -> Any:
    return ll.Constant(v.type, [value] * v.lanes)


def _input_sums(v: Vectors, b: Array, x: Sequence[Any]) -> list[Any]:
    """B^T x. The rows of a point and its negative have the same even part and opposite odd parts."""
    first, last = _sum(v, b[0], x), _sum(v, b[-1], x)
    inner = []
    for p, q in zip(b[1:-1:2], b[2:-1:2]):
        odd = (p - q) / 2
        lead = odd[np.flatnonzero(odd)[-1]]
        even_part, odd_part = _sum(v, (p + q) / 2, x), _sum(v, odd / lead, x)
        inner += [_sum(v, (1, sign * lead), (even_part, odd_part)) for sign in (1, -1)]
    return [first, *inner, last]


def _output_sums(v: Vectors, a: Array, t: Sequence[Any]) -> list[Any]:
    """A^T t. The columns of a point and its negative are equal in even rows and opposite in odd ones."""
    vectors, columns = [t[0], t[-1]], [a[:, 0], a[:, -1]]
    for j in range(1, len(t) - 1, 2):
        vectors += [v.add(t[j], t[j + 1]), v.b.fsub(t[j], t[j + 1])]
        columns += [(a[:, j] + a[:, j + 1]) / 2, (a[:, j] - a[:, j + 1]) / 2]
    return [_sum(v, row, vectors) for row in np.array(columns).T]


def input_tile(lanes: int, n: int, dtype: str = "float32") -> Any:
    """An intrinsic that transforms a tile of one block of channels.

    It is called as
        transform(x, x_row, r0, r1, c0, c1, zeros, buffer, to, plane)
    where row i and column j of the tile are at x[i * x_row + j * lanes] for r0 <= i < r1 and
    c0 <= j < c1, and zero elsewhere; nothing is read there. Element (i, j) of the result goes to
    to[(i * n + j) * plane], rounded to half as many elements where dtype is of pairs. zeros: n * lanes
    zeros; buffer: n * n * lanes elements.
    """
    b = matrices(2, n - 1)[0]  # that of every F(m, r) with this n
    address, size = types.CPointer(types.float32), types.int64
    signature = types.void(address, size, size, size, size, size, address, address, address, size)

    def write(builder, values):
        x, x_row, r0, r1, c0, c1, zeros, buffer, to, plane = values
        v, pairs = Vectors(builder, "float32", lanes), Vectors(builder, dtype, lanes)
        starts = []
        for i in range(n):
            inside = builder.and_(
                builder.icmp_signed("<=", r0, number(i)), builder.icmp_signed("<", number(i), r1)
            )
            row = builder.gep(x, [builder.mul(x_row, number(i))])
            starts.append(builder.select(inside, row, zeros))

        def column(j: Any) -> Any:
            return v.at(buffer, builder.mul(j, number(n * lanes)))

        for begin, end in ((number(0), c0), (c1, number(n))):
            with cgutils.for_range_slice(builder, begin, end, number(1)) as (j, _):
                for i in range(n):
                    v.store(v.zero, v.at(column(j), i * lanes))
        with cgutils.for_range_slice(builder, c0, c1, number(1)) as (j, _):
            place = builder.mul(j, number(lanes))
            sums = _input_sums(v, b, [v.load(v.at(start, place)) for start in starts])
            for i, x_ in enumerate(sums):
                v.store(x_, v.at(column(j), i * lanes))
        with cgutils.for_range(builder, number(n)) as loop:
            own = v.at(buffer, builder.mul(loop.index, number(lanes)))
            target = v.at(to, builder.mul(loop.index, builder.mul(plane, number(n))))
            sums = _input_sums(v, b, [v.load(v.at(own, j * n * lanes)) for j in range(n)])
            for j, x_ in enumerate(sums):
                x_ = pairs.narrow(x_) if dtype in BFLOAT_PAIRS else x_
                v.store(x_, v.at(target, builder.mul(plane, number(j))))
        builder.ret_void()

    return typed(signature, outlined(f"input_{n}x{lanes}", write))


def output_tile(lanes: int, m: int, n: int) -> Any:
    """An intrinsic that makes a tile of output pixels of one block of channels.

    It is called as
        transform(sums, plane, buffer, bias, scalars, residual, y, row, rows, columns, flags)
    with the products (i, j) at sums[(i * n + j) * plane]. Pixel (i, j) goes to
    y[i * row + j * lanes] where i < rows and j < columns. The vector at `bias` is added and, as
    `flags` say, beta times the residual, which lies like y and may be y; then limits apply.
    buffer: n * m * lanes elements.
    """
    a = matrices(m, n - m + 1)[2]
    address, size = types.CPointer(types.float32), types.int64
    signature = types.void(address, size, address, address, address, address, address, size, size, size, size)

    def write(builder, values):
        sums, plane, buffer, bias, scalars, residual, y, row, rows, columns, flags = values
        v = Vectors(builder, "float32", lanes)
        with cgutils.for_range(builder, number(n)) as loop:
            source = v.at(sums, builder.mul(loop.index, plane))
            down = builder.mul(plane, number(n))
            t = [v.load(v.at(source, builder.mul(down, number(i)))) for i in range(n)]
            own = v.at(buffer, builder.mul(loop.index, number(m * lanes)))
            for i, x in enumerate(_output_sums(v, a, t)):
                v.store(x, v.at(own, i * lanes))
        offset, low, high = v.load(bias), v.broadcast(v.at(scalars, LOW)), v.broadcast(v.at(scalars, HIGH))
        beta = v.broadcast(v.at(scalars, BETA))
        has_residual = builder.icmp_unsigned("!=", builder.and_(flags, number(RESIDUAL)), number(0))
        whole = builder.icmp_signed("==", columns, number(m))
        with cgutils.for_range(builder, rows) as loop:
            own = v.at(buffer, builder.mul(loop.index, number(lanes)))
            place = builder.mul(loop.index, row)
            target, extra = v.at(y, place), v.at(residual, place)
            pixels = _output_sums(v, a, [v.load(v.at(own, j * m * lanes)) for j in range(n)])
            pixels = [v.add(x, offset) for x in pixels]

            def finish(js: Sequence[int], target: Any = target, extra: Any = extra, pixels: Any = pixels):
                with builder.if_else(has_residual) as (then, otherwise):
                    with then:
                        for j in js:
                            x = v.fma(beta, v.load(v.at(extra, j * lanes)), pixels[j])
                            v.store(v.clamp(x, low, high), v.at(target, j * lanes))
                    with otherwise:
                        for j in js:
                            v.store(v.clamp(pixels[j], low, high), v.at(target, j * lanes))

            with builder.if_else(whole) as (then, otherwise):
                with then:
                    finish(range(m))
                with otherwise:
                    for j in range(m - 1):
                        with builder.if_then(builder.icmp_signed("<", number(j), columns)):
                            finish((j,))
        builder.ret_void()

    return typed(signature, outlined(f"output_{m}x{n}x{lanes}", write))


def transformed(weights: Array, m: int) -> Array:
    """float32[n * n, outputs, channels] of weights[outputs, channels, taps, taps]; rounded once."""
    found = tiles_of(weights.transpose(2, 3, 0, 1).astype(np.float64), m)
    return found.reshape(-1, *weights.shape[:2]).astype(np.float32)


def tiles_of(weights: Array, m: int) -> Array:
    """T[n, n, ...] of weights T[taps, taps, ...]; those that are packed are of float64, and rounded once."""
    g = matrices(m, len(weights))[1]
    down = _rows_product(g, np.ascontiguousarray(weights))
    return _rows_product(g, down.swapaxes(0, 1)).swapaxes(0, 1)


def _rows_product(g: Array, x: Array) -> Array:
    """g[n, taps] x[taps, ...], by sums of whole arrays: threads of a BLAS wait longer than these take."""
    y, scaled = np.zeros((len(g), *x.shape[1:]), x.dtype), np.empty(x.shape[1:], x.dtype)
    for row, total in zip(g.astype(x.dtype), y):
        for factor, part in zip(row, x):
            if factor:
                total += np.multiply(part, factor, out=scaled)
    return y
