"""Sparse values that are made while a program runs: casts, and arithmetic on them.

A csr value [m, n] is int64[m + 1] `heads` where rows begin, int32 `places` of columns, T `values`; a
row_sparse one of m rows of n elements is int64[1] `heads` with the number of rows, int32 `places` of
them in order, T `values` of them. All three lie in one buffer: places begin at int32 number `p0`,
values at element `v0`. A kernel whose result is sparse has one unit: where a row goes depends on all
before it.
"""

from app.kernels.expressions import Recipe, lines, prelude


def csr_of_dense(x, heads, places, values, excess, m, n, most, p0, v0, begin, end):
    """x: T[m, n] to csr of at most `most` elements; NaN is kept.

    Where more are not zero, their number goes to excess[0] and the first of them are stored, all as NaN: a
    bound holds for finite numbers.
    """
    if begin < end:
        count = 0
        found = 0
        for i in range(m):
            heads[i] = count
            for j in range(n):
                v = x[i * n + j]
                if v != 0:
                    found += 1
                    if count < most:
                        places[p0 + count] = j
                        values[v0 + count] = v
                        count += 1
        heads[m] = count
        if found > count:
            excess[0] = found
            for k in range(count):
                zero = values[v0 + k] - values[v0 + k]
                values[v0 + k] = zero / zero


def dense_of_csr(heads, places, values, y, n, p0, v0, begin, end):
    """y: T[m, n] of csr; units are rows."""
    for i in range(begin, end):
        for j in range(n):
            y[i * n + j] = 0
        for k in range(heads[i], heads[i + 1]):
            y[i * n + places[p0 + k]] = values[v0 + k]


def rows_of_dense(x, heads, places, values, excess, m, n, most, p0, v0, begin, end):
    """x: T[m, n] to row_sparse of at most `most` rows: those that have any element that is not zero.

    Where there are more, their number goes to excess[0] and the first are stored, all NaN: a bound holds for
    finite numbers.
    """
    if begin < end:
        count = 0
        found = 0
        for i in range(m):
            kept = False
            for j in range(n):
                kept = kept or x[i * n + j] != 0
            if kept:
                found += 1
            if kept and count < most:
                places[p0 + count] = i
                for j in range(n):
                    values[v0 + count * n + j] = x[i * n + j]
                count += 1
        heads[0] = count
        if found > count:
            excess[0] = found
            for k in range(count * n):
                zero = values[v0 + k] - values[v0 + k]
                values[v0 + k] = zero / zero


def dense_of_rows(heads, places, values, y, m, n, p0, v0, begin, end):
    """y: T[m, n] of row_sparse."""
    if begin < end:
        for i in range(m * n):
            y[i] = 0
        for k in range(heads[0]):
            row = places[p0 + k]
            for j in range(n):
                y[row * n + j] = values[v0 + k * n + j]


def retained(heads, places, values, ids, y_heads, y_places, y_values, count, n, p0, v0, q0, w0, begin, end):
    """The rows of a row_sparse value that are among ids[count], which are in order."""
    if begin < end:
        kept, k = 0, 0
        for i in range(count):
            while k < heads[0] and places[p0 + k] < ids[i]:
                k += 1
            if k < heads[0] and places[p0 + k] == ids[i]:
                y_places[q0 + kept] = places[p0 + k]
                for j in range(n):
                    y_values[w0 + kept * n + j] = values[v0 + k * n + j]
                kept += 1
                k += 1
        y_heads[0] = kept


def merged_rows(a_heads, a_places, a_values, b_heads, b_places, b_values, heads, places, values, op, n,
                p0, v0, q0, w0, r0, z0, begin, end):  # fmt: skip
    """Sum (op 0), difference (1) or product (2) of two row_sparse values."""
    if begin < end:
        i, j, count = 0, 0, 0
        while i < a_heads[0] or j < b_heads[0]:
            end_a, end_b = i == a_heads[0], j == b_heads[0]
            left = not end_a and (end_b or a_places[p0 + i] <= b_places[q0 + j])
            right = not end_b and (end_a or b_places[q0 + j] <= a_places[p0 + i])
            if op < 2 or (left and right):
                places[r0 + count] = a_places[p0 + i] if left else b_places[q0 + j]
                for c in range(n):
                    a = a_values[v0 + i * n + c] if left else 0
                    b = b_values[w0 + j * n + c] if right else 0
                    values[z0 + count * n + c] = a + b if op == 0 else a - b if op == 1 else a * b
                count += 1
            i += left
            j += right
        heads[0] = count


def gathered_rows(heads, places, values, ids, y, rows, n, p0, v0, begin, end):
    """y[i] = row ids[i] of a row_sparse value of `rows` rows; units are i.

    Where an index is outside, the row becomes poison, see `gather`.
    """
    for i in range(begin, end):
        wanted = ids[i]
        if wanted < 0:
            wanted += rows
        low, high = 0, heads[0]
        while low < high:
            middle = (low + high) // 2
            if places[p0 + middle] < wanted:
                low = middle + 1
            else:
                high = middle
        if wanted < 0 or wanted >= rows:
            for j in range(n):
                y[i * n + j] = -1
        elif low < heads[0] and places[p0 + low] == wanted:
            for j in range(n):
                y[i * n + j] = values[v0 + low * n + j]
        else:
            for j in range(n):
                y[i * n + j] = 0


