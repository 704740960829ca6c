"""On whose behalf the process acts: rows are made for, shown to and counted for the caller.

Whoever takes a request sets the caller; every function that makes or finds models, jobs and blobs
asks for it here. So an operation that forgot to check cannot show what belongs to another. Where
nobody was set, the service acts for itself and sees everything: in workers, and where there are no
keys.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

SCOPES = ("read", "submit", "admin")  # each includes those before it


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what he may do.

    Attributes:
        owner: whom the things belong to that he makes.
        scope: one of `SCOPES`.
        key: id of the key that he showed; empty without one.
        max_jobs: jobs of the owner that may be unfinished at once; None for any number.
        max_bytes: bytes that the owner may hold; None for any number.
    """

    owner: str = ""
    scope: str = "admin"
    key: str = ""
    max_jobs: int | None = None
    max_bytes: int | None = None

    def may(self, scope: str) -> bool:
        """True if the caller's scope includes another."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)


_SERVICE = Caller()
_CALLER: ContextVar[Caller] = ContextVar("caller", default=_SERVICE)


def current() -> Caller:
    """On whose behalf this code runs."""
    return _CALLER.get()


@contextmanager
def acting_for(caller: Caller) -> Iterator[None]:
    """Act for a caller until the context is left, in this task and what it starts."""
    token = _CALLER.set(caller)
    try:
        yield
    finally:
        _CALLER.reset(token)


def visible(owner: sa.Column[Any]) -> sa.ColumnElement[bool]:
    """The condition that a row belongs to the caller; an administrator sees all."""
    caller = current()
    return sa.true() if caller.may("admin") else owner == caller.owner


def visible_row(connection: sa.Connection, table: sa.Table, identifier: str) -> sa.RowMapping | None:
    """The row of that id if the caller may see it."""
    query = sa.select(table).where(table.c.id == identifier, visible(table.c.owner))
    return connection.execute(query).mappings().first()
