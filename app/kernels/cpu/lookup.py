"""Copies whose source index is looked up axis by axis: Pad, nearest Resize, crops.

y[i_0 … i_r] = x[t_0[i_0] + … + t_r[i_r]], or the fill value where any t is negative. The tables
t hold offsets in elements of x, strides included. `table: int64[…]` starts with rank pairs (size,
place of the axis's table) for the outer axes; the offsets follow.
"""

from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.strided import copy, doubled, thinned


@njit(error_model="numpy", boundscheck=False)
def source_of(table, rank, row):
    """Offset in x of a row of y, by its number along the outer axes; negative if it lies outside."""
    base, inside = 0, True
    for axis in range(rank - 1, -1, -1):
        n = table[2 * axis]
        offset = table[table[2 * axis + 1] + row % n]
        row = row // n
        inside = inside and offset >= 0
        base += offset
    return base if inside else -1


def lookup(x, y, fill, table, rank, row, n0, left, right, times, step, begin, end):
    """The innermost axis has n0 entries at table[row:], those in [left, right) consecutive.

    fill: T[1]. The entries are 0, 1, 2 ..., each so many `times` one after the other, if that is not 0, or
    grow by `step`, if that is not 0. Units are rows of y.
    """
    value = fill[0]
    previous = -1  # offset of the row just written: nearest Resize repeats rows
    rows, offsets = (table[2 * rank - 2], table[2 * rank - 1]) if rank else (1, 0)
    above = -1
    for unit in range(begin, end):
        r = unit % rows
        if r == 0 or unit == begin:
            above = source_of(table, max(rank - 1, 0), unit // rows)
        offset = table[offsets + r] if rank else 0
        base = above + offset if above >= 0 and offset >= 0 else -1
        target = unit * n0
        if base < 0:
            for j in range(n0):
                y[target + j] = value
        elif base == previous:
            copy(y, target, y, target - n0, n0)
        elif times == 2:
            doubled(x, base, y, target, n0 // 2)
        elif times > 0:
            for j in range(n0 // times):
                for i in range(target + j * times, target + (j + 1) * times):
                    y[i] = x[base + j]
        elif step > 0:
            thinned(x, base + table[row], step, y, target, n0)
        else:
            for j in range(left):
                offset = table[row + j]
                y[target + j] = x[base + offset] if offset >= 0 else value
            if left < right:
                copy(y, target + left, x, base + table[row + left], right - left)
            for j in range(right, n0):
                offset = table[row + j]
                y[target + j] = x[base + offset] if offset >= 0 else value
        previous = base


def lookup_add(x, added, y, fill, table, rank, row, n0, left, right, begin, end):
    """As `lookup`, plus `added`, which has the elements of y and may be its memory."""
    value = fill[0]
    for unit in range(begin, end):
        base = source_of(table, rank, unit)
        target = unit * n0
        for j in range(n0):
            offset = table[row + j]
            y[target + j] = added[target + j] + (x[base + offset] if base >= 0 and offset >= 0 else value)
