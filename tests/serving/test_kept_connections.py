"""Inferences on a kept connection: answers, limits, keys and counts of each request."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from app.jobs.store import keys
from app.jobs.store.database import Database
from tests.jobs.service import Served, serve
from tests.serving.deployed import deploy

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("kept"), workers=1, infer_seconds=3.0) as service:
        deploy(service, "one")
        yield service


class Line:
    """One kept connection, on which bytes are sent as they are given."""

    def __init__(self, service: Served) -> None:
        self.socket = socket.create_connection(("127.0.0.1", service.settings.port), timeout=20)
        self._rest = b""

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer."""
        while b"\r\n\r\n" not in self._rest:
            self._receive()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        nbytes = int(headers["content-length"])
        while len(self._rest) < nbytes:
            self._receive()
        body, self._rest = self._rest[:nbytes], self._rest[nbytes:]
        return int(status.split()[1]), headers, body

    def _receive(self) -> None:
        piece = self.socket.recv(1 << 16)
        assert piece, "the server closed the connection"
        self._rest += piece


def request(values: Array, more: str = "", name: str = "one") -> bytes:
    size = {"binary_data_size": values.nbytes}
    tensor = {"name": "x", "shape": values.shape, "datatype": "FP32", "parameters": size}
    told = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    header = json.dumps(told).encode()
    head = (
        f"POST /v2/models/{name}/infer HTTP/1.1\r\nhost: localhost\r\n"
        f"content-length: {len(header) + values.nbytes}\r\n"
        f"inference-header-content-length: {len(header)}\r\n{more}\r\n"
    )
    return head.encode() + header + values.tobytes()


def doubled(answer: tuple[int, dict[str, str], bytes], values: Array) -> None:
    """The answer is that of the model, which doubles its input."""
    status, headers, body = answer
    assert status == 200, body
    end = int(headers["inference-header-content-length"])
    (y, _) = json.loads(body[:end])["outputs"]
    assert (y["name"], y["shape"]) == ("y", list(values.shape))
    found = np.frombuffer(body[end : end + values.nbytes], np.float32).reshape(values.shape)
    np.testing.assert_array_equal(found, values * 2)


def numbers(rows: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, 3)).astype(np.float32)


def waiting(service: Served) -> float:
    lines = service.http.get("/metrics").text.splitlines()
    (line,) = (line for line in lines if line.startswith("stowplan_inferences_waiting{"))
    return float(line.rpartition(" ")[2])


@pytest.mark.parametrize("rows", [1, 80_000])
def test_equal_heads_are_answered_for_the_numbers_that_follow_them(served: Served, rows: int) -> None:
    with Line(served) as line:
        answers = []
        for seed in range(8):
            line.socket.sendall(request(numbers(rows, seed)))
            answers.append(line.answer())
            doubled(answers[-1], numbers(rows, seed))
    first, *others = (
        {k: v for k, v in h.items() if k not in ("date", "x-request-id")} for _, h, _ in answers
    )
    assert all(other == first for other in others)
    assert len({headers["x-request-id"] for _, headers, _ in answers}) == len(answers)


def test_requests_may_be_sent_ahead(served: Served) -> None:
    with Line(served) as line:
        line.socket.sendall(request(numbers(2, 0)))
        doubled(line.answer(), numbers(2, 0))
        other = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
        line.socket.sendall(request(numbers(2, 1)) + request(numbers(2, 2)) + other + request(numbers(2, 3)))
        doubled(line.answer(), numbers(2, 1))
        doubled(line.answer(), numbers(2, 2))
        assert json.loads(line.answer()[2]) == {"live": True}
        doubled(line.answer(), numbers(2, 3))


def test_a_head_and_its_body_may_come_in_pieces(served: Served) -> None:
    with Line(served) as line:
        for seed, size in enumerate((1000, 7, 100, 180)):
            text = request(numbers(3, seed))
            for begin in range(0, len(text), size):
                line.socket.sendall(text[begin : begin + size])
                time.sleep(0.005)
            doubled(line.answer(), numbers(3, seed))


def test_who_leaves_in_the_middle_of_a_body_holds_nothing(served: Served) -> None:
    text = request(numbers(4, 0))
    with Line(served) as line:
        line.socket.sendall(text)
        doubled(line.answer(), numbers(4, 0))
    for _ in range(40):  # more than may wait at once
        with Line(served) as line:
            line.socket.sendall(text[:-5])
    deadline = time.monotonic() + 10
    while waiting(served) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert waiting(served) == 0
    with Line(served) as line:
        line.socket.sendall(text)
        doubled(line.answer(), numbers(4, 0))


def test_a_body_that_does_not_come_is_not_waited_for_without_end(served: Served) -> None:
    text = request(numbers(5, 0))
    with Line(served) as line:
        line.socket.sendall(text)
        doubled(line.answer(), numbers(5, 0))
        line.socket.sendall(text[:-1])
        status, headers, body = line.answer()
        assert (status, headers["connection"]) == (408, "close")
        assert "did not come in time" in json.loads(body)["error"]
        assert line.socket.recv(1) == b""


def test_a_connection_that_shall_close_does(served: Served) -> None:
    with Line(served) as line:
        line.socket.sendall(request(numbers(1, 0)))
        doubled(line.answer(), numbers(1, 0))
        line.socket.sendall(request(numbers(1, 1), "connection: close\r\n"))
        doubled(line.answer(), numbers(1, 1))
        assert line.socket.recv(1) == b""


def test_a_deleted_model_is_not_found(served: Served) -> None:
    deploy(served, "gone")
    text = request(numbers(1, 0), name="gone")
    with Line(served) as line:
        for _ in range(3):
            line.socket.sendall(text)
            doubled(line.answer(), numbers(1, 0))
        assert served.http.delete("/v1/deployments/gone").status_code == 204
        line.socket.sendall(text)
        assert line.answer()[0] == 404


def test_every_answer_is_counted(served: Served) -> None:
    def counted() -> int:
        lines = served.http.get("/metrics").text.splitlines()
        wanted = 'stowplan_inferences_total{model="one",status="200",version="1"}'
        return sum(round(float(line.rpartition(" ")[2])) for line in lines if line.startswith(wanted))

    before = counted()
    with Line(served) as line:
        for seed in range(20):
            line.socket.sendall(request(numbers(1, seed)))
            line.answer()
    assert counted() == before + 20


def test_a_key_that_was_revoked_is_good_for_a_second(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serve(tmp_path_factory.mktemp("keys"), workers=1) as service:
        deploy(service, "one")
        database = Database(service.settings.jobs_database_url)
        with database.write() as connection:
            made, secret = keys.create(connection, "caller", "admin")
        text = request(numbers(1, 0), f"authorization: Bearer {secret}\r\n")
        with Line(service) as line:
            for _ in range(3):
                line.socket.sendall(text)
                doubled(line.answer(), numbers(1, 0))
            with database.write() as connection:
                keys.revoke(connection, made)
            revoked = time.monotonic()
            while time.monotonic() < revoked + 10:
                line.socket.sendall(text)
                if line.answer()[0] == 401:
                    break
            assert 0 < time.monotonic() - revoked < 5
            line.socket.sendall(text)
            assert line.answer()[0] == 401
        database.close()
