"""Memory of programs on a CPU: aligned arrays, pools of them, and constants that programs share."""

import hashlib
import itertools
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from app.engine.core.calls import Constant, same

Array = np.ndarray[Any, Any]
ALIGNMENT = 64  # byte: a cache line
HUGE = 2 * 1024 * 1024  # byte of a huge page
# Byte before and after an array that are ours too. A load whose masked-off lanes lie in a page that is
# not there gives the right result, but far more slowly.
MARGIN = 4096
MIN_READ = 64 * 1024  # byte of an array after which what it was made from is forgotten
# Byte from which on memory comes from the system: pages that are not touched take none, as those of inputs
# that are read where the caller has them, and freed ones go back.
MAPPED = 128 * 1024
BLOCK = 16 * HUGE  # byte of a block of a pool; huge pages of it that are not touched take no memory
SMALL_BLOCK = 64 * 1024  # byte of a block of a pool that a program has many of, or little in


def aligned(nbytes: int) -> Array:
    """Zeroed bytes that start on a cache line; large ones lie in huge pages where the system has them.

    Streams of weights run a third faster so: hardware prefetches up to the end of a page.
    """
    start = HUGE if nbytes >= HUGE else ALIGNMENT
    if nbytes < MAPPED or not hasattr(mmap, "MADV_HUGEPAGE"):
        raw = np.zeros(nbytes + start + 2 * MARGIN, np.uint8)
    else:
        mapping = mmap.mmap(-1, nbytes + 2 * MARGIN + 2 * start, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if nbytes >= HUGE:
            mapping.madvise(mmap.MADV_HUGEPAGE)
        raw = np.frombuffer(mapping, np.uint8)
    first = -raw.ctypes.data % start + MARGIN
    end = first + nbytes
    raw[first - MARGIN : first] = raw[end : end + MARGIN] = 0  # written, so that the pages are there
    return raw[first:end]


def written(nbytes: int) -> Array:
    """Bytes as of `aligned`, each written once: no run waits for a page of them.

    On a virtual machine the first run over 13 MB of huge pages that were not there took 30 ms, others 7.
    """
    found = aligned(nbytes)
    found.fill(0)
    return found


def side_by_side(arrays: Sequence[Array]) -> list[Array]:
    """Copies of the bytes of arrays in one block, each on a cache line."""
    raws = [_raw(array) for array in arrays]
    ends = [0, *itertools.accumulate(-(-raw.size // ALIGNMENT) * ALIGNMENT for raw in raws)]
    block = aligned(ends[-1])
    copies = [block[begin : begin + raw.size] for begin, raw in zip(ends, raws)]
    for copy, raw in zip(copies, raws):
        copy[:] = raw
    return copies


def placed(array: Array) -> Array:
    """A copy of an array that starts on a cache line."""
    copy = aligned(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Pool:
    """Memory for many arrays that stay: pieces of blocks of `block` byte or more, each on a cache line."""

    def __init__(self, block: int = BLOCK) -> None:
        self._size = block
        self._blocks = [aligned(0)]  # the last one is not full
        self._used = 0

    def take(self, nbytes: int) -> Array:
        """Zeroed bytes that start on a cache line."""
        if self._used + nbytes > self._blocks[-1].size:
            self._blocks.append(aligned(max(nbytes, self._size)))
            self._used = 0
        piece = self._blocks[-1][self._used : self._used + nbytes]
        self._used += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return piece


class Weights:
    """Memory for arrays that no run changes, of programs that hold much the same: equal ones once.

    What packs weights is compared by what it does, other arrays by their digests: weights, and tables of
    sizes and offsets that kernels for images of the same shape have in common. `read` is called after each
    large one: what it was made from is not needed any more. `block` is the least number of bytes that
    are taken at once.
    """

    def __init__(self, read: Callable[[], None] = lambda: None, block: int = BLOCK) -> None:
        self._read = read
        self._pool = Pool(block)
        self._known: dict[bytes, Array] = {}  # by digest
        self._packed: dict[str, list[tuple[Constant, Array]]] = {}  # by name

    def keep(self, array: Array) -> Array:
        """The bytes of an array, in memory that stays."""
        raw = _raw(array)
        digest = hashlib.blake2b(raw.data, digest_size=32).digest()
        if digest not in self._known:
            self._known[digest] = self._copied(raw)
        if raw.nbytes >= MIN_READ:
            self._read()
        return self._known[digest]

    def packed(self, constant: Constant) -> Array:
        """The bytes of a constant, made once for all that are known to be the same."""
        if not callable(constant.source):
            return self.keep(constant.array)
        made = self._packed.setdefault(constant.name, [])
        for known, kept in made:
            if same(known.source, constant.source):
                return kept
        made.append((constant, self._copied(_raw(constant.array))))
        self._read()
        return made[-1][1]

    def _copied(self, raw: Array) -> Array:
        kept = self._pool.take(raw.nbytes)
        kept[:] = raw
        return kept


def _raw(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
