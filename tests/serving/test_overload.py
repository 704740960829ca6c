"""More requests than a model can answer: the others are refused at once, nothing grows, and it goes on."""

from collections import Counter
from collections.abc import Iterator

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
    first, _ = http_load.offer(address, quick, 20.0, 0.5, 1)
    assert {o.status for o in first} == {200}, "its program is there"
    processes = psutil.Process(service.process.pid).children(recursive=True)
    before = sum(p.memory_info().rss for p in processes)

    outcomes, _ = http_load.offer(address, slow, 100.0, 4.0, 64)
    statuses = Counter(o.status for o in outcomes)
    assert set(statuses) == {200, 503}, statuses
    assert statuses[503] > statuses[200] > WAITING
    assert all(int(o.retry_after or 0) >= 1 for o in outcomes if o.status == 503)
    assert max(o.seconds for o in outcomes if o.status == 200) < 10.0
    assert sum(p.memory_info().rss for p in processes if p.is_running()) - before < MOST_GROWTH

    last, _ = http_load.offer(address, quick, 20.0, 0.5, 1)
    assert {o.status for o in last} == {200}
