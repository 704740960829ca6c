"""Counters of what happened to jobs: rows, so that every process adds to the same ones."""

from collections.abc import Iterator, Mapping

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from app.jobs.database import tallies

# Upper bounds of a duration, in seconds; the last row counts all.
BUCKETS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, float("inf"))


def text_of(labels: Mapping[str, str]) -> str:
    """Labels as Prometheus writes them."""
    escaped = (
        (k, v.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for k, v in labels.items()
    )
    return ",".join(f'{name}="{value}"' for name, value in escaped)


def add(connection: sa.Connection, name: str, labels: Mapping[str, str], value: float = 1.0) -> None:
    """Add to a counter."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    row = insert(tallies).values(name=name, labels=text_of(labels), value=value)
    connection.execute(
        row.on_conflict_do_update(
            index_elements=["name", "labels"], set_={"value": tallies.c.value + row.excluded.value}
        )
    )


def note_end(connection: sa.Connection, job: sa.RowMapping) -> None:
    """Count a job that ended, and how long it waited and ran."""
    kind = {"kind": job["kind"]}
    add(connection, "stowplan_jobs_ended_total", kind | {"state": job["state"], "code": job["code"] or ""})
    started = job["started"] or job["finished"]
    for name, seconds in (("wait", started - job["created"]), ("run", job["finished"] - started)):
        observe(connection, f"stowplan_job_{name}_seconds", kind, seconds)


def observe(connection: sa.Connection, name: str, labels: Mapping[str, str], seconds: float) -> None:
    """Add a duration to a histogram."""
    bound = next(b for b in BUCKETS if seconds <= b)
    add(connection, f"{name}_bucket", {**labels, "le": _bound(bound)})
    add(connection, f"{name}_sum", labels, seconds)
    add(connection, f"{name}_count", labels)


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
