"""Where the bytes of blobs are: files of one folder here, an S3-compatible store by URL."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

_WAITING = 8
T = TypeVar("T")
R = TypeVar("R")


class Folder:
    """Files named by their hash, on this machine or a file system that all machines share.

    `app.jobs.store.s3.Bucket` has the same methods. What is kept once never changes, so keeping it again is
    harmless.
    """

    def __init__(self, root: Path) -> None:
        self._root = root / "sha256"

    def bring(self, path: Path, sha256: str) -> None:
        """Do ahead, without any lock held, what takes long of `keep`: nothing, a rename is quick."""

    def keep(self, files: Mapping[str, Path]) -> None:
        """Rename files, by hash, to their places. Called with the blobs' lock held."""
        for sha256, path in files.items():
            place = self.local(sha256)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
        at_once(_sync_folder, {self.local(sha256).parent for sha256 in files})

    def local(self, sha256: str) -> Path:
        """The file with the bytes; where it would be if there are none."""
        return self._root / sha256[:2] / sha256

    def delete(self, hashes: Iterable[str]) -> None:
        """Remove files; those that are not there are none to remove. Called with the blobs' lock held."""
        for sha256 in hashes:
            self.local(sha256).unlink(missing_ok=True)

    def check(self) -> None:
        """Make sure that the place answers: an upload shows it here."""


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
