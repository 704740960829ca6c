"""Attention: one query row at a time, its scores in scratch of the thread.

The simple version: keys and values are read again for every row, from cache for lengths that fit.
Causal masks, windows and lengths leave an interval of keys; only those are visited.
"""

import math

import numpy as np
from numba import njit

from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.vectormath import exp32, tanh32
from app.kernels.cpu.recurrent import add_product, fill

f32 = np.float32
LOWEST = f32(-math.inf)
ZERO = f32(0.0)
BOOLEAN, ADDITIVE = 1, 2  # kinds of mask
RAW, CAPPED, MASKED, PROBABILITIES = 0, 1, 2, 3  # what the output of scores shows


# Partial sums in any order: the only way that a dot product fills a register.
@njit(error_model="numpy", boundscheck=False, fastmath={"reassoc", "contract", "nsz"})
def _dot(a, b, n):
    total = ZERO
    for i in range(n):
        total += a[i] * b[i]
    return total


@njit(error_model="numpy", boundscheck=False)
def _biased(work, mask, kind, base, step, length, first, last):
    """Apply a row of the mask to scores; returns whether a key is left to attend to."""
    left = False
    for j in range(first, last):
        if j >= length:
            work[j] = LOWEST
        elif kind == BOOLEAN:
            if mask[base + j * step]:
                left = True
            else:
                work[j] = LOWEST
        else:
            bias = f32(mask[base + j * step])
            left = left or bias > LOWEST
            work[j] += bias
    return left


@njit(error_model="numpy", boundscheck=False)
def _softmax(work, n):
    largest = LOWEST
    for j in range(n):
        largest = max(largest, work[j])
    for j in range(n):
        work[j] = exp32(work[j] - largest)
    total = ZERO
    for j in range(n):
        total += work[j]
    scale = f32(1.0) / total
    for j in range(n):
        work[j] *= scale


def attention(q, k, v, mask, lengths, scalars, y, scores, work,
              heads, group, rows, keys, depth, width,
              q_at, q_b, q_h, q_s, k_at, k_b, k_h, k_s, v_at, v_b, v_h, v_s, y_at, y_b, y_h, y_s,
              mask_kind, mask_at, mask_b, mask_h, mask_q, mask_k, mask_length,
              causal, zero, past, left, right, external, shown, begin, end, thread):  # fmt: skip
    """y[b, h, s, :] = softmax(cap(scale · q k') + mask) v. Units are rows (b · heads + h) · rows + s.

    q: [.., depth], v, y: [.., width], first element and strides as named, innermost 1; a key-value
    head serves `group` query heads. lengths: int64[b], valid keys. scalars: scale, cap (0 for none). Query s
    stands at position s + past, or with `external` at s + lengths[b] - rows; it sees keys up to its
    own if `causal`, from `left` before to `right` after it where those are not negative.
    scores: [b, heads, rows, keys], written if `shown` >= 0. work: `keys` float32 a thread. A row
    that sees no key is `zero`, or NaN.
    """
    mine = at(work, thread * keys)
    scale = scalars[0]
    cap = scalars[1]
    for unit in range(begin, end):
        s = unit % rows
        h = unit // rows % heads
        b = unit // (rows * heads)
        position = s + (lengths[b] - rows if external else past)
        last = min(keys, lengths[b])
        if causal:
            last = min(last, position + 1)
        if right >= 0:
            last = min(last, position + right + 1)
        first = max(position - left, 0) if left >= 0 else 0
        last = max(last, 0)
        first = min(first, last)
        query = at(q, q_at + b * q_b + h * q_h + s * q_s)
        key = at(k, k_at + b * k_b + h // group * k_h)
        visible = first < last
        from_key, to_key = (0, keys) if shown >= 0 else (first, last)
        for j in range(from_key, to_key):
            mine[j] = _dot(query, at(key, j * k_s), depth) * scale
        line = at(scores, unit * keys)
        if shown == RAW:
            for j in range(keys):
                line[j] = mine[j]
        if cap > ZERO:
            for j in range(from_key, to_key):
                mine[j] = tanh32(mine[j] / cap) * cap
        if shown == CAPPED:
            for j in range(keys):
                line[j] = mine[j]
        if mask_kind:
            place = mask_at + b * mask_b + h * mask_h + s * mask_q
            visible = _biased(mine, mask, mask_kind, place, mask_k, mask_length, first, last) and visible
        if shown >= 0:
            fill(mine, LOWEST, first)
            fill(at(mine, last), LOWEST, keys - last)
        if shown == MASKED:
            for j in range(keys):
                line[j] = mine[j]
        result = at(y, y_at + b * y_b + h * y_h + s * y_s)
        fill(result, ZERO, width)
        if visible or not zero:
            _softmax(at(mine, first), last - first)
            value = at(v, v_at + b * v_b + h // group * v_h + first * v_s)
            add_product(at(mine, first), value, v_s, result, last - first, width)
        if shown == PROBABILITIES:
            for j in range(keys):
                line[j] = mine[j] if (visible or not zero) and first <= j < last else ZERO
