"""A job ends as it should within seconds, its processes are gone, and the worker goes on."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.service import Served

PROMPT = 3.0  # seconds from a cancel or a breach to the end


@pytest.fixture(scope="module")
def service(either: Served) -> Served:
    """Every test here runs on each database."""
    return either


def is_gone(pid: int) -> bool:
    """Whether no such process runs; one that ended but was not yet waited for counts as gone."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def pids(service: Served, job_id: str) -> list[int]:
    """Processes that the job named in its phases."""
    events = service.http.get(f"/v1/jobs/{job_id}/events").text
    return [int(n) for n in re.findall(r'"(?:begin|grandchild) (\d+)"', events)]


def ends(service: Served, job_id: str, phase: str, seconds: float) -> dict[str, Any]:
    """The ended job, which must take at most `seconds` from that phase on."""
    service.wait_for_phase(job_id, phase)
    since = time.monotonic()
    job = service.end(job_id)
    assert time.monotonic() - since < seconds
    found = pids(service, job_id)
    assert found
    assert all(is_gone(pid) for pid in found)
    return job


def goes_on(service: Served) -> None:
    """Two jobs at once: both workers must still be there."""
    jobs = [service.submit("ok"), service.submit("ok steps 2")]
    assert [service.end(j)["state"] for j in jobs] == ["succeeded", "succeeded"]
    assert "started again" not in service.log()


def test_two_jobs_run_at_the_same_time(service: Served) -> None:
    first, second = service.submit("steps 60"), service.submit("steps 60 ok")
    seen_together = False
    while not seen_together:
        states = {service.job(first)["state"], service.job(second)["state"]}
        assert not states & {"succeeded", "failed"}, "one ended before the other began"
        seen_together = states == {"running"}
    assert service.end(first)["state"] == service.end(second)["state"] == "succeeded"


def test_cancel_ends_a_running_job_with_all_its_processes(service: Served) -> None:
    job_id = service.submit("ignore-signals grandchild sleep 600")
    service.wait_for_phase(job_id, "grandchild")
    assert len(pids_so_far(service, job_id)) == 1
    since = time.monotonic()
    assert service.http.post(f"/v1/jobs/{job_id}/cancel").status_code == 202
    job = service.end(job_id)
    assert time.monotonic() - since < PROMPT
    assert (job["state"], job["code"], job["artifacts"]) == ("cancelled", None, [])
    found = pids(service, job_id)
    assert len(found) == 2
    assert all(is_gone(pid) for pid in found)
    goes_on(service)


def pids_so_far(service: Served, job_id: str) -> list[int]:
    """The process in the phase that the job is in."""
    return [int(n) for n in re.findall(r"(\d+)$", service.job(job_id)["progress"]["phase"])]


def test_cancel_of_a_waiting_job_ends_it_at_once(service: Served) -> None:
    busy = [service.submit("steps 400"), service.submit("steps 400 ok")]
    waiting = service.submit("ok")
    answer = service.http.post(f"/v1/jobs/{waiting}/cancel").json()
    assert answer["state"] == "cancelled"
    for job_id in busy:
        service.http.post(f"/v1/jobs/{job_id}/cancel")
        service.end(job_id)
    assert service.job(waiting)["started"] is None
    goes_on(service)


def test_time_limit_ends_a_job_that_ignores_signals(service: Served) -> None:
    job_id = service.submit("ignore-signals sleep 600", limits={"seconds": 1})
    job = ends(service, job_id, "begin", 1 + PROMPT)
    assert (job["state"], job["code"]) == ("failed", "time-limit")
    assert "1 s" in job["detail"]
    goes_on(service)


@pytest.mark.parametrize("word", ["hog", "creep"])
def test_memory_limit_ends_a_job(service: Served, word: str) -> None:
    limit = 600 << 20
    job_id = service.submit(f"{word} {2 << 30}", limits={"memory_bytes": limit})
    service.wait_for_phase(job_id, "begin")
    job = service.end(job_id)
    assert (job["state"], job["code"]) == ("failed", "memory-limit")
    assert str(limit) in job["detail"]
    assert all(is_gone(pid) for pid in pids(service, job_id))
    goes_on(service)


@pytest.mark.parametrize(
    ("text", "ending"), [("segfault", "SIGSEGV"), ("exit 3", "exit code 3"), ("exit 0", "exit code 0")]
)
def test_a_crash_of_the_process_fails_its_job_only(service: Served, text: str, ending: str) -> None:
    job = ends(service, service.submit(text), "begin", PROMPT)
    assert (job["state"], job["code"]) == ("failed", "child-crashed")
    assert ending in job["detail"]
    goes_on(service)


def test_a_failure_of_the_engine_comes_with_code_detail_and_pointer(service: Served) -> None:
    job = service.end(service.submit("fail"))
    assert (job["state"], job["code"]) == ("failed", "input-invalid")
    assert (job["detail"], job["pointer"]) == ("input 'x' does not fit", "/input_shapes/x")


def test_a_defect_of_the_engine_fails_the_job_with_its_name(service: Served) -> None:
    job = service.end(service.submit("defect"))
    assert (job["state"], job["code"]) == ("failed", "internal-error")
    assert "KeyError" in job["detail"]


def test_a_link_instead_of_an_artifact_is_not_followed(service: Served) -> None:
    job = service.end(service.submit("link"))
    assert (job["state"], job["code"], job["artifacts"]) == ("failed", "artifact-unreadable", [])


def test_memory_that_a_library_could_not_get_is_the_memory_limit(service: Served) -> None:
    job = service.end(service.submit("bad-alloc"))
    assert (job["state"], job["code"]) == ("failed", "memory-limit")


def test_the_folders_of_ended_jobs_are_gone(service: Served) -> None:
    """Shortly after the end is told, which comes first."""
    service.end(service.submit("ok"))
    deadline = time.monotonic() + 5
    while left := [p for p in (service.settings.data / "work").glob("*/*") if p.is_dir()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
