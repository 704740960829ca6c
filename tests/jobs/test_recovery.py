"""Jobs outlive the workers that ran them."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app.jobs.store.database import Database, jobs
from app.settings import Settings
from tests.conftest import DATABASES
from tests.jobs.service import Served, serve
from tests.jobs.test_limits import is_gone, pids

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=DATABASES)
def fresh(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Addresses of new databases: every test here runs on each kind."""
    if request.param == "sqlite":
        return lambda: ""
    return lambda: str(request.getfixturevalue("postgres").database())


@pytest.fixture(scope="module")
def lone(fresh: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service with one worker."""
    with serve(tmp_path_factory.mktemp("lone"), workers=1, max_attempts=2, database_url=fresh()) as served:
        yield served


@pytest.fixture(scope="module")
def pair(fresh: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service with two workers, each soon taken for dead."""
    with serve(tmp_path_factory.mktemp("pair"), dead_seconds=3.0, database_url=fresh()) as served:
        yield served


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def worker_of(child: int) -> int:
    """The worker of a child, between them the process that forks children."""
    return parent(parent(child))


def running_child(service: Served, job_id: str) -> int:
    phase = service.wait_for_phase(job_id, "begin")["progress"]["phase"]
    return int(re.findall(r"\d+", phase)[0])


def is_phase_of(child: int, job: dict[str, Any]) -> bool:
    """True while a job tells of this child alone: no other has begun, and the job has not ended."""
    return not job["finished"] and job["progress"]["phase"] == f"begin {child}"


def wait_until_gone(pid: int, seconds: float = 3.0) -> bool:
    deadline = time.monotonic() + seconds
    while not is_gone(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_gone(pid)


def terminal_events(service: Served, job_id: str) -> list[str]:
    text = service.http.get(f"/v1/jobs/{job_id}/events").text
    return re.findall(r'"state": "(succeeded|failed|cancelled)"', text)


def test_a_job_whose_worker_is_killed_is_run_again_to_its_end(lone: Served) -> None:
    job_id = lone.submit("sleep 1 ok")
    child = running_child(lone, job_id)
    os.kill(worker_of(child), signal.SIGKILL)
    assert wait_until_gone(child), "the child must not outlive its worker"
    job = lone.end(job_id)
    assert job["state"] == "succeeded", job
    assert len(pids(lone, job_id)) == 2
    assert terminal_events(lone, job_id) == ["succeeded"]


def test_a_job_whose_process_is_killed_from_outside_is_tried_again(lone: Served) -> None:
    job_id = lone.submit("sleep 1 ok")
    os.kill(running_child(lone, job_id), signal.SIGKILL)
    assert lone.end(job_id)["state"] == "succeeded"
    assert len(pids(lone, job_id)) == 2
    second = lone.submit("sleep 1 ok")
    os.kill(parent(running_child(lone, second)), signal.SIGKILL)
    assert lone.end(second)["state"] == "succeeded"
    assert terminal_events(lone, second) == ["succeeded"]


def test_a_job_whose_workers_die_each_time_fails_in_the_end(lone: Served) -> None:
    job_id = lone.submit("sleep 600")
    for _ in range(2):
        child = running_child(lone, job_id)
        os.kill(worker_of(child), signal.SIGKILL)
        deadline = time.monotonic() + 40
        while is_phase_of(child, lone.job(job_id)) and time.monotonic() < deadline:
            time.sleep(0.1)
    job = lone.end(job_id, 60)
    assert (job["state"], job["code"]) == ("failed", "worker-crashed")
    assert "2 times" in job["detail"]
    assert lone.end(lone.submit("ok"))["state"] == "succeeded"


def test_a_stop_gives_the_running_job_back_and_the_next_start_ends_it(
    fresh: Callable[[], str], tmp_path: Path
) -> None:
    how = {"workers": 1, "database_url": fresh(), "drain_seconds": 0.5}
    with serve(tmp_path, **how) as first:
        job_id = first.submit("sleep 2 ok")
        child = running_child(first, job_id)
        since = time.monotonic()
    assert time.monotonic() - since < 8
    assert is_gone(child)
    assert "Traceback" not in first.log()
    with serve(tmp_path, **how) as second:
        job = second.end(job_id)
        assert job["state"] == "succeeded", job
        assert terminal_events(second, job_id) == ["succeeded"]


def test_a_job_that_has_no_process_yet_goes_back_when_its_worker_stops(tmp_path: Path) -> None:
    database = Database(Settings(data=tmp_path).jobs_database_url)
    running = sa.select(sa.func.count()).where(jobs.c.state == "running")

    def count() -> int:
        with database.read() as connection:
            return int(connection.execute(running).scalar_one())

    how = {"engine": "tests.jobs.slow_engine", "workers": 1, "drain_seconds": 0.5}
    with contextlib.closing(database), serve(tmp_path, **how) as service:
        service.model("ok")
        deadline = time.monotonic() + 60
        while count() == 0 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert count() == 1
        service.process.terminate()
        service.process.wait(60)
        assert count() == 0, service.log()


def test_no_process_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with serve(tmp_path, workers=1) as service:
        child = running_child(service, service.submit("sleep 600"))
        family = [child, parent(child), worker_of(child), *children(service.process.pid)]
        service.process.kill()
        assert all(wait_until_gone(pid, 10.0) for pid in family)


def test_under_nohup_a_hang_up_ends_nothing_and_a_killed_supervisor_ends_all(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does; what is started inherits it
    try:
        with serve(tmp_path, workers=1) as service:
            child = running_child(service, service.submit("sleep 600"))
            family = [child, parent(child), worker_of(child), *children(service.process.pid)]
            for pid in (service.process.pid, *family):
                os.kill(pid, signal.SIGHUP)
            time.sleep(0.5)
            assert not any(is_gone(pid) for pid in family)
            service.process.kill()
            assert all(wait_until_gone(pid, 10.0) for pid in family)
    finally:
        signal.signal(signal.SIGHUP, before)


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_another_worker_takes_over_from_one_that_does_not_come_back(pair: Served) -> None:
    job_id = pair.submit("sleep 1 ok")
    worker = worker_of(running_child(pair, job_id))
    pair.process.send_signal(signal.SIGSTOP)  # so that the supervisor restarts nobody
    os.kill(worker, signal.SIGKILL)
    try:
        job = pair.end(job_id)
        assert job["state"] == "succeeded", job
    finally:
        pair.process.send_signal(signal.SIGCONT)
    assert terminal_events(pair, job_id) == ["succeeded"]


def test_a_worker_that_was_only_slow_does_not_end_the_job_twice(pair: Served) -> None:
    pair.wait_until_ready()
    job_id = pair.submit("sleep 2 ok")
    child = running_child(pair, job_id)
    worker = worker_of(child)
    os.kill(worker, signal.SIGSTOP)
    try:
        job = pair.end(job_id)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert job["state"] == "succeeded", job
    assert wait_until_gone(child, 10.0)
    jobs = [pair.submit("ok"), pair.submit("ok steps 2")]
    assert [pair.end(j)["state"] for j in jobs] == ["succeeded", "succeeded"]
    assert pair.job(job_id) == job
    assert terminal_events(pair, job_id) == ["succeeded"]
