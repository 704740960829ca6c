"""Shared memory out of which every request gets a region."""

import bisect
import fcntl
import mmap
import os
from dataclasses import dataclass

from app.serving.channel import ALIGNMENT

_PAGE = mmap.PAGESIZE
_KEPT = 16 << 20  # byte that an idle arena keeps
# No end can pull the memory away under the other.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes of the arena, half-open."""

    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.end - self.start


class SharedArena:
    """Memory of `nbytes`, of which only what was written takes any; regions are given first-fit."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = -(-nbytes // _PAGE) * _PAGE
        self.descriptor = os.memfd_create("stowplan-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, self.nbytes)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
        self._map = mmap.mmap(self.descriptor, self.nbytes)
        self.view = memoryview(self._map)
        self._taken: list[Region] = []  # by start
        self._reached = 0  # the end of what was ever taken since the last trim

    def take(self, nbytes: int) -> Region | None:
        """A region of at least so many bytes; None when no gap is large enough."""
        size = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        start = 0
        for region in self._taken:
            if region.start - start >= size:
                break
            start = region.end
        if start + size > self.nbytes:
            return None
        taken = Region(start, start + size)
        bisect.insort(self._taken, taken, key=lambda r: r.start)
        self._reached = max(self._reached, taken.end)
        return taken

    def give(self, region: Region) -> None:
        """Take a region back. An empty arena gives what a burst used back to the system."""
        self._taken.remove(region)
        if not self._taken and self._reached > _KEPT:
            last = -(-self._reached // _PAGE) * _PAGE
            self._map.madvise(mmap.MADV_REMOVE, _KEPT, last - _KEPT)
            self._reached = _KEPT

    def __del__(self) -> None:
        """Views may still be in use: the memory goes with the last of them."""
        os.close(self.descriptor)
