"""Results whose size depends on the elements: NonZero, Compress, Unique, NonMaxSuppression.

A kernel that finds out how much there is writes it to `found: int64[1]`. All have one unit.
"""

from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.extrema import like
from app.kernels.cpu.strided import copy

GROUP = 16  # boxes that are compared before it is asked whether one of them overlapped


def count_nonzero(x, found, size, begin, end):
    """Found = elements of x: T[size] that are not zero."""
    for _ in range(begin, end):
        count = 0
        for i in range(size):
            count += 1 if x[i] != 0 else 0
        found[0] = count


def nonzero(x, y, found, shape, rank, count, rows, columns, begin, end):
    """y[axis, k] = index along an axis of the k-th element that is not zero. A negative `count` is unknown.

    x: T[rows, columns], whose outer axes have the extents shape: int64[rank - 1]; y: int64[rank, count] and
    one more element, which is written.
    """
    for _ in range(begin, end):
        if count < 0:
            count = 0
            for i in range(rows * columns):
                count += 1 if x[i] != 0 else 0
            found[0] = count
        k = 0
        last = (rank - 1) * count
        for row in range(rows):
            first = k
            for j in range(columns):
                y[last + k] = j  # overwritten by the next one unless this one counts
                k += 1 if x[row * columns + j] != 0 else 0
            rest = row
            for axis in range(rank - 2, -1, -1):
                index = rest % shape[axis]
                rest = rest // shape[axis]
                for i in range(first, k):
                    y[axis * count + i] = index


def compress(x, condition, y, chosen, found, limit, outer, n, inner, begin, end):
    """Y = the slices of x: T[outer, n, inner] along the middle axis where a condition holds.

    condition: uint8[limit], limit <= n; y: T[outer, found[0], inner]; chosen: int64[limit + 1] of scratch.
    """
    for _ in range(begin, end):
        count = 0
        for i in range(limit):
            chosen[count] = i * inner
            count += condition[i]
        found[0] = count
        for o in range(outer):
            for k in range(count):
                source = o * n * inner + chosen[k]
                target = (o * count + k) * inner
                if inner == 1:
                    y[target] = x[source]
                    continue
                copy(y, target, x, source, inner)


def bounded_compress(x, condition, y, outer, n, inner, begin, end):
    """First of y = the slices of x along the middle axis where a condition holds; the rest is undefined.

    x, y: T[outer, n, inner]; condition: uint8[n]. Units are slices of the outer axis.
    """
    for o in range(begin, end):
        count = 0
        base = o * n * inner
        if inner == 1:
            for i in range(n):
                y[base + count] = x[base + i]  # overwritten by the next one unless this one counts
                count += condition[i] != 0
            continue
        for i in range(n):
            if condition[i]:
                copy(y, base + count * inner, x, base + i * inner, inner)
                count += 1


def prefix(x, count, y, shape, whole, axis, rank, outer, inner, begin, end):
    """Y = the first count[0] slices of x along an axis, and shape = that of y.

    x: uint8[outer, whole[axis], inner]; y: uint8[outer, count[0], inner]; shape, whole: int64[rank].
    """
    for _ in range(begin, end):
        for i in range(rank):
            shape[i] = whole[i]
        shape[axis] = count[0]
        n = count[0] * inner
        for o in range(outer):
            for i in range(n):
                y[o * n + i] = x[o * whole[axis] * inner + i]


_UNIQUE = """\
from numba import uint64

from app.kernels.cpu.radix import DIGIT, FEW, NARROW, order_of


def kernel(
    x, values, first, inverse, counts, spare, histogram, found, outer, n, inner, is_sorted, begin, end
):
    for _ in range(begin, end):
        width, order = outer * inner, inverse  # positions in order; `inverse` is made of them last
        digit = NARROW if n < FEW else DIGIT
        size = 1 << digit
        for i in range(n):
            order[i] = i
        for w in range(width - 1, -1, -1):
            # From the last element of a slice to the first, each from its lowest digit: stable passes.
            at = w // inner * n * inner + w % inner
            lowest, highest = ~uint64(0), uint64(0)
            for i in range(n):
                key = order_of(uint64(x[at + i * inner]), {signed}, {floating}, {bits})
                lowest, highest = min(lowest, key), max(highest, key)
            for shift in range(0, {bits}, digit):
                if not (highest - lowest) >> uint64(shift):
                    break
                for b in range(size):
                    histogram[b] = 0
                for i in range(n):
                    key = order_of(uint64(x[at + i * inner]), {signed}, {floating}, {bits}) - lowest
                    histogram[(key >> uint64(shift)) & uint64(size - 1)] += 1
                total, largest = 0, 0
                for b in range(size):
                    held = histogram[b]
                    largest = max(largest, held)
                    histogram[b] = total
                    total += held
                if largest == n:
                    continue
                for i in range(n):
                    p = order[i]
                    key = order_of(uint64(x[at + p * inner]), {signed}, {floating}, {bits}) - lowest
                    b = (key >> uint64(shift)) & uint64(size - 1)
                    spare[histogram[b]] = p
                    histogram[b] += 1
                for i in range(n):
                    order[i] = spare[i]
        groups = 0
        for i in range(n):
            p = order[i]
            is_new = i == 0
            if not is_new:
                q = order[i - 1]
                for w in range(width):
                    at = w // inner * n * inner + w % inner
                    a = order_of(uint64(x[at + p * inner]), {signed}, {floating}, {bits})
                    b = order_of(uint64(x[at + q * inner]), {signed}, {floating}, {bits})
                    if a != b:
                        is_new = True
                        break
            if is_new:
                first[groups] = p
                counts[groups] = 0
                groups += 1
            counts[groups - 1] += 1
            spare[p] = groups - 1
        for i in range(n):
            inverse[i] = spare[i]
        if not is_sorted:
            # In the order of appearance: positions that begin a group are its new numbers.
            number = 0
            for i in range(n):
                g = inverse[i]
                if first[g] == i:
                    spare[g] = number
                    number += 1
            for i in range(n):
                inverse[i] = spare[inverse[i]]
            number = 0
            for i in range(n):
                if inverse[i] == number:
                    first[number] = i
                    counts[number] = 0
                    number += 1
                counts[inverse[i]] += 1
        for g in range(groups):
            for w in range(width):
                at = w // inner * n * inner + w % inner
                values[w // inner * groups * inner + g * inner + w % inner] = x[at + first[g] * inner]
        found[0] = groups
"""


