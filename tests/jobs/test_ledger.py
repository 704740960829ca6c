"""A job ends once, by the attempt that owns it."""

import pytest

from app.jobs import ledger
from app.jobs.database import Database, job_events, models
from app.jobs.errors import BlobNotFoundError, InvalidModelError, JobNotFinishedError, ModelNotFoundError


@pytest.fixture(autouse=True)
def model(database: Database) -> None:
    with database.write() as connection:
        connection.execute(models.insert().values(id="m", size=1, state="ready", created=0))


def draft(**given: object) -> ledger.Draft:
    return ledger.Draft(
        **{"kind": "optimize", "model_id": "m", "target": "host", "queue": "cpu"} | {"request": {}} | given
    )  # type: ignore[arg-type]


def make(database: Database) -> str:
    with database.write() as connection:
        return ledger.create(connection, [draft()])[0]


def test_a_job_ends_only_once(database: Database) -> None:
    job_id = make(database)
    with database.write() as connection:
        row = ledger.start(connection, job_id)
        assert row is not None
        assert ledger.finish(connection, row, "succeeded", summary={"a": 1})
        assert not ledger.finish(connection, row, "failed", code="late")
        assert ledger.start(connection, job_id) is None
        assert ledger.find(connection, job_id)["state"] == "succeeded"


def test_an_attempt_that_lost_the_job_can_change_it_no_more(database: Database) -> None:
    job_id = make(database)
    with database.write() as connection:
        stale = ledger.start(connection, job_id)
        fresh = ledger.start(connection, job_id)
        assert stale is not None
        assert fresh is not None
        assert ledger.is_wanted(connection, stale) is None
        ledger.progress(connection, stale, [ledger.Progress("stale", 1, 2)])
        ledger.give_back(connection, stale)
        assert not ledger.finish(connection, stale, "failed", code="stale")
        assert ledger.find(connection, job_id)["phase"] == "starting"
        assert ledger.is_wanted(connection, fresh) is True
        assert ledger.finish(connection, fresh, "succeeded")


def test_steps_that_are_told_at_once_are_all_kept_in_order(database: Database) -> None:
    job_id = make(database)
    with database.write() as connection:
        row = ledger.start(connection, job_id)
        assert row is not None
        ledger.progress(connection, row, [ledger.Progress("plan", done, 2, at=done) for done in range(3)])
        told = [e for e in ledger.events_after(connection, job_id, 0) if e["kind"] == "progress"]
        assert [(e["data"]["done"], e["created"]) for e in told] == [(0, 0.0), (1, 1.0), (2, 2.0)]
        assert ledger.find(connection, job_id)["done"] == 2


def test_a_job_that_is_given_back_has_lost_no_attempt(database: Database) -> None:
    job_id = make(database)
    with database.write() as connection:
        for _ in range(3):
            row = ledger.start(connection, job_id, most=1)
            assert row is not None
            ledger.give_back(connection, row)
        assert ledger.find(connection, job_id)["state"] == "queued"


def test_a_job_fails_after_its_last_attempt(database: Database) -> None:
    job_id = make(database)
    with database.write() as connection:
        for _ in range(3):
            assert ledger.start(connection, job_id, most=3) is not None
        assert ledger.start(connection, job_id, most=3) is None
        assert ledger.find(connection, job_id)["code"] == "worker-crashed"


def test_cancel_ends_what_waits_asks_what_runs_and_leaves_what_ended(database: Database) -> None:
    waiting, running, ended = make(database), make(database), make(database)
    with database.write() as connection:
        row, last = ledger.start(connection, running), ledger.start(connection, ended)
        assert row is not None
        assert last is not None
        ledger.finish(connection, last, "succeeded")
        assert ledger.cancel(connection, waiting)["state"] == "cancelled"
        assert ledger.cancel(connection, running)["state"] == "running"
        assert ledger.is_wanted(connection, row) is False
        assert ledger.cancel(connection, ended)["state"] == "succeeded"


def test_a_cancelled_job_that_a_dead_worker_left_is_cancelled_at_its_next_start(database: Database) -> None:
    job_id = make(database)
    with database.write() as connection:
        ledger.start(connection, job_id)
        ledger.cancel(connection, job_id)
        assert ledger.start(connection, job_id) is None
        assert ledger.find(connection, job_id)["state"] == "cancelled"


def test_only_jobs_that_ended_are_deleted_and_their_event_ids_do_not_return(database: Database) -> None:
    job_id = make(database)
    with database.write() as connection:
        with pytest.raises(JobNotFinishedError, match="queued"):
            ledger.delete(connection, job_id)
        ledger.cancel(connection, job_id)
        last = ledger.events_after(connection, job_id, 0)[-1]["id"]
        ledger.delete(connection, job_id)
        assert connection.execute(job_events.select()).all() == []
        other = ledger.create(connection, [draft()])[0]
        assert ledger.events_after(connection, other, 0)[0]["id"] > last


def test_what_a_job_refers_to_must_be_there(database: Database) -> None:
    with database.write() as connection:
        with pytest.raises(ModelNotFoundError, match="other"):
            ledger.create(connection, [draft(model_id="other")])
        with pytest.raises(BlobNotFoundError, match="'x'") as caught:
            ledger.create(connection, [draft(inputs={"x": "0" * 64})])
        assert caught.value.pointer == "/inputs/x"
        connection.execute(models.update().values(state="invalid", code="not-onnx", detail="no model"))
        with pytest.raises(InvalidModelError) as refused:
            ledger.create(connection, [draft()])
        assert refused.value.code == "not-onnx"


def test_ids_sort_by_time() -> None:
    ids = [ledger.new_id() for _ in range(2000)]  # many within a millisecond
    assert ids == sorted(set(ids))
    assert all(len(i) == 32 for i in ids)


def test_ids_sort_by_time_though_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ledger.new_id()
    monkeypatch.setattr(ledger.time, "time_ns", lambda: 0)
    assert ledger.new_id() > first
