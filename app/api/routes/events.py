"""Server-sent events: those of a job, which a client can resume, and the loop that all streams have."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence

from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from app.api.service import Service
from app.jobs.store import job_repository

_HEARTBEAT_SECONDS = 15.0
_POLL_SECONDS = 0.1
_RESTART = ": the service stops\nretry: 3000\n\n"  # a new process takes longer to be there


async def stream(service: Service, job_id: str, last: int) -> Response:
    """The events after `last`; 204 when the job has ended and none is left, so that clients stop asking."""

    def rows_after(event_id: int) -> tuple[list[job_repository.Row], bool]:
        with service.database.read() as connection:
            ended = job_repository.find(connection, job_id)["state"] in job_repository.TERMINAL
            return job_repository.events_after(connection, job_id, event_id), ended

    def look() -> tuple[list[str], bool]:
        nonlocal last
        rows, ended = rows_after(last)
        last = rows[-1]["id"] if rows else last
        return [f"id: {r['id']}\nevent: {r['kind']}\ndata: {json.dumps(r['data'])}\n\n" for r in rows], ended

    if await run_in_threadpool(rows_after, last) == ([], True):
        return Response(status_code=204)
    return streamed(service, look, seconds=_POLL_SECONDS, retry=1000, farewell=_RESTART)


def streamed(
    service: Service,
    look: Callable[[], tuple[Sequence[str], bool]],
    *,
    seconds: float,
    retry: int,
    farewell: str = "",
) -> Response:
    """A stream of server-sent events.

    Args:
        service: when it stops, the stream ends with `farewell`.
        look: returns the events since the last look, and True when no more will follow.
        seconds: between two looks.
        retry: milliseconds until a client asks again.
        farewell: last text.
    """

    async def texts() -> AsyncIterator[str]:
        yield f"retry: {retry}\n\n"
        spoken = time.monotonic()
        while not service.stopping.is_set():
            events, ended = await run_in_threadpool(look)
            for event in events:
                yield event
            if ended:
                return
            now = time.monotonic()
            if events:
                spoken = now
            elif now > spoken + _HEARTBEAT_SECONDS:
                spoken = now
                yield ": still here\n\n"
            await asyncio.sleep(seconds)
        yield farewell

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(texts(), media_type="text/event-stream", headers=headers)
