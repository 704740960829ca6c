"""Benchmarks of one machine take turns, whoever runs them."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.jobs.worker.benchmark_lock import WAITING, BenchmarkLock, check
from app.settings import SettingsError
from tests.jobs.service import Served


def test_a_benchmark_waits_for_another_one_and_says_so(tmp_path: Path) -> None:
    lock, told = tmp_path / "lock", []
    first = BenchmarkLock(lock, lambda *_: None)
    second = BenchmarkLock(lock, lambda phase, done, total: told.append((phase, done, total)))
    first.progress("benchmark", 0, 1)
    thread = threading.Thread(target=second.progress, args=("benchmark", 0, 1))
    thread.start()
    while not told:
        thread.join(0.01)
    assert told == [(WAITING, 0, 1)]
    assert thread.is_alive()
    first.progress("benchmark", 1, 1)
    thread.join(10)
    assert told == [(WAITING, 0, 1), ("benchmark", 0, 1)]
    second.progress("report", 0, 1)
    first.progress("benchmark", 0, 1)
    first.progress("benchmark", 0, 1)


def test_a_process_that_dies_gives_its_turn_away(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = (
        "import sys, time; from pathlib import Path; from app.jobs.worker.benchmark_lock import BenchmarkLock;"
        "BenchmarkLock(Path(sys.argv[1]), print).progress('benchmark', 0, 1); print(flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.wait()
    process.stdout.close()
    told: list[str] = []
    BenchmarkLock(lock, lambda phase, *_: told.append(phase)).progress("benchmark", 0, 1)
    assert told == ["benchmark"]


def test_a_lock_that_cannot_be_opened_is_a_wrong_setting(tmp_path: Path) -> None:
    check(tmp_path / "new" / "lock")
    assert (tmp_path / "new" / "lock").stat().st_mode & 0o777 == 0o666
    (tmp_path / "link").symlink_to(tmp_path / "other")
    with pytest.raises(SettingsError, match="BENCHMARK_LOCK"):
        check(tmp_path / "link")
    assert not os.path.lexists(tmp_path / "other")


def test_jobs_of_two_workers_are_measured_one_after_the_other(service: Served) -> None:
    jobs = [service.submit(f"benchmark 1 turn {n}") for n in range(2)]
    ended = [service.end(job) for job in jobs]
    assert [job["state"] for job in ended] == ["succeeded", "succeeded"]
    spans = sorted(
        json.loads(service.http.get(f"/v1/jobs/{job}/artifacts/timings.json").text) for job in jobs
    )
    assert spans[1][0] >= spans[0][1]
    phases = [service.http.get(f"/v1/jobs/{job}/events").text for job in jobs]
    assert sum(WAITING in text for text in phases) == 1


def test_waiting_for_a_turn_is_no_part_of_a_jobs_time(service: Served) -> None:
    first = service.submit("benchmark 3 long")
    service.wait_for_phase(first, "benchmark")
    second = service.submit("benchmark 0.1 short", limits={"seconds": 2.0})
    assert service.end(second)["state"] == "succeeded"
    assert service.end(first)["state"] == "succeeded"
