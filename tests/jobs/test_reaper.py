"""The recurring duties: what was lost is sent again, what waited too long fails, what is old goes."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from dbos import DBOSClient

from app.jobs.reaper import Reaper
from app.jobs.store import job_repository
from app.jobs.store.database import Database, jobs, models, workers
from app.settings import Settings


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, wait_for_target_seconds=10.0)


@pytest.fixture(autouse=True)
def model(database: Database) -> None:
    with database.write() as connection:
        connection.execute(models.insert().values(id="m", size=1, state="ready", created=0))


@pytest.fixture
def reaper(settings: Settings, database: Database) -> Iterator[Reaper]:
    reaper = Reaper(settings, database, "node:0", ["cpu"])
    yield reaper
    reaper.leave()


def make(database: Database, age: float, **given: object) -> str:
    fields = {"kind": "optimize", "model_id": "m", "target": "t", "queue": "cpu", "request": {}} | given
    with database.write() as connection:
        job_id = job_repository.create(connection, [job_repository.Draft(**fields)])[0]  # type: ignore[arg-type]
        connection.execute(
            jobs.update().where(jobs.c.id == job_id).values(created=time.time() - age, finished=None)
        )
    return job_id


def test_a_job_that_its_sender_did_not_send_is_sent(
    settings: Settings, database: Database, reaper: Reaper
) -> None:
    lost, recent = make(database, 60), make(database, 0)
    reaper.beat()
    client = DBOSClient(system_database_url=settings.queue_database_url)
    found = {w.workflow_id: w.queue_name for w in client.list_workflows(workflow_ids=[lost, recent])}
    client.destroy()
    assert found == {lost: "cpu"}
    with database.read() as connection:
        assert job_repository.find(connection, lost)["enqueued"]


def test_a_job_whose_target_never_comes_fails(database: Database, reaper: Reaper) -> None:
    state = {"state": "waiting_for_target", "queue": "target:none"}
    late, early = make(database, 60, **state), make(database, 1, **state)
    reaper.beat()
    with database.read() as connection:
        assert job_repository.find(connection, late)["code"] == "target-unavailable"
        assert job_repository.find(connection, early)["state"] == "waiting_for_target"


def test_old_answers_of_validations_go(database: Database, reaper: Reaper) -> None:
    old, new = make(database, 9999, kind="validate"), make(database, 9999)
    with database.write() as connection:
        values = {"state": "succeeded", "finished": time.time() - 9999}
        connection.execute(jobs.update().where(jobs.c.id.in_([old, new])).values(**values))
    reaper.beat()
    with database.read() as connection:
        assert connection.scalars(jobs.select()).all() == [new]


def test_a_worker_is_known_from_its_first_beat_until_it_leaves(
    database: Database, settings: Settings
) -> None:
    reaper = Reaper(settings, database, "node:7", ["cpu"])
    for _ in range(2):
        reaper.beat()
        with database.read() as connection:
            assert [(w.id, w.seen > 0) for w in connection.execute(workers.select())] == [("node:7", True)]
    reaper.leave()
    with database.read() as connection:
        assert [w.seen for w in connection.execute(workers.select())] == [0], "the others recover its jobs"


@pytest.mark.parametrize(
    ("state", "worker", "waits"),
    [
        ("queued", None, True),
        ("waiting_for_target", None, True),
        ("running", "node:0", True),
        ("running", "gone:0", True),
        ("running", "node:1", False),
        ("succeeded", None, False),
    ],
)
def test_a_worker_is_told_of_jobs_that_nobody_rang_for(
    database: Database, settings: Settings, reaper: Reaper, state: str, worker: str | None, waits: bool
) -> None:
    other = Reaper(settings, database, "node:1", ["other"])
    assert other.beat() is False
    job = make(database, 0)
    with database.write() as connection:
        connection.execute(jobs.update().where(jobs.c.id == job).values(state=state, worker=worker))
    assert reaper.beat() is waits
    assert other.beat() is False, "it serves another queue"
    other.leave()
