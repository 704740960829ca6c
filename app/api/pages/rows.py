"""A job as a row of a list."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.api.schemas.jobs import JobOptions
from app.jobs.store import job_repository, labels, model_repository


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as a row of a list.

    Attributes:
        share: of the present phase that is done, 0 to 1; None where nothing tells.
        comparison: with other runtimes, as `app.engine.runtime.comparison` has it; empty without one.
    """

    id: str
    name: str
    model: str
    target: str
    state: str
    phase: str
    share: float | None
    code: str | None
    created: float
    seconds: float | None
    comparison: Mapping[str, Any]
    labels: tuple[tuple[str, str], ...]
    cached: bool


def row_of(connection: sa.Connection, row: job_repository.Row) -> JobRow:
    """The row of one job."""
    own = labels.of(connection, [row["id"]]).get(row["id"], {})
    summary: dict[str, Any] = row["summary"] if isinstance(row["summary"], dict) else {}
    ended = row["finished"]
    return JobRow(
        id=row["id"],
        name=model_repository.names_of(connection, [row["model_id"]])[row["model_id"]],
        model=row["model_id"],
        target=row["target"],
        state=row["state"],
        phase=row["phase"],
        share=row["done"] / row["total"] if row["total"] else None,
        code=row["code"],
        created=row["created"],
        seconds=ended - row["started"] if ended and row["started"] else None,
        comparison=summary.get("comparison") or {},
        labels=tuple(own.items()),
        cached=row["cached_from"] is not None,
    )


def options_of(row: job_repository.Row) -> dict[str, Any]:
    """The options of a job that are not as they are by default."""
    asked: dict[str, Any] = row["request"].get("options") or {}
    usual = JobOptions().model_dump()
    return {name: value for name, value in asked.items() if name not in usual or usual[name] != value}
