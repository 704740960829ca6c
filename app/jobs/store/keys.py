"""Keys that open the service: `sp_<id>_<secret>`, of which the secret is never stored.

The secret has 256 random bits, so a fast hash of it cannot be reversed by guessing.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Sequence

import sqlalchemy as sa

from app.jobs.errors import KeyNotFoundError, RequestError
from app.jobs.store.auth_context import SCOPES
from app.jobs.store.database import keys

_KEY = re.compile(r"sp_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")
_USED_SECONDS = 60.0  # between two notes that a key is in use


def create(connection: sa.Connection, name: str, scope: str, owner: str | None = None) -> tuple[str, str]:
    """Make a key; return its id and its text, which is told this once.

    Models and jobs made with it belong to `owner`: the key itself unless it is given.

    Raises:
        RequestError: the name, the owner or the scope is none, or the first key is not an administrator's.
    """
    if scope not in SCOPES:
        raise RequestError(f"scope: expected one of {', '.join(SCOPES)}, found {scope!r}", pointer="/scope")
    if scope != SCOPES[-1] and not exist(connection):
        raise RequestError(
            f"scope: expected {SCOPES[-1]!r} for the first key, found {scope!r}: from then on every request "
            "needs a key, and only an administrator's makes others; make that one first, with "
            "`stowplan keys create --name admin --scope admin`",
            pointer="/scope",
        )
    for field, text in (("name", name), ("owner", owner)):
        if text is not None and not _NAME.fullmatch(text):
            raise RequestError(
                f"{field}: expected up to 63 letters, digits and '._@-', found {text!r}", pointer=f"/{field}"
            )
    identifier, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    row = {"id": identifier, "hash": _hash(secret), "name": name, "owner": owner or identifier}
    connection.execute(keys.insert().values(**row, scope=scope, created=time.time()))
    return identifier, f"sp_{identifier}_{secret}"


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def find(connection: sa.Connection, text: str) -> sa.RowMapping | None:
    """The key with that text; None when there is none, or it was revoked."""
    parts = _KEY.fullmatch(text)
    if parts is None:
        return None
    row = connection.execute(sa.select(keys).where(keys.c.id == parts[1])).mappings().first()
    expected = row["hash"] if row is not None else _hash("")
    matches = hmac.compare_digest(expected, _hash(parts[2]))
    return row if row is not None and matches and row["revoked"] is None else None


def is_due(row: sa.RowMapping) -> bool:
    """True if the last note of the key's use is old."""
    return (row["used"] or 0.0) < time.time() - _USED_SECONDS


def note_use(connection: sa.Connection, identifier: str) -> None:
    """Note that a key is in use."""
    connection.execute(keys.update().where(keys.c.id == identifier).values(used=time.time()))


def exist(connection: sa.Connection) -> bool:
    """True if a key was ever made: from then on every request needs one, even when all are revoked."""
    return connection.scalar(sa.select(keys.c.id).limit(1)) is not None


def usable(connection: sa.Connection) -> bool:
    """True if there is a key that was not revoked."""
    return connection.scalar(sa.select(keys.c.id).where(keys.c.revoked.is_(None)).limit(1)) is not None


def listed(connection: sa.Connection) -> Sequence[sa.RowMapping]:
    """All keys, oldest first, without their secrets."""
    columns = [column for column in keys.c if column.name != "hash"]
    return connection.execute(sa.select(*columns).order_by(keys.c.created, keys.c.id)).mappings().all()


def revoke(connection: sa.Connection, identifier: str) -> None:
    """Make a key worthless; what was made with it stays.

    Raises:
        KeyNotFoundError: there is no key of that id, or it was revoked before.
    """
    changed = connection.execute(
        keys.update().where(keys.c.id == identifier, keys.c.revoked.is_(None)).values(revoked=time.time())
    )
    if changed.rowcount != 1:
        raise KeyNotFoundError(f"there is no key {identifier!r} that could be revoked")
