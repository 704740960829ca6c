"""Memory plans without a graph: buffers in, offsets out.

Planning runs in a thread of this process, one at a time: it parses no model, and buffers and nodes of its
searches are limited.
"""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from app.api.http import errors, uploads
from app.api.http.errors import MediaTypeError
from app.api.schemas.memory_plans import MOST_BUFFERS, MemoryPlanAnswer, MemoryPlanRequest
from app.api.service import ServiceOf
from app.engine.memory import csv_table, portfolio
from app.engine.memory.problem import Buffer, Problem
from app.jobs.errors import RequestError, TooLargeError

router = APIRouter(prefix="/v1/memory-plans", tags=["memory plans"])
_JSON = {"schema": {"$ref": "#/components/schemas/MemoryPlanRequest"}}
_CSV = {
    "schema": {"type": "string", "format": "binary"},
    "example": "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\n",
}


@router.post(
    "",
    summary="Place buffers in an arena",
    responses=errors.responses(RequestError, TooLargeError, MediaTypeError),
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/json": _JSON, "text/csv": _CSV}}
    },
)
async def create_memory_plan(
    request: Request,
    service: ServiceOf,
    capacity: Annotated[
        int | None,
        Query(
            ge=0,
            le=csv_table.LARGEST,
            description="Bytes of the arena, for a CSV body; JSON carries its own.",
        ),
    ] = None,
    content_type: uploads.MediaType = "application/json",
) -> MemoryPlanAnswer:
    """Give every buffer an offset, validated; say how far the peak is from the proved lower bound.

    The answer is 200 also where nothing fits: `reason` then has the proof, if there is one.
    """
    body = await uploads.read(request, service.settings.max_json_bytes)
    if content_type == "application/json":
        problem = _from_json(body, capacity)
    elif content_type == "text/csv":
        problem = _from_csv(body, capacity)
    else:
        raise MediaTypeError(
            f"media type {content_type!r} is not understood; send application/json or text/csv"
        )
    async with service.planning:
        return await run_in_threadpool(_plan, problem)


def _from_json(body: bytes, capacity: int | None) -> Problem:
    given = uploads.parsed(MemoryPlanRequest, body)
    if capacity is not None:
        raise RequestError("capacity: a JSON body carries its own", pointer="query:capacity")
    buffers: dict[str, Buffer] = {}
    for i, row in enumerate(given.buffers):
        if row.id in buffers:
            raise RequestError(f"two buffers are called {row.id!r}", pointer=f"/buffers/{i}/id")
        try:
            buffers[row.id] = Buffer(row.id, row.lower, row.upper, row.size, row.alignment)
        except ValueError as error:
            raise RequestError(str(error), pointer=f"/buffers/{i}") from error
    return Problem(tuple(buffers.values()), given.capacity)


def _from_csv(body: bytes, capacity: int | None) -> Problem:
    try:
        problem = csv_table.read(body.decode(), capacity)
    except (UnicodeDecodeError, csv_table.TableError) as error:
        raise RequestError(str(error)) from error
    if len(problem.buffers) > MOST_BUFFERS:
        raise RequestError(f"expected at most {MOST_BUFFERS} buffers, found {len(problem.buffers)}")
    return problem


def _plan(problem: Problem) -> MemoryPlanAnswer:
    timed = portfolio.timed(problem)
    solution = timed.solution
    why = portfolio.shortage(problem, solution)
    return MemoryPlanAnswer(
        fits=why is None,
        reason=why,
        offsets=dict(solution.offsets) if why is None else None,
        peak_bytes=solution.peak,
        lower_bound=solution.lower_bound,
        gap=solution.gap,
        proved=solution.proved,
        method=solution.method,
        nodes=solution.nodes,
        seconds=timed.seconds,
        load_seconds=timed.load_seconds,
    )
