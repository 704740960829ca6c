"""Deployed models through the inference client of the package index, against a whole service."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from app.cli.main import main
from tests.jobs import fake_engine
from tests.jobs.service import Served, serve
from tests.serving.deployed import client, deploy, process_of, tensor, wait_until

LIMITS = {"infer_seconds": 3.0, "max_infer_waiting": 4, "max_programs": 3, "max_deployments_per_key": 5}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service with two deployed models."""
    with serve(tmp_path_factory.mktemp("serving"), workers=1, max_infer_bytes=1 << 20, **LIMITS) as service:
        deploy(service, "one")
        deploy(service, "other")
        yield service


def infer(service: Served, values: Any, name: str = "one", **how: Any) -> Any:
    """From a connection of its own: the client is not made for threads."""
    with client(service) as here:
        return here.infer(name, [tensor(values)], **how)


def rejection(service: Served, values: Any, name: str = "one") -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as failure:
        infer(service, values, name)
    return failure.value.status(), failure.value.message()


def post(service: Served, name: str = "one", **body: Any) -> httpx.Response:
    row = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    return service.http.post(f"/v2/models/{name}/infer", json={"inputs": [row]} | body)


def test_the_client_finds_server_and_model(served: Served) -> None:
    with client(served) as here:
        assert here.is_server_live()
        assert here.is_server_ready()
        assert here.get_server_metadata()["extensions"] == ["binary_tensor_data"]
        assert here.is_model_ready("one")
        assert here.is_model_ready("one", "1")
        assert not here.is_model_ready("one", "2")
        assert here.get_model_metadata("one", "1") == {
            "name": "one",
            "versions": ["1"],
            "platform": "stowplan_onnx",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
            "outputs": [
                {"name": "y", "datatype": "FP32", "shape": [-1, 3]},
                {"name": "z", "datatype": "INT64", "shape": [1]},
            ],
        }


@pytest.mark.parametrize("given", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("wanted", [True, False], ids=["binary", "json"])
def test_tensors_go_in_and_out_both_ways(served: Served, given: bool, wanted: bool) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    outputs = [triton.InferRequestedOutput(name, binary_data=wanted) for name in ("z", "y")]
    with client(served) as here:
        found = here.infer("one", [tensor(values, binary=given)], outputs=outputs, request_id="7")
    np.testing.assert_array_equal(found.as_numpy("y"), values * 2)
    np.testing.assert_array_equal(found.as_numpy("z"), [2])
    assert found.get_response()["id"] == "7"
    assert ("data" in found.get_output("y")) != wanted


def test_large_bodies_and_answers_pass_whole(served: Served) -> None:
    values = np.random.default_rng(0).standard_normal((80_000, 3)).astype(np.float32)
    with client(served) as here:
        for _ in range(3):
            np.testing.assert_array_equal(here.infer("one", [tensor(values)]).as_numpy("y"), values * 2)
        text = [triton.InferRequestedOutput("y", binary_data=False)]  # longer than the request
        found = here.infer("one", [tensor(values)], outputs=text).as_numpy("y")
        np.testing.assert_array_equal(found, values * 2)


def test_broken_bodies_are_refused_and_end_nothing(served: Served) -> None:
    chance, before = random.Random(0), process_of(served, "one")
    row = {"name": "x", "shape": [2, 3], "datatype": "FP32", "parameters": {"binary_data_size": 24}}
    header = json.dumps({"inputs": [row]}).encode()
    for _ in range(300):
        body = bytearray(header + np.ones(6, np.float32).tobytes())
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(body))
            body[place : place + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        length = len(header) + chance.choice((0, 0, -1, 1, 5))
        headers = {"inference-header-content-length": str(length)}
        answer = served.http.post("/v2/models/one/infer", content=bytes(body), headers=headers)
        assert answer.status_code in (200, 400), answer.text
    assert process_of(served, "one") == before


def test_a_body_that_comes_in_pieces_is_one_request(served: Served) -> None:
    row = b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}'

    def pieces() -> Iterator[bytes]:
        for i in range(0, len(row), 30):
            yield row[i : i + 30]
            time.sleep(0.02)

    headers = {"content-length": str(len(row)), "expect": "100-continue"}
    answer = served.http.post("/v2/models/one/infer", content=pieces(), headers=headers)
    assert answer.json()["outputs"][0]["data"] == [2.0, 4.0, 6.0]
    chunked = served.http.post("/v2/models/one/infer", content=pieces())
    assert chunked.status_code == 411


def test_refusals_have_the_form_of_the_protocol(served: Served) -> None:
    answers = {
        404: (
            served.http.get("/v2/models/none"),
            served.http.get("/v2/models/one/versions/9"),
            served.http.get("/v2/nothing"),
            post(served, "none"),
        ),
        405: (served.http.get("/v2/models/one/infer"),),
        413: (served.http.post("/v2/models/one/infer", content=b"x" * ((1 << 20) + 1)),),
        415: (served.http.post("/v2/models/one/infer", content=b"x", headers={"content-encoding": "gzip"}),),
        400: (
            post(served, inputs=[]),
            served.http.post("/v2/models/one/infer", content=b"{"),
            served.http.post(
                "/v2/models/one/infer", content=b"{}", headers={"inference-header-content-length": "x"}
            ),
        ),
    }
    for status, rows in answers.items():
        for answer in rows:
            assert answer.status_code == status, answer.text
            assert set(answer.json()) == {"error"}
            assert answer.json()["error"]


