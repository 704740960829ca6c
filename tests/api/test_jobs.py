"""Jobs over HTTP: asked for, followed, listed, deleted."""

import json
import re

import pytest

from tests.api.test_models import refused
from tests.engine.backends.described_targets import TENSOR32
from tests.jobs.service import Served


@pytest.fixture(scope="module")
def service(either: Served) -> Served:
    """Every test here runs on each database."""
    return either


def test_a_job_is_accepted_with_its_address_and_ends_with_artifacts(service: Served) -> None:
    request = {"model": service.model("ok"), "targets": ["host"], "input_shapes": {"x": [1, 3]}}
    request["reuse"] = False
    answer = service.http.post("/v1/jobs", json=request)
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/jobs/{answer.json()['id']}"
    assert answer.headers["retry-after"] == "1"
    job = service.end(answer.json()["id"])
    assert (job["state"], job["code"]) == ("succeeded", None)
    assert job["summary"]["shapes"] == {"x": [1, 3]}
    assert job["summary"]["not_a_number"] is None
    assert job["created"] <= job["started"] <= job["finished"]
    assert [a["name"] for a in job["artifacts"]] == ["decisions.json", "plan.json", "report.html"], (
        "only names on the list"
    )


def test_the_peak_of_a_shape_is_told_by_the_memory_of_the_job(service: Served) -> None:
    size = {"terms": [[64, ["N"]]], "divisor": 1}
    buffer = {"id": "a", "lower": 0, "upper": 1, "alignment": 64, "bytes": size, "parts": [], "table": []}
    region = {
        "symbols": {"N": [1, 8, 1]},
        "inputs": {"x": ["N"]},
        "pieces": [
            {"symbols": {"N": [1, 3, 1]}, "buffers": [buffer | {"below": {}}], "exact": True},
            {"symbols": {"N": [4, 8, 1]}, "buffers": [buffer | {"below": {}}], "exact": False},
        ],
        "worst_bytes": 512,
        "proof": "",
    }
    text = json.dumps({"region": region}, separators=(",", ":"))
    url = f"/v1/jobs/{service.end(service.submit(f'memory {text}'))['id']}/peak"
    answer = service.http.post(url, json={"input_shapes": {"x": [3]}})
    assert answer.json() == {"peak_bytes": 192, "exact": True, "worst_bytes": 512, "proof": ""}
    answer = service.http.post(url, json={"input_shapes": {"x": [4]}})
    assert answer.json() == {"peak_bytes": 256, "exact": False, "worst_bytes": 512, "proof": ""}
    refused(service.http.post(url, json={"input_shapes": {"x": [9]}}), 422, "request-invalid")
    other = service.end(service.submit('memory {"peak_bytes":7}'))["id"]
    body = service.http.post(f"/v1/jobs/{other}/peak", json={"input_shapes": {"x": [3]}})
    refused(body, 422, "request-invalid")
    assert "every run takes 7 byte" in body.text


