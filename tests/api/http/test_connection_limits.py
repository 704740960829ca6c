"""Clients that connect and then send nothing, stop halfway, or leave: they hold nobody else up."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from app.client import Client
from tests.jobs.service import Served, serve

HALF_OPEN, STALLED, MOST = 300, 20, 200
UPLOAD = b"POST /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100000\r\n\r\n" + b"x" * 1000


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service that waits for nobody longer than a second or two."""
    limits = {"head_seconds": 1.0, "silence_seconds": 2.0, "max_connections": MOST}
    logs = {"log_level": "info", "log_format": "json"}
    folder = tmp_path_factory.mktemp("hasty")
    with serve(folder, workers=1, **limits, **logs) as service:
        yield service


@contextlib.contextmanager
def connections(service: Served, count: int, text: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections, each of which has sent a text."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            address = ("127.0.0.1", service.settings.port)
            one = stack.enter_context(socket.create_connection(address, timeout=30))
            if text:
                one.sendall(text)
            opened.append(one)
        yield opened


def all_closed(opened: Sequence[socket.socket]) -> list[bytes]:
    """What each connection was sent before the service closed it."""
    found = []
    for one in opened:
        text = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := one.recv(1 << 16):
                text += piece
        found.append(text)
    return found


def lines(service: Served, since: int = 0) -> list[dict[str, Any]]:
    return [json.loads(line) for line in service.log()[since:].splitlines() if line.startswith("{")]


@pytest.mark.parametrize(
    "text", [b"", b"GET /healthz HTTP/1.1\r\nhost: 127.0"], ids=["silent", "half a head"]
)
def test_half_open_connections_are_closed_and_stop_nobody(hasty: Served, text: bytes) -> None:
    with connections(hasty, HALF_OPEN, text) as opened:
        assert httpx.get(f"{hasty.http.base_url}/healthz", timeout=10).status_code == 200
        assert set(all_closed(opened)) == {b""}


def test_an_upload_that_stalls_is_given_up_and_stops_nobody(hasty: Served) -> None:
    with connections(hasty, STALLED, UPLOAD) as opened:
        assert httpx.get(f"{hasty.http.base_url}/healthz", timeout=10).status_code == 200
        for answer in all_closed(opened):
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b'"code":"body-too-late"' in answer


def test_an_upload_that_is_slow_but_comes_is_taken(hasty: Served) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(4):
            yield b"slow "
            time.sleep(1.0)

    assert hasty.http.post("/v1/models", content=pieces()).status_code == 201


def test_a_client_that_takes_no_answer_is_let_go(hasty: Served) -> None:
    before = len(hasty.log())
    ask = b"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with connections(hasty, 1) as (one,):
        with contextlib.suppress(OSError):
            one.sendall(ask * 1000)
        deadline = time.monotonic() + 30
        while "took nothing of an answer" not in hasty.log()[before:] and time.monotonic() < deadline:
            time.sleep(0.2)
    assert "took nothing of an answer" in hasty.log()[before:]


def test_a_kept_connection_may_rest_between_requests_and_a_long_answer_take_its_time(hasty: Served) -> None:
    with httpx.Client(base_url=hasty.http.base_url, timeout=30) as client:
        job = hasty.submit("sleep 3")
        assert client.get(f"/v1/jobs/{job}", params={"wait": 20}).json()["state"] == "succeeded"
        time.sleep(2.0)  # longer than a head may take
        assert client.get("/healthz").status_code == 200


def api_of(service: Served) -> psutil.Process:
    (api,) = (
        p
        for p in psutil.Process(service.process.pid).children()
        if any(c.laddr.port == service.settings.port for c in p.net_connections("tcp"))
    )
    return api


def test_the_api_may_have_as_many_files_open_as_the_system_allows(hasty: Served) -> None:
    soft, hard = api_of(hasty).rlimit(psutil.RLIMIT_NOFILE)
    assert soft == hard


def test_connections_wait_in_the_kernel_while_the_api_is_busy(hasty: Served) -> None:
    api = api_of(hasty)
    api.suspend()
    try:
        with connections(hasty, MOST - 50) as opened:  # none of them is accepted yet
            api.resume()
            opened[-1].sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            assert opened[-1].recv(1 << 10).startswith(b"HTTP/1.1 200 ")
    finally:
        api.resume()


def test_a_client_that_goes_away_leaves_one_line_and_no_traceback(hasty: Served) -> None:
    before = len(hasty.log())
    with connections(hasty, 1, UPLOAD):
        time.sleep(0.3)
    deadline = time.monotonic() + 20
    found: list[dict[str, Any]] = []
    while not found and time.monotonic() < deadline:
        time.sleep(0.1)
        found = [row for row in lines(hasty, before) if row["message"] == "POST /v1/models"]
    time.sleep(0.3)
    told = lines(hasty, before)
    assert [(row["level"], row["status"]) for row in found] == [("info", 499)]
    assert not [row for row in told if "exception" in row or row["level"] == "error"], told
    assert "Traceback" not in hasty.log()[before:]


def test_a_file_that_is_missing_is_never_posted(hasty: Served, tmp_path: Path) -> None:
    before = len(hasty.log())
    with Client(str(hasty.http.base_url)) as client, pytest.raises(FileNotFoundError):
        client.upload(tmp_path / "missing.onnx")
    hasty.http.get("/v1/targets")
    messages = [row["message"] for row in lines(hasty, before)]
    assert "POST /v1/models" not in messages
