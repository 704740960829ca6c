"""Operators run alone, backends are asked for by name, and every node tells why it runs as it does."""

from typing import Any

import pytest

from app.engine.core.registry import load
from app.engine.entry import core_operators
from tests.jobs.service import Served

ADD = {
    "op": "Add",
    "inputs": [{"dtype": "float32", "shape": [2], "data": [1.0, "NaN"]}] * 2,
}


def test_an_operator_is_run_and_tells_how(service: Served) -> None:
    answer = service.http.post("/v1/operators/run", json=ADD)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["outputs"][0]["data"] == [1.0, "NaN"]
    assert {"seconds", "difference", "decisions", "notes"} <= found.keys()


def test_an_operator_that_fails_is_a_problem_with_the_code_of_its_failure(service: Served) -> None:
    answer = service.http.post("/v1/operators/run", json=ADD | {"op": "Fail"})
    assert answer.status_code == 422
    assert answer.json()["code"] == "input-invalid"
    assert answer.json()["errors"][0]["pointer"] == "/inputs/0/data"


def test_runs_of_operators_are_no_jobs_of_the_list(service: Served) -> None:
    service.http.post("/v1/operators/run", json=ADD)
    listed = service.http.get("/v1/jobs").json()["jobs"]
    assert all(job["model"] for job in listed)


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        (
            "/v1/jobs",
            {"targets": ["host"], "options": {"backends": ["numba-cpu", "tpu"]}},
            "/options/backends/1",
        ),
        ("/v1/operators/run", ADD | {"options": {"backends": ["tpu"]}}, "/options/backends/0"),
        ("/v1/targets", {"name": "strange", "backends": ["tpu"]}, "/backends/0"),
    ],
)
def test_an_unknown_backend_is_refused(
    service: Served, path: str, body: dict[str, Any], pointer: str
) -> None:
    if path == "/v1/jobs":
        body = body | {"model": service.model("nothing")}
    answer = service.http.post(path, json=body)
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["code"] == "backend-unknown"
    assert problem["errors"][0]["pointer"] == pointer
    assert "'tpu'" in problem["detail"]
    assert "onnxruntime" in problem["detail"]


def test_core_operators_are_listed_as_the_rows_tell(service: Served) -> None:
    expected = core_operators.document(load())
    found = service.http.get("/v1/operators").json()
    assert found == {k: v for k, v in expected.items() if k != "schema"}
    second = service.http.get("/v1/operators", params={"level": 2}).json()["operators"]
    assert [row["name"] for row in second] == ["matmul", "conv", "conv_transpose"]
    assert service.http.get("/v1/operators", params={"level": 8}).status_code == 422
    conv = service.http.get("/v1/operators/conv").json()
    assert conv == next(row for row in expected["operators"] if row["name"] == "conv")
    assert {row["op"] for row in conv["onnx"]} == {"Conv"}
    assert {"reference", "onnxruntime"} <= {row["name"] for row in conv["implementations"]}


def test_a_core_operator_that_there_is_not_is_a_problem_with_what_is_near(service: Served) -> None:
    answer = service.http.get("/v1/operators/convv")
    assert answer.status_code == 404
    assert answer.json()["code"] == "core-operator-not-found"
    assert "near it are conv" in answer.json()["detail"]
