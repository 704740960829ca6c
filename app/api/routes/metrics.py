"""What monitoring reads: counters of jobs and requests, and how things stand now."""

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping

import sqlalchemy as sa
from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from starlette.concurrency import run_in_threadpool

from app.api.service import Service, ServiceOf
from app.jobs.store import counters
from app.jobs.store.database import blobs, jobs, models, workers

router = APIRouter(tags=["system"])
HELP: Mapping[str, str] = {
    "stowplan_jobs_ended_total": "Jobs that ended, by kind, state and code of the failure.",
    "stowplan_job_wait_seconds": "Time of jobs from their request to their start.",
    "stowplan_job_run_seconds": "Time of jobs from their start to their end.",
    "stowplan_jobs": "Jobs that the service knows now, by kind and state.",
    "stowplan_oldest_queued_job_seconds": "Time that the oldest queued job has waited; 0 if there is none.",
    "stowplan_models": "Models that the service keeps.",
    "stowplan_blobs": "Blobs that the service keeps.",
    "stowplan_blob_bytes": "Bytes of all blobs.",
    "stowplan_disk_free_bytes": "Free bytes of the disk that holds the data folder.",
    "stowplan_worker_heartbeat_age_seconds": "Time since the last heartbeat of each worker.",
    "stowplan_http_requests_total": "Requests that this process answered, by method, route and status.",
    "stowplan_http_request_seconds_total": "Time that this process took for them.",
    "stowplan_inferences_total": "Inferences that this process answered, by model, version and status.",
    "stowplan_inference_seconds": "Time of inferences, from the request to the answer.",
    "stowplan_inference_wait_seconds": "Time of inferences in the queue of their model.",
    "stowplan_inference_run_seconds": "Time of inferences in the process of their model.",
    "stowplan_inferences_waiting": "Inferences that have no answer yet, by model and version.",
    "stowplan_executor_ready": "Whether the process of a deployed model answers: 1 or 0.",
    "stowplan_executor_restarts": "Times that the process of a deployed model ended while it was connected.",
    "stowplan_executor_programs": "Input shapes that a deployed model keeps compiled.",
    "stowplan_jobs_cached_total": "Jobs whose result was known already.",
}
_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get(
    "/metrics",
    operation_id="getMetrics",
    summary="Read the counters",
    response_class=PlainTextResponse,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "All metrics."}
    },
)
async def get_metrics(service: ServiceOf) -> PlainTextResponse:
    """Counters and gauges in Prometheus's text format. Requests are those of this API process."""

    def look() -> list[str]:
        with service.database.read() as connection:
            return [*counters.lines(connection), *_gauges(service, connection)]

    lines = await run_in_threadpool(look)  # the others belong to the event loop
    lines += [*service.http_metrics.lines(), *service.deployed_models.lines()]
    return PlainTextResponse("\n".join([*_with_help(lines), ""]), media_type=_MEDIA_TYPE)


def _with_help(lines: Iterable[str]) -> Iterator[str]:
    """The lines, with the meaning of each family before its type."""
    for line in lines:
        if line.startswith("# TYPE "):
            family = line.split()[2]
            if family in HELP:
                yield f"# HELP {family} {HELP[family]}"
        yield line


def _gauges(service: Service, connection: sa.Connection) -> Iterator[str]:
    count = sa.func.count()
    yield "# TYPE stowplan_jobs gauge"
    for row in connection.execute(
        sa.select(jobs.c.kind, jobs.c.state, count.label("n")).group_by(jobs.c.kind, jobs.c.state)
    ):
        yield f"stowplan_jobs{{{counters.text_of({'kind': row.kind, 'state': row.state})}}} {row.n}"
    oldest = connection.scalar(sa.select(sa.func.min(jobs.c.created)).where(jobs.c.state == "queued"))
    now = time.time()
    yield from _gauge("stowplan_oldest_queued_job_seconds", now - oldest if oldest else 0.0)
    yield from _gauge("stowplan_models", connection.scalar(sa.select(count).select_from(models)) or 0)
    held = connection.execute(sa.select(count, sa.func.coalesce(sa.func.sum(blobs.c.size), 0))).one()
    yield from _gauge("stowplan_blobs", held[0])
    yield from _gauge("stowplan_blob_bytes", float(held[1]))
    yield from _gauge("stowplan_disk_free_bytes", shutil.disk_usage(service.settings.data).free)
    yield "# TYPE stowplan_worker_heartbeat_age_seconds gauge"
    for row in connection.execute(sa.select(workers.c.id, workers.c.seen).where(workers.c.seen > 0)):
        yield f'stowplan_worker_heartbeat_age_seconds{{worker="{row.id}"}} {now - row.seen:.3f}'


def _gauge(name: str, value: float) -> tuple[str, str]:
    return f"# TYPE {name} gauge", f"{name} {value:.15g}"
