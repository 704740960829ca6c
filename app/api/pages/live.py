"""The list of jobs as it changes: one stream for all rows of a page."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import sqlalchemy as sa
from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from app.api.events import HEARTBEAT_SECONDS
from app.api.pages.rows import JobRow, row_of
from app.api.service import Service, ServiceOf
from app.jobs.callers import visible
from app.jobs.database import jobs
from app.web.rendering import fragment

_POLL_SECONDS = 0.5
_MOST = 50  # rows of a page

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
    told: dict[str, JobRow] = {}
    spoken = time.monotonic()
    while not service.stopping.is_set():
        rows = await run_in_threadpool(_look, service, shown, after)
        for row in rows:
            if told.get(row.id) != row:
                told[row.id] = row
                html = fragment(request, "job_row.html", job=row)
                yield f"data: {json.dumps({'id': row.id, 'html': html})}\n\n".encode()
                spoken = time.monotonic()
        if time.monotonic() > spoken + HEARTBEAT_SECONDS:
            spoken = time.monotonic()
            yield b": still here\n\n"
        await asyncio.sleep(_POLL_SECONDS)


def _look(service: Service, shown: tuple[str, ...], after: str) -> list[JobRow]:
    wanted: sa.ColumnElement[bool] = jobs.c.id.in_(shown)
    if after:
        wanted = sa.or_(wanted, jobs.c.id > after)
    query = (
        sa.select(jobs)
        .where(jobs.c.kind == "optimize", visible(jobs.c.owner), wanted)
        .order_by(jobs.c.id)
        .limit(2 * _MOST)
    )
    with service.database.read() as connection:
        return [row_of(connection, row) for row in connection.execute(query).mappings()]
