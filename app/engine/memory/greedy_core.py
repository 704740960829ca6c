"""The compiled core of greedy placement, for problems on which NumPy takes too long.

Its functions are given their memory: an array that compiled code makes brings numba's own code for shapes and
errors with it, which takes longer to compile than all that is here.
"""

from typing import Any, TypeAlias

import numpy as np
from numba import njit

Array: TypeAlias = np.ndarray[Any, Any]

_compiled: Any = njit(cache=True, error_model="numpy", boundscheck=False, nogil=True)


def place(
    lower: Array, upper: Array, extent: Array, alignment: Array, order: Array, limit: int
) -> tuple[Array, int]:
    """Offsets of the buffers by the rule of `greedy.place`, and the peak; stops at a peak of `limit`.

    All int64[n]; O(n^2). The peak is -1 if it was to reach the limit.
    """
    offsets, placed = np.zeros(len(order), np.int64), np.empty((len(order), 4), np.int64)
    return offsets, int(_place(lower, upper, extent, alignment, order, limit, offsets, placed))


def rise(lower: Array, upper: Array, extent: Array, alignment: Array, order: Array) -> tuple[Array, int]:
    """Offsets and their peak: always the unplaced buffer that can lie lowest is placed next.

    All int64[n]; ties are broken by `order`. O(n^2). What overlaps a placed buffer lies above it from
    then on, so that a gap below stays empty: a skyline, filled from its lowest place.
    """
    offsets, floor = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    return offsets, int(_rise(lower, upper, extent, alignment, order[extent[order] > 0], offsets, floor))


@_compiled
def _place(lower, upper, extent, alignment, order, limit, offsets, placed):
    """The peak, or -1; fills `offsets`.

    placed: int64[n, 4], room for what is placed, ordered by offset: first step, last step, start, end.
    """
    count = 0
    peak = np.int64(0)
    for i in order:
        size = extent[i]
        if size == 0:
            continue
        begin, end, align = lower[i], upper[i], alignment[i]
        top = np.int64(0)
        best = np.int64(-1)
        least = np.int64(1) << 62
        for k in range(count):
            if placed[k, 0] < end and placed[k, 1] > begin:
                room = placed[k, 2] - top
                if size <= room < least:
                    least, best = room, top
                if placed[k, 3] > top:
                    top = placed[k, 3]
                    if align > 1:
                        top = -(-top // align) * align
        offset = top if best < 0 else best
        if offset + size >= limit:
            return np.int64(-1)
        peak = max(peak, offset + size)
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if placed[middle, 2] < offset:
                low = middle + 1
            else:
                high = middle
        for k in range(count, low, -1):
            for c in range(4):
                placed[k, c] = placed[k - 1, c]
        placed[low, 0], placed[low, 1], placed[low, 2], placed[low, 3] = begin, end, offset, offset + size
        count += 1
        offsets[i] = offset
    return peak


@_compiled
def _rise(lower, upper, extent, alignment, left, offsets, floor):
    """The peak; fills `offsets`. `left` is changed, `floor` is 0 for all."""
    count = len(left)
    peak = np.int64(0)
    while count:
        chosen = 0
        for k in range(1, count):
            if floor[left[k]] < floor[left[chosen]]:
                chosen = k
        i = left[chosen]
        for k in range(chosen, count - 1):
            left[k] = left[k + 1]
        count -= 1
        offsets[i] = floor[i]
        top = floor[i] + extent[i]
        peak = max(peak, top)
        for k in range(count):
            j = left[k]
            if lower[j] < upper[i] and upper[j] > lower[i] and floor[j] < top:
                align = alignment[j]
                floor[j] = top if align == 1 else -(-top // align) * align
    return peak
