"""The least peak of a few buffers around one whose parts live at different times: a bound on all buffers.

Live bytes alone say too little there: a part that is written early at a fixed distance from the others cuts
the arena in two. Of two pieces that live at a common step one lies below the other. Branch and bound over
these choices, those of pieces that overlap at their lowest offsets first, is complete and takes few nodes.

Source: the disjunctive graph of Roy and Sussmann, 1964, with immediate propagation of longest paths as in
Carlier and Pinson, 1989, Management Science 35.
"""

from typing import Any, TypeAlias

import numba
import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

NEIGHBORS = 8  # buffers around each that has parts, the largest
NODES = 200  # for each of them; about 0.3 microseconds a node
PAIRS = 1_000  # of pieces; with more a buffer is passed over


# The pieces of all buffers in a row, as compiled code takes them. A plain tuple: of a named one the types are
# looked up anew in every call, which takes hundreds of microseconds.
#   starts: where the pieces of each buffer begin.
#   pieces: [piece, 4] offset in the buffer, bytes, first step, step after the last.
#   owners: buffers by piece.
#   beside: where the list of each piece begins, of pieces that are live with it.
#   others: these lists.
#   extents: bytes by buffer.
Pieces: TypeAlias = tuple[Array, Array, Array, Array, Array, Array]


@numba.njit(cache=True)
def raised(bound: int, peak: int, given: Pieces, unit: int, nodes: int) -> int:
    """A bound on the peak of all placements, at least `bound`, at most `peak`.

    Args:
        bound: bytes, proved.
        peak: bytes of a placement.
        given: all buffers, see `Pieces`.
        unit: bytes that divide all alignments.
        nodes: for each buffer that has parts; with more nothing is claimed of it.
    """
    starts, _, owners, beside, others, extents = given
    near = np.zeros(NEIGHBORS + 1, np.int64)
    for b in range(len(extents)):
        if starts[b + 1] - starts[b] < 2:
            continue
        near[0] = b
        count, total = 1, extents[b]
        for i in range(beside[starts[b]], beside[starts[b + 1]]):
            other = owners[others[i]]
            at = 1
            while at < count and near[at] != other and extents[near[at]] >= extents[other]:
                at += 1
            if at > NEIGHBORS or (at < count and near[at] == other):
                continue
            if count <= NEIGHBORS:
                count += 1
            for k in range(count - 1, at, -1):
                near[k] = near[k - 1]
            near[at] = other
        for k in range(1, count):
            total += extents[near[k]]
        if total > bound:
            bound = max(bound, _least(near[:count], bound, peak, given, unit, nodes))
    return bound


@numba.njit(cache=True)
def _live_pairs(chosen: Array, given: Pieces) -> tuple[Array, int]:
    """Pairs of pieces of different buffers that live together: [pair, 4] pieces, places of their buffers.

    The number of pairs is -1 where there are more than PAIRS.
    """
    starts, pieces, _, _, _, _ = given
    pairs, count = np.zeros((PAIRS, 4), np.int64), 0
    for i in range(len(chosen)):
        for j in range(i):
            for p in range(starts[chosen[i]], starts[chosen[i] + 1]):
                for q in range(starts[chosen[j]], starts[chosen[j] + 1]):
                    if pieces[p, 2] < pieces[q, 3] and pieces[q, 2] < pieces[p, 3]:
                        if count == PAIRS:
                            return pairs, -1
                        pairs[count, 0], pairs[count, 1], pairs[count, 2], pairs[count, 3] = p, q, i, j
                        count += 1
    return pairs, count


@numba.njit(cache=True)
def _worst_overlap(offsets: Array, pairs: Array, count: int, pieces: Array) -> int:
    """The pair whose pieces share most bytes at these offsets; -1 where none shares any."""
    worst, at = 0, -1
    for k in range(count):
        p, q = pairs[k, 0], pairs[k, 1]
        low, other = offsets[pairs[k, 2]] + pieces[p, 0], offsets[pairs[k, 3]] + pieces[q, 0]
        common = min(low + pieces[p, 1], other + pieces[q, 1]) - max(low, other)
        if common > worst:
            worst, at = common, k
    return at


@numba.njit(cache=True)
def _lift(before: Array, after: Array, offsets: Array, i: int, j: int, apart: int) -> None:
    """Longest paths and lowest offsets once buffer j lies at least `apart` above buffer i."""
    n = len(offsets)
    for v in range(n):
        offsets[v] = 0
        for u in range(n):
            after[u, v] = max(before[u, v], before[u, i] + apart + before[j, v])
            offsets[v] = max(offsets[v], after[u, v])


@numba.njit(cache=True)
def _least(chosen: Array, enough: int, peak: int, given: Pieces, unit: int, nodes: int) -> int:
    """The least peak of some buffers if it is in (enough, peak]; 0 where it is not, or is not known."""
    pieces, n = given[1], len(chosen)
    extents = given[5][chosen]
    pairs, count = _live_pairs(chosen, given)
    if count < 0:
        return 0
    # By level: the longest paths between buffers, and with them the lowest offset of each.
    paths = np.full((count + 1, n, n), np.int64(-(1 << 60)))
    offsets = np.zeros((count + 1, n), np.int64)
    for i in range(n):
        paths[0, i, i] = 0
    pair, tried = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    level, entered = 0, True
    while level >= 0:
        if entered:
            nodes -= 1
            if nodes < 0:
                return 0
            at = _worst_overlap(offsets[level], pairs, count, pieces)
            entered = False
            if at < 0:
                peak = (offsets[level] + extents).max()
                if peak <= enough:
                    return 0
                level -= 1
                continue
            pair[level], tried[level] = at, 0
        if tried[level] == 2:
            level -= 1
            continue
        k = pair[level]
        p, q, i, j = pairs[k, 0], pairs[k, 1], pairs[k, 2], pairs[k, 3]
        if tried[level]:
            p, q, i, j = q, p, j, i
        tried[level] += 1
        apart = -(-(pieces[p, 0] + pieces[p, 1] - pieces[q, 0]) // unit) * unit
        if paths[level, j, i] + apart > 0:
            continue
        _lift(paths[level], paths[level + 1], offsets[level + 1], i, j, apart)
        entered = (offsets[level + 1] + extents).max() < peak
        level += entered
    return peak
