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
    check,
    clear,
    compiled,
    cut_upper,
    lowest_bit,
    pair_again,
    pointer,
    put,
    raise_lower,
    read_again,
    undo,
)


@compiled
def _place(m, near, queues, trail, count, q):
    """Put a buffer on its floor; those that overlap it in time go above."""
    offset = m[q * STRIDE + FLOOR]
    if offset < m[q * STRIDE + LOWER] or offset > m[q * STRIDE + UPPER]:
        count[FAILED] = m[q * STRIDE + FIRST]
        return False
    end = offset + m[q * STRIDE + SIZE]
    m[q * STRIDE + OFFSET] = offset
    put(m, trail, count, q * STRIDE + PLACED, 1)
    word = (q // 64) * STRIDE + LEFT
    put(m, trail, count, word, m[word] & ~(np.int64(1) << (q % 64)))
    first, last = m[q * STRIDE + FIRST], m[q * STRIDE + END] - 1
    for x in range(first, last + 1):
        put(m, trail, count, x * STRIDE + LOAD, m[x * STRIDE + LOAD] - m[q * STRIDE + SIZE])
        read_again(m, queues, count, x)
    for x in range(first, last):
        put(m, trail, count, x * STRIDE + CROSSING, m[x * STRIDE + CROSSING] - 1)
    for w in range(m[q * STRIDE + NEAR], m[q * STRIDE + NEAR_END]):
        rest = near[q * count[WORDS] + w] & m[w * STRIDE + LEFT]
        while rest:
            r = 64 * w + lowest_bit(rest)
            rest &= rest - 1
            if m[r * STRIDE + FLOOR] < end:
                align = m[r * STRIDE + ALIGN]
                floor = end if align == 1 else -(-end // align) * align
                put(m, trail, count, r * STRIDE + FLOOR, floor)
            if m[r * STRIDE + LIFTED]:
                put(m, trail, count, r * STRIDE + LIFTED, 0)
            if not raise_lower(m, queues, trail, count, r, end):
                return False
            check(m, queues, count, r)
    return True


@compiled
def _read_section(m, members, queues, trail, count, x):
    load = m[x * STRIDE + LOAD]
    low = low2 = top = top2 = NOTHING
    ceiling = ceiling2 = np.int64(-1)
    low_at = top_at = ceiling_at = np.int64(-1)
    begin, end, at = m[x * STRIDE + MEMBERS], m[x * STRIDE + MEMBERS_END], x * count[WORDS]
    for w in range(begin, end):
        rest = members[at + w] & m[w * STRIDE + LEFT]
        while rest:
            q = 64 * w + lowest_bit(rest)
            rest &= rest - 1
            lower = m[q * STRIDE + LOWER]
            upper = lower + m[q * STRIDE + SIZE]
            highest = m[q * STRIDE + UPPER] + m[q * STRIDE + SIZE]
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
        count[FAILED] = x
        return False
    put(m, trail, count, x * STRIDE + CEILING, ceiling)
    put(m, trail, count, x * STRIDE + CEILING2, ceiling2)
    put(m, trail, count, x * STRIDE + CEILING_AT, ceiling_at)
    if (
        low != m[x * STRIDE + LOW]
        or low2 != m[x * STRIDE + LOW2]
        or low_at != m[x * STRIDE + LOW_AT]
        or top != m[x * STRIDE + TOP]
        or top2 != m[x * STRIDE + TOP2]
        or top_at != m[x * STRIDE + TOP_AT]
    ):
        put(m, trail, count, x * STRIDE + LOW, low)
        put(m, trail, count, x * STRIDE + LOW2, low2)
        put(m, trail, count, x * STRIDE + LOW_AT, low_at)
        put(m, trail, count, x * STRIDE + TOP, top)
        put(m, trail, count, x * STRIDE + TOP2, top2)
        put(m, trail, count, x * STRIDE + TOP_AT, top_at)
        for w in range(begin, end):
            rest = members[at + w] & m[w * STRIDE + LEFT]
            while rest:
                check(m, queues, count, 64 * w + lowest_bit(rest))
                rest &= rest - 1
    if low2 + load > ceiling and not cut_upper(m, queues, trail, count, low_at, ceiling - load):
        return False
    return ceiling2 >= low + load or raise_lower(
        m, queues, trail, count, ceiling_at, low + load - m[ceiling_at * STRIDE + SIZE]
    )


@compiled
def _candidates(m, members, count, x):
    """How many buffers of a section could be its lowest."""
    highest = m[x * STRIDE + CEILING] - m[x * STRIDE + LOAD]
    number = 0
    for w in range(m[x * STRIDE + MEMBERS], m[x * STRIDE + MEMBERS_END]):
        rest = members[x * count[WORDS] + w] & m[w * STRIDE + LEFT]
        while rest:
            number += m[(64 * w + lowest_bit(rest)) * STRIDE + LOWER] <= highest
            rest &= rest - 1
    return number


@compiled
def _order_pairs(m, near, queues, trail, count, q):
    """Order `q` and each buffer that overlaps it in time: one lies below, and bounds may tell which."""
    size = m[q * STRIDE + SIZE]
    for w in range(m[q * STRIDE + NEAR], m[q * STRIDE + NEAR_END]):
        rest = near[q * count[WORDS] + w] & m[w * STRIDE + LEFT]
        while rest:
            r = 64 * w + lowest_bit(rest)
            rest &= rest - 1
            other = m[r * STRIDE + SIZE]
            r_below = m[r * STRIDE + LOWER] + other <= m[q * STRIDE + UPPER]
            q_below = m[q * STRIDE + LOWER] + size <= m[r * STRIDE + UPPER]
            if (
                size == other
                and m[q * STRIDE + FIRST] == m[r * STRIDE + FIRST]
                and m[q * STRIDE + END] == m[r * STRIDE + END]
                and m[q * STRIDE + ALIGN] == m[r * STRIDE + ALIGN]
            ):
                r_below = r_below and r < q
                q_below = q_below and q < r
            if r_below == q_below:
                if r_below:
                    continue
                count[FAILED] = max(m[q * STRIDE + FIRST], m[r * STRIDE + FIRST])
                return False
            under, over, height = (q, r, size) if q_below else (r, q, other)
            if not raise_lower(m, queues, trail, count, over, m[under * STRIDE + LOWER] + height):
                return False
            if not cut_upper(m, queues, trail, count, under, m[over * STRIDE + UPPER] - height):
                return False
    return True


@compiled
def _check_buffer(m, near, queues, trail, count, q):
    """Place a buffer that blocks none; raise a lifted one to the least end of those it may lie on."""
    end = m[q * STRIDE + FLOOR] + m[q * STRIDE + SIZE]
    lifted = m[q * STRIDE + LIFTED] or m[q * STRIDE + LOWER] > m[q * STRIDE + FLOOR]
    free = True
    for x in range(m[q * STRIDE + FIRST], m[q * STRIDE + END]):
        if (m[x * STRIDE + LOW2] if m[x * STRIDE + LOW_AT] == q else m[x * STRIDE + LOW]) < end:
            free = False
            break
    if free:
        if lifted:
            count[FAILED] = m[q * STRIDE + FIRST]
            return False
        return _place(m, near, queues, trail, count, q)
    if not lifted:
        return True
    least = NOTHING
    for x in range(m[q * STRIDE + FIRST], m[q * STRIDE + END]):
        least = min(least, m[x * STRIDE + TOP2] if m[x * STRIDE + TOP_AT] == q else m[x * STRIDE + TOP])
        if least <= m[q * STRIDE + LOWER]:
            return True
    return raise_lower(m, queues, trail, count, q, least)


@compiled
def _propagate(m, near, members, queues, trail, count):
    while True:
        if count[PAIRS]:
            count[PAIRS] -= 1
            q = queues[3 * count[PAIRS] + 2]
            m[q * STRIDE + PAIR] = 0
            if not m[q * STRIDE + PLACED] and not _order_pairs(m, near, queues, trail, count, q):
                return False
        elif count[SECTIONS]:
            count[SECTIONS] -= 1
            x = queues[3 * count[SECTIONS] + 0]
            m[x * STRIDE + DIRTY] = 0
            if m[x * STRIDE + LOAD] and not _read_section(m, members, queues, trail, count, x):
                return False
        elif count[CHECKS]:
            count[CHECKS] -= 1
            q = queues[3 * count[CHECKS] + 1]
            m[q * STRIDE + CHECK] = 0
            if not m[q * STRIDE + PLACED] and not _check_buffer(m, near, queues, trail, count, q):
                return False
        else:
            return True


@compiled
def _section(m, members, weight, count, begin, end, rule):
    """The section of [begin, end) to branch in."""
    best = -1
    best_score = 0.0
    for x in range(begin, end):
        if m[x * STRIDE + LOAD] == 0:
            continue
        if rule == BY_FLOOR:
            score = -float(m[x * STRIDE + LOW])
        elif rule == BY_LOAD:
            score = float(m[x * STRIDE + LOAD])
        else:
            score = (
                -(
                    _candidates(m, members, count, x)
                    - m[x * STRIDE + LOAD] / (1.0 + m[x * STRIDE + LOW] + m[x * STRIDE + LOAD])
                )
                / weight[x]
            )
        if best < 0 or score > best_score:
            best, best_score = x, score
    return best


@compiled
def _on_floor(m, members, count, begin, end, low):
    """The buffer of least rank that may lie at `low`, the least lower bound of all sections; -1 if none."""
    q = np.int64(-1)
    for x in range(begin, end):
        if m[x * STRIDE + LOAD] == 0 or m[x * STRIDE + LOW] != low:
            continue
        for w in range(m[x * STRIDE + MEMBERS], m[x * STRIDE + MEMBERS_END]):
            rest = members[x * count[WORDS] + w] & m[w * STRIDE + LEFT]
            while rest:
                p = 64 * w + lowest_bit(rest)
                rest &= rest - 1
                if (
                    m[p * STRIDE + LOWER] == low
                    and not m[p * STRIDE + LIFTED]
                    and m[p * STRIDE + FLOOR] >= low
                    and (q < 0 or m[p * STRIDE + RANK] < m[q * STRIDE + RANK])
                ):
                    q = p
    return q


@compiled
def _lowest(m, members, count, x):
    """The buffer of a section with the least lower bound, then the least rank."""
    q = np.int64(-1)
    for w in range(m[x * STRIDE + MEMBERS], m[x * STRIDE + MEMBERS_END]):
        rest = members[x * count[WORDS] + w] & m[w * STRIDE + LEFT]
        while rest:
            p = 64 * w + lowest_bit(rest)
            rest &= rest - 1
            lower = m[p * STRIDE + LOWER] - m[q * STRIDE + LOWER] if q >= 0 else -1
            if lower < 0 or (lower == 0 and m[p * STRIDE + RANK] < m[q * STRIDE + RANK]):
                q = p
    return q


@compiled
def _below(m, members, count, q):
    """The unplaced buffer with the least end of those that overlap `q` in time."""
    below = np.int64(-1)
    for x in range(m[q * STRIDE + FIRST], m[q * STRIDE + END]):
        for w in range(m[x * STRIDE + MEMBERS], m[x * STRIDE + MEMBERS_END]):
            rest = members[x * count[WORDS] + w] & m[w * STRIDE + LEFT]
            while rest:
                p = 64 * w + lowest_bit(rest)
                rest &= rest - 1
                end = m[p * STRIDE + LOWER] + m[p * STRIDE + SIZE]
                if p != q and (below < 0 or end < m[below * STRIDE + LOWER] + m[below * STRIDE + SIZE]):
                    below = p
    return below


@compiled
def _choose(m, members, weight, count, begin, end, rule):
    """A buffer in the sections [begin, end) to branch on: unplaced, and not lifted."""
    best = _section(m, members, weight, count, begin, end, rule)
    q = np.int64(-1)
    if rule == BY_FLOOR:
        q = _on_floor(m, members, count, begin, end, m[best * STRIDE + LOW])
    if q < 0:
        q = _lowest(m, members, count, best)
    # A lifted buffer lies on another: go down to one that may lie on its floor.
    while m[q * STRIDE + LIFTED] or m[q * STRIDE + LOWER] > m[q * STRIDE + FLOOR]:
        q = _below(m, members, count, q)
    return q


@compiled
def _split(m, parts, begin, end, back, pending, used):
    """Parts of the sections [begin, end) that no unplaced buffer joins: the first, and a list of the others.

    Returns the sections of the first part (its end is 0 where nothing is left to place), the head of the
    list of parts to be searched, and the length of `parts`.
    """
    start = np.int64(-1)
    first_begin = first_end = np.int64(0)
    for x in range(begin, end):
        if m[x * STRIDE + LOAD] == 0:
            continue
        if start < 0:
            start = x
        if x + 1 < end and m[x * STRIDE + CROSSING]:
            continue
        if first_end == 0:
            first_begin, first_end = start, x + 1
        else:
            parts[4 * used + 0], parts[4 * used + 1] = start, x + 1
            parts[4 * used + 2], parts[4 * used + 3] = back, pending
            pending = used
            used += 1
        start = np.int64(-1)
    return first_begin, first_end, pending, used


@compiled
def _descend(m, near, members, weight, queues, trail, frames, parts, count, sections, rule, limit):
    begin, end = np.int64(0), np.int64(sections)
    back = pending = np.int64(-1)  # the frame to go back to, the next part
    depth = used = np.int64(0)
    while True:
        ok = _propagate(m, near, members, queues, trail, count)
        if count[TRAIL] > count[ENTRIES]:
            return UNDECIDED
        if ok:
            first_begin, first_end, pending, used = _split(m, parts, begin, end, back, pending, used)
            if first_end == 0:
                if pending < 0:
                    return FEASIBLE
                begin, end, back = parts[4 * pending + 0], parts[4 * pending + 1], parts[4 * pending + 2]
                pending = parts[4 * pending + 3]
                continue
            begin, end = first_begin, first_end
            count[NODES] += 1
            q = _choose(m, members, weight, count, begin, end, rule)
            frames[7 * depth + 0], frames[7 * depth + 1], frames[7 * depth + 2], frames[7 * depth + 3] = (
                count[TRAIL],
                q,
                begin,
                end,
            )
            frames[7 * depth + 4], frames[7 * depth + 5], frames[7 * depth + 6] = back, pending, used
            back = depth
            depth += 1
            ok = _place(m, near, queues, trail, count, q)
        if not ok:
            clear(m, queues, count)
            weight[count[FAILED]] += 1.0
            if back < 0:
                return INFEASIBLE
            if count[FAILURES] == limit:
                return UNDECIDED
            count[FAILURES] += 1
            depth = back
            if count[TRAIL] > count[ENTRIES]:
                return UNDECIDED
            undo(m, trail, count, frames[7 * depth + 0])
            q, begin, end = frames[7 * depth + 1], frames[7 * depth + 2], frames[7 * depth + 3]
            back, pending, used = frames[7 * depth + 4], frames[7 * depth + 5], frames[7 * depth + 6]
            put(m, trail, count, q * STRIDE + LIFTED, 1)
            check(m, queues, count, q)


@compiled
def settle(m, near, members, queues, trail, count, n, sections):
    """All that follows before anything is placed; False if nothing fits. Arguments as in `search`."""
    state, waiting, counts = pointer(m), pointer(queues), pointer(count)
    for q in range(n):
        pair_again(state, waiting, counts, q)
        check(state, waiting, counts, q)
    for x in range(sections):
        read_again(state, waiting, counts, x)
    return _propagate(state, pointer(near), pointer(members), waiting, pointer(trail), counts)


@compiled
def search(m, near, members, weight, queues, trail, frames, parts, count, sections, rule, limit):
    """Place all buffers: FEASIBLE (column OFFSET), INFEASIBLE, or UNDECIDED after `limit` failures.

    m: int64[1 + most of n and sections, STRIDE], the state, settled; near, members: int64[., words], bit
        sets of the buffers that overlap each buffer in time, and of those of each section;
    weight: float64[sections], failures of each section, kept between calls;
    queues: int64[most of n and sections, 3]; trail: int64[count[ENTRIES], 2]; frames: int64[n, 7];
    parts: int64[n, 4]; count: int64[COUNTS].
    """
    return _descend(
        pointer(m),
        pointer(near),
        pointer(members),
        pointer(weight),
        pointer(queues),
        pointer(trail),
        pointer(frames),
        pointer(parts),
        pointer(count),
        sections,
        rule,
        limit,
    )