def test_a_program_is_built_for_each_shape_and_few_are_kept(served: Served) -> None:
    for rows in (2, 3, 4, 5, 2):
        assert infer(served, np.ones((rows, 3))).as_numpy("z") == [rows]
    row = next(r for r in served.http.get("/v1/deployments").json()["deployments"] if r["name"] == "one")
    assert row["programs"] == LIMITS["max_programs"]
    assert rejection(served, np.ones((fake_engine.REFUSED, 3))) == ("400", "99 rows are too many")


def test_what_is_compiled_holds_up_nobody_else(served: Served) -> None:
    infer(served, np.ones((2, 3)))
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(infer, served, np.ones((fake_engine.SLOW, 3)))
        time.sleep(0.3)
        infer(served, np.ones((2, 3)))
        assert not slow.done()
        assert slow.result().as_numpy("z") == [fake_engine.SLOW]


def test_clients_in_parallel_get_their_own_answers(served: Served) -> None:
    def ask(number: int) -> bool:
        values = np.full((1 + number % 2, 3), number, np.float32)
        name = ("one", "other")[number % 2]
        return bool((infer(served, values, name).as_numpy("y") == 2 * number).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(1, 60)))


def test_a_model_with_enough_to_do_says_so(served: Served) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: post_sleep(served), range(8)))
    assert {a.status_code for a in found} == {200, 503}
    refused = next(a for a in found if a.status_code == 503)
    assert "wait for the model already" in refused.json()["error"]
    assert refused.headers["retry-after"] == "1"


def test_a_request_may_say_how_long_it_may_take(served: Served) -> None:
    sleep = [tensor([[fake_engine.SLEEP, 0, 0]])]
    with client(served) as here, pytest.raises(InferenceServerException) as late:
        here.infer("one", sleep, timeout=50_000)
    assert late.value.status() == "504"
    rows = fake_engine.SLOW
    given = {"name": "x", "shape": [rows, 3], "datatype": "FP32", "data": [1] * 3 * rows}
    request = {"inputs": [given], "parameters": {"timeout": 100_000}}
    found = served.http.post("/v2/models/other/infer", json=request)
    assert (found.status_code, found.headers["retry-after"]) == (503, "5")


def post_sleep(service: Served) -> httpx.Response:
    row = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [fake_engine.SLEEP, 0, 0]}
    url = f"{service.http.base_url}/v2/models/one/infer"
    return httpx.post(url, json={"inputs": [row]}, timeout=20)


def test_a_crash_touches_its_own_model_only(served: Served) -> None:
    before = process_of(served, "other")
    status, message = rejection(served, [[fake_engine.CRASH, 0, 0]])
    assert status == "503"
    assert "ended before it answered" in message
    np.testing.assert_array_equal(infer(served, [[1, 1, 1]], "other").as_numpy("y"), [[2, 2, 2]])
    assert process_of(served, "other") == before
    wait_until(served, "one")
    assert infer(served, [[1, 1, 1]]).as_numpy("z") == [1]


def test_a_request_that_hangs_is_ended(served: Served) -> None:
    before = process_of(served, "one")
    began = time.monotonic()
    status, message = rejection(served, [[fake_engine.HANG, 0, 0]])
    assert (status, message) == ("504", "no answer within 3 s")
    assert time.monotonic() - began < LIMITS["infer_seconds"] + 2
    deadline = time.monotonic() + 20
    while psutil.pid_exists(before) and time.monotonic() < deadline:
        time.sleep(0.05)
    wait_until(served, "one")
    assert process_of(served, "one") != before
    assert infer(served, [[1, 1, 1]]).as_numpy("z") == [1]


def test_killed_under_load_it_is_back_soon(served: Served) -> None:
    stop, answers = threading.Event(), []

    def ask() -> None:
        url = f"{served.http.base_url}/v2/models/one/infer"
        row = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
        with httpx.Client(timeout=20) as http:
            while not stop.is_set():
                answer = http.post(url, json={"inputs": [row]})
                answers.append((answer.status_code, answer.json()))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    os.kill(process_of(served, "one"), signal.SIGKILL)
    time.sleep(0.5)
    wait_until(served, "one")
    time.sleep(0.3)
    stop.set()
    for thread in threads:
        thread.join()
    assert {status for status, _ in answers} == {200, 503}
    assert all(body["outputs"][0]["data"] == [2, 4, 6] for status, body in answers if status == 200)
    assert answers[-1][0] == 200


def test_killed_itself_the_api_finds_its_models_again(served: Served) -> None:
    executor = process_of(served, "one")
    children = psutil.Process(served.process.pid).children()
    (api,) = (
        p for p in children if any(c.laddr.port == served.settings.port for c in p.net_connections("tcp"))
    )
    api.kill()
    api.wait(5)
    served.wait_until_ready()
    wait_until(served, "one")
    assert infer(served, [[1, 1, 1]]).as_numpy("z") == [1]
    assert process_of(served, "one") == executor


