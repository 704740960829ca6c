"""A process that parses uploads sees its model and nothing else: no password, no network, no other job."""

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from app.jobs.worker import confinement
from tests.jobs.service import Served, serve

PASSWORD = "correct-horse-battery"
REFUSED = {"PermissionError", "FileNotFoundError"}
landlock = pytest.mark.skipif(not confinement.has_landlock(), reason="the kernel has no Landlock")
seccomp = pytest.mark.skipif(not confinement.seccompy.supported(), reason="the kernel has no seccomp")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOWPLAN_DATABASE_URL", f"postgresql://stowplan:{PASSWORD}@nowhere/stowplan")
        patch.setenv("PGPASSWORD", PASSWORD)
        patch.setenv("AWS_SECRET_ACCESS_KEY", PASSWORD)
        with serve(tmp_path_factory.mktemp("confined"), workers=1) as served:
            yield served


@pytest.fixture(scope="module")
def seen(service: Served) -> dict[str, Any]:
    """What a job found that looked around, beside the folder of another job."""
    other = service.settings.data / "work" / "other-job"
    other.mkdir(parents=True)
    (other / "log.txt").write_text(PASSWORD)
    job = service.submit(f"spy {other / 'log.txt'}")
    assert service.end(job)["state"] == "succeeded", service.end(job)
    return dict(service.http.get(f"/v1/jobs/{job}/artifacts/trace.json").json())


def test_a_job_does_not_see_the_passwords_of_the_service(service: Served, seen: dict[str, Any]) -> None:
    assert PASSWORD not in json.dumps(seen)
    assert (
        seen["environment of the forkserver"] in ("", *REFUSED)
        or "PATH=" in seen["environment of the forkserver"]
    )


@seccomp
@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK"])
def test_a_job_opens_no_socket(seen: dict[str, Any], family: str) -> None:
    assert seen[f"socket {family}"] == "PermissionError"


@seccomp
def test_a_job_has_no_privileges_and_gets_none(seen: dict[str, Any]) -> None:
    reading = 1 << 2  # CAP_DAC_READ_SEARCH, which the limits on files bound
    assert int(seen["CapEff"], 16) in ((0, reading) if os.getuid() == 0 else (0,))
    assert (seen["NoNewPrivs"], seen["Seccomp"]) == ("1", "2")
    assert {seen["namespace"], seen["trace"]} == {"PermissionError"}


def test_a_job_is_no_root(seen: dict[str, Any]) -> None:
    assert (seen["uid"] != 0) == (confinement.unprivileged_user()[0] is not None)


@landlock
def test_a_job_reads_and_writes_no_file_of_another_one(seen: dict[str, Any]) -> None:
    looks = ("secret", "neighbors", "passwords", "writing", "writing to the code")
    assert {name: seen[name] for name in looks if seen[name] not in REFUSED} == {}
    assert seen["own folder"] == 1
    assert seen["home"], "libraries that read the user's folder find it readable"


@landlock
def test_a_job_cannot_end_the_process_that_forks_the_others(seen: dict[str, Any]) -> None:
    assert seen["killing"] == "PermissionError"


def test_the_start_says_which_measures_hold(service: Served, seen: dict[str, Any]) -> None:
    line = next(line for line in service.log().splitlines() if "jobs are confined" in line)
    for name in ("environment", "network", "user", "capabilities", "files", "system calls"):
        assert f"{name} on (" in line or f"{name} OFF (" in line


def test_the_queue_holds_json_and_no_pickles(service: Served, seen: dict[str, Any]) -> None:
    with closing(sqlite3.connect(service.settings.data / "queue.db")) as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type='table'")]
        values = [v for name in tables for row in connection.execute(f'select * from "{name}"') for v in row]
    texts = [value for value in values if isinstance(value, str)]
    assert "portable_json" in texts
    assert "py_pickle" not in texts
    assert not [text for text in texts if text.startswith("gAS")]  # a pickle in base 64


def test_a_measure_that_the_kernel_refuses_is_off_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    confinement.has_landlock.cache_clear()
    monkeypatch.setattr(confinement.landlockpy, "Ruleset", refuse)
    monkeypatch.setattr(confinement.seccompy.Filter, "load", refuse)
    try:
        files = confinement._tried("files", confinement._landlock_version)
        calls = confinement._tried("system calls", confinement._seccomp_support)
        assert str(files).startswith("files OFF (the kernel has no Landlock")
        assert str(calls) == "system calls OFF (the kernel takes no seccomp filters)"
        assert str(confinement._tried("network", refuse)) == "network OFF (Operation not permitted)"
        confinement.restrict_files((files, calls), (), (), Path("/"), ())  # does nothing
        confinement.restrict_calls((files, calls))
        if os.getuid() == 0:
            user, reason = confinement.unprivileged_user()
            assert user is None
            assert "Landlock" in reason
    finally:
        confinement.has_landlock.cache_clear()


def test_the_data_folder_inside_of_a_library_folder_is_left_out(tmp_path: Path) -> None:
    private = tmp_path / "repository" / "data"
    for name in ("repository/data/blobs", "repository/app", "repository/docs"):
        (tmp_path / name).mkdir(parents=True)
    parts = set(confinement._without(tmp_path, private))
    assert parts == {tmp_path / "repository/app", tmp_path / "repository/docs"}


def test_a_deployed_model_is_confined_as_jobs_are(service: Served) -> None:
    job = service.submit("ok", input_shapes={"x": [1, 3]})
    assert service.end(job)["state"] == "succeeded"
    assert service.http.post(f"/v1/jobs/{job}/deploy", json={"name": "confined"}).status_code == 201
    deadline = time.monotonic() + 60
    while "confined:1 is confined" not in service.log() and time.monotonic() < deadline:
        time.sleep(0.1)
    line = next(line for line in service.log().splitlines() if "confined:1 is confined" in line)
    assert "environment on (" in line
    deadline = time.monotonic() + 60
    rows = service.http.get("/v1/deployments").json()["deployments"]
    while rows[0]["state"] != "ready" and time.monotonic() < deadline:
        time.sleep(0.1)
        rows = service.http.get("/v1/deployments").json()["deployments"]
    assert rows[0]["state"] == "ready", rows
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        status = dict(
            line.split(":", 1) for line in _read(path.with_name("status")).splitlines() if ":" in line
        )
        if status.get("PPid", "").strip() == str(service.process.pid):
            environment = _read(path.with_name("environ"))
            assert (PASSWORD in environment) == (status["Seccomp"].strip() == "0"), path


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@pytest.mark.skipif(os.getuid() != 0, reason="only root hands folders over")
def test_a_folder_of_kernels_behind_a_link_is_handed_over_itself(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "kernels").symlink_to(tmp_path / "elsewhere")
    confinement.hand_over(tmp_path / "kernels")
    user, _ = confinement.unprivileged_user()
    assert (tmp_path / "elsewhere").stat().st_uid == (user or 0)