def csr_product(heads, places, values, b, bias, y, n, p0, v0, begin, end):
    """y[i, :] = bias + sum over j of a[i, j] b[j, :], a csr, b: T[., n], bias: T[n]; units are rows."""
    for i in range(begin, end):
        for c in range(n):
            y[i * n + c] = bias[c]
        for k in range(heads[i], heads[i + 1]):
            x = values[v0 + k]
            row = places[p0 + k] * n
            for c in range(n):
                y[i * n + c] += x * b[row + c]


def scattered_rows(ids, updates, work, heads, places, values, count, rows, n, p0, v0, begin, end):
    """Row_sparse sum of updates[j] at row ids[j] of `rows`, j from 0 to `count` in order.

    work: int64[count], which is sorted: row · count + j. Where an index is outside, all stored rows become
    NaN, and the first of all rows is stored if none would be.
    """
    if begin < end:
        inside = True
        for j in range(count):
            row = ids[j]
            if row < 0:
                row += rows
            if row < 0 or row >= rows:
                inside = False
                row = 0
            work[j] = row * count + j
        for last in range(count // 2 - 1, -count, -1):
            # Heapsort: the heap is made while last >= 0, then the largest goes behind it.
            end_of_heap = count
            root = last
            if last < 0:
                end_of_heap = count + last
                work[0], work[end_of_heap] = work[end_of_heap], work[0]
                root = 0
            child = 2 * root + 1
            while child < end_of_heap:
                if child + 1 < end_of_heap and work[child] < work[child + 1]:
                    child += 1
                if work[root] >= work[child]:
                    break
                work[root], work[child] = work[child], work[root]
                root = child
                child = 2 * root + 1
        stored = -1
        before = -1
        for k in range(count):
            row = work[k] // count
            j = work[k] - row * count
            if row != before:
                stored += 1
                places[p0 + stored] = row
                for c in range(n):
                    values[v0 + stored * n + c] = 0
                before = row
            for c in range(n):
                values[v0 + stored * n + c] += updates[j * n + c]
        heads[0] = stored + 1
        if not inside:
            zero = values[v0] - values[v0]
            for c in range((stored + 1) * n):
                values[v0 + c] = zero / zero


_MAP = """\
{prelude}

def kernel(heads, places, values{operands}, y_heads, y_places, y_values, m, n,
           places0, values0, y_places0, y_values0, begin, end):
    for i in range(begin, end):
        y_heads[i] = heads[i]
        if i == m - 1:
            y_heads[m] = heads[m]
        for k in range(heads[i], heads[i + 1]):
            column = places[places0 + k]
            y_places[y_places0 + k] = column
{body}
"""


def emit_map(recipe: Recipe, dtype: str, operands: tuple[str, ...]) -> str:
    """The module of a function of a csr value, element by element, that keeps zero: y has its places.

    Units are rows; operands: T, see there.

    Args:
        recipe: its input 0 is the csr value.
        dtype: T.
        operands: of its other inputs, the index where each is read, of `i`, `n` and `column`.
    """
    names = ["values[values0 + k]", *(f"x{i}[{index}]" for i, index in enumerate(operands))]
    body = [*lines(recipe, names, dtype), f"y_values[y_values0 + k] = v{len(names) + len(recipe) - 1}"]
    return _MAP.format(
        prelude=prelude(),
        operands="".join(f", x{i}" for i in range(len(operands))),
        body="\n".join(f"            {line}" for line in body),
    )


_ROWS = """\
{prelude}

def kernel(heads, places, values{operands}, y_heads, y_places, y_values, n,
           places0, values0, y_places0, y_values0, begin, end):
    if begin < end:
        y_heads[0] = heads[0]
        for k in range(heads[0]):
            i = places[places0 + k]
            y_places[y_places0 + k] = i
            for column in range(n):
{body}
"""

_UPDATE = """\
{prelude}

def kernel(heads, places, values{operands}, y, n, places0, values0, begin, end):
    low, high = 0, heads[0]
    while low < high:
        middle = (low + high) // 2
        if places[places0 + middle] < begin:
            low = middle + 1
        else:
            high = middle
    for k in range(low, heads[0]):
        i = places[places0 + k]
        if i >= end:
            break
        for column in range(n):
{body}
"""


def emit_rows(recipe: Recipe, dtype: str, operands: tuple[str, ...]) -> str:
    """The module of a function of a row_sparse value that keeps zero, as `emit_map`; one unit."""
    names = ["values[values0 + k * n + column]", *(f"x{i}[{index}]" for i, index in enumerate(operands))]
    body = [
        *lines(recipe, names, dtype),
        f"y_values[y_values0 + k * n + column] = v{len(names) + len(recipe) - 1}",
    ]
    return _ROWS.format(
        prelude=prelude(),
        operands="".join(f", x{i}" for i in range(len(operands))),
        body="\n".join(f"                {line}" for line in body),
    )


def emit_update(recipe: Recipe, dtype: str, operands: tuple[str, ...]) -> str:
    """The module of a function of a row_sparse value, as `emit_map`, written to its rows of y: T[m, n].

    Units are rows of y; an operand of its shape may be y.
    """
    names = ["values[values0 + k * n + column]", *(f"x{i}[{index}]" for i, index in enumerate(operands))]
    body = [*lines(recipe, names, dtype), f"y[i * n + column] = v{len(names) + len(recipe) - 1}"]
    return _UPDATE.format(
        prelude=prelude(),
        operands="".join(f", x{i}" for i in range(len(operands))),
        body="\n".join(f"            {line}" for line in body),
    )
