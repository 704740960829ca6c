"""Content-addressed store: a blob is bytes named by their SHA-256.

Bytes are written to a temporary file while they are hashed, forced to disk and then kept as one, see
`blob_backends`: a blob is whole or absent. The rows in `blobs` say which there are, `holdings` who brought
them or refers to them, `model_files`, `job_files` and `deployment_files` what for. Whoever does not hold
a blob cannot tell that it is there.
"""

import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

import sqlalchemy as sa

from app.jobs.errors import (
    BlobNotFoundError,
    HashMismatchError,
    QuotaError,
    StorageFullError,
    StoreOutageError,
    TooLargeError,
)
from app.jobs.store.auth_context import current, visible
from app.jobs.store.blob_backends import Folder, at_once
from app.jobs.store.database import (
    Database,
    blobs,
    deployment_files,
    deployments,
    holdings,
    job_files,
    jobs,
    model_files,
    models,
)
from app.settings import PREFIX, Settings, SettingsError

if TYPE_CHECKING:
    from app.jobs.store.s3 import Bucket

SHA256 = re.compile(r"[0-9a-f]{64}")
_LOCK = 1  # key of the lock held while rows and files of blobs change together
_PIECE = 1 << 20  # byte
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def storing() -> Iterator[None]:
    """Tell a full disk from other failures.

    Raises:
        StorageFullError: it is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFullError("the disk of the service is full: the upload was not kept") from error
        raise


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that the store holds."""

    sha256: str
    size: int  # byte
    created: bool  # whether this upload brought it


@dataclass(frozen=True, slots=True)
class Brought:
    """Bytes that lie where they shall be kept, but are no blob yet; no path to those that the store has."""

    sha256: str
    size: int  # byte
    path: Path | None


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
        with storing():
            self._file.write(chunk)

    def commit(self, *, expected: str | None = None, claim: float = 0.0) -> Blob:
        """Make the bytes a blob, kept for `claim` seconds even if nothing refers to it.

        Raises:
            HashMismatchError: `expected` is not their hash.
            QuotaError: the caller would hold more than he may.
        """
        if expected is not None and self.sha256 != expected:
            raise HashMismatchError(f"the body has the SHA-256 {self.sha256}, the address says {expected}")
        return self._store.adopt(self, claim)

    @property
    def sha256(self) -> str:
        """Hash of the bytes that have come."""
        return self._hash.hexdigest()

    def flush(self) -> Path:
        """Force the bytes to disk, and tell where they are until they are committed."""
        with storing():
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._path


