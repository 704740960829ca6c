"""Writes at indices that are known at run time only, on a y that already holds the data.

Threads own disjoint parts of y and every part sees its updates in order, so results do not depend
on the number of threads. Indices outside: what gather.py says; `bits` is y as unsigned integers.
"""

# How an update `u` joins what is there, `v`; NaN stays.
COMBINED = {
    "none": "{u}",
    "add": "{v} + {u}",
    "mul": "{v} * {u}",
    "min": "minimum({v}, {u})",
    "max": "maximum({v}, {u})",
}

_HEAD = "from app.kernels.cpu.extrema import maximum, minimum\n\n\n"

_ELEMENTS = """\
def kernel(
    indices, updates, y, bits, table, rank, width, columns, blocks, count, step, size, stride, begin, end
):
    for unit in range(begin, end):
        low = unit % blocks * columns
        n = min(columns, width - low)
        rest = unit // blocks
        entry = low
        base = low
        for axis in range(rank - 1, -1, -1):
            i = rest % table[3 * axis]
            rest = rest // table[3 * axis]
            entry += i * table[3 * axis + 1]
            base += i * table[3 * axis + 2]
        inside = True
        for k in range(count if n == 1 else 0):
            line, j = entry + k * step, 0
            place = indices[line]
            if place < 0:
                place += size
            if 0 <= place < size:
                target = base + place * stride
                y[target + j] = {row}
            else:
                inside = False
        for k in range(count if n > 1 else 0):
            line = entry + k * step
            first = indices[line]
            differ = first ^ first
            for j in range(n):
                differ |= indices[line + j] ^ first
            if differ == 0:
                place = first + size if first < 0 else first
                if 0 <= place < size:
                    target = base + place * stride
                    for j in range(n):
                        y[target + j] = {row}
                else:
                    inside = False
                continue
            for j in range(n):
                place = indices[line + j]
                if place < 0:
                    place += size
                if 0 <= place < size:
                    target = base + place * stride
                    y[target + j] = {row}
                else:
                    inside = False
        if not inside:
            for j in range(n):
                for k in range(count):
                    place = indices[entry + k * step + j]
                    if place < -size or place >= size:
                        for i in range(size):
                            bits[base + i * stride + j] = -1
"""


def scatter_elements(reduction: str) -> str:
    """Source of a kernel for y[i with i[axis] = indices[i]] ∘= updates[i].

    Units are lines of indices along the axis, `columns` of the `width` neighbours on the innermost axis
    together: rows of indices that are all the same, as `Expand` makes them, are one vector operation.
    `table: int64[rank, 3]` rows (size, stride of indices, stride of y) of the axes beside these two. A line
    has `count` entries at distance `step`; the axis has `size` entries at distance `stride` in y.
    An index outside poisons the line of y.
    """
    return _HEAD + _ELEMENTS.format(row=COMBINED[reduction].format(v="y[target + j]", u="updates[line + j]"))


_TUPLES = """\
def kernel(indices, updates, y, bits, table, depth, tuples, slices, inner, begin, end):
    all_inside = True
    for t in range(tuples):
        base = 0
        inside = True
        for d in range(depth):
            index = indices[t * depth + d]
            if index < 0:
                index += table[2 * d]
            inside = inside and 0 <= index < table[2 * d]
            base += index * table[2 * d + 1]
        all_inside = all_inside and inside
        if inside:
            line = t * inner
            for j in range(begin, end):
                y[base + j] = {row}
    if not all_inside:
        for s in range(slices):
            for j in range(begin, end):
                bits[s * inner + j] = -1
"""


def scatter_nd(reduction: str) -> str:
    """Source of a kernel for y[indices[t, 0], …, :] ∘= updates[t, :], t in order.

    Units are elements of a slice of y. `table: int64[depth, 2]` rows (size, stride) of the indexed axes; y
    has `slices` slices of `inner` elements. A tuple outside poisons all slices.
    """
    return _HEAD + _TUPLES.format(row=COMBINED[reduction].format(v="y[base + j]", u="updates[line + j]"))


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
