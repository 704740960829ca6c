"""Metrics of the service for Prometheus: counters of jobs and requests, and gauges of the present state."""

import shutil
import time
from collections.abc import Iterable, Iterator

import sqlalchemy as sa
from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.concurrency import run_in_threadpool

from app.api.service import Service, ServiceOf
from app.jobs.store import counters
from app.jobs.store.database import blobs, jobs, models, workers

router = APIRouter(tags=["system"])


class _Collected(Collector):
    """Metrics whose values were read already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


@router.get(
    "/metrics",
    summary="Read the counters",
    response_class=PlainTextResponse,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "All metrics."}
    },
)
async def get_metrics(service: ServiceOf) -> PlainTextResponse:
    """Counters and gauges in Prometheus's text format. Requests are those of this API process."""

    def look() -> list[Metric]:
        with service.database.read() as connection:
            return [*counters.collect(connection), *_gauges(service, connection)]

    metrics = await run_in_threadpool(look)  # the others belong to the event loop
    metrics += [*service.http_metrics.collect(), *service.deployed_models.collect()]
    registry = CollectorRegistry()
    registry.register(_Collected(metrics))
    return PlainTextResponse(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _gauges(service: Service, connection: sa.Connection) -> Iterator[Metric]:
    count = sa.func.count()
    known = GaugeMetricFamily(
        "stowplan_jobs", "Jobs that the service knows now, by kind and state.", labels=["kind", "state"]
    )
    for row in connection.execute(
        sa.select(jobs.c.kind, jobs.c.state, count.label("n")).group_by(jobs.c.kind, jobs.c.state)
    ):
        known.add_metric([row.kind, row.state], row.n)
    yield known
    now = time.time()
    oldest = connection.scalar(sa.select(sa.func.min(jobs.c.created)).where(jobs.c.state == "queued"))
    held = connection.execute(sa.select(count, sa.func.coalesce(sa.func.sum(blobs.c.size), 0))).one()
    for name, documentation, value in (
        (
            "stowplan_oldest_queued_job_seconds",
            "Time that the oldest queued job has waited; 0 if there is none.",
            now - oldest if oldest else 0.0,
        ),
        (
            "stowplan_models",
            "Models that the service keeps.",
            connection.scalar(sa.select(count).select_from(models)) or 0,
        ),
        ("stowplan_blobs", "Blobs that the service keeps.", held[0]),
        ("stowplan_blob_bytes", "Bytes of all blobs.", float(held[1])),
        (
            "stowplan_disk_free_bytes",
            "Free bytes of the disk that holds the data folder.",
            shutil.disk_usage(service.settings.data).free,
        ),
    ):
        yield GaugeMetricFamily(name, documentation, value)
    ages = GaugeMetricFamily(
        "stowplan_worker_heartbeat_age_seconds",
        "Time since the last heartbeat of each worker.",
        labels=["worker"],
    )
    for row in connection.execute(sa.select(workers.c.id, workers.c.seen).where(workers.c.seen > 0)):
        ages.add_metric([row.id], now - row.seen)
    yield ages
