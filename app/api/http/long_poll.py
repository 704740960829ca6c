"""Long polling: an answer that waits for its end, without holding a thread."""

import asyncio
import hashlib
import time
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import sqlalchemy as sa
from fastapi import Header, Query, Response
from pydantic import BaseModel, BeforeValidator
from starlette.concurrency import run_in_threadpool

from app.api.service import Service
from app.jobs.errors import NoAnswerError
from app.jobs.store import job_repository

_QUICK_SECONDS, _SLOW_SECONDS = 0.02, 0.5
_PATIENCE = 0.05  # of the time that has passed: what an answer may come late
MAX_SECONDS = 60.0
T = TypeVar("T")
Answer = TypeVar("Answer", bound=BaseModel)

UNCHANGED: dict[int, dict[str, Any]] = {
    304: {"description": "It is as it was when the `If-None-Match` tag was given."}
}
IfNoneMatch = Annotated[str | None, Header(max_length=255)]


def _seconds(given: object) -> object:
    return given.removesuffix("s") if isinstance(given, str) else given


Wait = Annotated[
    Annotated[float, BeforeValidator(_seconds)] | None,
    Query(
        ge=0,
        le=MAX_SECONDS,
        description="Seconds (`20` or `20s`) to wait for the end before answering; at most 60.",
        json_schema_extra={"type": "number"},
        examples=[20],
    ),
]


async def until_done(service: Service, look: Callable[[], tuple[T, bool]], seconds: float | None) -> T:
    """Look again and again until it is done, the time is over, or the service stops."""
    began = time.monotonic()
    while True:
        answer, done = await run_in_threadpool(look)
        passed = time.monotonic() - began
        if done or passed >= (seconds or 0.0) or service.stopping.is_set():
            return answer
        await asyncio.sleep(min(max(_QUICK_SECONDS, _PATIENCE * passed), _SLOW_SECONDS))


async def tagged(
    service: Service,
    response: Response,
    look: Callable[[], tuple[Answer, bool]],
    seconds: float | None,
    if_none_match: str | None,
) -> Answer | Response:
    """Answer of `until_done` with a weak tag of its content; 304 where the caller has that content."""
    answer = await until_done(service, look, seconds)
    tag = f'W/"{hashlib.sha256(answer.model_dump_json().encode()).hexdigest()[:16]}"'
    if if_none_match == tag:
        return Response(status_code=304, headers={"etag": tag})
    response.headers["etag"] = tag
    return answer


async def ended(
    service: Service, drafted: Callable[[sa.Connection], list[job_repository.Draft]], seconds: float
) -> job_repository.Row:
    """The row of one small job that is sent now, when it has ended.

    Raises:
        NoAnswerError: it has not ended after so many seconds; it is cancelled.
    """

    def send() -> str:
        with service.database.write() as connection:
            (job_id,) = job_repository.create(connection, drafted(connection))
        service.dispatcher.try_send([job_id])
        return job_id

    job_id = await run_in_threadpool(send)

    def look() -> tuple[job_repository.Row, bool]:
        with service.database.read() as connection:
            row = job_repository.find(connection, job_id)
        return row, row["state"] in job_repository.TERMINAL

    row = await until_done(service, look, seconds)
    if row["state"] not in job_repository.TERMINAL:
        with service.database.write() as connection:
            job_repository.cancel(connection, job_id)
        raise NoAnswerError(f"no worker answered within {seconds:g} s")
    return row
