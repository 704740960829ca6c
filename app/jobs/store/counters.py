"""Counters of jobs that ended: rows, so that every process adds to the same ones."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from prometheus_client import Metric
from sqlalchemy.dialects import postgresql, sqlite

from app.jobs.store.database import counters

# Upper bounds of a duration, in seconds; the last one counts all.
BUCKETS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, float("inf"))
_COUNTERS: Mapping[str, str] = {
    "stowplan_jobs_ended": "Jobs that ended, by kind, state and code of the failure.",
    "stowplan_jobs_cached": "Jobs whose result was known already.",
}
_HISTOGRAMS: Mapping[str, str] = {
    "stowplan_job_wait_seconds": "Time of jobs from their request to their start.",
    "stowplan_job_run_seconds": "Time of jobs from their start to their end.",
}

Labels = Mapping[str, str]
Increment = tuple[str, Labels, float]  # name, labels, what to add


def add(connection: sa.Connection, increments: Iterable[Increment]) -> None:
    """Add to counters."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement = insert(counters)
    summed = {"value": counters.c.value + statement.excluded.value}
    connection.execute(
        statement.on_conflict_do_update(index_elements=["name", "labels"], set_=summed),
        [
            {"name": name, "labels": json.dumps(labels, sort_keys=True), "value": value}
            for name, labels, value in increments
        ],
    )


def note_cached(connection: sa.Connection, kind: str) -> None:
    """Count a job whose result was known already."""
    add(connection, [("stowplan_jobs_cached_total", {"kind": kind}, 1.0)])


def note_end(connection: sa.Connection, job: Mapping[str, Any]) -> None:
    """Count a job that ended, and how long it waited and ran."""
    kind = {"kind": job["kind"]}
    started = job["started"] or job["finished"]
    ended = kind | {"state": job["state"], "code": job["code"] or ""}
    add(
        connection,
        (
            ("stowplan_jobs_ended_total", ended, 1.0),
            *_duration("stowplan_job_wait_seconds", kind, started - job["created"]),
            *_duration("stowplan_job_run_seconds", kind, job["finished"] - started),
        ),
    )


def _duration(name: str, labels: Labels, seconds: float) -> Iterator[Increment]:
    """Increments of a histogram for one duration."""
    bound = next(b for b in BUCKETS if seconds <= b)
    yield f"{name}_bucket", {**labels, "le": _text(bound)}, 1.0
    yield f"{name}_sum", labels, seconds
    yield f"{name}_count", labels, 1.0


def _text(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(bound)


def collect(connection: sa.Connection) -> Iterator[Metric]:
    """All counters; a row counts one bucket of a histogram, a sample all up to its bound."""
    rows: dict[str, dict[str, float]] = {}
    for row in connection.execute(sa.select(counters).order_by(counters.c.name, counters.c.labels)):
        rows.setdefault(row.name, {})[row.labels] = row.value
    for name, documentation in _COUNTERS.items():
        metric = Metric(name, documentation, "counter")
        for labels, value in rows.get(f"{name}_total", {}).items():
            metric.add_sample(f"{name}_total", json.loads(labels), value)
        yield metric
    for name, documentation in _HISTOGRAMS.items():
        metric = Metric(name, documentation, "histogram")
        for labels, count in rows.get(f"{name}_count", {}).items():
            given, total = json.loads(labels), 0.0
            for bound in BUCKETS:
                bucket = given | {"le": _text(bound)}
                total += rows[f"{name}_bucket"].get(json.dumps(bucket, sort_keys=True), 0.0)
                metric.add_sample(f"{name}_bucket", bucket, total)
            metric.add_sample(f"{name}_sum", given, rows[f"{name}_sum"][labels])
            metric.add_sample(f"{name}_count", given, count)
        yield metric
