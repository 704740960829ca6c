"""Compiled cores of rounding weights; imports numba.

Weights of one output channel, or block, lie in one line. Nothing here makes an array.
"""

from typing import Any

import numpy as np
from numba import njit

_compiled: Any = njit(cache=True, error_model="numpy", boundscheck=False, nogil=True, fastmath={"reassoc"})


@_compiled
def best_scales(lines, shares, limit, tiny, scales, integers):
    """Scale of each line that loses least squared error, among shares of its largest magnitude.

    lines: float32[n, elements]; shares: float32 of the magnitude over `limit`, the largest integer; `tiny` is
    the magnitude below which a line counts as zeros, of scale 1. Fills scales: float32[n], and integers:
    int8[n, elements], the nearest ones.
    """
    for n in range(len(lines)):
        largest = np.float32(0.0)
        for k in range(lines.shape[1]):
            largest = max(largest, abs(lines[n, k]))
        if largest < tiny:
            largest = limit
        best = np.inf
        for share in shares:
            scale = np.float32(largest * share)
            lost = 0.0
            for k in range(lines.shape[1]):
                integer = min(max(np.rint(lines[n, k] / scale), -limit), limit)
                error = np.float64(integer * scale - lines[n, k])
                lost += error * error
            if lost < best:
                best, scales[n] = lost, scale
        for k in range(lines.shape[1]):
            integers[n, k] = np.int8(min(max(np.rint(lines[n, k] / scales[n]), -limit), limit))


@_compiled
def in_turn(left, scales, upper, begin, end, limit, integers, errors):
    """Round columns `begin` to `end` of each channel, one after the other; later ones of them pay for each.

    left: float32[channels, reduction], what the weights are by now; scales: float32[channels, blocks]; upper:
    float32[reduction, reduction], see `second_order.shares`. Fills integers: int8[channels, reduction], and
    errors: float32[channels, end - begin], what columns from `end` on are to pay for.
    """
    block = left.shape[1] // scales.shape[1]
    for n in range(len(left)):
        for k in range(begin, end):
            scale = scales[n, k // block]
            integer = min(max(np.rint(left[n, k] / scale), -limit), limit)
            integers[n, k] = np.int8(integer)
            error = (left[n, k] - integer * scale) / upper[k, k]
            errors[n, k - begin] = error
            for j in range(k + 1, end):
                left[n, j] -= error * upper[k, j]
