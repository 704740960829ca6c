"""The compiled core of the complete search: is there a placement below a capacity?

Bottom-up placement with inference. State of an unplaced buffer: its floor (top of what lies placed
below it), and bounds [lower, upper] of its offset. A node takes one buffer and branches in two:

* it lies on its floor, and every unplaced buffer that overlaps it in time lies above;
* it does not: some unplaced one lies below it (it is *lifted*), so that its lower bound is at least
  the least end of those, until one of them has been placed.

Only placements in which no buffer could be lowered are searched; every placement can be lowered to
such a one. Inference between nodes, until nothing changes:

* a section (a maximal set of buffers alive together) holds its least lower bound plus all its sizes;
* the only buffer that can be the lowest (highest) of a section has its upper (lower) bound there;
* of two buffers that overlap in time, one lies below: bounds that exclude one order enforce the other;
* a buffer whose place on its floor ends below all others of its sections is placed; a lifted one
  could be lowered, so the branch fails;
* buffers of equal sections and size are interchangeable: the earlier one lies below.

Where no unplaced buffer crosses between two sections the rest falls into parts that are searched one
after another; a part without solution goes back to the choice that made it, past its sisters.

All changes are written to a trail and undone from it. Nothing is recursive: numba cannot load a
self-recursive function from its cache. The idea of canonical placement with inference per section is
MiniMalloc's (ASPLOS 2023); precedence of pairs is disjunctive scheduling's (Carlier and Pinson, 1989);
weights of failures are Boussemart et al., 2004.
"""

import numpy as np

from app.engine.memory.exact.state import (
    ALIGN,
    BY_FLOOR,
    BY_LOAD,
    CEILING,
    CEILING2,
    CEILING_AT,
    CHECK,
    CHECKS,
    CROSSING,
    DIRTY,
    END,
    ENTRIES,
    FAILED,
    FAILURES,
    FEASIBLE,
    FIRST,
    FLOOR,
    INFEASIBLE,
    LEFT,
    LIFTED,
    LOAD,
    LOW,
    LOW2,
    LOW_AT,
    LOWER,
    MEMBERS,
    MEMBERS_END,
    NEAR,
    NEAR_END,
    NODES,
    NOTHING,
    OFFSET,
    PAIR,
    PAIRS,
    PLACED,
    RANK,
    SECTIONS,
    SIZE,
    STRIDE,
    TOP,
    TOP2,
    TOP_AT,
    TRAIL,
    UNDECIDED,
    UPPER,
    WORDS,
    addresses,
    check,
    clear,
    compiled,
    cut_upper,
    lowest_bit,
    pair_again,
    put,
    raise_lower,
    read_again,
    undo,
)


