"""More requests than a model can answer: the others are refused at once, nothing grows, and it goes on."""

import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

from benchmarks import http_load
from tests.jobs import fake_engine
from tests.jobs.service import Served, serve
from tests.serving.deployed import deploy

ROWS, WAITING = 20_000, 4  # 240 kB, more than is read of a body before it is refused
MOST_GROWTH = 16 << 20  # byte; what was sent is many times that


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("overload"), workers=1, max_infer_waiting=WAITING) as served:
        yield served


def test_requests_beyond_the_bound_are_refused_and_the_model_is_served_on(service: Served) -> None:
    deploy(service, "slow", f"slow first-{ROWS}")
    x = np.ones((ROWS, 3), np.float32)
    quick = http_load.request_of("slow", {"x": x})
    x[0, 0] = fake_engine.SLEEP  # 0.2 s
    slow = http_load.request_of("slow", {"x": x}, seconds=10.0)
    address = "127.0.0.1", service.settings.port
    first = http_load.offer(address, quick, 20.0, 0.5, 1).outcomes
    assert {o.status for o in first} == {200}, "its program is there"
    processes = psutil.Process(service.process.pid).children(recursive=True)
    before = sum(p.memory_info().rss for p in processes)

    outcomes = http_load.offer(address, slow, 100.0, 4.0, 64).outcomes
    statuses = Counter(o.status for o in outcomes)
    assert set(statuses) == {200, 503}, statuses
    assert statuses[503] > statuses[200] > WAITING
    assert all(int(o.retry_after or 0) >= 1 for o in outcomes if o.status == 503)
    assert max(o.seconds for o in outcomes if o.status == 200) < 10.0
    assert sum(p.memory_info().rss for p in processes if p.is_running()) - before < MOST_GROWTH

    last = http_load.offer(address, quick, 20.0, 0.5, 1).outcomes
    assert {o.status for o in last} == {200}


def test_connections_that_always_have_a_request_are_served_in_turn(service: Served) -> None:
    deploy(service, "quick", "quick first-1")
    request = http_load.request_of("quick", {"x": np.ones((1, 3), np.float32)}, seconds=10.0)
    connections = 16 * WAITING
    outcomes = http_load.offer(
        ("127.0.0.1", service.settings.port), request, 20_000.0, 3.0, connections
    ).outcomes
    statuses = Counter(o.status for o in outcomes)
    assert set(statuses) <= {200, 503}, statuses
    # The first requests come at once; of those that follow few find too many before them.
    assert statuses[503] < connections + statuses[200] // 4, statuses
    assert max(o.seconds for o in outcomes if o.status == 200) < 10.0


def test_a_connection_whose_turn_does_not_come_is_read_after_a_while(service: Served) -> None:
    deploy(service, "stuck", "slow first-2")
    x = np.full((2, 3), fake_engine.SLEEP, np.float32)
    slow = http_load.request_of("stuck", {"x": x}, seconds=20.0)
    address = "127.0.0.1", service.settings.port
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(http_load.offer, address, slow, 100.0, 4.0, 32)
        time.sleep(1.0)
        with socket.create_connection(address, timeout=20) as line:
            line.sendall(slow)
            assert line.recv(1 << 16)
            began = time.monotonic()
            line.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
            answered = b""  # after what is left of the answer before
            while b"HTTP/1.1 200" not in answered:
                more = line.recv(1 << 16)
                assert more
                answered += more
            seconds = time.monotonic() - began
        assert busy.result().outcomes
    # 31 connections were before it, of which the model takes five each second.
    assert 0.5 < seconds < 4.0, "it lay unread for about a second"
