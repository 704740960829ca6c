"""A job ends once, by the attempt that owns it."""

import pytest

from app.jobs.errors import BlobNotFoundError, InvalidModelError, JobNotFinishedError, ModelNotFoundError
from app.jobs.store import job_repository
from app.jobs.store.database import Database, job_events, models


@pytest.fixture(autouse=True)
def model(database: Database) -> None:
    with database.write() as connection:
        connection.execute(models.insert().values(id="m", size=1, state="ready", created=0))


def draft(**given: object) -> job_repository.Draft:
    return job_repository.Draft(
        **{"kind": "optimize", "model_id": "m", "target": "host", "queue": "cpu"} | {"request": {}} | given
    )  # type: ignore[arg-type]


def make(database: Database) -> str:
    with database.write() as connection:
        return job_repository.create(connection, [draft()])[0]


def test_a_job_ends_only_once(database: Database) -> None:
    job_id = make(database)
    with database.write() as connection:
        row = job_repository.start(connection, job_id)
        assert row is not None
        assert job_repository.finish(connection, row, job_repository.Ending("succeeded", summary={"a": 1}))
        assert not job_repository.finish(connection, row, job_repository.Ending("failed", code="late"))
        assert job_repository.start(connection, job_id) is None
        assert job_repository.find(connection, job_id)["state"] == "succeeded"


def test_an_attempt_that_lost_the_job_can_change_it_no_more(database: Database) -> None:
    job_id = make(database)
    with database.write() as connection:
        stale = job_repository.start(connection, job_id)
        fresh = job_repository.start(connection, job_id)
        assert stale is not None
        assert fresh is not None
        assert job_repository.is_wanted(connection, stale) is None
        job_repository.progress(connection, stale, [job_repository.Progress("stale", 1, 2)])
        job_repository.give_back(connection, stale)
        assert not job_repository.finish(connection, stale, job_repository.Ending("failed", code="stale"))
        assert job_repository.find(connection, job_id)["phase"] == "starting"
        assert job_repository.is_wanted(connection, fresh) is True
        assert job_repository.finish(connection, fresh, job_repository.Ending("succeeded"))


def test_steps_that_are_told_at_once_are_all_kept_in_order(database: Database) -> None:
    job_id = make(database)
    with database.write() as connection:
        row = job_repository.start(connection, job_id)
        assert row is not None
        job_repository.progress(
            connection, row, [job_repository.Progress("plan", done, 2, at=done) for done in range(3)]
        )
        told = [e for e in job_repository.events_after(connection, job_id, 0) if e["kind"] == "progress"]
        assert [(e["data"]["done"], e["created"]) for e in told] == [(0, 0.0), (1, 1.0), (2, 2.0)]
        assert job_repository.find(connection, job_id)["done"] == 2


def test_a_job_that_is_given_back_has_lost_no_attempt(database: Database) -> None:
    job_id = make(database)
    with database.write() as connection:
        for _ in range(3):
            row = job_repository.start(connection, job_id, most=1)
            assert row is not None
            job_repository.give_back(connection, row)
        assert job_repository.find(connection, job_id)["state"] == "queued"


def test_a_job_fails_after_its_last_attempt(database: Database) -> None:
    job_id = make(database)
    with database.write() as connection:
        for _ in range(3):
            assert job_repository.start(connection, job_id, most=3) is not None
        assert job_repository.start(connection, job_id, most=3) is None
        assert job_repository.find(connection, job_id)["code"] == "worker-crashed"


def test_cancel_ends_what_waits_asks_what_runs_and_leaves_what_ended(database: Database) -> None:
    waiting, running, ended = make(database), make(database), make(database)
    with database.write() as connection:
        row, last = job_repository.start(connection, running), job_repository.start(connection, ended)
        assert row is not None
        assert last is not None
        job_repository.finish(connection, last, job_repository.Ending("succeeded"))
        assert job_repository.cancel(connection, waiting)["state"] == "cancelled"
        assert job_repository.cancel(connection, running)["state"] == "running"
        assert job_repository.is_wanted(connection, row) is False
        assert job_repository.cancel(connection, ended)["state"] == "succeeded"


def test_a_cancelled_job_that_a_dead_worker_left_is_cancelled_at_its_next_start(database: Database) -> None:
    job_id = make(database)
    with database.write() as connection:
        job_repository.start(connection, job_id)
        job_repository.cancel(connection, job_id)
        assert job_repository.start(connection, job_id) is None
        assert job_repository.find(connection, job_id)["state"] == "cancelled"


def test_only_jobs_that_ended_are_deleted_and_their_event_ids_do_not_return(database: Database) -> None:
    job_id = make(database)
    with database.write() as connection:
        with pytest.raises(JobNotFinishedError, match="queued"):
            job_repository.delete(connection, job_id)
        job_repository.cancel(connection, job_id)
        last = job_repository.events_after(connection, job_id, 0)[-1]["id"]
        job_repository.delete(connection, job_id)
        assert connection.execute(job_events.select()).all() == []
        other = job_repository.create(connection, [draft()])[0]
        assert job_repository.events_after(connection, other, 0)[0]["id"] > last


def test_what_a_job_refers_to_must_be_there(database: Database) -> None:
    with database.write() as connection:
        with pytest.raises(ModelNotFoundError, match="other"):
            job_repository.create(connection, [draft(model_id="other")])
        with pytest.raises(BlobNotFoundError, match="'x'") as caught:
            job_repository.create(connection, [draft(inputs={"x": "0" * 64})])
        assert caught.value.pointer == "/inputs/x"
        connection.execute(models.update().values(state="invalid", code="not-onnx", detail="no model"))
        with pytest.raises(InvalidModelError) as refused:
            job_repository.create(connection, [draft()])
        assert refused.value.code == "not-onnx"


def test_ids_sort_by_time() -> None:
    ids = [job_repository.new_id() for _ in range(2000)]  # many within a millisecond
    assert ids == sorted(set(ids))
    assert all(len(i) == 32 for i in ids)


def test_ids_sort_by_time_though_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = job_repository.new_id()
    monkeypatch.setattr(job_repository.time, "time_ns", lambda: 0)
    assert job_repository.new_id() > first