def test_metrics_tell_of_each_model(served: Served) -> None:
    infer(served, [[1, 1, 1]], "other")
    text = served.http.get("/metrics").text
    assert 'stowplan_inferences_total{model="other",status="200",version="1"}' in text
    for family in ("", "_wait", "_run"):
        assert f'stowplan_inference{family}_seconds_bucket{{le="+Inf",model="other",version="1"}}' in text
    assert 'stowplan_executor_ready{model="other",version="1"} 1' in text


def test_versions_are_counted_and_deleted(served: Served) -> None:
    first = deploy(served, "counted")
    assert deploy(served, "counted", "counted again")["version"] == "2"
    again = served.http.post(f"/v1/jobs/{first['job']}/deploy", json={"name": "counted", "version": 1})
    assert again.status_code == 200
    taken = served.http.post(f"/v1/jobs/{first['job']}/deploy", json={"name": "counted", "version": 2})
    assert (taken.status_code, taken.json()["code"]) == (409, "deployment-exists")
    other = {"name": "counted", "version": 1, "instances": 2}
    assert served.http.post(f"/v1/jobs/{first['job']}/deploy", json=other).status_code == 409
    assert first["instances"] == 1
    assert deploy(served, "counted", "counted thrice", instances=2)["instances"] == 2
    most = served.http.post(f"/v1/jobs/{first['job']}/deploy", json={"name": "much"})
    assert (most.status_code, most.json()["code"]) == (429, "too-many")
    with client(served) as here:
        assert here.get_model_metadata("counted")["versions"] == ["1", "2", "3"]
        assert here.infer("counted", [tensor([[1, 1, 1]])]).get_response()["model_version"] == "3"
        assert here.infer("counted", [tensor([[1, 1, 1]])], "1").get_response()["model_version"] == "1"
    process = psutil.Process(process_of(served, "counted"))
    assert served.http.delete("/v1/deployments/counted", params={"version": 3}).status_code == 204
    assert served.http.delete("/v1/deployments/counted").status_code == 204
    process.wait(20)
    assert served.http.delete("/v1/deployments/counted").json()["code"] == "deployment-not-found"
    assert post(served, "counted").status_code == 404


def test_the_command_line_deploys(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    job = served.submit("cli", input_shapes={"x": [1, 3]})
    served.end(job)
    url = ["--url", str(served.http.base_url)]
    assert main(["deploy", job, "--name", "cli", *url]) == 0
    assert "cli 1 is ready: http://" in capsys.readouterr().out
    assert main(["deployments", *url]) == 0
    assert job in capsys.readouterr().out
    assert main(["undeploy", "cli", *url]) == 0
    assert main(["undeploy", "cli", *url]) == 1
    assert "there is no deployment 'cli'" in capsys.readouterr().err


def test_only_what_succeeded_is_deployed(served: Served) -> None:
    failed = served.submit("fail", input_shapes={"x": [1, 3]})
    served.end(failed)
    answer = served.http.post(f"/v1/jobs/{failed}/deploy", json={"name": "failed"})
    assert (answer.status_code, answer.json()["code"]) == (409, "not-deployable")
    running = served.submit("sleep 5", input_shapes={"x": [1, 3]})
    answer = served.http.post(f"/v1/jobs/{running}/deploy", json={"name": "running"})
    assert (answer.status_code, answer.json()["code"]) == (409, "job-not-finished")
    served.http.post(f"/v1/jobs/{running}/cancel")
    assert served.http.post("/v1/jobs/none/deploy", json={"name": "none"}).status_code == 404


def test_a_model_that_cannot_be_loaded_says_why(served: Served) -> None:
    job = served.submit("load-fail", input_shapes={"x": [1, 3]})
    served.end(job)
    served.http.post(f"/v1/jobs/{job}/deploy", json={"name": "broken"})
    row = wait_until(served, "broken", state="failed")
    assert row["detail"] == "input 'x' does not fit"
    assert post(served, "broken").json() == {"error": "the model cannot be served: input 'x' does not fit"}
    with client(served) as here:
        assert not here.is_model_ready("broken")
        assert here.is_server_ready()
    served.http.delete("/v1/deployments/broken")


def test_a_deployment_outlives_its_job_and_the_service(tmp_path: Any) -> None:
    with serve(tmp_path, workers=1) as service:
        row = deploy(service, "kept")
        assert service.http.delete(f"/v1/jobs/{row['job']}").status_code == 204
        assert service.http.delete(f"/v1/models/{row['model']}").status_code == 204
        processes = psutil.Process(service.process.pid).children(recursive=True)
        service.process.kill()
        _, alive = psutil.wait_procs(processes, 5)
        assert not alive
    with serve(tmp_path, workers=1) as service:
        wait_until(service, "kept")
        assert infer(service, [[1, 2, 3]], "kept").as_numpy("z") == [1]
