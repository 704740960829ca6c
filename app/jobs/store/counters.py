"""Counters of what happened to jobs: rows, so that every process adds to the same ones."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from app.jobs.store.database import tallies

# Upper bounds of a duration, in seconds; the last row counts all.
BUCKETS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, float("inf"))


def text_of(labels: Mapping[str, str]) -> str:
    """Labels as Prometheus writes them."""
    escaped = (
        (k, v.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for k, v in labels.items()
    )
    return ",".join(f'{name}="{value}"' for name, value in escaped)


Row = tuple[str, Mapping[str, str], float]  # name, labels, what to add


def add(connection: sa.Connection, rows: Iterable[Row]) -> None:
    """Add to counters."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement = insert(tallies)
    summed = {"value": tallies.c.value + statement.excluded.value}
    connection.execute(
        statement.on_conflict_do_update(index_elements=["name", "labels"], set_=summed),
        [{"name": name, "labels": text_of(labels), "value": value} for name, labels, value in rows],
    )


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


def _duration(name: str, labels: Mapping[str, str], seconds: float) -> Iterator[Row]:
    """What a duration adds to a histogram."""
    bound = next(b for b in BUCKETS if seconds <= b)
    yield f"{name}_bucket", {**labels, "le": _bound(bound)}, 1.0
    yield f"{name}_sum", labels, seconds
    yield f"{name}_count", labels, 1.0


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else f"{bound:g}"


def lines(connection: sa.Connection) -> Iterator[str]:
    """All counters in Prometheus's text format; buckets of histograms are summed up here."""
    found: dict[str, dict[str, float]] = {}
    for row in connection.execute(sa.select(tallies).order_by(tallies.c.name, tallies.c.labels)):
        found.setdefault(row.name, {})[row.labels] = row.value
    for name, rows in found.items():
        if name.endswith("_bucket"):
            family = name.removesuffix("_bucket")
            yield f"# TYPE {family} histogram"
            for count in found[f"{family}_count"]:
                total = 0.0
                for bound in map(_bound, BUCKETS):
                    labels = f'{count},le="{bound}"'
                    total += rows.get(labels, 0.0)
                    yield f"{name}{{{labels}}} {total:g}"
        else:
            if name.endswith("_total"):
                yield f"# TYPE {name} counter"
            yield from (f"{name}{{{labels}}} {value:.10g}" for labels, value in rows.items())
