"""Attention: one query row at a time, its scores in scratch of the thread.

The simple version: keys and values are read again for every row, from cache for lengths that fit.
Causal masks, windows and lengths leave an interval of keys; only those are visited.
"""

import math
from dataclasses import dataclass

import numpy as np

from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.linking import local
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.vectormath import exp_falling32, tanh32
from app.kernels.cpu.recurrent import fill
from app.kernels.cpu.sums import dot

f32 = np.float32
LOWEST = f32(-math.inf)
ZERO = f32(0.0)
BOOLEAN, ADDITIVE = 1, 2  # kinds of mask
CLEARED = 2  # of `zero`
RAW, CAPPED, MASKED, PROBABILITIES = 0, 1, 2, 3  # what the output of scores shows


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSizes(SizeTable):
    """Sizes of attention and strides of its operands, in elements."""

    heads: int
    group: int  # query heads that share keys and values
    rows: int
    keys: int
    depth: int  # of queries and keys
    width: int  # of values
    q_at: int  # elements before the first; then strides
    q_b: int
    q_h: int
    q_s: int
    q_d: int
    k_at: int
    k_b: int
    k_h: int
    k_s: int
    k_d: int
    v_at: int
    v_b: int
    v_h: int
    v_s: int
    v_d: int
    y_at: int
    y_b: int
    y_h: int
    y_s: int
    masked: int  # 0, BOOLEAN or ADDITIVE
    mask_at: int
    mask_b: int
    mask_h: int
    mask_q: int
    mask_k: int
    mask_length: int  # keys that the mask tells about; the others are hidden
    causal: int  # whether a query sees no key behind its own position
    zero: int  # whether a row that sees no key is zero, else NaN; 2: one whose weights are NaN is zero too
    past: int  # position of the first query


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRowsSizes(AttentionSizes):
    """Sizes of attention by rows."""

    left: int  # keys that a query sees before its position, and after it; negative for all
    right: int
    external: int  # whether queries stand at the end of `lengths` keys, not behind `past`
    shown: int  # stage of the scores that are an output, RAW to PROBABILITIES; negative for none


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
        work[j] = exp_falling32(work[j] - largest)
    total = ZERO
    for j in range(n):
        total += work[j]
    scale = f32(1.0) / total
    for j in range(n):
        work[j] *= scale


# A product and a sum may become one instruction, which rounds once; nothing is reordered.
@local(fastmath={"contract"})
def _add_product(a, w, w_row, y, k, n):
    """y[j] += Σ_p a[p] · w[p · w_row + j]. Eight rows of w a pass, so that y is touched seldom."""
    p = 0
    while p + 8 <= k:
        a0, a1, a2, a3 = a[p], a[p + 1], a[p + 2], a[p + 3]
        a4, a5, a6, a7 = a[p + 4], a[p + 5], a[p + 6], a[p + 7]
        w0 = at(w, p * w_row)
        w1, w2, w3 = at(w0, w_row), at(w0, 2 * w_row), at(w0, 3 * w_row)
        w4, w5, w6, w7 = at(w0, 4 * w_row), at(w0, 5 * w_row), at(w0, 6 * w_row), at(w0, 7 * w_row)
        for j in range(n):
            low = a0 * f32(w0[j]) + a1 * f32(w1[j]) + a2 * f32(w2[j]) + a3 * f32(w3[j])
            y[j] += low + (a4 * f32(w4[j]) + a5 * f32(w5[j]) + a6 * f32(w6[j]) + a7 * f32(w7[j]))
        p += 8
    while p < k:
        a0 = a[p]
        w0 = at(w, p * w_row)
        for j in range(n):
            y[j] += a0 * f32(w0[j])
        p += 1


unpacked = AttentionRowsSizes.reader()


def attention(q, k, v, mask, lengths, scalars, y, scores, sizes, work, begin, end, thread):
    """y[b, h, s, :] = softmax(cap(scale · q k') + mask) v. Units are rows (b · heads + h) · rows + s.

    q: [.., depth], v, y: [.., width], first element and strides as in `sizes`, AttentionRowsSizes, innermost
    1. lengths: int64[b], valid keys. scalars: scale, cap (0 for none). Query s stands at position s + past,
    or with `external` at s + lengths[b] - rows; it sees keys up to its own if `causal`, from `left` before to
    `right` after it where those are not negative. scores: [b, heads, rows, keys], written if `shown` >= 0.
    work: `keys` float32 a thread.
    """
    n = unpacked(sizes)
    mine = at(work, thread * n.keys)
    scale = scalars[0]
    cap = scalars[1]
    for unit in range(begin, end):
        s = unit % n.rows
        h = unit // n.rows % n.heads
        b = unit // (n.rows * n.heads)
        position = s + (lengths[b] - n.rows if n.external else n.past)
        last = min(n.keys, lengths[b])
        if n.causal:
            last = min(last, position + 1)
        if n.right >= 0:
            last = min(last, position + n.right + 1)
        first = max(position - n.left, 0) if n.left >= 0 else 0
        last = max(last, 0)
        first = min(first, last)
        query = at(q, n.q_at + b * n.q_b + h * n.q_h + s * n.q_s)
        key = at(k, n.k_at + b * n.k_b + h // n.group * n.k_h)
        visible = first < last
        from_key, to_key = (0, n.keys) if n.shown >= 0 else (first, last)
        for j in range(from_key, to_key):
            mine[j] = dot(query, at(key, j * n.k_s), n.depth) * scale
        line = at(scores, unit * n.keys)
        if n.shown == RAW:
            for j in range(n.keys):
                line[j] = mine[j]
        if cap > ZERO:
            for j in range(from_key, to_key):
                mine[j] = tanh32(mine[j] / cap) * cap
        if n.shown == CAPPED:
            for j in range(n.keys):
                line[j] = mine[j]
        if n.masked:
            place = n.mask_at + b * n.mask_b + h * n.mask_h + s * n.mask_q
            visible = _biased(mine, mask, n.masked, place, n.mask_k, n.mask_length, first, last) and visible
        if n.shown >= 0:
            fill(mine, LOWEST, first)
            fill(at(mine, last), LOWEST, n.keys - last)
        if n.shown == MASKED:
            for j in range(n.keys):
                line[j] = mine[j]
        result = at(y, n.y_at + b * n.y_b + h * n.y_h + s * n.y_s)
        fill(result, ZERO, n.width)
        if visible or not n.zero:
            _softmax(at(mine, first), last - first)
            if n.zero == CLEARED and math.isnan(mine[first]):
                continue
            value = at(v, n.v_at + b * n.v_b + h // n.group * n.v_h + first * n.v_s)
            _add_product(at(mine, first), value, n.v_s, result, last - first, n.width)
        if n.shown == PROBABILITIES:
            for j in range(n.keys):
                line[j] = mine[j] if (visible or not n.zero) and first <= j < last else ZERO
