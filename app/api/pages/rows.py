"""A job as a row of a list."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.api.schemas import JobOptions
from app.jobs import catalog, labels, ledger


@dataclass(frozen=True, slots=True)
class JobRow:
    """What lists of jobs tell.

    Attributes:
        share: of the present phase that is done, 0 to 1; None where nothing tells.
        speedup: time before over time after; None where it is not known.
        saved: share of the peak that is gone; None where it is not known.
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
    speedup: float | None
    saved: float | None
    labels: tuple[tuple[str, str], ...]
    cached: bool


def row_of(connection: sa.Connection, row: ledger.Row) -> JobRow:
    """The row of one job."""
    own = labels.of(connection, [row["id"]]).get(row["id"], {})
    summary: dict[str, Any] = row["summary"] if isinstance(row["summary"], dict) else {}
    ended = row["finished"]
    return JobRow(
        id=row["id"],
        name=catalog.names_of(connection, [row["model_id"]])[row["model_id"]],
        model=row["model_id"],
        target=row["target"],
        state=row["state"],
        phase=row["phase"],
        share=row["done"] / row["total"] if row["total"] else None,
        code=row["code"],
        created=row["created"],
        seconds=ended - row["started"] if ended and row["started"] else None,
        speedup=ratio(summary.get("latency")),
        saved=saved(summary.get("peak_bytes")),
        labels=tuple(own.items()),
        cached=row["cached_from"] is not None,
    )


def ratio(pair: Any) -> float | None:
    """Before over after."""
    match pair:
        case {"before": int() | float() as before, "after": int() | float() as after} if after:
            return float(before / after)
    return None


def saved(pair: Any) -> float | None:
    """The share of what was before that is gone after."""
    match pair:
        case {"before": int() | float() as before, "after": int() | float() as after} if before:
            return float(1 - after / before)
    return None


def options_of(row: ledger.Row) -> dict[str, Any]:
    """The options of a job that are not as they are by default."""
    asked: dict[str, Any] = row["request"].get("options") or {}
    usual = JobOptions().model_dump()
    return {name: value for name, value in asked.items() if name not in usual or usual[name] != value}
