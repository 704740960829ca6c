"""The command line in processes of its own: signals, pipes, help."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app import settings
from app.cli import main, service
from tests.jobs.service import Served

COMMAND = [sys.executable, "-m", "app.cli.main"]


def test_ctrl_c_leaves_the_job_and_tells_how_to_follow_and_to_cancel_it(
    sqlite_service: Served, tmp_path: Path
) -> None:
    model = tmp_path / "model.onnx"
    model.write_text(f"sleep 600 {tmp_path.name}")
    url = f"http://127.0.0.1:{sqlite_service.settings.port}"
    process = subprocess.Popen(
        [*COMMAND, "optimize", str(model), "--fresh", "--url", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # The background job of a shell ignores SIGINT, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("Job "), first
    job = first.split()[1]
    sqlite_service.wait_for_phase(job, "begin")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    lines = [line for line in errors.splitlines() if line]
    assert len(lines) == 1, errors
    assert f"stowplan jobs wait {job} --url {url}" in lines[0]
    assert f"stowplan jobs cancel {job} --url {url}" in lines[0]
    assert sqlite_service.job(job)["state"] == "running"
    assert subprocess.run([*COMMAND, "jobs", "cancel", job, "--url", url], check=False).returncode == 0
    assert sqlite_service.end(job)["state"] == "cancelled"


def test_a_reader_that_goes_away_is_no_error(sqlite_service: Served) -> None:
    for _ in range(3):
        sqlite_service.submit(f"ok {time.monotonic()}")
    url = f"http://127.0.0.1:{sqlite_service.settings.port}"
    reader, writer = os.pipe()
    os.close(reader)
    command = [*COMMAND, "jobs", "list", "--url", url]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (service.UNREAD, "")


def test_the_address_of_the_service_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import argparse

    monkeypatch.setenv("STOWPLAN_URL", "http://elsewhere:1")
    parser = argparse.ArgumentParser()
    service.add_arguments(parser)
    assert parser.parse_args([]).url == "http://elsewhere:1"
    assert parser.parse_args(["--url", "http://here:2"]).url == "http://here:2"


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("stowplan ")


@pytest.mark.parametrize("command", ["serve", "api", "worker", "executors"])
def test_the_help_of_what_serves_lists_every_setting(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main.main([command, "--help"])
    text = capsys.readouterr().out
    rows = settings.described()
    assert {name for name, _, _ in rows} >= {"STOWPLAN_DATA", "STOWPLAN_WORKERS", "STOWPLAN_OTLP_ENDPOINT"}
    for name, default, meaning in rows:
        assert f"{name}={default}" in text
        assert meaning, name
    for option in ("--data", *(("--host", "--port") if command in ("serve", "api") else ())):
        assert option in text


def test_options_of_serve_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOWPLAN_PORT", "1234")
    monkeypatch.setenv("STOWPLAN_HOST", "::1")
    import argparse

    given = main._settings(argparse.Namespace(port=8123, data=Path("/tmp/x"), host=None))
    assert (given.port, given.host, given.data) == (8123, "::1", Path("/tmp/x"))


def test_ids_of_keys_and_deployments_are_not_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext
    from types import SimpleNamespace

    from app.client import Deployment

    job = "0123456789abcdef" * 2
    row = Deployment("n" * 60, "1", job, "m" * 32, "", 1, "failed", "why " * 40, 0, "/v2/models/n")
    client = SimpleNamespace(deployments=lambda: [row])
    monkeypatch.setattr(service, "Client", lambda *_, **__: nullcontext(client))
    assert main.main(["deployments"]) == 0
    key = dict.fromkeys(("id", "name", "owner", "scope"), "k" * 63) | dict.fromkeys(
        ("created", "used", "revoked")
    )
    main._show_keys([key])
    text = capsys.readouterr().out
    assert job in text
    assert "k" * 63 in text


def test_the_attempts_of_a_failed_plan_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    from types import SimpleNamespace

    from rich.console import Console

    from app.cli import submit

    detail = "memory 'sram' needs 9 byte; tried: as it is: 9 byte; without [fusion]: 10 byte"
    job = SimpleNamespace(state="failed", summary=None, code="out-of-memory", pointer="", detail=detail)
    client = SimpleNamespace()
    assert submit._show(client, job, Path("x"), Console(width=60)) == 1  # type: ignore[arg-type]
    text = capsys.readouterr().out
    assert "memory 'sram' needs 9 byte" in text
    assert "tried:" not in text
    rows = [line for line in text.splitlines() if "byte" in line][1:]
    cells = [[cell.strip() for cell in row.strip("│ ").split("│")] for row in rows]
    assert cells == [["as it is", "9 byte"], ["without [fusion]", "10 byte"]]