@compiled
def _place(s, q):
    """Put a buffer on its floor; those that overlap it in time go above."""
    offset = s.m[q * STRIDE + FLOOR]
    if offset < s.m[q * STRIDE + LOWER] or offset > s.m[q * STRIDE + UPPER]:
        s.counts[FAILED] = s.m[q * STRIDE + FIRST]
        return False
    end = offset + s.m[q * STRIDE + SIZE]
    s.m[q * STRIDE + OFFSET] = offset
    put(s, q * STRIDE + PLACED, 1)
    word = (q // 64) * STRIDE + LEFT
    put(s, word, s.m[word] & ~(np.int64(1) << (q % 64)))
    first, last = s.m[q * STRIDE + FIRST], s.m[q * STRIDE + END] - 1
    for x in range(first, last + 1):
        put(s, x * STRIDE + LOAD, s.m[x * STRIDE + LOAD] - s.m[q * STRIDE + SIZE])
        read_again(s, x)
    for x in range(first, last):
        put(s, x * STRIDE + CROSSING, s.m[x * STRIDE + CROSSING] - 1)
    for w in range(s.m[q * STRIDE + NEAR], s.m[q * STRIDE + NEAR_END]):
        rest = s.near[q * s.counts[WORDS] + w] & s.m[w * STRIDE + LEFT]
        while rest:
            r = 64 * w + lowest_bit(rest)
            rest &= rest - 1
            if s.m[r * STRIDE + FLOOR] < end:
                align = s.m[r * STRIDE + ALIGN]
                floor = end if align == 1 else -(-end // align) * align
                put(s, r * STRIDE + FLOOR, floor)
            if s.m[r * STRIDE + LIFTED]:
                put(s, r * STRIDE + LIFTED, 0)
            if not raise_lower(s, r, end):
                return False
            check(s, r)
    return True


@compiled
def _read_section(s, x):
    load = s.m[x * STRIDE + LOAD]
    low = low2 = top = top2 = NOTHING
    ceiling = ceiling2 = np.int64(-1)
    low_at = top_at = ceiling_at = np.int64(-1)
    begin, end, at = s.m[x * STRIDE + MEMBERS], s.m[x * STRIDE + MEMBERS_END], x * s.counts[WORDS]
    for w in range(begin, end):
        rest = s.members[at + w] & s.m[w * STRIDE + LEFT]
        while rest:
            q = 64 * w + lowest_bit(rest)
            rest &= rest - 1
            lower = s.m[q * STRIDE + LOWER]
            upper = lower + s.m[q * STRIDE + SIZE]
            highest = s.m[q * STRIDE + UPPER] + s.m[q * STRIDE + SIZE]
            if lower < low:
                low2, low, low_at = low, lower, q
            elif lower < low2:
                low2 = lower
            if upper < top:
                top2, top, top_at = top, upper, q
            elif upper < top2:
                top2 = upper
            if highest > ceiling:
                ceiling2, ceiling, ceiling_at = ceiling, highest, q
            elif highest > ceiling2:
                ceiling2 = highest
    if low + load > ceiling:
        s.counts[FAILED] = x
        return False
    put(s, x * STRIDE + CEILING, ceiling)
    put(s, x * STRIDE + CEILING2, ceiling2)
    put(s, x * STRIDE + CEILING_AT, ceiling_at)
    if (
        low != s.m[x * STRIDE + LOW]
        or low2 != s.m[x * STRIDE + LOW2]
        or low_at != s.m[x * STRIDE + LOW_AT]
        or top != s.m[x * STRIDE + TOP]
        or top2 != s.m[x * STRIDE + TOP2]
        or top_at != s.m[x * STRIDE + TOP_AT]
    ):
        put(s, x * STRIDE + LOW, low)
        put(s, x * STRIDE + LOW2, low2)
        put(s, x * STRIDE + LOW_AT, low_at)
        put(s, x * STRIDE + TOP, top)
        put(s, x * STRIDE + TOP2, top2)
        put(s, x * STRIDE + TOP_AT, top_at)
        for w in range(begin, end):
            rest = s.members[at + w] & s.m[w * STRIDE + LEFT]
            while rest:
                check(s, 64 * w + lowest_bit(rest))
                rest &= rest - 1
    if low2 + load > ceiling and not cut_upper(s, low_at, ceiling - load):
        return False
    return ceiling2 >= low + load or raise_lower(s, ceiling_at, low + load - s.m[ceiling_at * STRIDE + SIZE])


@compiled
def _candidates(s, x):
    """How many buffers of a section could be its lowest."""
    highest = s.m[x * STRIDE + CEILING] - s.m[x * STRIDE + LOAD]
    number = 0
    for w in range(s.m[x * STRIDE + MEMBERS], s.m[x * STRIDE + MEMBERS_END]):
        rest = s.members[x * s.counts[WORDS] + w] & s.m[w * STRIDE + LEFT]
        while rest:
            number += s.m[(64 * w + lowest_bit(rest)) * STRIDE + LOWER] <= highest
            rest &= rest - 1
    return number


@compiled
def _order_pairs(s, q):
    """Order `q` and each buffer that overlaps it in time: one lies below, and bounds may tell which."""
    size = s.m[q * STRIDE + SIZE]
    for w in range(s.m[q * STRIDE + NEAR], s.m[q * STRIDE + NEAR_END]):
        rest = s.near[q * s.counts[WORDS] + w] & s.m[w * STRIDE + LEFT]
        while rest:
            r = 64 * w + lowest_bit(rest)
            rest &= rest - 1
            other = s.m[r * STRIDE + SIZE]
            r_below = s.m[r * STRIDE + LOWER] + other <= s.m[q * STRIDE + UPPER]
            q_below = s.m[q * STRIDE + LOWER] + size <= s.m[r * STRIDE + UPPER]
            if (
                size == other
                and s.m[q * STRIDE + FIRST] == s.m[r * STRIDE + FIRST]
                and s.m[q * STRIDE + END] == s.m[r * STRIDE + END]
                and s.m[q * STRIDE + ALIGN] == s.m[r * STRIDE + ALIGN]
            ):
                r_below = r_below and r < q
                q_below = q_below and q < r
            if r_below == q_below:
                if r_below:
                    continue
                s.counts[FAILED] = max(s.m[q * STRIDE + FIRST], s.m[r * STRIDE + FIRST])
                return False
            under, over, height = (q, r, size) if q_below else (r, q, other)
            if not raise_lower(s, over, s.m[under * STRIDE + LOWER] + height):
                return False
            if not cut_upper(s, under, s.m[over * STRIDE + UPPER] - height):
                return False
    return True


@compiled
def _check_buffer(s, q):
    """Place a buffer that blocks none; raise a lifted one to the least end of those it may lie on."""
    end = s.m[q * STRIDE + FLOOR] + s.m[q * STRIDE + SIZE]
    lifted = s.m[q * STRIDE + LIFTED] or s.m[q * STRIDE + LOWER] > s.m[q * STRIDE + FLOOR]
    free = True
    for x in range(s.m[q * STRIDE + FIRST], s.m[q * STRIDE + END]):
        if (s.m[x * STRIDE + LOW2] if s.m[x * STRIDE + LOW_AT] == q else s.m[x * STRIDE + LOW]) < end:
            free = False
            break
    if free:
        if lifted:
            s.counts[FAILED] = s.m[q * STRIDE + FIRST]
            return False
        return _place(s, q)
    if not lifted:
        return True
    least = NOTHING
    for x in range(s.m[q * STRIDE + FIRST], s.m[q * STRIDE + END]):
        least = min(least, s.m[x * STRIDE + TOP2] if s.m[x * STRIDE + TOP_AT] == q else s.m[x * STRIDE + TOP])
        if least <= s.m[q * STRIDE + LOWER]:
            return True
    return raise_lower(s, q, least)


@compiled
def _propagate(s):
    while True:
        if s.counts[PAIRS]:
            s.counts[PAIRS] -= 1
            q = s.queues[3 * s.counts[PAIRS] + 2]
            s.m[q * STRIDE + PAIR] = 0
            if not s.m[q * STRIDE + PLACED] and not _order_pairs(s, q):
                return False
        elif s.counts[SECTIONS]:
            s.counts[SECTIONS] -= 1
            x = s.queues[3 * s.counts[SECTIONS] + 0]
            s.m[x * STRIDE + DIRTY] = 0
            if s.m[x * STRIDE + LOAD] and not _read_section(s, x):
                return False
        elif s.counts[CHECKS]:
            s.counts[CHECKS] -= 1
            q = s.queues[3 * s.counts[CHECKS] + 1]
            s.m[q * STRIDE + CHECK] = 0
            if not s.m[q * STRIDE + PLACED] and not _check_buffer(s, q):
                return False
        else:
            return True


@compiled
def _section(s, begin, end, rule):
    """The section of [begin, end) to branch in."""
    best = -1
    best_score = 0.0
    for x in range(begin, end):
        if s.m[x * STRIDE + LOAD] == 0:
            continue
        if rule == BY_FLOOR:
            score = -float(s.m[x * STRIDE + LOW])
        elif rule == BY_LOAD:
            score = float(s.m[x * STRIDE + LOAD])
        else:
            score = (
                -(
                    _candidates(s, x)
                    - s.m[x * STRIDE + LOAD] / (1.0 + s.m[x * STRIDE + LOW] + s.m[x * STRIDE + LOAD])
                )
                / s.weight[x]
            )
        if best < 0 or score > best_score:
            best, best_score = x, score
    return best


@compiled
def _on_floor(s, begin, end, low):
    """The buffer of least rank that may lie at `low`, the least lower bound of all sections; -1 if none."""
    q = np.int64(-1)
    for x in range(begin, end):
        if s.m[x * STRIDE + LOAD] == 0 or s.m[x * STRIDE + LOW] != low:
            continue
        for w in range(s.m[x * STRIDE + MEMBERS], s.m[x * STRIDE + MEMBERS_END]):
            rest = s.members[x * s.counts[WORDS] + w] & s.m[w * STRIDE + LEFT]
            while rest:
                p = 64 * w + lowest_bit(rest)
                rest &= rest - 1
                if (
                    s.m[p * STRIDE + LOWER] == low
                    and not s.m[p * STRIDE + LIFTED]
                    and s.m[p * STRIDE + FLOOR] >= low
                    and (q < 0 or s.m[p * STRIDE + RANK] < s.m[q * STRIDE + RANK])
                ):
                    q = p
    return q


@compiled
def _lowest(s, x):
    """The buffer of a section with the least lower bound, then the least rank."""
    q = np.int64(-1)
    for w in range(s.m[x * STRIDE + MEMBERS], s.m[x * STRIDE + MEMBERS_END]):
        rest = s.members[x * s.counts[WORDS] + w] & s.m[w * STRIDE + LEFT]
        while rest:
            p = 64 * w + lowest_bit(rest)
            rest &= rest - 1
            lower = s.m[p * STRIDE + LOWER] - s.m[q * STRIDE + LOWER] if q >= 0 else -1
            if lower < 0 or (lower == 0 and s.m[p * STRIDE + RANK] < s.m[q * STRIDE + RANK]):
                q = p
    return q


@compiled
def _below(s, q):
    """The unplaced buffer with the least end of those that overlap `q` in time."""
    below = np.int64(-1)
    for x in range(s.m[q * STRIDE + FIRST], s.m[q * STRIDE + END]):
        for w in range(s.m[x * STRIDE + MEMBERS], s.m[x * STRIDE + MEMBERS_END]):
            rest = s.members[x * s.counts[WORDS] + w] & s.m[w * STRIDE + LEFT]
            while rest:
                p = 64 * w + lowest_bit(rest)
                rest &= rest - 1
                end = s.m[p * STRIDE + LOWER] + s.m[p * STRIDE + SIZE]
                if p != q and (below < 0 or end < s.m[below * STRIDE + LOWER] + s.m[below * STRIDE + SIZE]):
                    below = p
    return below


@compiled
def _choose(s, begin, end, rule):
    """A buffer in the sections [begin, end) to branch on: unplaced, and not lifted."""
    best = _section(s, begin, end, rule)
    q = np.int64(-1)
    if rule == BY_FLOOR:
        q = _on_floor(s, begin, end, s.m[best * STRIDE + LOW])
    if q < 0:
        q = _lowest(s, best)
    # A lifted buffer lies on another: go down to one that may lie on its floor.
    while s.m[q * STRIDE + LIFTED] or s.m[q * STRIDE + LOWER] > s.m[q * STRIDE + FLOOR]:
        q = _below(s, q)
    return q


@compiled
def _split(s, begin, end, back, pending, used):
    """Parts of the sections [begin, end) that no unplaced buffer joins: the first, and a list of the others.

    Returns the sections of the first part (its end is 0 where nothing is left to place), the head of the
    list of parts to be searched, and the length of `parts`.
    """
    start = np.int64(-1)
    first_begin = first_end = np.int64(0)
    for x in range(begin, end):
        if s.m[x * STRIDE + LOAD] == 0:
            continue
        if start < 0:
            start = x
        if x + 1 < end and s.m[x * STRIDE + CROSSING]:
            continue
        if first_end == 0:
            first_begin, first_end = start, x + 1
        else:
            s.parts[4 * used + 0], s.parts[4 * used + 1] = start, x + 1
            s.parts[4 * used + 2], s.parts[4 * used + 3] = back, pending
            pending = used
            used += 1
        start = np.int64(-1)
    return first_begin, first_end, pending, used


@compiled
def _descend(s, sections, rule, limit):
    begin, end = np.int64(0), np.int64(sections)
    back = pending = np.int64(-1)  # the frame to go back to, the next part
    depth = used = np.int64(0)
    while True:
        ok = _propagate(s)
        if s.counts[TRAIL] > s.counts[ENTRIES]:
            return UNDECIDED
        if ok:
            first_begin, first_end, pending, used = _split(s, begin, end, back, pending, used)
            if first_end == 0:
                if pending < 0:
                    return FEASIBLE
                begin, end, back = (
                    s.parts[4 * pending + 0],
                    s.parts[4 * pending + 1],
                    s.parts[4 * pending + 2],
                )
                pending = s.parts[4 * pending + 3]
                continue
            begin, end = first_begin, first_end
            s.counts[NODES] += 1
            q = _choose(s, begin, end, rule)
            (
                s.frames[7 * depth + 0],
                s.frames[7 * depth + 1],
                s.frames[7 * depth + 2],
                s.frames[7 * depth + 3],
            ) = (
                s.counts[TRAIL],
                q,
                begin,
                end,
            )
            s.frames[7 * depth + 4], s.frames[7 * depth + 5], s.frames[7 * depth + 6] = back, pending, used
            back = depth
            depth += 1
            ok = _place(s, q)
        if not ok:
            clear(s)
            s.weight[s.counts[FAILED]] += 1.0
            if back < 0:
                return INFEASIBLE
            if s.counts[FAILURES] == limit:
                return UNDECIDED
            s.counts[FAILURES] += 1
            depth = back
            if s.counts[TRAIL] > s.counts[ENTRIES]:
                return UNDECIDED
            undo(s, s.frames[7 * depth + 0])
            q, begin, end = s.frames[7 * depth + 1], s.frames[7 * depth + 2], s.frames[7 * depth + 3]
            back, pending, used = s.frames[7 * depth + 4], s.frames[7 * depth + 5], s.frames[7 * depth + 6]
            put(s, q * STRIDE + LIFTED, 1)
            check(s, q)


@compiled
def settle(tables, n, sections):
    """All that follows before anything is placed; False if nothing fits."""
    s = addresses(tables)
    for q in range(n):
        pair_again(s, q)
        check(s, q)
    for x in range(sections):
        read_again(s, x)
    return _propagate(s)


@compiled
def search(tables, sections, rule, limit):
    """Place all buffers: FEASIBLE (column OFFSET), INFEASIBLE, or UNDECIDED after `limit` failures."""
    return _descend(addresses(tables), sections, rule, limit)
