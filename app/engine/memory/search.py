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

from typing import Any

import numpy as np
from numba import njit

# Rows of `buf`, one column a buffer. Times are sections [FIRST, END), bytes are units of the problem.
FIRST, END, SIZE, ALIGN, RANK, NEAR, FLOOR, LOWER, UPPER, LIFTED, PLACED, CHECK, PAIR, OFFSET = range(14)
BUFFER_ROWS = 14
# Rows of `sec`, one column a section: where its members start, sizes of the unplaced ones, how many of
# them go on into the next section; the two least lower bounds and the two least ends with their owners;
# how many could be the lowest; the highest end that bounds allow; whether it waits to be read again.
MEMBERS, LOAD, CROSSING, LOW, LOW2, LOW_AT, TOP, TOP2, TOP_AT, LOWEST, CEILING, DIRTY = range(12)
SECTION_ROWS = 12
# Entries of `count`.
SECTIONS, CHECKS, PAIRS, TRAIL, FAILED, NODES, FAILURES = range(7)
COUNTS = 7
# How the section to branch in is chosen: the lowest free place of all, the most bytes still to place,
# or the fewest candidates for its lowest place (by weight of its failures).
BY_FLOOR, BY_LOAD, BY_CANDIDATES = range(3)
INFEASIBLE, FEASIBLE, UNDECIDED = 0, 1, -1

_NOTHING = np.int64(1) << 60
_compiled: Any = njit(cache=True, error_model="numpy", boundscheck=False)


@_compiled
def _put(m, trail, count, at, value):  # type: ignore[no-untyped-def]
    if m[at] != value:
        top = count[TRAIL]
        if top < len(trail):
            trail[top, 0] = at
            trail[top, 1] = m[at]
        count[TRAIL] = top + 1  # beyond the end: the search stops undecided
        m[at] = value


@_compiled
def _read_again(sec, queues, count, x):  # type: ignore[no-untyped-def]
    if not sec[DIRTY, x]:
        sec[DIRTY, x] = 1
        queues[0, count[SECTIONS]] = x
        count[SECTIONS] += 1


@_compiled
def _pair_again(buf, queues, count, q):  # type: ignore[no-untyped-def]
    if not buf[PAIR, q]:
        buf[PAIR, q] = 1
        queues[2, count[PAIRS]] = q
        count[PAIRS] += 1


@_compiled
def _check(buf, queues, count, q):  # type: ignore[no-untyped-def]
    if not buf[CHECK, q]:
        buf[CHECK, q] = 1
        queues[1, count[CHECKS]] = q
        count[CHECKS] += 1