class BlobStore:
    """Bytes at one place, known by rows of the database; `root` is a folder for those on their way.

    An upload is refused when it would leave less than `reserve` bytes of the disk: what runs
    already must be able to end.
    """

    def __init__(
        self, root: Path, database: Database, *, reserve: int = 0, backend: "Folder | Bucket | None" = None
    ) -> None:
        self._root = root
        self._backend = backend or Folder(root)
        self._database = database
        self._reserve = reserve
        self.incoming = root / "incoming"
        self.incoming.mkdir(parents=True, exist_ok=True)

    @classmethod
    def of(cls, settings: Settings, database: Database, *, reserve: int = 0) -> Self:
        """The store that the settings name."""
        root, place = settings.data / "blobs", None
        if settings.blobs:
            try:
                from app.jobs.store.s3 import Bucket  # here only: its library is an extra
            except ModuleNotFoundError as error:
                raise SettingsError(
                    f"{PREFIX}BLOBS: {settings.blobs!r} needs the extra: pip install 'stowplan[s3]'"
                ) from error
            place = Bucket(settings.blobs, root / "copies", settings.blob_copies_bytes)
        return cls(root, database, reserve=reserve, backend=place)

    def path(self, sha256: str) -> Path:
        """A file with the bytes of a blob, or where one would be."""
        if not SHA256.fullmatch(sha256):
            raise BlobNotFoundError(f"{sha256!r} is no SHA-256: expected 64 lower-case hexadecimal digits")
        return self._backend.local(sha256)

    def size(self, sha256: str) -> int | None:
        """Bytes of a blob; None when the caller holds none of that hash."""
        with self._database.read() as connection:
            return sizes(connection, [sha256]).get(sha256)

    def upload(self, limit: int) -> Upload:
        """Start to receive bytes, at most `limit`.

        Raises:
            StorageFullError: less than the reserve of the disk is free.
        """
        free = shutil.disk_usage(self._root).free
        if free < self._reserve:
            raise StorageFullError(
                f"the disk of the service has {free} byte left, {self._reserve} byte are kept for "
                "running jobs; delete jobs or models"
            )
        return Upload(self, limit)

    def check(self) -> None:
        """Make sure that an upload would be taken now.

        Raises:
            OSError: the folder cannot be written.
            StorageFullError: the disk is full, or nearly.
            StoreOutageError: the place does not answer.
        """
        with self.upload(1) as upload:
            upload.write(b"x")
            upload.flush()
        self._backend.check()

    def adopt(self, upload: Upload, claim: float) -> Blob:
        """Make a finished upload a blob, as `Upload.commit` does."""
        brought = self.bring([upload])
        with self._database.write() as connection:
            return self.enter(connection, brought, time.time() + claim)[0]

    def bring(self, uploads: Iterable[Upload]) -> list[Brought]:
        """Force finished uploads to where they shall be kept: the slow part, which needs no lock."""
        with storing():
            return at_once(self._bring, list(uploads))

    def enter(self, connection: sa.Connection, brought: Sequence[Brought], until: float = 0.0) -> list[Blob]:
        """Make what was brought blobs, all or none, held by the caller; once only for what was brought.

        Kept until a time even if nothing refers to them, which without one must be so in this transaction.

        Raises:
            QuotaError: he would hold more than he may.
            StoreOutageError: what the store had was removed meanwhile; it is there to be brought again.
        """
        found = {each.sha256: each for each in brought}
        self._database.lock(connection, _LOCK)
        known, held = _known(connection, found), _held_of(connection, found)
        if more := sum(each.size for each in found.values() if each.sha256 not in held):
            _check_quota(connection, more)
        fresh = [each for each in found.values() if each.sha256 not in known]
        if fresh:
            with storing():
                self._backend.keep({each.sha256: _place_of(each) for each in fresh})
            rows = [{"sha256": each.sha256, "size": each.size, "created": time.time()} for each in fresh]
            connection.execute(blobs.insert(), rows)
        self.hold(connection, found, until, held)
        return [Blob(each.sha256, each.size, each.sha256 not in held) for each in brought]

    def _bring(self, upload: Upload) -> Brought:
        path = upload.flush()
        path.chmod(0o400)
        self._backend.bring(path, upload.sha256)
        return Brought(upload.sha256, upload.size, path)

    @staticmethod
    def hold(
        connection: sa.Connection, hashes: Iterable[str], until: float = 0.0, held: set[str] | None = None
    ) -> None:
        """Note that the caller has blobs, kept until a time at least even if nothing refers to them.

        `held` are those that he is known to hold.
        """
        owner, wanted = current().owner, set(hashes)
        fresh = sorted(wanted - (_held_of(connection, wanted) if held is None else held))
        if fresh:
            rows = [{"sha256": sha256, "owner": owner, "claimed_until": until} for sha256 in fresh]
            connection.execute(holdings.insert(), rows)
        if until:
            of_owner = (holdings.c.sha256.in_(wanted), holdings.c.owner == owner)
            longer = holdings.update().where(*of_owner, holdings.c.claimed_until < until)
            connection.execute(longer.values(claimed_until=until))

    @contextmanager
    def copies(self, paths: Mapping[str, Path], limit: int) -> Iterator[dict[str, Brought]]:
        """Copies of regular files that another process wrote, to be entered in the context.

        A file with several names is copied once, one whose bytes the store has not at all.

        Raises:
            OSError: one is a link, or cannot be read.
            TooLargeError: one exceeds the limit.
        """
        with ExitStack() as stack:
            files = {name: _file_of(path) for name, path in paths.items()}
            once = {file: paths[name] for name, file in files.items()}
            found = dict(zip(once, at_once(partial(_read, limit=limit), once.values())))
            with self._database.read() as connection:
                known = _known(connection, {each.sha256 for each in found.values()})
            uploads = {
                file: stack.enter_context(self.upload(limit))
                for file, each in found.items()
                if each.sha256 not in known
            }
            at_once(lambda file: _copy(once[file], uploads[file]), uploads)
            made = found | dict(zip(uploads, self.bring(uploads.values())))
            yield {name: made[file] for name, file in files.items()}

    @staticmethod
    def settle(connection: sa.Connection, hashes: Iterable[str]) -> None:
        """Drop the caller's claims on blobs: something of his refers to them now."""
        wanted = set(hashes)
        if not wanted:
            return
        BlobStore.hold(connection, wanted)
        connection.execute(
            holdings.update()
            .where(holdings.c.sha256.in_(wanted), holdings.c.owner == current().owner)
            .values(claimed_until=0.0)
        )

    def free(self) -> int:
        """Delete every blob that nothing refers to or claims, and count them."""
        with self._database.write() as connection:
            self._database.lock(connection, _LOCK)
            connection.execute(
                holdings.delete().where(
                    holdings.c.claimed_until < time.time(),
                    ~_refers(model_files, models, model_files.c.model_id == models.c.id),
                    ~_refers(job_files, jobs, job_files.c.job_id == jobs.c.id),
                    ~_refers(
                        deployment_files, deployments, deployment_files.c.deployment_id == deployments.c.id
                    ),
                )
            )
            referring = (holdings, model_files, job_files, deployment_files)
            needed = sa.union_all(*(sa.select(t.c.sha256) for t in referring))
            loose = connection.scalars(sa.select(blobs.c.sha256).where(blobs.c.sha256.not_in(needed))).all()
            if loose:
                connection.execute(blobs.delete().where(blobs.c.sha256.in_(loose)))
                self._backend.delete(loose)
        return len(loose)


