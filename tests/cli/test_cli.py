"""The command line starts the service, tells where it is, and stops cleanly."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import onnx
import pytest

from app.cli.main import COMMANDS, main
from app.jobs.worker.worker import queues_of
from tests.jobs.service import ROOT, free_port


def test_no_command_and_an_unknown_one_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["dance"]):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
    assert "serve" in capsys.readouterr().err


def test_every_command_has_a_summary() -> None:
    assert len({c.name for c in COMMANDS}) == len(COMMANDS)
    assert all(c.summary.endswith(".") for c in COMMANDS)


def test_a_setting_that_cannot_be_used_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOWPLAN_PORT", "high")
    assert main(["serve"]) == 2
    assert "STOWPLAN_PORT" in capsys.readouterr().err


def test_a_port_that_is_taken_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("STOWPLAN_PORT", str(port))
        assert main(["serve"]) == 2
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


def test_serve_prints_its_address_and_stops_at_ctrl_c(tmp_path: Path) -> None:
    port = free_port()
    # The environment is how a user configures it, so the test does too.
    environment = os.environ | {  # noqa: TID251
        "STOWPLAN_DATA": str(tmp_path / "data"),
        "STOWPLAN_PORT": str(port),
        "STOWPLAN_WORKERS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "app.cli.main", "serve"],
            cwd=ROOT,
            env=environment,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                assert httpx.get(f"http://127.0.0.1:{port}/healthz").json() == {"status": "ok"}
                if "optimize" in log.read_text():
                    break
            except httpx.TransportError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
        assert process.wait(20) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = log.read_text()
    assert f"http://127.0.0.1:{port}" in text
    assert re.search(r"stowplan optimize --sample squeezenet --target host", text)
    assert "Traceback" not in text
    assert (tmp_path / "data" / "stowplan.db").exists()


MODEL = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[4, 8] x) => (float[4, 8] y) { y = Neg (x) }"""


def test_warm_fills_the_cache_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOWPLAN_DATA", str(tmp_path))
    model = tmp_path / "tiny.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), model)
    for expected in ("2 kernels compiled", "0 kernels compiled"):
        assert main(["warm", str(model)]) == 0
        assert expected in capsys.readouterr().out
    assert list((tmp_path / "kernels").glob("*/objects/stowplan_kernel_*.o"))


def test_warm_refuses_what_is_no_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOWPLAN_DATA", str(tmp_path))
    assert main(["warm", "no-such-sample"]) == 2
    assert "squeezenet" in capsys.readouterr().out
    (tmp_path / "text.onnx").write_text("this is no model")
    assert main(["warm", str(tmp_path / "text.onnx")]) == 1
    assert "text.onnx" in capsys.readouterr().out


def test_keys_are_made_listed_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOWPLAN_DATA", str(tmp_path))
    monkeypatch.setenv("STOWPLAN_HOST", "0.0.0.0")
    monkeypatch.setenv("STOWPLAN_PORT", str(free_port()))
    assert main(["serve"]) == 2
    assert "stowplan keys create" in capsys.readouterr().err
    assert main(["keys", "create", "--name", "ci", "--scope", "admin", "--owner", "team"]) == 0
    text = capsys.readouterr().out.strip()
    assert re.fullmatch(r"sp_[0-9a-f]{16}_[\w-]{43}", text)
    assert main(["keys", "list"]) == 0
    listed = capsys.readouterr().out
    identifier = text.split("_")[1]
    assert identifier in listed
    assert "team" in listed
    assert text.split("_", 2)[2] not in listed
    assert main(["keys", "revoke", identifier]) == 0
    assert main(["keys", "revoke", identifier]) == 1
    assert main(["keys", "create", "--name", "a b"]) == 1
    assert main(["serve"]) == 2, "a revoked key opens nothing"


def test_a_worker_serves_only_what_its_machine_can(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STOWPLAN_DATA", str(tmp_path))
    assert main(["worker", "--queues", "cpu,target:0123456789abcdef"]) == 2
    assert "target:0123456789abcdef" in capsys.readouterr().err
    own = queues_of("cpu, target")
    assert own[0] == "cpu"
    assert queues_of(",".join(own)) == own
