"""The HTTP server's connections, and the two ends of an executor's."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from app.api.http.connection_limits import ConnectionLimiter, ConnectionLimits
from app.serving import channel
from tests.jobs.service import free_port


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server that counts bodies, and tells their last bytes."""
    app = FastAPI()

    @app.post("/count")
    async def count(request: Request) -> JSONResponse:
        body = await request.body()
        return JSONResponse({"bytes": len(body), "last": body[-3:].decode()})

    @app.post("/refuse")
    async def refuse() -> JSONResponse:
        return JSONResponse({"refused": True}, 503)

    number = free_port()
    limiter = ConnectionLimiter(ConnectionLimits(connections=40, head_seconds=10.0, silence_seconds=10.0))
    config = uvicorn.Config(app, port=number, log_level="error", http=limiter.protocol(), ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield number
    server.should_exit = True
    thread.join(10)


@contextlib.contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        yield connection


def head(nbytes: int, more: str = "", path: str = "/count") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {nbytes}\r\n{more}\r\n".encode()


def answer(connection: socket.socket) -> dict[str, Any]:
    """The body of the next answer."""
    text = b""
    while b"\r\n\r\n" not in text:
        piece = connection.recv(1)
        assert piece, text
        text += piece
    length = next(line for line in text.lower().split(b"\r\n") if line.startswith(b"content-length"))
    left = int(length.partition(b":")[2])
    body = b""
    while len(body) < left:
        body += connection.recv(left - len(body))
    return dict(json.loads(body))


@pytest.mark.parametrize("nbytes", [0, 3, 70_000, 3_000_000])
def test_bodies_of_any_size_arrive_whole_one_after_another(port: int, nbytes: int) -> None:
    with connected(port) as connection:
        for end in (b"one", b"two"):
            body = (b"x" * nbytes + end)[-nbytes:] if nbytes else b""
            connection.sendall(head(nbytes) + body)
            assert answer(connection) == {"bytes": nbytes, "last": body[-3:].decode()}


def test_a_body_may_come_late_and_in_pieces(port: int) -> None:
    with connected(port) as connection:
        connection.sendall(head(6, "expect: 100-continue\r\n"))
        assert connection.recv(100).startswith(b"HTTP/1.1 100 Continue")
        for piece in (b"ab", b"cd", b"ef"):
            time.sleep(0.05)
            connection.sendall(piece)
        assert answer(connection) == {"bytes": 6, "last": "def"}


def test_requests_may_be_sent_ahead(port: int) -> None:
    with connected(port) as connection:
        connection.sendall(head(3) + b"one" + head(5) + b"twoab" + head(100_000)[:20])
        connection.sendall(head(100_000)[20:] + b"y" * 100_000)
        assert [answer(connection)["last"] for _ in range(3)] == ["one", "oab", "yyy"]


def test_a_refused_request_is_answered_before_its_body_and_the_connection_stays(port: int) -> None:
    with connected(port) as connection:
        for _ in range(2):
            connection.sendall(head(3_000_000, path="/refuse") + b"x" * 1_000_000)
            assert answer(connection) == {"refused": True}
            connection.sendall(b"x" * 2_000_000)
        connection.sendall(head(3) + b"abc")
        assert answer(connection)["last"] == "abc"


def test_refused_bodies_that_do_not_come_hold_nobody_up(port: int) -> None:
    with contextlib.ExitStack() as stack:
        refused = [stack.enter_context(connected(port)) for _ in range(24)]
        for connection in refused:
            connection.sendall(head(2_000_000, path="/refuse") + b"x" * 100_000)
            assert answer(connection) == {"refused": True}
        with connected(port) as connection:
            connection.sendall(head(1_000_000) + b"y" * 1_000_000)
            assert answer(connection)["bytes"] == 1_000_000
        # The last ones end first: those before them do not come, and make way.
        for connection in reversed(refused):
            connection.sendall(b"x" * 1_900_000 + head(3) + b"abc")
            assert answer(connection)["last"] == "abc"


def test_requests_sent_ahead_of_a_refusal_are_answered(port: int) -> None:
    with connected(port) as connection:
        connection.sendall(head(3, path="/refuse") + b"abc" + head(200_000) + b"z" * 100)
        assert answer(connection) == {"refused": True}
        connection.sendall(b"z" * 199_900)
        assert answer(connection)["bytes"] == 200_000


def test_a_head_has_bounds(port: int) -> None:
    with connected(port) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n")
        for number in range(64_000):  # the buffers of both sockets alone may take several megabytes
            connection.sendall(f"x-{number}: {'y' * 1000}\r\n".encode())
        raise AssertionError("the server took 64 MB of headers")


def test_a_client_that_leaves_ends_its_request_only(port: int) -> None:
    with connected(port) as connection:
        connection.sendall(head(1000) + b"x" * 100)
        time.sleep(0.1)
    with connected(port) as connection:
        connection.sendall(head(3) + b"abc")
        assert answer(connection)["last"] == "abc"


def test_a_socket_in_a_deep_folder_is_reached_by_this_user_only(tmp_path: Path) -> None:
    path = channel.socket_path(tmp_path / ("deep" * 30), "0" * 32)
    with channel.listen(path) as listener, channel.connect(path) as caller:
        accepted, _ = listener.accept()
        accepted.send(b"hello")
        assert caller.recv(10) == b"hello"
        accepted.close()
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(ConnectionRefusedError):
        channel.connect(path)
