"""The state of the complete search: one table, its trail, and the queues of what is to be looked at again.

numba caches compiled callers by their own file alone: after a change here, touch `core.py`.
"""

from typing import Any

import numpy as np
from llvmlite import ir as llvm
from numba import njit, types
from numba.extending import intrinsic

# The state is one table, one row for the buffer and the section of that number. Columns of a buffer (times
# are sections [FIRST, END), bytes are units of the problem; NEAR to NEAR_END: words of its bit set of those
# that overlap it), and LEFT: the word of this number of the bit set of what is unplaced:
STRIDE = 32
FLOOR, LOWER, UPPER, SIZE, PLACED, LIFTED, FIRST, END, ALIGN, RANK, NEAR, CHECK, PAIR, OFFSET = range(14)
NEAR_END, LEFT = 14, 15
# Columns of a section: words of its bit set of members, sizes of the unplaced ones, how many of them go on
# into the next section; the two least lower bounds, the two least ends and the two highest that bounds allow,
# with the owners of the first; whether it waits to be read again.
MEMBERS, LOAD, CROSSING, LOW, LOW2, LOW_AT, TOP, TOP2, TOP_AT = range(16, 25)
CEILING, CEILING2, CEILING_AT, DIRTY, MEMBERS_END = range(25, 30)
# Entries of `count`: what waits in three queues, entries of the trail and room for them, where the last
# failure was, nodes and failures so far, and the words of a bit set of buffers.
SECTIONS, CHECKS, PAIRS, TRAIL, ENTRIES, FAILED, NODES, FAILURES, WORDS = range(9)
COUNTS = 9
# How the section to branch in is chosen: the lowest free place of all, the most bytes still to place,
# or the fewest candidates for its lowest place (by weight of its failures).
BY_FLOOR, BY_LOAD, BY_CANDIDATES = range(3)
INFEASIBLE, FEASIBLE, UNDECIDED = 0, 1, -1

NOTHING = np.int64(1) << 60


@intrinsic
def pointer(_context, array):
    """The address of an array's elements: indexing it counts no references and wraps no sign."""
    pointer = types.CPointer(array.dtype)

    def emit(context, builder, signature, arguments):
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return pointer(array), emit


@intrinsic
def lowest_bit(_context, word):
    """The number of the lowest bit of a word that is not 0."""

    def emit(_context, builder, _signature, arguments):
        return builder.cttz(arguments[0], llvm.Constant(llvm.IntType(1), 1))

    return word(word), emit


compiled: Any = njit(cache=True, error_model="numpy", boundscheck=False, nogil=True)
inlined: Any = njit(cache=True, error_model="numpy", boundscheck=False, nogil=True, forceinline=True)


@inlined
def put(m, trail, count, at, value):
    """Change the state, and write what was there to the trail."""
    if m[at] != value:
        top = count[TRAIL]
        if top < count[ENTRIES]:
            trail[2 * top + 0] = at
            trail[2 * top + 1] = m[at]
        count[TRAIL] = top + 1  # beyond the end: the search stops undecided
        m[at] = value


@inlined
def read_again(m, queues, count, x):
    """Queue a section to be read."""
    if not m[x * STRIDE + DIRTY]:
        m[x * STRIDE + DIRTY] = 1
        queues[3 * count[SECTIONS] + 0] = x
        count[SECTIONS] += 1


@inlined
def pair_again(m, queues, count, q):
    """Queue a buffer whose pairs are to be ordered."""
    if not m[q * STRIDE + PAIR]:
        m[q * STRIDE + PAIR] = 1
        queues[3 * count[PAIRS] + 2] = q
        count[PAIRS] += 1


@inlined
def check(m, queues, count, q):
    """Queue a buffer that may be placed."""
    if not m[q * STRIDE + CHECK]:
        m[q * STRIDE + CHECK] = 1
        queues[3 * count[CHECKS] + 1] = q
        count[CHECKS] += 1


@inlined
def clear(m, queues, count):
    """Empty the three queues."""
    while count[SECTIONS]:
        count[SECTIONS] -= 1
        m[queues[3 * count[SECTIONS] + 0] * STRIDE + DIRTY] = 0
    while count[CHECKS]:
        count[CHECKS] -= 1
        m[queues[3 * count[CHECKS] + 1] * STRIDE + CHECK] = 0
    while count[PAIRS]:
        count[PAIRS] -= 1
        m[queues[3 * count[PAIRS] + 2] * STRIDE + PAIR] = 0


@inlined
def undo(m, trail, count, length):
    """Take back what was changed since the trail had this length."""
    while count[TRAIL] > length:
        count[TRAIL] -= 1
        m[trail[2 * count[TRAIL] + 0]] = trail[2 * count[TRAIL] + 1]


@compiled
def raise_lower(m, queues, trail, count, q, value):
    """Raise the least offset of a buffer; False if none is left."""
    if value <= m[q * STRIDE + LOWER]:
        return True
    align = m[q * STRIDE + ALIGN]
    if align > 1:
        value = -(-value // align) * align
    if value > m[q * STRIDE + UPPER]:
        count[FAILED] = m[q * STRIDE + FIRST]
        return False
    old = m[q * STRIDE + LOWER]
    top = old + m[q * STRIDE + SIZE]
    put(m, trail, count, q * STRIDE + LOWER, value)
    pair_again(m, queues, count, q)
    # Only where the old bound was among the least, anything changes.
    for x in range(m[q * STRIDE + FIRST], m[q * STRIDE + END]):
        if old <= m[x * STRIDE + LOW2] or top <= m[x * STRIDE + TOP2]:
            read_again(m, queues, count, x)
    return True


@compiled
def cut_upper(m, queues, trail, count, q, value):
    """Lower the greatest offset of a buffer; False if none is left."""
    if value >= m[q * STRIDE + UPPER]:
        return True
    if value < m[q * STRIDE + LOWER]:
        count[FAILED] = m[q * STRIDE + FIRST]
        return False
    top = m[q * STRIDE + UPPER] + m[q * STRIDE + SIZE]
    put(m, trail, count, q * STRIDE + UPPER, value)
    pair_again(m, queues, count, q)
    for x in range(m[q * STRIDE + FIRST], m[q * STRIDE + END]):
        if top >= m[x * STRIDE + CEILING2]:
            read_again(m, queues, count, x)
    return True
