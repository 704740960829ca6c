"""The list of jobs as it changes: one stream for all rows of a page."""

import json
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Request
from fastapi.responses import Response

from app.api.pages.rows import JobRow, row_of
from app.api.routes.events import streamed
from app.api.routes.jobs import optimizations
from app.api.service import Service, ServiceOf
from app.jobs.store.database import jobs
from app.web.rendering import fragment

_POLL_SECONDS = 0.5
_MOST = 100  # rows that one page follows
_MARKS = ("state", "phase", "done", "total")  # what changes of a row

router = APIRouter(include_in_schema=False)


@router.get("/jobs/events")
async def follow(request: Request, service: ServiceOf, ids: str = "", after: str = "") -> Response:
    """Rows that change: those with the given ids, and later jobs than `after`, if that is given."""
    shown = tuple(ids.split(",")[:_MOST]) if ids else ()
    told: dict[str, tuple[Any, ...]] = {}

    def look() -> tuple[list[str], bool]:
        changed = _changed(service, shown, after, told)
        rows = ({"id": row.id, "html": fragment(request, "job_row.html", job=row)} for row in changed)
        return [f"data: {json.dumps(row)}\n\n" for row in rows], False

    return streamed(service, look, seconds=_POLL_SECONDS, retry=2000)


def _changed(
    service: Service, shown: tuple[str, ...], after: str, told: dict[str, tuple[Any, ...]]
) -> list[JobRow]:
    """Rows that are not as `told` has them, which is brought up to date."""
    wanted: sa.ColumnElement[bool] = jobs.c.id.in_(shown)
    if after:
        wanted = sa.or_(wanted, jobs.c.id > after)
    marks = optimizations(jobs.c.id, *(jobs.c[name] for name in _MARKS)).where(wanted)
    with service.database.read() as connection:
        now = {row[0]: tuple(row[1:]) for row in connection.execute(marks.order_by(jobs.c.id).limit(_MOST))}
        changed = [job_id for job_id, mark in now.items() if told.get(job_id) != mark]
        if not changed:
            return []
        told |= now
        rows = optimizations().where(jobs.c.id.in_(changed)).order_by(jobs.c.id)
        return [row_of(connection, row) for row in connection.execute(rows).mappings()]
