"""Attention: a query row, or the rows of some heads with the same keys, at a time; scores in scratch.

The simple version: keys and values are read again for every row, from cache for lengths that fit. Heads of a
decode step that share keys and values are computed together, and read them once.
Causal masks, windows and lengths leave an interval of keys; only those are visited.
"""

import math
from dataclasses import dataclass

import numpy as np

from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.intrinsics import fma
from app.kernels.cpu.codegen.linking import local
from app.kernels.cpu.codegen.sizes import SizeTable
from app.kernels.cpu.codegen.vectormath import exp_falling32, tanh32
from app.kernels.cpu.codegen.vectors import load, splat
from app.kernels.cpu.recurrent import fill
from app.kernels.cpu.sums import dot, joined

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
    left: int  # keys that a query sees before its position, and after it (0: causal); negative for all
    right: int
    external: int  # whether there are `lengths` of keys, at whose end queries stand, not behind `past`
    shown: int  # stage of the scores that are an output, RAW to PROBABILITIES; negative for none
    zero: int  # whether a row that sees no key is zero, else NaN; 2: one whose weights are NaN is zero too
    past: int  # position of the first query


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRowsSizes(AttentionSizes):
    """Sizes of attention by rows."""

    # Heads at once, of those that share keys; more than 1 only of one row, without `shown`, CLEARED and masks
    # that differ between heads.
    together: int


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
def _scores(n, count, queries, keys, scale, work, first, last):
    """work[g · keys + j] = scale · q[g] · k[j] of `count` heads, for first <= j < last.

    Two keys at once in registers of 16, with the sums of `dot` in its order: elements 32 i to 32 i + 15 are
    those of its first two accumulators, the next 16 those of the last two.
    """
    j = first
    while n.depth % 32 == 0 and j + 2 <= last:
        key, other = at(keys, j * n.k_s), at(keys, (j + 1) * n.k_s)
        for g in range(count):
            query, to = at(queries, g * n.q_h), at(work, g * n.keys + j)
            a = b = c = d = splat(ZERO, 16)
            for p in range(0, n.depth, 32):
                low, high = load(query, p, 16), load(query, p + 16, 16)
                a, b = fma(load(key, p, 16), low, a), fma(load(key, p + 16, 16), high, b)
                c, d = fma(load(other, p, 16), low, c), fma(load(other, p + 16, 16), high, d)
            to[0], to[1] = joined(a + b) * scale, joined(c + d) * scale
        j += 2
    while j < last:
        for g in range(count):
            work[g * n.keys + j] = dot(at(queries, g * n.q_h), at(keys, j * n.k_s), n.depth) * scale
        j += 1


@njit(error_model="numpy", boundscheck=False)
def _copy(to, source, n):
    for j in range(n):
        to[j] = source[j]


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
def _add_eight(a, w, w_row, y, n):
    """y[j] += Σ_p a[p] · w[p · w_row + j] for p < 8, so that y is touched seldom."""
    a0, a1, a2, a3 = a[0], a[1], a[2], a[3]
    a4, a5, a6, a7 = a[4], a[5], a[6], a[7]
    w1, w2, w3 = at(w, w_row), at(w, 2 * w_row), at(w, 3 * w_row)
    w4, w5, w6, w7 = at(w, 4 * w_row), at(w, 5 * w_row), at(w, 6 * w_row), at(w, 7 * w_row)
    for j in range(n):
        low = a0 * f32(w[j]) + a1 * f32(w1[j]) + a2 * f32(w2[j]) + a3 * f32(w3[j])
        y[j] += low + (a4 * f32(w4[j]) + a5 * f32(w5[j]) + a6 * f32(w6[j]) + a7 * f32(w7[j]))


@local(fastmath={"contract"})
def _add_one(a, w, y, n):
    """y[j] += a · w[j]."""
    for j in range(n):
        y[j] += a * f32(w[j])


