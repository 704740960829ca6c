"""The state of the complete search: one table, its trail, and the queues of what is to be looked at again.

numba caches compiled callers by their own file alone: after a change here, touch `core.py`.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from llvmlite import ir as llvm
from numba import njit, types
from numba.core import cgutils
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
# Entries of `counts`: what waits in three queues, entries of the trail and room for them, where the last
# failure was, nodes and failures so far, and the words of a bit set of buffers.
SECTIONS, CHECKS, PAIRS, TRAIL, ENTRIES, FAILED, NODES, FAILURES, WORDS = range(9)
COUNTS = 9
# How the section to branch in is chosen: the lowest free place of all, the most bytes still to place,
# or the fewest candidates for its lowest place (by weight of its failures).
BY_FLOOR, BY_LOAD, BY_CANDIDATES = range(3)
INFEASIBLE, FEASIBLE, UNDECIDED = 0, 1, -1

NOTHING = np.int64(1) << 60

Array: TypeAlias = np.ndarray[Any, Any]


@intrinsic
def addresses(_context, tables):
    """The named tuple of arrays as one of the addresses of their elements; whoever calls keeps the arrays.

    Indexing an address counts no references and wraps no sign.
    """
    pointers = [types.CPointer(array.dtype) for array in tables.types]

    def emit(context, builder, signature, arguments):
        arrays = zip(signature.args[0].types, cgutils.unpack_tuple(builder, arguments[0]))
        data = [context.make_array(kind)(context, builder, array).data for kind, array in arrays]
        return context.make_tuple(builder, signature.return_type, data)

    return types.NamedTuple(pointers, tables.instance_class)(tables), emit


@intrinsic
def lowest_bit(_context, word):
    """The number of the lowest bit of a word that is not 0."""

    def emit(_context, builder, _signature, arguments):
        return builder.cttz(arguments[0], llvm.Constant(llvm.IntType(1), 1))

    return word(word), emit


compiled: Any = njit(cache=True, error_model="numpy", boundscheck=False, nogil=True)
# Without the functions that numba adds for Python and C, which take as long to compile as a short one.
inlined: Any = njit(
    error_model="numpy",
    boundscheck=False,
    nogil=True,
    forceinline=True,
    no_cpython_wrapper=True,
    no_cfunc_wrapper=True,
)


class Tables(NamedTuple):
    """The arrays of a search; its compiled functions pass their addresses on.

    m: int64[1 + most of n and sections, STRIDE], the state; to search, it is settled;
    near, members: int64[., words], bit sets of the buffers that overlap each buffer in time, and of those of
        each section;
    weight: float64[sections], failures of each section, kept between calls;
    queues: int64[most of n and sections, 3]; trail: int64[counts[ENTRIES], 2]; frames: int64[n, 7];
    parts: int64[n, 4]; counts: int64[COUNTS].
    """

    m: Array
    near: Array
    members: Array
    weight: Array
    queues: Array
    trail: Array
    frames: Array
    parts: Array
    counts: Array


@inlined
def put(s, at, value):
    """Change the state, and write what was there to the trail."""
    if s.m[at] != value:
        top = s.counts[TRAIL]
        if top < s.counts[ENTRIES]:
            s.trail[2 * top + 0] = at
            s.trail[2 * top + 1] = s.m[at]
        s.counts[TRAIL] = top + 1  # beyond the end: the search stops undecided
        s.m[at] = value


@inlined
def read_again(s, x):
    """Queue a section to be read."""
    if not s.m[x * STRIDE + DIRTY]:
        s.m[x * STRIDE + DIRTY] = 1
        s.queues[3 * s.counts[SECTIONS] + 0] = x
        s.counts[SECTIONS] += 1


@inlined
def pair_again(s, q):
    """Queue a buffer whose pairs are to be ordered."""
    if not s.m[q * STRIDE + PAIR]:
        s.m[q * STRIDE + PAIR] = 1
        s.queues[3 * s.counts[PAIRS] + 2] = q
        s.counts[PAIRS] += 1


@inlined
def check(s, q):
    """Queue a buffer that may be placed."""
    if not s.m[q * STRIDE + CHECK]:
        s.m[q * STRIDE + CHECK] = 1
        s.queues[3 * s.counts[CHECKS] + 1] = q
        s.counts[CHECKS] += 1


@inlined
def clear(s):
    """Empty the three queues."""
    while s.counts[SECTIONS]:
        s.counts[SECTIONS] -= 1
        s.m[s.queues[3 * s.counts[SECTIONS] + 0] * STRIDE + DIRTY] = 0
    while s.counts[CHECKS]:
        s.counts[CHECKS] -= 1
        s.m[s.queues[3 * s.counts[CHECKS] + 1] * STRIDE + CHECK] = 0
    while s.counts[PAIRS]:
        s.counts[PAIRS] -= 1
        s.m[s.queues[3 * s.counts[PAIRS] + 2] * STRIDE + PAIR] = 0


@inlined
def undo(s, length):
    """Take back what was changed since the trail had this length."""
    while s.counts[TRAIL] > length:
        s.counts[TRAIL] -= 1
        s.m[s.trail[2 * s.counts[TRAIL] + 0]] = s.trail[2 * s.counts[TRAIL] + 1]


@compiled
def raise_lower(s, q, value):
    """Raise the least offset of a buffer; False if none is left."""
    if value <= s.m[q * STRIDE + LOWER]:
        return True
    align = s.m[q * STRIDE + ALIGN]
    if align > 1:
        value = -(-value // align) * align
    if value > s.m[q * STRIDE + UPPER]:
        s.counts[FAILED] = s.m[q * STRIDE + FIRST]
        return False
    old = s.m[q * STRIDE + LOWER]
    top = old + s.m[q * STRIDE + SIZE]
    put(s, q * STRIDE + LOWER, value)
    pair_again(s, q)
    # Only where the old bound was among the least, anything changes.
    for x in range(s.m[q * STRIDE + FIRST], s.m[q * STRIDE + END]):
        if old <= s.m[x * STRIDE + LOW2] or top <= s.m[x * STRIDE + TOP2]:
            read_again(s, x)
    return True


@compiled
def cut_upper(s, q, value):
    """Lower the greatest offset of a buffer; False if none is left."""
    if value >= s.m[q * STRIDE + UPPER]:
        return True
    if value < s.m[q * STRIDE + LOWER]:
        s.counts[FAILED] = s.m[q * STRIDE + FIRST]
        return False
    top = s.m[q * STRIDE + UPPER] + s.m[q * STRIDE + SIZE]
    put(s, q * STRIDE + UPPER, value)
    pair_again(s, q)
    for x in range(s.m[q * STRIDE + FIRST], s.m[q * STRIDE + END]):
        if top >= s.m[x * STRIDE + CEILING2]:
            read_again(s, x)
    return True