@_compiled
def _raise_lower(m, buf, sec, queues, trail, count, q, value):  # type: ignore[no-untyped-def]
    if value <= buf[LOWER, q]:
        return True
    align = buf[ALIGN, q]
    if align > 1:
        value = -(-value // align) * align
    if value > buf[UPPER, q]:
        count[FAILED] = buf[FIRST, q]
        return False
    old = buf[LOWER, q]
    top = old + buf[SIZE, q]
    _put(m, trail, count, LOWER * buf.shape[1] + q, value)
    _pair_again(buf, queues, count, q)
    # Only where the old bound was among the least, or made a candidate for the lowest, anything changes.
    for x in range(buf[FIRST, q], buf[END, q]):
        if old <= sec[LOW2, x] or top <= sec[TOP2, x] or old + sec[LOAD, x] <= sec[CEILING, x]:
            _read_again(sec, queues, count, x)
    return True


@_compiled
def _cut_upper(m, buf, sec, queues, trail, count, q, value):  # type: ignore[no-untyped-def]
    if value >= buf[UPPER, q]:
        return True
    if value < buf[LOWER, q]:
        count[FAILED] = buf[FIRST, q]
        return False
    top = buf[UPPER, q] + buf[SIZE, q]
    _put(m, trail, count, UPPER * buf.shape[1] + q, value)
    _pair_again(buf, queues, count, q)
    for x in range(buf[FIRST, q], buf[END, q]):
        if top >= sec[LOW, x] + sec[LOAD, x]:
            _read_again(sec, queues, count, x)
    return True


@_compiled
def _place(m, buf, sec, near, queues, trail, count, q):  # type: ignore[no-untyped-def]
    """Put a buffer on its floor; those that overlap it in time go above."""
    n, sections = buf.shape[1], sec.shape[1]
    base = BUFFER_ROWS * n
    offset = buf[FLOOR, q]
    if offset < buf[LOWER, q] or offset > buf[UPPER, q]:
        count[FAILED] = buf[FIRST, q]
        return False
    end = offset + buf[SIZE, q]
    buf[OFFSET, q] = offset
    _put(m, trail, count, PLACED * n + q, 1)
    first, last = buf[FIRST, q], buf[END, q] - 1
    for x in range(first, last + 1):
        _put(m, trail, count, base + LOAD * sections + x, sec[LOAD, x] - buf[SIZE, q])
        _read_again(sec, queues, count, x)
    for x in range(first, last):
        _put(m, trail, count, base + CROSSING * sections + x, sec[CROSSING, x] - 1)
    for k in range(buf[NEAR, q], buf[NEAR, q + 1]):
        r = near[k]
        if buf[PLACED, r]:
            continue
        if buf[FLOOR, r] < end:
            align = buf[ALIGN, r]
            floor = end if align == 1 else -(-end // align) * align
            _put(m, trail, count, FLOOR * n + r, floor)
        if buf[LIFTED, r]:
            _put(m, trail, count, LIFTED * n + r, 0)
        if not _raise_lower(m, buf, sec, queues, trail, count, r, end):
            return False
        _check(buf, queues, count, r)
    return True


@_compiled
def _read_section(m, buf, sec, members, queues, trail, count, x):  # type: ignore[no-untyped-def]
    n, sections = buf.shape[1], sec.shape[1]
    load = sec[LOAD, x]
    low = low2 = top = top2 = _NOTHING
    low_at = top_at = np.int64(-1)
    ceiling = np.int64(0)
    begin, end = sec[MEMBERS, x], sec[MEMBERS, x + 1]
    for k in range(begin, end):
        q = members[k]
        if buf[PLACED, q]:
            continue
        lower = buf[LOWER, q]
        upper = lower + buf[SIZE, q]
        if lower < low:
            low2, low, low_at = low, lower, q
        elif lower < low2:
            low2 = lower
        if upper < top:
            top2, top, top_at = top, upper, q
        elif upper < top2:
            top2 = upper
        ceiling = max(ceiling, buf[UPPER, q] + buf[SIZE, q])
    if low + load > ceiling:
        count[FAILED] = x
        return False
    base = BUFFER_ROWS * n + x
    _put(m, trail, count, base + CEILING * sections, ceiling)
    if (
        low != sec[LOW, x]
        or low2 != sec[LOW2, x]
        or low_at != sec[LOW_AT, x]
        or top != sec[TOP, x]
        or top2 != sec[TOP2, x]
        or top_at != sec[TOP_AT, x]
    ):
        _put(m, trail, count, base + LOW * sections, low)
        _put(m, trail, count, base + LOW2 * sections, low2)
        _put(m, trail, count, base + LOW_AT * sections, low_at)
        _put(m, trail, count, base + TOP * sections, top)
        _put(m, trail, count, base + TOP2 * sections, top2)
        _put(m, trail, count, base + TOP_AT * sections, top_at)
        for k in range(begin, end):
            if not buf[PLACED, members[k]]:
                _check(buf, queues, count, members[k])
    lowest = highest = 0
    lowest_at = highest_at = np.int64(-1)
    for k in range(begin, end):
        q = members[k]
        if buf[PLACED, q]:
            continue
        if buf[LOWER, q] + load <= ceiling:
            lowest += 1
            lowest_at = q
        if buf[UPPER, q] + buf[SIZE, q] >= low + load:
            highest += 1
            highest_at = q
    _put(m, trail, count, base + LOWEST * sections, lowest)
    if lowest == 1 and not _cut_upper(m, buf, sec, queues, trail, count, lowest_at, ceiling - load):
        return False
    return highest != 1 or _raise_lower(
        m, buf, sec, queues, trail, count, highest_at, low + load - buf[SIZE, highest_at]
    )


@_compiled
def _order_pairs(m, buf, sec, near, queues, trail, count, q):  # type: ignore[no-untyped-def]
    """Of `q` and each buffer that overlaps it in time one lies below; bounds may tell which."""
    size = buf[SIZE, q]
    for k in range(buf[NEAR, q], buf[NEAR, q + 1]):
        r = near[k]
        if buf[PLACED, r]:
            continue
        other = buf[SIZE, r]
        r_below = buf[LOWER, r] + other <= buf[UPPER, q]
        q_below = buf[LOWER, q] + size <= buf[UPPER, r]
        if (
            size == other
            and buf[FIRST, q] == buf[FIRST, r]
            and buf[END, q] == buf[END, r]
            and buf[ALIGN, q] == buf[ALIGN, r]
        ):
            r_below = r_below and r < q
            q_below = q_below and q < r
        if r_below == q_below:
            if r_below:
                continue
            count[FAILED] = max(buf[FIRST, q], buf[FIRST, r])
            return False
        under, over, height = (q, r, size) if q_below else (r, q, other)
        if not _raise_lower(m, buf, sec, queues, trail, count, over, buf[LOWER, under] + height):
            return False
        if not _cut_upper(m, buf, sec, queues, trail, count, under, buf[UPPER, over] - height):
            return False
    return True


@_compiled
def _check_buffer(m, buf, sec, near, queues, trail, count, q):  # type: ignore[no-untyped-def]
    """Place a buffer that blocks none; raise a lifted one to the least end of those it may lie on."""
    end = buf[FLOOR, q] + buf[SIZE, q]
    lifted = buf[LIFTED, q] or buf[LOWER, q] > buf[FLOOR, q]
    free = True
    for x in range(buf[FIRST, q], buf[END, q]):
        if (sec[LOW2, x] if sec[LOW_AT, x] == q else sec[LOW, x]) < end:
            free = False
            break
    if free:
        if lifted:
            count[FAILED] = buf[FIRST, q]
            return False
        return _place(m, buf, sec, near, queues, trail, count, q)
    if not lifted:
        return True
    least = _NOTHING
    for x in range(buf[FIRST, q], buf[END, q]):
        least = min(least, sec[TOP2, x] if sec[TOP_AT, x] == q else sec[TOP, x])
        if least <= buf[LOWER, q]:
            return True
    return _raise_lower(m, buf, sec, queues, trail, count, q, least)


@_compiled
def _propagate(m, buf, sec, near, members, queues, trail, count):  # type: ignore[no-untyped-def]
    while True:
        if count[SECTIONS]:
            count[SECTIONS] -= 1
            x = queues[0, count[SECTIONS]]
            sec[DIRTY, x] = 0
            if sec[LOAD, x] and not _read_section(m, buf, sec, members, queues, trail, count, x):
                return False
        elif count[PAIRS]:
            count[PAIRS] -= 1
            q = queues[2, count[PAIRS]]
            buf[PAIR, q] = 0
            if not buf[PLACED, q] and not _order_pairs(m, buf, sec, near, queues, trail, count, q):
                return False
        elif count[CHECKS]:
            count[CHECKS] -= 1
            q = queues[1, count[CHECKS]]
            buf[CHECK, q] = 0
            if not buf[PLACED, q] and not _check_buffer(m, buf, sec, near, queues, trail, count, q):
                return False
        else:
            return True


@_compiled
def _choose(buf, sec, members, weight, begin, end, rule):  # type: ignore[no-untyped-def]
    """A buffer in the sections [begin, end) to branch on: unplaced, and not lifted."""
    best = -1
    best_score = 0.0
    for x in range(begin, end):
        if sec[LOAD, x] == 0:
            continue
        if rule == BY_FLOOR:
            score = -float(sec[LOW, x])
        elif rule == BY_LOAD:
            score = float(sec[LOAD, x])
        else:
            score = -(sec[LOWEST, x] - sec[LOAD, x] / (1.0 + sec[LOW, x] + sec[LOAD, x])) / weight[x]
        if best < 0 or score > best_score:
            best, best_score = x, score
    q = np.int64(-1)
    if rule == BY_FLOOR:
        low = sec[LOW, best]
        for x in range(begin, end):
            if sec[LOAD, x] and sec[LOW, x] == low:
                for k in range(sec[MEMBERS, x], sec[MEMBERS, x + 1]):
                    p = members[k]
                    ready = not buf[PLACED, p] and not buf[LIFTED, p] and buf[FLOOR, p] >= buf[LOWER, p]
                    if ready and buf[LOWER, p] == low and (q < 0 or buf[RANK, p] < buf[RANK, q]):
                        q = p
        if q >= 0:
            return q
    for k in range(sec[MEMBERS, best], sec[MEMBERS, best + 1]):
        p = members[k]
        if buf[PLACED, p]:
            continue
        if (
            q < 0
            or buf[LOWER, p] < buf[LOWER, q]
            or (buf[LOWER, p] == buf[LOWER, q] and buf[RANK, p] < buf[RANK, q])
        ):
            q = p
    # A lifted buffer lies on another: go down to one that may lie on its floor.
    while buf[LIFTED, q] or buf[LOWER, q] > buf[FLOOR, q]:
        below = np.int64(-1)
        for x in range(buf[FIRST, q], buf[END, q]):
            for k in range(sec[MEMBERS, x], sec[MEMBERS, x + 1]):
                p = members[k]
                if p == q or buf[PLACED, p]:
                    continue
                if below < 0 or buf[LOWER, p] + buf[SIZE, p] < buf[LOWER, below] + buf[SIZE, below]:
                    below = p
        q = below
    return q


@_compiled
def search(m, n, near, members, weight, queues, trail, frames, parts, count, rule, limit):  # type: ignore[no-untyped-def]
    """Place all buffers: FEASIBLE (offsets in row OFFSET), INFEASIBLE, or UNDECIDED after `limit` failures.

    m: int64[BUFFER_ROWS * n + SECTION_ROWS * sections], the state, as `exact.State` lays it out
        (each with one column more than buffers and sections, the ends of `near` and `members`).
    near, members: int64, buffers that overlap each buffer in time, and those of each section.
    weight: float64[sections], failures of each section, kept between calls.
    queues: int64[3, most of n and sections]; trail: int64[entries, 2];
    frames: int64[n, 7]; parts: int64[any, 4]; count: int64[COUNTS], zeroed.
    """
    sections = (len(m) - BUFFER_ROWS * n) // SECTION_ROWS
    buf = m[: BUFFER_ROWS * n].reshape((BUFFER_ROWS, n))
    sec = m[BUFFER_ROWS * n :].reshape((SECTION_ROWS, sections))
    for q in range(n - 1):
        _pair_again(buf, queues, count, q)
        _check(buf, queues, count, q)
    for x in range(sections - 1):
        _read_again(sec, queues, count, x)
    begin, end = np.int64(0), np.int64(sections - 1)
    back = pending = np.int64(-1)  # the frame to go back to, the next part
    depth = used = np.int64(0)
    while True:
        ok = _propagate(m, buf, sec, near, members, queues, trail, count)
        if count[TRAIL] > len(trail):
            return UNDECIDED
        if ok:
            found, start = 0, np.int64(-1)
            first_begin = first_end = np.int64(0)
            for x in range(begin, end):
                if sec[LOAD, x] == 0:
                    continue
                if start < 0:
                    start = x
                if x + 1 < end and sec[CROSSING, x]:
                    continue
                if found == 0:
                    first_begin, first_end = start, x + 1
                else:
                    if used == len(parts):
                        return UNDECIDED
                    parts[used, 0], parts[used, 1], parts[used, 2], parts[used, 3] = start, x + 1, back, pending
                    pending = used
                    used += 1
                found += 1
                start = np.int64(-1)
            if found == 0:
                if pending < 0:
                    return FEASIBLE
                begin, end, back = parts[pending, 0], parts[pending, 1], parts[pending, 2]
                pending = parts[pending, 3]
                continue
            begin, end = first_begin, first_end
            count[NODES] += 1
            q = _choose(buf, sec, members, weight, begin, end, rule)
            frames[depth, 0], frames[depth, 1], frames[depth, 2], frames[depth, 3] = count[TRAIL], q, begin, end
            frames[depth, 4], frames[depth, 5], frames[depth, 6] = back, pending, used
            back = depth
            depth += 1
            ok = _place(m, buf, sec, near, queues, trail, count, q)
        if not ok:
            while count[SECTIONS]:
                count[SECTIONS] -= 1
                sec[DIRTY, queues[0, count[SECTIONS]]] = 0
            while count[CHECKS]:
                count[CHECKS] -= 1
                buf[CHECK, queues[1, count[CHECKS]]] = 0
            while count[PAIRS]:
                count[PAIRS] -= 1
                buf[PAIR, queues[2, count[PAIRS]]] = 0
            weight[count[FAILED]] += 1.0
            if back < 0:
                return INFEASIBLE
            if count[FAILURES] == limit:
                return UNDECIDED
            count[FAILURES] += 1
            depth = back
            if count[TRAIL] > len(trail):
                return UNDECIDED
            while count[TRAIL] > frames[depth, 0]:
                count[TRAIL] -= 1
                m[trail[count[TRAIL], 0]] = trail[count[TRAIL], 1]
            q, begin, end = frames[depth, 1], frames[depth, 2], frames[depth, 3]
            back, pending, used = frames[depth, 4], frames[depth, 5], frames[depth, 6]
            _put(m, trail, count, LIFTED * n + q, 1)
            _check(buf, queues, count, q)
