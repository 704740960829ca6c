"""Content-addressed store: a blob is a file named by the SHA-256 of its bytes.

Bytes are written to a temporary file while they are hashed, forced to disk and renamed: a blob is
whole or absent. The rows in `blobs` say which there are, `model_files` and `job_files` who needs them.
"""

import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import sqlalchemy as sa

from app.jobs.database import Database, blobs, job_files, model_files
from app.jobs.errors import BlobNotFoundError, HashMismatchError, TooLargeError

SHA256 = re.compile(r"[0-9a-f]{64}")
_LOCK = 1  # key of the lock held while rows and files of blobs change together
_CHUNK = 1 << 20  # byte


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that the store holds."""

    sha256: str
    size: int  # byte
    created: bool  # whether this upload brought it


class Upload:
    """Bytes on their way into the store; leaving the context before `commit` forgets them."""

    def __init__(self, store: "BlobStore", limit: int) -> None:
        self._store = store
        self._limit = limit
        self._path = store.incoming / secrets.token_hex(16)
        self._hash = hashlib.sha256()
        self._file: IO[bytes] = self._path.open("xb")
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def write(self, chunk: bytes) -> None:
        """Append bytes.

        Raises:
            TooLargeError: more have come than the limit allows.
        """
        self.size += len(chunk)
        if self.size > self._limit:
            raise TooLargeError(f"the body exceeds the limit of {self._limit} byte")
        self._hash.update(chunk)
        self._file.write(chunk)

    def commit(self, *, expected: str | None = None, claim: float = 0.0) -> Blob:
        """Make the bytes a blob, kept for `claim` seconds even if nothing refers to it.

        Raises:
            HashMismatchError: `expected` is not their hash.
        """
        sha256 = self._hash.hexdigest()
        if expected is not None and sha256 != expected:
            raise HashMismatchError(f"the body has the SHA-256 {sha256}, the address says {expected}")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._path.chmod(0o444)
        return self._store.adopt(self._path, sha256, self.size, claim)


class BlobStore:
    """Files under one folder, known by rows of the database."""

    def __init__(self, root: Path, database: Database) -> None:
        self._root = root
        self._database = database
        self.incoming = root / "incoming"
        self.incoming.mkdir(parents=True, exist_ok=True)

    def path(self, sha256: str) -> Path:
        """Where the blob is, or would be."""
        if not SHA256.fullmatch(sha256):
            raise BlobNotFoundError(f"{sha256!r} is no SHA-256: expected 64 lower-case hexadecimal digits")
        return self._root / "sha256" / sha256[:2] / sha256

    def size(self, sha256: str) -> int | None:
        """Bytes of a blob; None when there is none of that hash."""
        with self._database.read() as connection:
            return connection.scalar(sa.select(blobs.c.size).where(blobs.c.sha256 == sha256))

    def upload(self, limit: int) -> Upload:
        """Start to receive bytes, at most `limit`."""
        return Upload(self, limit)

    def adopt(self, path: Path, sha256: str, size: int, claim: float) -> Blob:
        """Move a finished file into the store."""
        place = self.path(sha256)
        now = time.time()
        with self._database.write() as connection:
            self._database.lock(connection, _LOCK)
            known = connection.scalar(sa.select(blobs.c.claimed_until).where(blobs.c.sha256 == sha256))
            if known is None:
                place.parent.mkdir(parents=True, exist_ok=True)
                path.replace(place)
                _sync_folder(place.parent)
                row = {"sha256": sha256, "size": size, "created": now, "claimed_until": now + claim}
                connection.execute(blobs.insert().values(**row))
            elif claim:
                self.claim(connection, [sha256], now + claim)
        return Blob(sha256, size, known is None)

    def store_file(self, path: Path, limit: int) -> Blob:
        """Copy a regular file that another process wrote; a link is refused.

        Raises:
            OSError: it is a link, or cannot be read.
            TooLargeError: it exceeds the limit.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file, self.upload(limit) as upload:
            while chunk := file.read(_CHUNK):
                upload.write(chunk)
            return upload.commit(claim=60.0)

    @staticmethod
    def claim(connection: sa.Connection, hashes: Iterable[str], until: float) -> None:
        """Keep blobs until a time at least."""
        connection.execute(
            blobs.update()
            .where(blobs.c.sha256.in_(list(hashes)), blobs.c.claimed_until < until)
            .values(claimed_until=until)
        )

    @staticmethod
    def settle(connection: sa.Connection, hashes: Iterable[str]) -> None:
        """Drop the claims on blobs: something refers to them now."""
        connection.execute(blobs.update().where(blobs.c.sha256.in_(list(hashes))).values(claimed_until=0.0))

    def free(self) -> int:
        """Delete every blob that nothing refers to or claims, and count them."""
        needed = sa.union_all(sa.select(model_files.c.sha256), sa.select(job_files.c.sha256))
        with self._database.write() as connection:
            self._database.lock(connection, _LOCK)
            loose = connection.scalars(
                sa.select(blobs.c.sha256).where(
                    blobs.c.claimed_until < time.time(), blobs.c.sha256.not_in(needed)
                )
            ).all()
            for sha256 in loose:
                connection.execute(blobs.delete().where(blobs.c.sha256 == sha256))
                self.path(sha256).unlink(missing_ok=True)
        return len(loose)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
