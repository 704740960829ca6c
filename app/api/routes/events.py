"""The events of a job as server-sent events, which a client can resume."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from app.api.http.long_poll import POLL_SECONDS
from app.api.service import Service
from app.jobs.store import job_repository

HEARTBEAT_SECONDS = 15.0
_RETRY = b"retry: 1000\n\n"  # milliseconds until a client asks again
_RESTART = b": the service stops\nretry: 3000\n\n"  # a new process takes longer to be there


def _look(service: Service, job_id: str, last: int) -> tuple[list[job_repository.Row], bool]:
    """Events after the last one seen, and whether there will be no more after them."""
    with service.database.read() as connection:
        ended = job_repository.find(connection, job_id)["state"] in job_repository.TERMINAL
        return job_repository.events_after(connection, job_id, last), ended


async def stream(service: Service, job_id: str, last: int) -> Response:
    """The events after `last`; 204 when the job has ended and none is left, so that clients stop asking."""
    rows, ended = await run_in_threadpool(_look, service, job_id, last)
    if ended and not rows:
        return Response(status_code=204)
    return StreamingResponse(
        _lines(service, job_id, last),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


async def _lines(service: Service, job_id: str, last: int) -> AsyncIterator[bytes]:
    yield _RETRY
    spoken = time.monotonic()
    while not service.stopping.is_set():
        rows, ended = await run_in_threadpool(_look, service, job_id, last)
        for row in rows:
            last = row["id"]
            yield f"id: {last}\nevent: {row['kind']}\ndata: {json.dumps(row['data'])}\n\n".encode()
        if ended:
            return
        now = time.monotonic()
        if rows:
            spoken = now
        elif now > spoken + HEARTBEAT_SECONDS:
            spoken = now
            yield b": still here\n\n"
        await asyncio.sleep(POLL_SECONDS)
    yield _RESTART
