"""Writes at indices that are known at run time only, on a y that already holds the data.

Threads own disjoint parts of y and every part sees its updates in order, so results do not depend
on the number of threads. Indices outside: what gather.py says; `bits` is y as unsigned integers.
"""

from app.kernels.cpu.codegen.inner import njit


@njit(error_model="numpy", boundscheck=False)
def combined(old, new, operation):
    """operation: 0 replaces, 1 adds, 2 multiplies, 3 takes the smaller, 4 the larger; NaN stays."""
    if operation == 1:
        return old + new
    if operation == 2:
        return old * new
    if operation == 3:
        return old if old < new or old != old else new
    if operation == 4:
        return old if old > new or old != old else new
    return new


def scatter_elements(
    indices, updates, y, bits, table, rank, count, step, size, stride, operation, begin, end
):
    """y[i with i[axis] = indices[i]] ∘= updates[i]. Units are the lines of indices along the axis.

    `table: int64[rank, 3]` rows (size, stride of indices, stride of y) of the other axes. A line
    has `count` entries at distance `step`; the axis has `size` entries at distance `stride` in y.
    An index outside poisons the line of y.
    """
    for unit in range(begin, end):
        rest = unit
        entry = 0
        base = 0
        for axis in range(rank - 1, -1, -1):
            n = table[3 * axis]
            i = rest % n
            rest = rest // n
            entry += i * table[3 * axis + 1]
            base += i * table[3 * axis + 2]
        inside = True
        for k in range(count):
            index = indices[entry + k * step]
            if index < 0:
                index += size
            if 0 <= index < size:
                place = base + index * stride
                y[place] = combined(y[place], updates[entry + k * step], operation)
            else:
                inside = False
        if not inside:
            for k in range(size):
                bits[base + k * stride] = -1


def scatter_nd(indices, updates, y, bits, table, depth, tuples, slices, inner, operation, begin, end):
    """y[indices[j, 0], …, :] ∘= updates[j, :] for j in order. Units are elements of a slice of y.

    `table: int64[depth, 2]` rows (size, stride) of the indexed axes; y has `slices` slices of
    `inner` elements. A tuple outside poisons all slices.
    """
    all_inside = True
    for j in range(tuples):
        base = 0
        inside = True
        for d in range(depth):
            index = indices[j * depth + d]
            if index < 0:
                index += table[2 * d]
            inside = inside and 0 <= index < table[2 * d]
            base += index * table[2 * d + 1]
        all_inside = all_inside and inside
        if inside:
            for i in range(begin, end):
                y[base + i] = combined(y[base + i], updates[j * inner + i], operation)
    if not all_inside:
        for s in range(slices):
            for i in range(begin, end):
                bits[s * inner + i] = -1


def scatter_rows(update, positions, y, per_batch, count, size, inner, circular, begin, end):
    """y[o, positions[batch] + s, :] = update[o, s, :], s < count. Units are the outer indices o.

    TensorScatter: y holds the cache T[o, size, inner]. A batch has `per_batch` outer indices. In
    a circular cache positions wrap; else a position outside poisons y[o].
    """
    for o in range(begin, end):
        position = positions[o // per_batch]
        inside = circular or (position >= 0 and position + count <= size)
        for s in range(count):
            row = position + s
            if circular:
                row = row % size
            if inside:
                for i in range(inner):
                    y[(o * size + row) * inner + i] = update[(o * count + s) * inner + i]
        if not inside:
            for i in range(size * inner):
                y[o * size * inner + i] = -1
