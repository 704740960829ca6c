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

# Compiled functions are given their memory: what numba brings to make an array takes longer to compile.
_compiled: Any = numba.njit(cache=True, error_model="numpy")
_inner: Any = numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)

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


# Longest paths and lowest offsets by level, the pairs, and of each level its pair and the orders tried.
_Scratch: TypeAlias = tuple[Array, Array, Array, Array, Array]
_NONE = -(1 << 60)  # length of a path that is not there


def raised(bound: int, peak: int, given: Pieces, unit: int, nodes: int) -> int:
    """A bound on the peak of all placements, at least `bound`, at most `peak`.

    Args:
        bound: bytes, proved.
        peak: bytes of a placement.
        given: all buffers, see `Pieces`.
        unit: bytes that divide all alignments.
        nodes: for each buffer that has parts; with more nothing is claimed of it.
    """
    n, levels = NEIGHBORS + 1, PAIRS + 1
    paths, offsets = np.empty((levels, n, n), np.int64), np.empty((levels, n), np.int64)
    pairs, level = np.empty((PAIRS, 4), np.int64), np.empty((2, levels), np.int64)
    scratch = paths, offsets, pairs, level[0], level[1]
    return int(_raised(bound, peak, given, unit, nodes, scratch, np.zeros(n, np.int64)))


@_compiled
def _raised(
    bound: int, peak: int, given: Pieces, unit: int, nodes: int, scratch: _Scratch, near: Array
) -> int:
    """Result of `raised`. `near` is room for a buffer and those around it."""
    starts, _, owners, beside, others, extents = given
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
            bound = max(bound, _least(near, count, bound, peak, given, unit, nodes, scratch))
    return bound


@_inner
def _live_pairs(chosen: Array, n: int, given: Pieces, pairs: Array) -> int:
    """Pairs of pieces of different buffers that live together; -1 where there are more than `pairs` has room.

    Args:
        chosen: the buffers, the first `n`.
        n: how many.
        given: all buffers, see `Pieces`.
        pairs: filled, [pair, 4] pieces, places of their buffers.
    """
    starts, pieces, _, _, _, _ = given
    count = 0
    for i in range(n):
        for j in range(i):
            for p in range(starts[chosen[i]], starts[chosen[i] + 1]):
                for q in range(starts[chosen[j]], starts[chosen[j] + 1]):
                    if pieces[p, 2] < pieces[q, 3] and pieces[q, 2] < pieces[p, 3]:
                        if count == len(pairs):
                            return -1
                        pairs[count, 0], pairs[count, 1], pairs[count, 2], pairs[count, 3] = p, q, i, j
                        count += 1
    return count


@_inner
def _worst_overlap(level: int, lowest: Array, pairs: Array, count: int, pieces: Array) -> int:
    """The pair whose pieces share most bytes at the offsets of a level; -1 where none shares any."""
    worst, at = 0, -1
    for k in range(count):
        p, q = pairs[k, 0], pairs[k, 1]
        low, other = lowest[level, pairs[k, 2]] + pieces[p, 0], lowest[level, pairs[k, 3]] + pieces[q, 0]
        common = min(low + pieces[p, 1], other + pieces[q, 1]) - max(low, other)
        if common > worst:
            worst, at = common, k
    return at


@_inner
def _lift(paths: Array, lowest: Array, level: int, n: int, i: int, j: int, apart: int) -> None:
    """Longest paths and lowest offsets of the next level: buffer j lies at least `apart` above buffer i."""
    for v in range(n):
        lowest[level + 1, v] = 0
        for u in range(n):
            through = paths[level, u, i] + apart + paths[level, j, v]
            paths[level + 1, u, v] = max(paths[level, u, v], through)
            lowest[level + 1, v] = max(lowest[level + 1, v], paths[level + 1, u, v])


@_inner
def _top(lowest: Array, level: int, chosen: Array, n: int, extents: Array) -> int:
    """The peak of the offsets of a level."""
    top = 0
    for i in range(n):
        top = max(top, lowest[level, i] + extents[chosen[i]])
    return top


@_inner
def _least(
    chosen: Array,
    n: int,
    enough: int,
    peak: int,
    given: Pieces,
    unit: int,
    nodes: int,
    scratch: _Scratch,
) -> int:
    """The least peak of the first `n` of `chosen` if it is in (enough, peak]; 0 if not, or if not known."""
    pieces, extents = given[1], given[5]
    # By level: the longest paths between buffers, and with them the lowest offset of each.
    paths, lowest, pairs, pair, tried = scratch
    count = _live_pairs(chosen, n, given, pairs)
    if count < 0:
        return 0
    for i in range(n):
        lowest[0, i] = 0
        for j in range(n):
            paths[0, i, j] = 0 if i == j else _NONE
    level, entered = 0, True
    while level >= 0:
        if entered:
            nodes -= 1
            if nodes < 0:
                return 0
            at = _worst_overlap(level, lowest, pairs, count, pieces)
            entered = False
            if at < 0:
                peak = _top(lowest, level, chosen, n, extents)
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
        _lift(paths, lowest, level, n, i, j, apart)
        entered = _top(lowest, level + 1, chosen, n, extents) < peak
        level += entered
    return peak