def test_an_artifact_comes_with_a_tag_and_a_sandbox(service: Served) -> None:
    job = service.end(service.submit("ok"))
    _, plan, report = job["artifacts"]
    answer = service.http.get(plan["url"])
    assert answer.json() == {"schema": 1}
    assert answer.headers["etag"] == f'"sha256-{plan["sha256"]}"'
    assert "immutable" in answer.headers["cache-control"]
    same = service.http.get(plan["url"], headers={"if-none-match": answer.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    part = service.http.get(plan["url"], headers={"range": "bytes=1-8"})
    assert (part.status_code, part.content) == (206, b'"schema"')
    assert "sandbox" in service.http.get(report["url"]).headers["content-security-policy"]
    refused(service.http.get(f"/v1/jobs/{job['id']}/artifacts/secret"), 404, "artifact-not-found")
    refused(service.http.get("/v1/jobs/nothing/artifacts/plan.json"), 404, "job-not-found")


def test_an_answer_that_did_not_change_has_no_body(service: Served) -> None:
    job_id = service.submit("ok")
    service.end(job_id)
    tag = service.http.get(f"/v1/jobs/{job_id}").headers["etag"]
    assert service.http.get(f"/v1/jobs/{job_id}", headers={"if-none-match": tag}).status_code == 304


def test_events_are_numbered_and_resume_where_they_ended(service: Served) -> None:
    job_id = service.submit("steps 5 ok")
    whole = service.http.get(f"/v1/jobs/{job_id}/events")
    assert whole.headers["content-type"].startswith("text/event-stream")
    ids = [int(i) for i in re.findall(r"^id: (\d+)$", whole.text, re.MULTILINE)]
    assert ids == sorted(ids)
    assert "event: progress" in whole.text
    assert '"state": "succeeded"' in whole.text
    rest = service.http.get(f"/v1/jobs/{job_id}/events", headers={"last-event-id": str(ids[1])})
    assert [int(i) for i in re.findall(r"^id: (\d+)$", rest.text, re.MULTILINE)] == ids[2:]
    done = service.http.get(f"/v1/jobs/{job_id}/events", headers={"last-event-id": str(ids[-1])})
    assert done.status_code == 204
    refused(service.http.get("/v1/jobs/nothing/events"), 404, "job-not-found")


def test_a_key_that_comes_again_gives_the_same_job(service: Served) -> None:
    request = {"model": service.model("ok"), "targets": ["host"]}
    headers = {"idempotency-key": "once"}
    first, second = (service.http.post("/v1/jobs", json=request, headers=headers).json() for _ in "ab")
    assert first["id"] == second["id"]
    other = service.http.post("/v1/jobs", json=request | {"input_shapes": {"x": [2]}}, headers=headers)
    refused(other, 422, "idempotency-key-reused")


def test_jobs_are_listed_in_pages(service: Served) -> None:
    model_id = service.model("ok listed")
    made = [service.submit("ok listed") for _ in range(3)]
    query = {"model": model_id, "limit": 2}
    first = service.http.get("/v1/jobs", params=query)
    assert [j["id"] for j in first.json()["jobs"]] == [made[2], made[1]] or len(first.json()["jobs"]) == 2
    assert 'rel="next"' in first.headers["link"]
    second = service.http.get("/v1/jobs", params=query | {"cursor": first.json()["next"]}).json()
    assert second["next"] is None
    assert {j["id"] for j in first.json()["jobs"] + second["jobs"]} == set(made)
    for job_id in made:
        service.end(job_id)
    assert service.http.get("/v1/jobs", params=query | {"state": "failed"}).json()["jobs"] == []
    refused(service.http.get("/v1/jobs", params={"cursor": "é"}), 422, "request-invalid")
    refused(service.http.get("/v1/jobs", params={"state": "lost"}), 422, "request-invalid")


def test_a_job_that_ended_can_be_deleted_and_its_blobs_go(service: Served) -> None:
    job_id = service.submit("sleep 600")
    service.wait_for_phase(job_id, "begin")
    refused(service.http.delete(f"/v1/jobs/{job_id}"), 409, "job-not-finished")
    service.http.post(f"/v1/jobs/{job_id}/cancel")
    service.end(job_id)
    assert service.http.delete(f"/v1/jobs/{job_id}").status_code == 204
    refused(service.http.get(f"/v1/jobs/{job_id}"), 404, "job-not-found")


def test_a_measured_job_for_another_machine_waits_and_says_why(service: Served) -> None:
    job_id = service.submit("ok", targets=["cpu-avx512"], options={"timings": "measured"})
    job = service.job(job_id)
    assert job["state"] == "waiting_for_target"
    assert "cpu-avx512" in job["detail"]
    assert service.http.post(f"/v1/jobs/{job_id}/cancel").json()["state"] == "cancelled"


@pytest.mark.parametrize(
    ("change", "status", "code", "pointer"),
    [
        ({"targets": ["abacus"]}, 422, "target-unknown", "/targets/0"),
        ({"targets": []}, 422, "request-invalid", "/targets"),
        ({"model": "nothing"}, 404, "model-not-found", "/model"),
        ({"inputs": {"x": "0" * 64}}, 404, "blob-not-found", "/inputs/x"),
        ({"inputs": {"x": "../etc"}}, 422, "request-invalid", "/inputs/x"),
        ({"samples": "0" * 64}, 404, "blob-not-found", "/samples"),
        ({"samples": "../etc"}, 422, "request-invalid", "/samples"),
        ({"options": {"error_budget": 0}}, 422, "request-invalid", "/options/error_budget"),
        ({"options": {"error_budget": 1.5}}, 422, "request-invalid", "/options/error_budget"),
        ({"options": {"error_metric": "hope"}}, 422, "request-invalid", "/options/error_metric"),
        ({"input_shapes": {"x": [-1]}}, 422, "request-invalid", "/input_shapes/x/0"),
        ({"input_shapes": {"x": [1.5]}}, 422, "request-invalid", "/input_shapes/x/0"),
        ({"options": {"timings": "guessed"}}, 422, "request-invalid", "/options/timings"),
        ({"options": {"faster": True}}, 422, "request-invalid", "/options/faster"),
        ({"limits": {"seconds": 1e9}}, 422, "request-invalid", "/limits/seconds"),
        ({"limits": {"memory_bytes": 2**60}}, 422, "request-invalid", "/limits/memory_bytes"),
        ({"surprise": 1}, 422, "request-invalid", "/surprise"),
    ],
)
def test_a_request_that_cannot_be_served_says_where(
    service: Served, change: dict[str, object], status: int, code: str, pointer: str
) -> None:
    request = {"model": service.model("ok"), "targets": ["host"]} | change
    body = refused(service.http.post("/v1/jobs", json=request), status, code)
    assert pointer in [e["pointer"] for e in body["errors"]]


def test_samples_of_an_error_budget_reach_the_engine_and_another_try(service: Served) -> None:
    samples = service.blob("calibration")
    job_id = service.submit("ok", samples=samples, options={"error_budget": 0.01})
    summary = service.end(job_id)["summary"]
    assert (summary["samples"], summary["error_budget"]) == ("calibration", 0.01)
    assert service.end(service.submit("ok"))["summary"]["samples"] is None
    other = service.blob("other numbers")
    again = service.end(service.submit("ok", samples=other, options={"error_budget": 0.01}))
    assert (again["summary"]["samples"], again["cached_from"]) == ("other numbers", None)


def test_a_described_machine_can_be_a_target(service: Served) -> None:
    spec = {"name": "my-board", "cores": 2, "memories": [{"name": "ram", "size": 1 << 20}], "caches": [1024]}
    created = service.http.post("/v1/targets", json=spec)
    assert (created.status_code, created.headers["location"]) == (201, "/v1/targets/my-board")
    assert service.http.post("/v1/targets", json=spec).status_code == 200
    refused(service.http.post("/v1/targets", json=spec | {"cores": 3}), 409, "target-exists")
    refused(service.http.post("/v1/targets", json=spec | {"name": "host"}), 409, "target-exists")
    found = service.http.get("/v1/targets/my-board").json()
    assert (found["origin"], found["memories"][0]["size"], found["caches"]) == ("described", 1 << 20, [1024])
    assert service.end(service.submit("ok", targets=["my-board"]))["summary"]["target"] == "my-board"
    names = [t["name"] for t in service.http.get("/v1/targets").json()["targets"]]
    assert names[0] == "host"
    assert "my-board" in names


def test_a_described_accelerator_is_kept_and_answered_as_it_was_given(service: Served) -> None:
    created = service.http.post("/v1/targets", json=TENSOR32)
    assert created.status_code == 201
    assert service.http.post("/v1/targets", json=TENSOR32).status_code == 200
    found = service.http.get("/v1/targets/tensor32").json()
    row, given = found["accelerator"]["rows"][0], TENSOR32["accelerator"]["rows"][0]
    assert row["pattern"] == given["pattern"]
    assert row["operands"]["x"]["layouts"] == ["NHWC"]
    preset = service.http.get("/v1/targets/edge-npu").json()
    assert [r["name"] for r in preset["accelerator"]["rows"]][:2] == ["elementwise", "product"]
    del preset["cpu_model"], preset["origin"]
    assert service.http.post("/v1/targets", json=preset | {"name": "as-edge-npu"}).status_code == 201
    rows = [given | {"operands": {"x": {"memory": "l2"}}}]
    wrong = TENSOR32 | {"name": "wrong", "accelerator": {"rows": rows}}
    body = refused(service.http.post("/v1/targets", json=wrong), 422, "target-invalid")
    assert [e["pointer"] for e in body["errors"]] == ["/accelerator/rows/0/operands/x/memory"]


def test_a_description_that_contradicts_itself_is_refused(service: Served) -> None:
    spec = {"name": "odd", "memories": [{"name": "ram", "size": 1024, "alignment": 48}]}
    body = refused(service.http.post("/v1/targets", json=spec), 422, "target-invalid")
    assert "power of two" in body["detail"]
    refused(service.http.get("/v1/targets/odd"), 404, "target-not-found")


def test_a_job_that_has_ended_is_exported_by_another_that_asks_the_same(service: Served) -> None:
    first = service.end(service.submit("ok", options={"threads": 2}, input_shapes={"x": [1, 3]}))
    assert first["summary"]["exports"] == {}
    request = {"formats": ["wheel", "ort", "wheel"], "name": "net"}
    answer = service.http.post(f"/v1/jobs/{first['id']}/export", json=request)
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/jobs/{answer.json()['id']}"
    made = service.end(answer.json()["id"])
    assert made["id"] != first["id"]
    assert made["group"] == first["group"]
    assert (made["summary"]["threads"], made["summary"]["shapes"]) == (2, {"x": [1, 3]})
    (file,) = (a for a in made["artifacts"] if a["name"] == "module.whl")
    downloaded = service.http.get(file["url"])
    assert downloaded.text == "wheel ort"
    assert "net-1-py3-none-any.whl" in downloaded.headers["content-disposition"]
    again = service.http.post(f"/v1/jobs/{first['id']}/export", json=request).json()
    assert (again["state"], again["cached_from"]) == ("succeeded", made["id"])
    page = service.http.get(f"/jobs/{made['id']}", headers={"accept": "text/html"}).text
    assert "net-1-py3-none-any.whl" in page
    assert "<code>import net &lt;b&gt;</code>" in page
    assert f'data-call="/v1/jobs/{made["id"]}/export"' in page


def test_what_cannot_be_exported_is_refused(service: Served) -> None:
    done = service.end(service.submit("ok"))
    refused(service.http.post("/v1/jobs/nothing/export", json={"formats": ["c"]}), 404, "job-not-found")
    for body in ({"formats": []}, {"formats": ["jar"]}, {}, {"formats": ["c"], "name": "n" * 101}):
        assert service.http.post(f"/v1/jobs/{done['id']}/export", json=body).status_code == 422
    waits = service.submit("sleep 30")
    refused(service.http.post(f"/v1/jobs/{waits}/export", json={"formats": ["c"]}), 409, "job-not-finished")
    service.http.post(f"/v1/jobs/{waits}/cancel")
