"""Attention of many queries: blocks of scores that stay in cache between their two matrix products.

The keys of a head go through in blocks. A block of keys is packed once, turned, and its values
once; then for every block of queries: scores with scale and mask in the product's own epilogue,
exponentials of differences to the largest score so far, and their product with the values, added
to the output. What stands there already is scaled down when a later block has a larger score.

Source: Milakov and Gimelshein, 2018, "Online normalizer calculation for softmax",
arXiv:1805.02867; Dao et al., 2022, "FlashAttention", arXiv:2205.14135.
"""

from dataclasses import dataclass

from app.kernels.cpu.attention import AttentionSizes
from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.codegen.tiles import Shapes
from app.kernels.cpu.gemm import product_library

# Tiles two vectors wide: heads are 32, 64 or 128 wide more often than not.
TILES: Shapes = {4: (6, 4, 2, 2), 8: (6, 4, 2, 2), 16: (8, 4, 2, 4)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBlocksSizes(AttentionSizes):
    """Sizes of attention by blocks."""

    parts: int  # of the queries of a head: units
    part_rows: int
    block_rows: int
    block_keys: int  # a multiple of a tile's columns
    work_step: int  # elements of workspace per thread
    spare_size: int
    keys_size: int
    values_size: int
    biased_size: int


_KERNEL = """\
import math
import operator

import numpy as np
from app.kernels.cpu.codegen.inner import njit

from app.kernels.cpu.attention import CAPPED, CLEARED, MASKED, PROBABILITIES, RAW
from app.kernels.cpu.recurrent import fill
from app.kernels.cpu.copies import rows_copier, turner
from app.kernels.cpu.extrema import maximum
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.linking import local
from app.kernels.cpu.sums import fold, inlined, largest
from app.kernels.cpu.codegen.tiles import ACCUMULATE, RESIDUAL, SCALE
from app.kernels.cpu.codegen.vectormath import exp_falling32, tanh32
from app.kernels.cpu.codegen.vectors import load_first, splat, store
from LIBRARY0 import COLUMNS, product

LANES = {lanes}
turn = turner("float32", LANES, "{cached}")
copy_rows = rows_copier("float32", LANES, 1, "{cached}")
LOWEST, ZERO, ONE = np.float32(-math.inf), np.float32(0), np.float32(1)


@njit(error_model="numpy", boundscheck=False)
def pack_keys(k, k_s, k_d, n, depth, panels):
    # panels[j, d, c] = k[(j * COLUMNS + c) * k_s + d * k_d]
    for j in range(0, n, COLUMNS):
        panel, own = at(panels, j * depth), at(k, j * k_s)
        count = min(COLUMNS, n - j)
        if k_d == 1 and depth >= LANES:
            for c in range(0, count, LANES):
                for d in range(0, depth, LANES):
                    e = min(d, depth - LANES)  # the last tile overlaps the one before
                    tile = at(panel, e * COLUMNS + c)
                    turn(at(own, c * k_s + e), k_s, tile, COLUMNS, min(count - c, LANES))
        elif k_s == 1:
            copy_rows(panel, COLUMNS, own, k_d, depth, count)
        else:
            for d in range(depth):
                for c in range(count):
                    panel[d * COLUMNS + c] = own[c * k_s + d * k_d]


@njit(error_model="numpy", boundscheck=False)
def pack_values(v, v_s, v_d, n, width, panels):
    # panels[j, s, c] = v[s * v_s + (j * COLUMNS + c) * v_d]
    for j in range(0, width, COLUMNS):
        panel, own = at(panels, j * n), at(v, j * v_d)
        count = min(COLUMNS, width - j)
        if v_d == 1:
            copy_rows(panel, COLUMNS, own, v_s, n, count)
        else:
            for s in range(n):
                for c in range(count):
                    panel[s * COLUMNS + c] = own[s * v_s + c * v_d]


@njit(error_model="numpy", boundscheck=False)
def biased(mask, step, length, n, bias):
    # A row of the mask as numbers to add.
    for j in range(n):
        if j >= length:
            bias[j] = LOWEST
        else:
            bias[j] = {bias}


@inlined
def kept_exponential(total, v, y, top):
    e = exp_falling32(v - top)
    store(y, 0, e)
    return total + e


keep_exponentials = fold(kept_exponential, operator.add, (16, 4))


@inlined
def hide(line, visible, wide):
    # Scores from `visible` on become so low that they do not count; `wide` is a multiple of LANES.
    none = splat(LOWEST, LANES)
    begun = visible // LANES * LANES
    if begun < wide:
        store(line, begun, load_first(line, begun, visible - begun, none))
    for j in range(begun + LANES, wide, LANES):
        store(line, j, none)


@local()
def exponentials(x, n, top):
    # x = exp(x - top); their sum.
    return keep_exponentials(x, x, n, ZERO, top)


@njit(error_model="numpy", boundscheck=False)
def scaled(x, n, factor):
    for i in range(n):
        x[i] *= factor


@njit(error_model="numpy", boundscheck=False)
def weigh(y, x, n, total, zero):
    # y = x / total; 0 if there is nothing to see and `zero`.
    factor = ZERO if zero and total == ZERO else ONE / total
    for i in range(n):
        y[i] = x[i] * factor


@njit(error_model="numpy", boundscheck=False)
def capped(x, n, cap):
    for j in range(n):
        x[j] = tanh32(x[j] / cap) * cap


@njit(error_model="numpy", boundscheck=False)
def add(x, y, n):
    for j in range(n):
        x[j] += y[j]


@njit(error_model="numpy", boundscheck=False)
def copy(y, x, n):
    for j in range(n):
        y[j] = x[j]


def kernel(q, k, v, mask, y, lengths, shown_scores, scalars, sizes, work{cursors}, begin, end, thread):
    {unpack}{turn}
    spare = at(work, thread * work_step)
    turned = at(spare, spare_size)
    packed = at(turned, keys_size)
    bias = at(packed, values_size)
    scores = at(bias, biased_size)
    tops = at(scores, block_rows * block_keys)
    totals = at(tops, part_rows)
    cap = scalars[2]
    late = cap > ZERO or shown == RAW or shown == CAPPED  # the mask comes after what is capped or shown
    for unit in range(begin, end):
        first = unit % parts * part_rows
        last = min(first + part_rows, rows)
        h, b = unit // parts % heads, unit // (parts * heads)
        queries = at(q, q_at + b * q_b + h * q_h)
        keys_ = at(k, k_at + b * k_b + h // group * k_h)
        values = at(v, v_at + b * v_b + h // group * v_h)
        hides = at(mask, mask_at + b * mask_b + h * mask_h)
        output = at(y, y_at + b * y_b + h * y_h)
        shows = at(shown_scores, unit // parts * rows * keys)
        origin, limit = past, keys  # position of the first query; key behind the last one that a query sees
        if external:
            origin, limit = lengths[b] - rows, min(keys, lengths[b])
        if right >= 0:
            limit = min(limit, origin + last + right)
        limit = max(limit, 0)
        seen, start = limit, 0
        if shown >= 0:
            seen = keys
        elif left >= 0:
            start = max(min(origin + first - left, limit - 1), 0) // block_keys * block_keys
        for key in range(start, max(seen, 1), block_keys):
            n = max(min(block_keys, seen - key), 0)
            pack_keys(at(keys_, key * k_s), k_s, k_d, n, depth, turned)
            pack_values(at(values, key * v_s), v_s, v_d, n, width, packed)
            for row in range(first, last, block_rows):
                m = min(block_rows, last - row)
                near = n  # keys that one of the rows sees
                if right >= 0 and shown < 0:
                    near = max(min(n, origin + row + m + right - key), 0)
                passed = left >= 0 and key + n <= origin + row - left
                if shown < 0 and key > start and (near == 0 or passed) and key + block_keys < seen:
                    continue
                wide = (near + LANES - 1) // LANES * LANES
                extra, extra_row, flags = bias, 0, SCALE
                if masked:
                    if not late:
                        flags |= RESIDUAL
                    extra, extra_row = {hides}, mask_q
                    if {boolean} or mask_k != 1 or mask_length < key + n:
                        extra, extra_row = bias, block_keys if mask_q else 0
                        for i in range(m if mask_q else 1):
                            line = at(hides, (row + i) * mask_q + key * mask_k)
                            biased(line, mask_k, mask_length - key, near, at(bias, i * block_keys))
                product(at(queries, row * q_s), False, q_s, q_d, 0, turned, COLUMNS, depth * COLUMNS, depth,
                        scores, block_keys, m, near, spare, scores, 0, scalars, 0, scalars, extra, extra_row,
                        scalars, flags)
                result = at(output, row * y_s)
                for i in range(m):
                    line, place = at(scores, i * block_keys), row - first + i
                    position, show = origin + row + i, at(shows, (row + i) * keys + key)
                    if shown == RAW:
                        copy(show, line, n)
                    if cap > ZERO:
                        capped(line, near, cap)
                    if shown == CAPPED:
                        copy(show, line, n)
                    if masked and late:
                        add(line, at(extra, i * extra_row), near)
                    visible = min(near, max(limit - key, 0))
                    if right >= 0:
                        visible = min(visible, max(position + right + 1 - key, 0))
                    hide(line, visible, wide)
                    if left >= 0:
                        fill(line, LOWEST, min(max(position - left - key, 0), near))
                    if shown == MASKED or (shown == PROBABILITIES and n < keys):
                        copy(show, line, n)
                    top = largest(line, 0, wide)
                    if key > start:
                        top = maximum(top, tops[place])
                    shift = ZERO if top == LOWEST else top  # of what sees no key, all exponentials are 0
                    total = exponentials(line, wide, shift)
                    if shown == PROBABILITIES and n == keys:
                        weigh(show, line, n, total, zero)
                    if key > start:
                        factor = exp_falling32(tops[place] - shift)
                        total += totals[place] * factor
                        scaled(at(result, i * y_s), width, factor)
                    tops[place], totals[place] = top, total
                product(scores, False, block_keys, 1, 0, packed, COLUMNS, n * COLUMNS,
                        max(min(near, limit - key), 0), result, y_s, m, width, spare, result, y_s, scalars, 0,
                        scalars, scalars, 0, scalars, ACCUMULATE if key > start else 0)
                if key + block_keys >= seen:
                    for i in range(m):
                        total = totals[row - first + i]
                        if shown == PROBABILITIES and n < keys:
                            show, top = at(shows, (row + i) * keys), tops[row - first + i]
                            exponentials(show, keys, ZERO if top == LOWEST else top)
                            weigh(show, show, keys, total, zero)
                        if zero == CLEARED and not total > ZERO:
                            fill(at(result, i * y_s), ZERO, width)
                            continue
                        scaled(at(result, i * y_s), width, ZERO if zero and total == ZERO else ONE / total)
"""


def emit(lanes: int, mask: str, cached: str = "float32", operator: int = -1) -> Sources:
    """The module of attention, y[b, h, s, :] = softmax(scale * q k' + mask) v, float32.

    q: [b, heads, rows, depth], k: [b, heads / group, keys, depth], v: [.., width]; each begins
    `_at` elements after its address and has strides; y: [b, heads, rows, width], innermost stride 1,
    shares memory with nothing. mask: T[b, heads, rows, keys] by strides: what is added to the scores,
    or whether they count. scalars: scale, 1, cap. lengths, shown_scores, and which keys a query sees: as in
    `app.kernels.cpu.attention.attention`. sizes: AttentionBlocksSizes; work: float32 per thread. Units are
    parts of queries (fastest), heads and b.

    Args:
        lanes: float32 in a register.
        mask: T, `float32` or `bool`.
        cached: type of keys and values, which are float32 once they are packed.
        operator: number of the cursor that tells which head of y is computed, where a call computes one: the
            kernel then takes int64* cursors after work. -1 for all heads.
    """
    boolean = mask == "bool"
    kernel = _KERNEL.format(
        lanes=lanes,
        cached=cached,
        boolean=boolean,
        hides="bias" if boolean else "at(hides, row * mask_q + key)",
        bias="ZERO if mask[j * step] else LOWEST" if boolean else "mask[j * step]",
        unpack=AttentionBlocksSizes.unpack(),
        cursors=", cursors" if operator >= 0 else "",
        turn=f"\n    y = at(y, cursors[{operator}] * y_h)" if operator >= 0 else "",
    )
    return product_library("float32", lanes, TILES), kernel
