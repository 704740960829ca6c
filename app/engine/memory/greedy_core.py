"""The compiled core of greedy placement, for problems on which NumPy takes too long."""

from typing import Any

import numpy as np
from numba import njit

_compiled: Any = njit(cache=True, error_model="numpy", boundscheck=False, nogil=True)


@_compiled
def place(lower, upper, extent, alignment, order, limit):
    """Offsets of the buffers by the rule of `greedy.place`, and the peak; stops at a peak of `limit`.

    All int64[n]; O(n^2). The peak is -1 if it was to reach the limit.
    """
    n = len(order)
    offsets = np.zeros(n, np.int64)
    # What is placed, ordered by offset: first step, last step, start, end.
    placed = np.empty((n, 4), np.int64)
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
            return offsets, np.int64(-1)
        peak = max(peak, offset + size)
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if placed[middle, 2] < offset:
                low = middle + 1
            else:
                high = middle
        for k in range(count, low, -1):
            placed[k] = placed[k - 1]
        placed[low, 0], placed[low, 1], placed[low, 2], placed[low, 3] = begin, end, offset, offset + size
        count += 1
        offsets[i] = offset
    return offsets, peak


@_compiled
def rise(lower, upper, extent, alignment, order):
    """Offsets and their peak: always the unplaced buffer that can lie lowest is placed next.

    All int64[n]; ties are broken by `order`. O(n^2). What overlaps a placed buffer lies above it from
    then on, so that a gap below stays empty: a skyline, filled from its lowest place.
    """
    n = len(order)
    offsets = np.zeros(n, np.int64)
    floor = np.zeros(n, np.int64)
    left = order[extent[order] > 0]
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
    return offsets, peak
