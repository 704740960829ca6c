"""Uploading and describing models over HTTP."""

import hashlib
from typing import Any

import httpx
import pytest

from tests.jobs.service import Served


def address(content: bytes) -> str:
    return f"/v1/blobs/sha256/{hashlib.sha256(content).hexdigest()}"


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json"
    body = dict(answer.json())
    assert (answer.status_code, body["status"], body["code"]) == (status, status, code)
    assert body["request_id"] == answer.headers["x-request-id"]
    assert body["type"].endswith(code)
    assert body["detail"]
    return body


def test_a_blob_is_put_once_and_there_ever_after(service: Served) -> None:
    content = b"blob of bytes" * 100_000
    assert service.http.head(address(content)).status_code == 404
    first = service.http.put(address(content), content=content)
    assert (first.status_code, first.json()["size"]) == (201, len(content))
    assert service.http.put(address(content), content=content).status_code == 200
    known = service.http.head(address(content))
    assert (known.status_code, known.headers["content-length"]) == (200, str(len(content)))


def test_bytes_under_another_hash_are_refused(service: Served) -> None:
    answer = service.http.put(address(b"other"), content=b"these")
    body = refused(answer, 422, "hash-mismatch")
    assert hashlib.sha256(b"these").hexdigest() in body["detail"]
    assert service.http.head(address(b"other")).status_code == 404


def test_an_address_that_is_no_hash_is_refused(service: Served) -> None:
    refused(service.http.put("/v1/blobs/sha256/abc", content=b"x"), 422, "request-invalid")


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_beyond_the_limit_is_refused(service: Served, announced: bool) -> None:
    content = b"x" * (service.settings.max_model_bytes + 1)
    sent: Any = content if announced else iter([content[: 1 << 20], content[1 << 20 :]])
    refused(service.http.put(address(content), content=sent), 413, "body-too-large")
    refused(service.http.post("/v1/models", content=content), 413, "body-too-large")
    assert list((service.settings.data / "blobs" / "incoming").iterdir()) == []


def test_json_beyond_its_own_limit_is_refused(service: Served) -> None:
    content = b'{"model": "' + b"x" * service.settings.max_json_bytes + b'"}'
    refused(service.http.post("/v1/jobs", content=content), 413, "body-too-large")
    json = {"content-type": "application/json"}
    refused(service.http.post("/v1/models", content=content, headers=json), 413, "body-too-large")


def test_a_compressed_body_is_refused(service: Served) -> None:
    answer = service.http.post("/v1/models", content=b"x", headers={"content-encoding": "gzip"})
    refused(answer, 415, "media-type-unsupported")


def test_an_unknown_media_type_is_refused(service: Served) -> None:
    answer = service.http.post("/v1/models", content=b"x", headers={"content-type": "text/plain"})
    refused(answer, 415, "media-type-unsupported")


def test_a_model_is_inspected_by_a_worker(service: Served) -> None:
    answer = service.http.post("/v1/models", content=b"three words here")
    assert answer.status_code == 201
    created = answer.json()
    assert answer.headers["location"] == f"/v1/models/{created['id']}"
    assert (created["state"], created["report"], created["size"]) == ("inspecting", None, 16)
    model = service.http.get(answer.headers["location"], params={"wait": "30s"}).json()
    assert (model["state"], model["report"]["nodes"]) == ("ready", 3)
    again = service.http.post("/v1/models", content=b"three words here")
    assert (again.status_code, again.json()["id"]) == (200, created["id"])


def test_what_is_no_model_is_found_invalid_and_takes_no_jobs(service: Served) -> None:
    model_id = service.model("bad bytes")
    model = service.http.get(f"/v1/models/{model_id}", params={"wait": 30}).json()
    assert (model["state"], model["code"], model["detail"]) == (
        "invalid",
        "not-onnx",
        "the bytes are no model",
    )
    request = {"model": model_id, "targets": ["host"]}
    body = refused(service.http.post("/v1/jobs", json=request), 422, "not-onnx")
    assert body["errors"] == [{"pointer": "/model", "message": "the bytes are no model"}]
    refused(service.http.post(f"/v1/models/{model_id}/validate", json={}), 422, "not-onnx")


@pytest.mark.parametrize("name", ["../w", "/etc/passwd", "a/../../w", "a//b", ".hidden", "a\\b", "w\n", "a/"])
def test_names_that_could_leave_the_folder_are_refused(service: Served, name: str) -> None:
    content = b"ok"
    service.http.put(address(content), content=content)
    sha256 = hashlib.sha256(content).hexdigest()
    answer = service.http.post("/v1/models", json={"model": sha256, "external_data": {name: sha256}})
    refused(answer, 422, "external-data-invalid")


def test_a_manifest_names_blobs_that_are_there(service: Served) -> None:
    body = refused(service.http.post("/v1/models", json={"model": "0" * 64}), 404, "blob-not-found")
    assert body["errors"][0]["pointer"] == "/model"
    body = refused(service.http.post("/v1/models", json={"model": "x", "extra": 1}), 422, "request-invalid")
    assert body["errors"][0]["pointer"] in ("/model", "/extra")


def test_deleting_a_model_frees_its_blob(service: Served) -> None:
    content = b"ok to delete"
    model_id = service.model(content.decode())
    job_id = service.submit(content.decode())
    assert service.end(job_id)["state"] == "succeeded"
    assert service.http.head(address(content)).status_code == 200
    assert service.http.delete(f"/v1/models/{model_id}").status_code == 204
    refused(service.http.get(f"/v1/models/{model_id}"), 404, "model-not-found")
    assert service.http.head(address(content)).status_code == 404
    assert not service.settings.data.joinpath("blobs", *address(content).split("/")[3:]).exists()
    assert service.job(job_id)["artifacts"], "ended jobs keep their results"


def test_a_model_that_jobs_need_stays(service: Served) -> None:
    job_id = service.submit("sleep 600 needed")
    model_id = service.job(job_id)["model"]
    refused(service.http.delete(f"/v1/models/{model_id}"), 409, "model-in-use")
    service.http.post(f"/v1/jobs/{job_id}/cancel")
    service.end(job_id)
    assert service.http.delete(f"/v1/models/{model_id}").status_code == 204


def test_validation_of_an_unknown_model_or_target_is_refused(service: Served) -> None:
    refused(service.http.post("/v1/models/nothing/validate", json={}), 404, "model-not-found")
    model_id = service.model("ok")
    body = refused(
        service.http.post(f"/v1/models/{model_id}/validate", json={"target": "abacus"}), 422, "target-unknown"
    )
    assert body["errors"][0]["pointer"] == "/target"
