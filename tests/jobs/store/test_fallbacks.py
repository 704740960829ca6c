"""Each distinct fallback is logged once, and all are counted."""

import logging
from pathlib import Path

import pytest

from app.jobs.store import fallbacks
from app.jobs.store.database import Database, jobs, migrate
from app.settings import Settings

SUMMARY = {
    "fallbacks": [
        {"op": "Det", "reason": "it has no row for Det", "count": 2},
        {"op": "Loop", "reason": "it has no row for Loop", "count": 1},
    ]
}


def test_a_fallback_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    told = fallbacks.Told()
    with caplog.at_level(logging.WARNING, "stowplan.fallbacks"):
        told.note(SUMMARY)
        told.note(SUMMARY)
        told.note(None)
    assert [r.getMessage() for r in caplog.records] == [
        "fallback: the reference runs Det (2 nodes): it has no row for Det",
        "fallback: the reference runs Loop (1 nodes): it has no row for Loop",
    ]


def test_fallbacks_are_counted_over_jobs(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path)
    migrate(settings)
    database = Database(settings.jobs_database_url)
    row = dict.fromkeys(c.name for c in jobs.columns) | {
        "kind": "optimize",
        "group_id": "g",
        "state": "succeeded",
        "model_id": "m",
        "target": "host",
        "request": {},
        "queue": "cpu",
        "enqueued": True,
        "attempt": 1,
        "cancel_requested": False,
        "phase": "",
        "done": 0,
        "total": 0,
        "summary": SUMMARY,
        "created": 0.0,
        "owner": "",
        "sent": 0,
    }
    with database.write() as connection:
        connection.execute(jobs.insert(), [row | {"id": "1"}, row | {"id": "2"}])
        connection.execute(jobs.insert(), [row | {"id": "3", "summary": {"other": 1}}])
    with database.read() as connection:
        assert fallbacks.counted(connection)["Det", "it has no row for Det"] == 4
    database.close()
