"""Where the bytes of blobs are: files of one folder here, an S3-compatible store by URL."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

_WAITING = 8
T = TypeVar("T")
R = TypeVar("R")


class BlobBackend(Protocol):
    """Keeps bytes under their SHA-256. What is kept once never changes, so keeping it again is harmless."""

    def bring(self, path: Path, sha256: str) -> None:
        """Do ahead, without any lock held, what takes long of `keep`."""

    def keep(self, files: Mapping[str, Path]) -> None:
        """Make sure that the bytes of files, by hash, are kept; the files may be moved away.

        Called with the blobs' lock held.
        """

    def local(self, sha256: str) -> Path:
        """A file with the bytes, on this machine; where it would be if there are none."""

    def delete(self, hashes: Iterable[str]) -> None:
        """Forget bytes; those that are not there are none to forget. Called with the blobs' lock held."""

    def check(self) -> None:
        """Make sure that the store answers."""


class Folder:
    """Files named by their hash, on this machine or a file system that all machines share."""

    def __init__(self, root: Path) -> None:
        self._root = root / "sha256"

    def bring(self, path: Path, sha256: str) -> None:
        """Nothing: a file is renamed in no time."""

    def keep(self, files: Mapping[str, Path]) -> None:
        """Rename the files to their places."""
        for sha256, path in files.items():
            place = self.local(sha256)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
        at_once(_sync_folder, {self.local(sha256).parent for sha256 in files})

    def local(self, sha256: str) -> Path:
        """The file itself."""
        return self._root / sha256[:2] / sha256

    def delete(self, hashes: Iterable[str]) -> None:
        """Remove the files."""
        for sha256 in hashes:
            self.local(sha256).unlink(missing_ok=True)

    def check(self) -> None:
        """Does nothing: an upload shows if the store can be written."""


def at_once(act: Callable[[T], R], things: Collection[T]) -> list[R]:
    """Act on each of some things that wait for the disk: together they wait hardly longer than one."""
    if len(things) < 2:
        return [act(thing) for thing in things]
    with ThreadPoolExecutor(min(len(things), _WAITING)) as threads:
        return list(threads.map(act, things))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