def sizes(connection: sa.Connection, hashes: Iterable[str]) -> dict[str, int]:
    """Bytes by hash of those blobs that the caller holds."""
    found = connection.execute(
        sa.select(blobs.c.sha256, blobs.c.size)
        .where(blobs.c.sha256.in_(list(hashes)))
        .where(sa.exists().where(holdings.c.sha256 == blobs.c.sha256, visible(holdings.c.owner)))
    )
    return {row.sha256: row.size for row in found}


def _file_of(path: Path) -> tuple[int, int]:
    """Device and number of a file, which all its names have in common."""
    found = path.lstat()
    return found.st_dev, found.st_ino


def _pieces(path: Path) -> Iterator[bytes]:
    """The bytes of a regular file.

    Raises:
        OSError: it is a link, or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def _read(path: Path, limit: int) -> Brought:
    """Hash and size of a file.

    Raises:
        OSError: it is a link, or cannot be read.
        TooLargeError: it exceeds the limit.
    """
    digest, size = hashlib.sha256(), 0
    for piece in _pieces(path):
        size += len(piece)
        if size > limit:
            raise TooLargeError(f"{path.name} exceeds the limit of {limit} byte")
        digest.update(piece)
    return Brought(digest.hexdigest(), size, None)


def _copy(path: Path, upload: Upload) -> None:
    for piece in _pieces(path):
        upload.write(piece)


def _place_of(brought: Brought) -> Path:
    if brought.path is None:
        raise StoreOutageError(f"blob {brought.sha256} was removed while a job that made it again ended")
    return brought.path


def _known(connection: sa.Connection, hashes: Iterable[str]) -> set[str]:
    """Those blobs that the store has, whoever holds them."""
    query = sa.select(blobs.c.sha256).where(blobs.c.sha256.in_(list(hashes)))
    return set(connection.scalars(query))


def _held_of(connection: sa.Connection, hashes: Iterable[str]) -> set[str]:
    """Those blobs that the caller himself holds."""
    query = sa.select(holdings.c.sha256).where(
        holdings.c.sha256.in_(list(hashes)), holdings.c.owner == current().owner
    )
    return set(connection.scalars(query))


def _check_quota(connection: sa.Connection, size: int) -> None:
    caller = current()
    if caller.max_bytes is None:
        return
    # A blob that others hold too counts for each.
    query = sa.select(sa.func.coalesce(sa.func.sum(blobs.c.size), 0)).join(holdings)
    held = int(connection.scalar(query.where(holdings.c.owner == caller.owner)) or 0)
    if held + size > caller.max_bytes:
        raise QuotaError(
            f"{held} byte are held already and {size} byte would be added, {caller.max_bytes} byte are "
            "allowed; delete models or jobs"
        )


def _refers(files: sa.Table, subjects: sa.Table, of: sa.ColumnElement[bool]) -> sa.Exists:
    """True if something of the holding's owner refers to its blob."""
    return (
        sa.exists()
        .where(files.c.sha256 == holdings.c.sha256, of, subjects.c.owner == holdings.c.owner)
        .correlate(holdings)
    )
