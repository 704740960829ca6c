"""Weights in a file of the job's folder, mapped: they take memory only while they are read."""

import mmap
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

Array = np.ndarray[Any, Any]
PAGE = 4096  # byte; weights start on pages


@dataclass
class Spool:
    """A file that weights are written to, one at a time, and then mapped from.

    Attributes:
        path: of the file; its folder is the job's own.
        places: (offset, length) in bytes of what was written, by name.
    """

    path: Path
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    _file: IO[bytes] | None = field(default=None, repr=False)
    _mapping: mmap.mmap | None = field(default=None, repr=False)

    def write(self, name: str, raw: bytes) -> None:
        """Append the bytes of a weight."""
        if self._file is None:
            self._file = self.path.open("wb")
        self._file.seek(-self._file.tell() % PAGE, 1)
        self.places[name] = (self._file.tell(), len(raw))
        self._file.write(raw)

    def close(self) -> None:
        """Finish the file where nothing is mapped from it."""
        if self._file is not None:
            self._file.close()

    def bytes_of(self, name: str) -> Array:
        """The bytes of a weight, mapped and read-only. Nothing is written any more from here on."""
        if self._mapping is None:
            assert self._file is not None, "nothing was written"
            self._file.close()
            with self.path.open("rb") as file:
                self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        offset, length = self.places[name]
        return np.frombuffer(self._mapping, np.uint8, length, offset)

    def release(self) -> None:
        """Give back the memory of mapped pages; what is read again comes from the file."""
        if self._mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED)
