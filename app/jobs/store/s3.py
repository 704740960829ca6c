"""Blobs in an S3-compatible store, with copies in a folder of this machine for those who need files.

The address of the store, the region and the credentials come from the variables that all S3 tools
read: `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`.
"""

import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import S3Store

from app.jobs.errors import BlobNotFoundError, StoreOutageError

if TYPE_CHECKING:
    from obstore.store import RetryConfig

_PIECE = 1 << 20  # byte
_RETRIES: "RetryConfig" = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
_MISSING = (FileNotFoundError, NotFoundError)  # the library raises either
_WHOLE = 64 << 20  # byte; what is larger goes up in parts
_IN_USE_SECONDS = 3600.0  # a copy that was asked for since then may be about to be opened


class Bucket:
    """A bucket, or a part of one: `s3://bucket/prefix`.

    `copies` is a folder for at most `most` bytes of copies, those used last; one that was used within
    the last hour stays in any case.

    Every method raises `StoreOutageError` when the store does not answer.
    """

    def __init__(self, url: str, copies: Path, most: int) -> None:
        self._store = S3Store.from_url(url, client_options={"allow_http": True}, retry_config=_RETRIES)
        self._copies = copies
        self._most = most
        copies.mkdir(parents=True, exist_ok=True)

    def bring(self, path: Path, sha256: str) -> None:
        """Send the bytes, unless they are there: the store refuses to replace an object."""
        with _answering(AlreadyExistsError):
            if path.stat().st_size <= _WHOLE:
                try:
                    obstore.put(self._store, _key(sha256), path, mode="create", use_multipart=False)
                except AlreadyExistsError:
                    return
            elif not self._has(sha256):
                obstore.put(self._store, _key(sha256), path)  # conditions are not for parts

    def keep(self, files: Mapping[str, Path]) -> None:
        """Send the bytes that someone removed since they were brought."""
        for sha256, path in files.items():
            if not self._has(sha256):
                self.bring(path, sha256)

    def local(self, sha256: str) -> Path:
        """A copy, fetched unless it is here.

        Raises:
            BlobNotFoundError: the store has no such bytes.
        """
        place = self._copies / sha256
        try:
            os.utime(place)  # used now
        except FileNotFoundError:
            self._fetch(sha256, place)
        return place

    def delete(self, hashes: Iterable[str]) -> None:
        """Remove the objects and the copies on this machine."""
        found = list(hashes)
        with _answering():
            obstore.delete(self._store, [_key(sha256) for sha256 in found])
        for sha256 in found:
            (self._copies / sha256).unlink(missing_ok=True)

    def check(self) -> None:
        """Ask for an object that is not there: the answer shows that the bucket is."""
        with _answering():
            next(iter(self._store.list(prefix="sha256", chunk_size=1)), None)

    def _has(self, sha256: str) -> bool:
        try:
            with _answering(*_MISSING):
                obstore.head(self._store, _key(sha256))
        except _MISSING:
            return False
        return True

    def _fetch(self, sha256: str, place: Path) -> None:
        self._make_room()
        draft = place.with_name(f".{secrets.token_hex(8)}")
        try:
            with _answering(*_MISSING), draft.open("xb") as file:
                for piece in obstore.get(self._store, _key(sha256)).stream(min_chunk_size=_PIECE):
                    file.write(piece)
            draft.chmod(0o400)
            draft.replace(place)
        except _MISSING as error:
            raise BlobNotFoundError(f"the store has no blob {sha256}") from error
        finally:
            draft.unlink(missing_ok=True)

    def _make_room(self) -> None:
        files = [(path.stat(), path) for path in self._copies.iterdir() if path.is_file()]
        held = sum(state.st_size for state, _ in files)
        for state, path in sorted(files, key=lambda row: row[0].st_mtime):
            if held <= self._most or state.st_mtime > time.time() - _IN_USE_SECONDS:
                return
            path.unlink(missing_ok=True)
            held -= state.st_size


def _key(sha256: str) -> str:
    return f"sha256/{sha256[:2]}/{sha256}"


@contextmanager
def _answering(*expected: type[Exception]) -> Iterator[None]:
    """Tell a store that does not answer, or refuses, from answers that are expected."""
    try:
        yield
    except expected:
        raise
    except (FileNotFoundError, BaseError) as error:
        what = str(error).partition("\n")[0]
        raise StoreOutageError(f"the store of blobs does not answer: {what}") from error