def unique(signed: bool, floating: bool, bits: int) -> str:
    """Source of a kernel for the different slices along the middle axis, in order or as they appear.

    x: uint[outer, n, inner], the bits of the elements; values: uint[outer, groups, inner] of the first slices
    of the groups; first, inverse, counts, spare: int64[n]; histogram: int64[BUCKETS]. A radix sort, by the
    elements of a slice from the last one to the first, less the lowest of their place; equal ones keep their
    order.
    """
    return _UNIQUE.format(signed=signed, floating=floating, bits=bits)


@njit
def comes_before(scores, i, j):
    """True if box i is chosen before box j: a higher score, of equals the first."""
    return scores[i] > scores[j] or (scores[i] == scores[j] and i < j)


@njit
def sift(heap, at, root, size, scores):
    """Restore the heap below a root: every parent is chosen before its children."""
    while True:
        child = 2 * root + 1
        if child >= size:
            return
        if child + 1 < size and comes_before(scores, at + heap[child + 1], at + heap[child]):
            child += 1
        if not comes_before(scores, at + heap[child], at + heap[root]):
            return
        heap[root], heap[child] = heap[child], heap[root]
        root = child


@njit
def overlaps(kept, size, x1, y1, x2, y2, limit):
    """True if one of the kept boxes overlaps with a box by more than a limit.

    kept: T[5, size rounded up, GROUP]: corners and area, GROUP boxes together, unused ones empty.
    """
    zero = like(x1, 0)
    area = (x2 - x1) * (y2 - y1)
    if not area > zero:
        return False
    for group in range(0, size, GROUP):
        at = 5 * group
        hits = 0
        for i in range(GROUP):
            wide = min(x2, kept[at + 2 * GROUP + i]) - max(x1, kept[at + i])
            high = min(y2, kept[at + 3 * GROUP + i]) - max(y1, kept[at + GROUP + i])
            other = kept[at + 4 * GROUP + i]
            both = max(wide, zero) * max(high, zero)
            union = area + other - both
            hits += (other > zero) & (union > zero) & (both > limit * union)
        if hits:
            return True
    return False


def suppress(
    boxes, scores, most, limit, least, valid, y, found, heap, kept, batch, classes, n, cap, has_least, center,
    begin, end,
):  # fmt: skip
    """Y = (image, class, box) of boxes in order of their scores, without those that overlap with one before.

    boxes: float32[batch, n, 4], opposite corners (y, x), or center and extents (x, y) with `center`; scores:
    float32[batch, classes, n]; y: int64[.., 3]; heap: int64[n + 1]; kept: float32[5, cap rounded up to
    GROUP]; most, valid: int64[1]; limit, least: float32[1]. The first `valid` boxes count; at most `most` of
    a class, and `cap`, are chosen; with `has_least` of scores above `least`.
    """
    half = like(boxes[0], 0.5)
    for _ in range(begin, end):
        count = 0
        most_, valid_ = min(most[0], cap), min(valid[0], n)
        for line in range(batch * classes):
            image = line // classes
            at = line * n
            size = 0
            for i in range(valid_):
                heap[size] = i
                size += 1 if not has_least or scores[at + i] > least[0] else 0
            for i in range(size // 2):
                sift(heap, at, size // 2 - 1 - i, size, scores)
            chosen = 0
            while size > 0 and chosen < most_:
                i = heap[0]
                size -= 1
                heap[0] = heap[size]
                sift(heap, at, 0, size, scores)
                place = (image * n + i) * 4
                a, b, c, d = boxes[place], boxes[place + 1], boxes[place + 2], boxes[place + 3]
                if center:
                    a, b, c, d = a - c * half, b - d * half, a + c * half, b + d * half
                x1, x2, y1, y2 = min(a, c), max(a, c), min(b, d), max(b, d)
                if overlaps(kept, chosen, x1, y1, x2, y2, limit[0]):
                    continue
                group, lane = chosen // GROUP * GROUP, chosen % GROUP
                slot = 5 * group + lane
                if lane == 0:
                    for k in range(5 * GROUP):
                        kept[slot + k] = like(half, 0)
                kept[slot], kept[slot + GROUP] = x1, y1
                kept[slot + 2 * GROUP], kept[slot + 3 * GROUP] = x2, y2
                kept[slot + 4 * GROUP] = (x2 - x1) * (y2 - y1)
                y[3 * count], y[3 * count + 1], y[3 * count + 2] = image, line % classes, i
                chosen += 1
                count += 1
        found[0] = count
