"""The first elements of an order by their digits: TopK of many elements, Unique.

Elements become unsigned numbers that order as they do. The digits of these, from the highest, tell which ones
are among the first; those are sorted by passes over the digits from the lowest. Both keep the order of equal
elements.

Source: Knuth, The Art of Computer Programming, volume 3, section 5.2.5 (radix sorting).
"""

from numba import uint64

from app.kernels.cpu.codegen.inner import njit

DIGIT = 11  # bits that one pass looks at
BUCKETS = 2**DIGIT
NARROW = 8  # bits of a pass over fewer elements than FEW
FEW = 2048


@njit
def order_of(bits, is_signed, is_float, width):
    """The unsigned number that orders as the number with these bits does; NaN comes last."""
    bits, one = uint64(bits), uint64(1)
    top = one << uint64(width - 1)
    if is_float:
        magnitude = bits & (top - one)
        if magnitude > uint64(0x7F800000 if width == 32 else 0x7FF0000000000000):
            return top | (top - one)  # every NaN
        if magnitude == uint64(0):
            return top  # both zeros
        return top | magnitude if bits & top == uint64(0) else top - magnitude
    return bits ^ top if is_signed else bits


@njit
def chosen(keys, places, at, n, k, spare_keys, spare_places, histogram, buckets, width):
    """Bring the k smallest keys, and at most as many more, to the front; the number of these.

    keys, places: [n] from `at` on, in the order of the places. Equal keys stay in their order.
    """
    sure, rest = 0, n
    shift = width
    while shift > 0 and sure + rest > 2 * k:
        shift = max(shift - DIGIT, 0)
        for b in range(BUCKETS):
            histogram[buckets + b] = 0
        for i in range(at + sure, at + sure + rest):
            histogram[buckets + ((uint64(keys[i]) >> uint64(shift)) & uint64(BUCKETS - 1))] += 1
        wanted, limit = k - sure, 0
        while histogram[buckets + limit] < wanted:
            wanted -= histogram[buckets + limit]
            limit += 1
        if histogram[buckets + limit] == rest:
            continue
        kept, open_ = at + sure, at
        for i in range(at + sure, at + sure + rest):
            key, place = keys[i], places[i]
            digit = (uint64(key) >> uint64(shift)) & uint64(BUCKETS - 1)
            if digit < uint64(limit):
                keys[kept], places[kept] = key, place
                kept += 1
            elif digit == uint64(limit):
                spare_keys[open_], spare_places[open_] = key, place
                open_ += 1
        sure, rest = kept - at, open_ - at
        for i in range(rest):
            keys[kept + i], places[kept + i] = spare_keys[at + i], spare_places[at + i]
    if shift == 0:
        rest = min(rest, k - sure)  # all equal: the first ones
    return sure + rest


@njit
def ordered(keys, places, at, n, spare_keys, spare_places, histogram, buckets, width):
    """Sort n keys from `at` on with their places. Equal keys stay in their order."""
    digit = NARROW if n < FEW else DIGIT
    size = 1 << digit
    for shift in range(0, width, digit):
        for b in range(size):
            histogram[buckets + b] = 0
        for i in range(at, at + n):
            histogram[buckets + ((uint64(keys[i]) >> uint64(shift)) & uint64(size - 1))] += 1
        total, largest = at, 0
        for b in range(size):
            held = histogram[buckets + b]
            largest = max(largest, held)
            histogram[buckets + b] = total
            total += held
        if largest == n:
            continue
        for i in range(at, at + n):
            bucket = buckets + ((uint64(keys[i]) >> uint64(shift)) & uint64(size - 1))
            target = histogram[bucket]
            spare_keys[target], spare_places[target] = keys[i], places[i]
            histogram[bucket] += 1
        for i in range(at, at + n):
            keys[i], places[i] = spare_keys[i], spare_places[i]


_TOP = """\
from numba import uint64

from app.kernels.cpu.radix import BUCKETS, chosen, order_of, ordered


def kernel(
    x, y, indices, keys, places, spare_keys, spare_places, histogram, n, k, inner, largest, begin, end, thread
):
    at = thread * n
    flip = uint64({mask}) if largest else uint64(0)
    for unit in range(begin, end):
        source = unit // inner * n * inner + unit % inner
        target = unit // inner * k * inner + unit % inner
        for i in range(n):
            key = order_of(uint64(x[source + i * inner]), {signed}, {floating}, {bits})
            keys[at + i] = key ^ flip
            places[at + i] = i
        spare = spare_keys, spare_places, histogram, thread * BUCKETS, {bits}
        m = chosen(keys, places, at, n, k, *spare)
        ordered(keys, places, at, m, *spare)
        for i in range(k):
            place = places[at + i]
            y[target + i * inner] = x[source + place * inner]
            indices[target + i * inner] = place
"""


def top_k(signed: bool, floating: bool, bits: int) -> str:
    """Source of a kernel for the k largest or smallest elements along the middle axis, in order.

    x: uint[outer, n, inner], the bits of the elements; y: as x with k in the place of n; indices: int64 as y;
    scratch of a thread: keys and spare_keys: uint[n], places and spare_places: int32[n], histogram:
    int64[BUCKETS]. Of equal elements the first come first; NaN is the largest. Units are outer * inner.
    """
    return _TOP.format(signed=signed, floating=floating, bits=bits, mask=hex(2**bits - 1))
