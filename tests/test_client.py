"""The client against a running service."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.client import Client, ServiceFailureError, UnreachableError
from tests.jobs.service import Served, free_port


@pytest.fixture
def client(service: Served) -> Iterator[Client]:
    with Client(str(service.http.base_url)) as client:
        yield client


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_model_goes_up_and_its_artifacts_come_down(client: Client, tmp_path: Path) -> None:
    model = client.upload(file(tmp_path, "model", "steps 3 ok"))
    assert client.model(model.id, wait=30).state == "ready"
    job = client.submit(model.id, input_shapes={"x": [1, 3]}, options={"threads": 2})
    events = list(client.events(job.id))
    assert [e.data["state"] for e in events if e.kind == "state"] == ["queued", "running", "succeeded"]
    job = client.wait(job.id, timeout=30)
    assert job.summary is not None
    assert job.summary["shapes"] == {"x": [1, 3]}
    assert job.summary["threads"] == 2
    assert job.artifacts == ("decisions.json", "plan.json", "report.html")
    assert client.download(job.id, "plan.json", tmp_path / "plan").read_bytes() == b'{"schema": 1}'
    assert client.artifact(job.id, "plan.json") == b'{"schema": 1}'
    client.delete_job(job.id)
    with pytest.raises(ServiceFailureError) as caught:
        client.job(job.id)
    assert (caught.value.code, caught.value.status) == ("job-not-found", 404)


def test_external_data_go_up_as_blobs_by_name(client: Client, tmp_path: Path) -> None:
    weights = file(tmp_path, "weights", "the weights")
    model = client.upload(file(tmp_path, "model", "ok external"), {"sub/w.bin": weights})
    job = client.wait(client.submit(model.id).id, timeout=30)
    assert job.summary is not None
    assert job.summary["external"] == {"sub/w.bin": "the weights"}


def test_given_inputs_reach_the_engine(client: Client, tmp_path: Path) -> None:
    tensor = client.put_blob(file(tmp_path, "x.npy", "a tensor"))
    model = client.upload(file(tmp_path, "model", "ok inputs"))
    job = client.wait(client.submit(model.id, inputs={"x": tensor}).id, timeout=30)
    assert job.summary is not None
    assert job.summary["tensors"] == {"x": "a tensor"}


def test_events_resume_after_the_last_one_seen(client: Client, tmp_path: Path) -> None:
    model = client.upload(file(tmp_path, "model", "steps 4 ok"))
    job = client.submit(model.id)
    first = next(events := client.events(job.id))
    events.close()
    rest = list(client.events(job.id, after=first.id))
    assert rest[0].id > first.id
    assert rest[-1].data["state"] == "succeeded"
    assert list(client.events(job.id, after=rest[-1].id)) == []


def test_validation_lists_what_is_missing(client: Client, tmp_path: Path) -> None:
    model = client.upload(file(tmp_path, "model", "ok validate"))
    assert [p["pointer"] for p in client.validate(model.id)] == ["/input_shapes/x"]
    assert client.validate(model.id, input_shapes={"x": [1]}) == []


def test_jobs_of_several_targets_are_a_group(client: Client, tmp_path: Path) -> None:
    model = client.upload(file(tmp_path, "model", "ok group"))
    jobs = client.submit_all(model.id, ["host", "edge-npu", "cpu-avx512"])
    assert [j.target for j in jobs] == ["host", "edge-npu", "cpu-avx512"]
    assert {j.id for j in client.jobs(group=jobs[0].group, limit=2)} == {j.id for j in jobs}
    done = [client.wait(j.id, timeout=30) for j in jobs]
    assert [j.summary and j.summary["target"] for j in done] == ["host", "edge-npu", "cpu-avx512"]


def test_a_wait_that_is_too_short_says_so_and_a_cancel_ends_the_job(client: Client, tmp_path: Path) -> None:
    job = client.submit(client.upload(file(tmp_path, "model", "sleep 600")).id)
    with pytest.raises(TimeoutError, match=job.id):
        client.wait(job.id, timeout=0.2)
    client.cancel(job.id)
    assert client.wait(job.id, timeout=30).state == "cancelled"


def test_no_service_is_told_with_its_address() -> None:
    port = free_port()
    with Client(f"http://127.0.0.1:{port}") as client, pytest.raises(UnreachableError, match=str(port)):
        client.targets()