@njit(error_model="numpy", boundscheck=False)
def _add_values(n, count, weights, values, y, keys):
    """Add the sum of values times weights to the rows of `count` heads; values of eight keys a pass."""
    p = 0
    while p + 8 <= keys:
        for g in range(count):
            _add_eight(at(weights, g * n.keys + p), at(values, p * n.v_s), n.v_s, at(y, g * n.y_h), n.width)
        p += 8
    while p < keys:
        for g in range(count):
            _add_one(weights[g * n.keys + p], at(values, p * n.v_s), at(y, g * n.y_h), n.width)
        p += 1


@njit(error_model="numpy", boundscheck=False)
def _seen(n, position, length):
    """First key that a query sees, and the one after the last."""
    last = min(n.keys, length)
    if n.right >= 0:
        last = min(last, position + n.right + 1)
    first = max(position - n.left, 0) if n.left >= 0 else 0
    last = max(last, 0)
    return min(first, last), last


unpacked = AttentionRowsSizes.reader()


def attention(q, k, v, mask, lengths, scalars, y, scores, sizes, work, begin, end, thread):
    """y[b, h, s, :] = softmax(cap(scale · q k') + mask) v. Units are rows (b · heads + h) · rows + s.

    q: [.., depth], v, y: [.., width], first element and strides as in `sizes`, AttentionRowsSizes, innermost
    1. lengths: int64[b], valid keys, with `external`. scalars: scale, cap (0 for none). Query s stands at
    position s + past, or with `external` at s + lengths[b] - rows; it sees keys from `left` before to `right`
    after it where those are not negative. scores: [b, heads, rows, keys], written if `shown` >= 0.
    work: `together` times `keys` float32 a thread.
    """
    n = unpacked(sizes)
    work = at(work, thread * n.together * n.keys)
    scale, cap = scalars[0], scalars[1]
    unit = begin
    while unit < end:
        s = unit % n.rows
        h = unit // n.rows % n.heads
        b = unit // (n.rows * n.heads)
        count = min(n.together, end - unit, n.group - h % n.group)
        length = lengths[b] if n.external else n.keys
        first, last = _seen(n, s + (length - n.rows if n.external else n.past), length)
        queries = at(q, n.q_at + b * n.q_b + h * n.q_h + s * n.q_s)
        key = at(k, n.k_at + b * n.k_b + h // n.group * n.k_h)
        visible = first < last
        from_key, to_key = (0, n.keys) if n.shown >= 0 else (first, last)
        _scores(n, count, queries, key, scale, work, from_key, to_key)
        result = at(y, n.y_at + b * n.y_b + h * n.y_h + s * n.y_s)
        line = at(scores, unit * n.keys)
        for g in range(count):
            mine = at(work, g * n.keys)
            if n.shown == RAW:
                _copy(line, mine, n.keys)
            if cap > ZERO:
                for j in range(from_key, to_key):
                    mine[j] = tanh32(mine[j] / cap) * cap
            if n.shown == CAPPED:
                _copy(line, mine, n.keys)
            if n.masked:
                place = n.mask_at + b * n.mask_b + (h + g) * n.mask_h + s * n.mask_q
                left = _biased(mine, mask, n.masked, place, n.mask_k, n.mask_length, first, last)
                visible = left and visible
            if n.shown >= 0:
                fill(mine, LOWEST, first)
                fill(at(mine, last), LOWEST, n.keys - last)
            if n.shown == MASKED:
                _copy(line, mine, n.keys)
            fill(at(result, g * n.y_h), ZERO, n.width)
            if visible or not n.zero:
                _softmax(at(mine, first), last - first)
        attends = visible or not n.zero
        if attends and not (n.zero == CLEARED and math.isnan(work[first])):
            value = at(v, n.v_at + b * n.v_b + h // n.group * n.v_h + first * n.v_s)
            _add_values(n, count, at(work, first), value, result, last - first)
        if n.shown == PROBABILITIES:
            for j in range(n.keys):
                line[j] = work[j] if attends and first <= j < last else ZERO
        unit += count
