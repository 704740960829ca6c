"""The list of jobs as it changes: one stream for all rows of a page."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import sqlalchemy as sa
from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from app.api.pages.rows import JobRow, row_of
from app.api.routes.events import HEARTBEAT_SECONDS
from app.api.service import Service, ServiceOf
from app.jobs.store.auth_context import visible
from app.jobs.store.database import jobs
from app.web.rendering import fragment

_POLL_SECONDS = 0.5
_MOST = 100  # rows that one page follows
_MARKS = ("state", "phase", "done", "total")  # what changes of a row
_Mark: TypeAlias = tuple[Any, ...]

router = APIRouter(include_in_schema=False)


@router.get("/jobs/events")
async def follow(request: Request, service: ServiceOf, ids: str = "", after: str = "") -> Response:
    """Rows that change: those with the given ids, and later jobs than `after`, if that is given."""
    shown = tuple(ids.split(",")[:_MOST]) if ids else ()
    return StreamingResponse(
        _changes(request, service, shown, after),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


async def _changes(
    request: Request, service: Service, shown: tuple[str, ...], after: str
) -> AsyncIterator[bytes]:
    yield b"retry: 2000\n\n"
    told: dict[str, _Mark] = {}
    spoken = time.monotonic()
    while not service.stopping.is_set():
        for row in await run_in_threadpool(_changed, service, shown, after, told):
            html = fragment(request, "job_row.html", job=row)
            yield f"data: {json.dumps({'id': row.id, 'html': html})}\n\n".encode()
            spoken = time.monotonic()
        if time.monotonic() > spoken + HEARTBEAT_SECONDS:
            spoken = time.monotonic()
            yield b": still here\n\n"
        await asyncio.sleep(_POLL_SECONDS)


def _changed(service: Service, shown: tuple[str, ...], after: str, told: dict[str, _Mark]) -> list[JobRow]:
    """Rows that are not as `told` has them, which is brought up to date."""
    wanted: sa.ColumnElement[bool] = jobs.c.id.in_(shown)
    if after:
        wanted = sa.or_(wanted, jobs.c.id > after)
    theirs = (jobs.c.kind == "optimize", visible(jobs.c.owner))
    marks = sa.select(jobs.c.id, *(jobs.c[name] for name in _MARKS)).where(*theirs, wanted)
    with service.database.read() as connection:
        now = {row[0]: tuple(row[1:]) for row in connection.execute(marks.order_by(jobs.c.id).limit(_MOST))}
        changed = [job_id for job_id, mark in now.items() if told.get(job_id) != mark]
        if not changed:
            return []
        told |= now
        rows = sa.select(jobs).where(*theirs, jobs.c.id.in_(changed)).order_by(jobs.c.id)
        return [row_of(connection, row) for row in connection.execute(rows).mappings()]
