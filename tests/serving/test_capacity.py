"""Capacity over HTTP, in the client and on the command line; deployments with other threads than the job."""

import json
from collections.abc import Iterator

import pytest

from app.cli.main import main
from app.client import Client, ServiceFailureError
from tests.jobs.service import Served
from tests.serving.deployed import deploy, undeploy


@pytest.fixture(scope="module", autouse=True)
def _undeployed(service: Served) -> Iterator[None]:
    yield
    undeploy(service)


def finished(service: Served, text: str = "model") -> str:
    job = service.submit(text, input_shapes={"x": [1, 3]})
    assert service.end(job)["state"] == "succeeded"
    return job


def test_the_answer_is_that_of_the_engine_for_the_jobs_shapes(service: Served) -> None:
    job = finished(service)
    with Client(str(service.http.base_url)) as here:
        bounds = {"latency": {"percentile": 95, "seconds": 0.02}, "memory_bytes": 2**31}
        found = here.capacity(job, over_http=True, **bounds)
    assert found["shapes"] == {"x": [1, 3]}
    assert found["chosen"]["predicted"]["latency"]["p99"] == 0.02
    assert found["configurations"][0]["memory_bytes"] == 2**31
    assert (found["notes"], found["seconds"]) == (["p95.0"], 15.0)
    assert min(found["http"].values()) > 0.0, "measured by the service"
    made = service.http.post(f"/v1/jobs/{job}/deploy", json={"name": "best"} | found["chosen"]["deployment"])
    assert made.status_code == 201, made.text
    assert (made.json()["instances"], made.json()["threads"]) == (2, None), "the threads are those of the job"


def test_a_job_that_made_nothing_has_no_capacity(service: Served) -> None:
    job = service.submit("fail")
    service.end(job)
    with Client(str(service.http.base_url)) as here:
        with pytest.raises(ServiceFailureError, match="not-deployable"):
            here.capacity(job)
        with pytest.raises(ServiceFailureError, match="job-not-found"):
            here.capacity("none")
        with pytest.raises(ServiceFailureError, match="the job does not know the shapes") as refused:
            here.capacity(finished(service, "shapeless"))
    assert refused.value.status == 422


def test_what_an_error_budget_quantized_is_measured(service: Served) -> None:
    job = service.submit("model", input_shapes={"x": [1, 3]}, options={"error_budget": 0.01})
    assert service.end(job)["state"] == "succeeded"
    with Client(str(service.http.base_url)) as here:
        # The model that this engine makes under a budget is one without shapes, unlike the uploaded one.
        with pytest.raises(ServiceFailureError, match="the job does not know the shapes"):
            here.capacity(job)
        assert here.capacity(finished(service))["shapes"] == {"x": [1, 3]}


@pytest.mark.parametrize(
    "latency", [{"percentile": 49, "seconds": 1.0}, {"seconds": 0.0}, {"percentile": 99}]
)
def test_bounds_that_make_no_sense_are_refused(service: Served, latency: dict[str, float]) -> None:
    answer = service.http.post(f"/v1/jobs/{finished(service)}/capacity", json={"latency": latency})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].startswith("/latency")


def test_a_capacity_is_no_job_that_is_listed(service: Served) -> None:
    job = finished(service)
    with Client(str(service.http.base_url)) as here:
        before = [row.id for row in here.jobs()]
        here.capacity(job)
        assert [row.id for row in here.jobs()] == before


def test_the_command_prints_the_deployment(service: Served, capsys: pytest.CaptureFixture[str]) -> None:
    job, url = finished(service), ["--url", str(service.http.base_url)]
    assert main(["capacity", job, "--latency", "p99=20ms", "--memory", "2GiB", "--over-http", *url]) == 0
    text = capsys.readouterr().out
    assert f"stowplan deploy {job} --name NAME --instances 2 --threads 1" in text
    assert "predicted at 10.0 requests/s: 9.5/s, p50 10.00 ms, p99 20.00 ms" in text
    assert "verified by a load of 100 requests at random moments; with " in text
    assert "ms of processor time of client and HTTP each" in text
    assert main(["capacity", job, *url]) == 0
    assert "HTTP is not included" in capsys.readouterr().out
    assert main(["capacity", job, "--latency", "p51=1s", "--json", *url]) == 1, "it was not verified"
    assert json.loads(capsys.readouterr().out)["chosen"]["verified"] is False


@pytest.mark.parametrize("given", [["--latency", "20ms"], ["--latency", "p99=20"], ["--memory", "2TB"]])
def test_bounds_that_cannot_be_read_are_refused_by_the_command(given: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["capacity", "job", *given])


def test_a_deployment_may_have_other_threads_than_the_job(service: Served) -> None:
    row = deploy(service, "threads", threads=3)
    assert (row["threads"], row["state"]) == (3, "ready")
    again = service.http.post(
        f"/v1/jobs/{row['job']}/deploy", json={"name": "threads", "version": 1, "threads": 3}
    )
    assert again.status_code == 200
    other = service.http.post(f"/v1/jobs/{row['job']}/deploy", json={"name": "threads", "version": 1})
    assert other.status_code == 409
