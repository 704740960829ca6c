"""Requests that make groups of jobs: each once, however often it comes under the same key."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Annotated

import sqlalchemy as sa
from fastapi import Header, Response
from pydantic import BaseModel

from app.api.service import Service
from app.jobs.errors import IdempotencyKeyReusedError
from app.jobs.store import job_repository
from app.jobs.store.auth_context import current
from app.jobs.store.database import idempotency

IdempotencyKey = Annotated[
    str | None,
    Header(max_length=255, description="The same key and body again give the first answer's jobs."),
]


def once(
    connection: sa.Connection,
    key: str | None,
    body: BaseModel,
    drafts: Callable[[], Sequence[job_repository.Draft]],
) -> tuple[str, list[str]]:
    """Group of jobs of a request, and those jobs of it that were made now: none if it came before.

    Raises:
        IdempotencyKeyReusedError: the key came with another request.
    """
    digest, owner = hashlib.sha256(body.model_dump_json().encode()).hexdigest(), current().owner
    if key is not None:
        query = sa.select(idempotency).where(idempotency.c.key == key, idempotency.c.owner == owner)
        known = connection.execute(query).mappings().first()
        if known is not None and known["body"] != digest:
            raise IdempotencyKeyReusedError(f"the key {key!r} came before with another body")
        if known is not None:
            return str(known["group_id"]), []
    fresh = job_repository.create(connection, drafts())
    first = job_repository.find(connection, fresh[0])
    if key is not None:
        row = {"owner": owner, "key": key, "body": digest}
        row |= {"group_id": first["group_id"], "created": first["created"]}
        connection.execute(idempotency.insert().values(**row))
    return str(first["group_id"]), fresh


def accept(service: Service, response: Response, path: str, fresh: Sequence[str]) -> None:
    """Send new jobs to the queue, and name the address where the answer can be followed."""
    service.dispatcher.try_send(fresh)
    response.headers["location"] = service.address(path)
    response.headers["retry-after"] = "1"
