"""Reads and writes at indices that are known at run time only.

Negative indices count from the end. A kernel cannot raise: where an index is outside, what it
should have produced becomes poison, all bits set (NaN in floating point, -1 in signed integers),
and no byte outside the operands is touched. Indices that are constant are checked when planning.
"""

from app.kernels.cpu.access import read, write
from app.kernels.cpu.codegen.inner import njit


@njit
def _are_inside(indices, first, last, size):
    """True if all of indices[first:last] are from 0 to size - 1."""
    lowest, highest = 0, 0
    for i in range(first, last):
        lowest = min(lowest, indices[i])
        highest = max(highest, indices[i])
    return lowest >= 0 and highest < size


def gather(x, indices, y, size, inner, count, begin, end):
    """y[o, j, i] = x[o, indices[j], i]. x: T[o, size, inner]; units are rows o · count + j."""
    unit = begin
    if inner == 1 and _are_inside(indices, 0, count, size):
        base = begin // count * size
        first = begin % count
        while unit < end:
            last = min(count, first + end - unit)
            for j in range(first, last):
                write(y, unit - first + j, read(x, base + read(indices, j)))
            unit += last - first
            base += size
            first = 0
        return
    while unit < end:
        o = unit // count
        first = unit - o * count
        last = min(count, first + end - unit)
        unit += last - first
        base = o * size * inner
        target = (o * count + first) * inner
        for j in range(first, last):
            index = indices[j]
            if index < 0:
                index += size
            if 0 <= index < size:
                source = base + index * inner
                for i in range(inner):
                    y[target + i] = x[source + i]
            else:
                for i in range(inner):
                    y[target + i] = -1
            target += inner


def gather_elements(x, indices, y, table, rank, size, stride, n0, sx0, begin, end):
    """y[i] = x[i with i[axis] = indices[i]]. Units are elements.

    `table: int64[rank, 2]` rows (size, sx) of the outer axes of y, sx zero along `axis`, as is
    sx0 when it is the innermost. `size` and `stride` are those of the axis in x.
    """
    unit = begin
    while unit < end:
        rest = unit // n0
        first = unit - rest * n0
        last = min(n0, first + end - unit)
        base = 0
        for axis in range(rank - 1, -1, -1):
            n = table[2 * axis]
            base += rest % n * table[2 * axis + 1]
            rest = rest // n
        line = unit - first
        if _are_inside(indices, line + first, line + last, size):
            if sx0 == 0 and stride == 1:
                for i in range(first, last):
                    y[line + i] = x[base + indices[line + i]]
            else:
                for i in range(first, last):
                    y[line + i] = x[base + i * sx0 + indices[line + i] * stride]
        else:
            for i in range(first, last):
                index = indices[line + i]
                if index < 0:
                    index += size
                if 0 <= index < size:  # no conditional expression: uint64 and -1 would meet as float64
                    y[line + i] = x[base + i * sx0 + index * stride]
                else:
                    y[line + i] = -1
        unit += last - first


def gather_nd(x, indices, y, table, depth, tuples, batch_stride, inner, begin, end):
    """y[b, j, :] = x[b, indices[b, j, 0], …, indices[b, j, depth - 1], :]. Units are b · tuples + j.

    `table: int64[depth, 2]` rows (size, stride) of the indexed axes of x.
    """
    for unit in range(begin, end):
        source = unit // tuples * batch_stride
        inside = True
        for d in range(depth):
            index = indices[unit * depth + d]
            if index < 0:
                index += table[2 * d]
            inside = inside and 0 <= index < table[2 * d]
            source += index * table[2 * d + 1]
        target = unit * inner
        if inside:
            for i in range(inner):
                y[target + i] = x[source + i]
        else:
            for i in range(inner):
                y[target + i] = -1
