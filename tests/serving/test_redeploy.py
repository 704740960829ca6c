"""A deployed name stays up while its versions come, go and fail."""

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.jobs import fake_engine
from tests.jobs.service import Served, serve
from tests.serving.deployed import deploy, undeploy, wait_until

CLIENTS = 16


@pytest.fixture(scope="module", autouse=True)
def _undeployed(service: Served) -> Iterator[None]:
    yield
    undeploy(service)


def body(first: float = 1.0) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [first, 2, 3]}]}


def start(service: Served, name: str, text: str) -> str:
    """Deploy the next version without waiting for it."""
    job = service.submit(text, input_shapes={"x": [1, 3]})
    assert service.end(job)["state"] == "succeeded"
    answer = service.http.post(f"/v1/jobs/{job}/deploy", json={"name": name})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["version"])


@contextmanager
def clients(service: Served, name: str) -> Iterator[Counter[tuple[int, str]]]:
    """Clients that ask for a name without a version, until the context ends: answers by status and version."""
    answers: Counter[tuple[int, str]] = Counter()
    stop = threading.Event()

    def ask() -> Counter[tuple[int, str]]:
        found: Counter[tuple[int, str]] = Counter()
        with httpx.Client(base_url=service.http.base_url, timeout=30) as http:
            while not stop.is_set():
                answer = http.post(f"/v2/models/{name}/infer", json=body())
                found[answer.status_code, str(answer.json().get("model_version", answer.text))] += 1
        return found

    with ThreadPoolExecutor(CLIENTS) as pool:
        running = [pool.submit(ask) for _ in range(CLIENTS)]
        try:
            yield answers
        finally:
            stop.set()
        for each in running:
            answers.update(each.result())


def test_no_request_fails_while_versions_come_and_go(service: Served) -> None:
    deploy(service, "steady")
    with clients(service, "steady") as answers:
        assert start(service, "steady", "load-sleep 2") == "2"
        wait_until(service, "steady", "2")
        time.sleep(0.5)
        gone = service.http.delete("/v1/deployments/steady", params={"version": 2})
        assert gone.status_code == 204
        time.sleep(1.5)
    assert answers.keys() == {(200, "1"), (200, "2")}, answers


def test_requests_go_to_the_latest_version_that_is_ready(service: Served) -> None:
    deploy(service, "ready")
    start(service, "ready", "load-sleep 3")
    ask = service.http.post("/v2/models/ready/infer", json=body())
    assert (ask.status_code, ask.json()["model_version"]) == (200, "1")
    assert service.http.get("/v2/models/ready").json()["versions"] == ["1", "2"]
    assert service.http.get("/v2/models/ready/ready").status_code == 200
    assert service.http.get("/v2/health/ready").status_code == 200, "the name is up"
    of_version = service.http.post("/v2/models/ready/versions/2/infer", json=body())
    assert of_version.status_code == 503
    wait_until(service, "ready", "2")
    assert service.http.post("/v2/models/ready/infer", json=body()).json()["model_version"] == "2"


def waiting(service: Served, name: str) -> int:
    """Requests of a model that have come and are not answered."""
    text = service.http.get("/metrics").text
    (line,) = re.findall(rf'stowplan_inferences_waiting{{model="{name}",version="1"}} (\d+)', text)
    return int(line)


def test_requests_that_a_deleted_version_has_are_answered(service: Served) -> None:
    deploy(service, "drained")
    with ThreadPoolExecutor(CLIENTS) as pool:
        slow = body(fake_engine.SLEEP)
        url = f"{service.http.base_url}/v2/models/drained/infer"
        asked = [pool.submit(httpx.post, url, json=slow, timeout=30) for _ in range(CLIENTS)]
        deadline = time.monotonic() + 20
        while waiting(service, "drained") < 4 and time.monotonic() < deadline:
            pass
        assert service.http.delete("/v1/deployments/drained").status_code == 204
        statuses = Counter(each.result().status_code for each in asked)
    assert statuses.keys() <= {200, 404}, "404 is for those that came later"
    assert statuses[200] >= 3
    assert service.http.post("/v2/models/drained/infer", json=body()).status_code == 404


def test_a_version_that_fails_to_load_takes_no_name_down_not_even_after_a_restart(tmp_path: Path) -> None:
    with serve(tmp_path, workers=1) as service:
        deploy(service, "safe")
        start(service, "safe", "load-fail")
        wait_until(service, "safe", "2", state="failed")
        answer = service.http.post("/v2/models/safe/infer", json=body())
        assert (answer.status_code, answer.json()["model_version"]) == (200, "1")
    with serve(tmp_path, workers=1) as service:
        wait_until(service, "safe", "2", state="failed")
        wait_until(service, "safe", "1")
        answer = service.http.post("/v2/models/safe/infer", json=body())
        assert (answer.status_code, answer.json()["model_version"]) == (200, "1")
        assert service.http.get("/v2/health/ready").status_code == 200
