"""Many jobs in one request, compared in one table."""

from typing import Any

from tests.api.test_models import refused
from tests.jobs.service import Served


def sweep(service: Served, text: str, **body: Any) -> dict[str, Any]:
    request = {"model": service.model(text), "targets": ["host"], "reuse": False} | body
    answer = service.http.post("/v1/job-groups", json=request)
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/v1/job-groups/{answer.json()['id']}"
    return dict(answer.json())


def over(service: Served, group_id: str) -> dict[str, Any]:
    answer = service.http.get(f"/v1/job-groups/{group_id}", params={"wait": 60})
    assert answer.status_code == 200, answer.text
    assert answer.json()["state"] == "done"
    return dict(answer.json())


def test_option_sets_times_targets_are_one_group_with_one_table(either: Served) -> None:
    sets = [{"threads": n} for n in (1, 2, 3)]
    group = sweep(
        either,
        "fail-threads 2",
        targets=["host", "edge-npu"],
        option_sets=sets,
        options={"seed": 5},
        constraints={"peak_bytes": 2500},
    )
    assert [(j["target"], j["options"]) for j in group["jobs"]] == [
        (target, {"threads": n}) for n in (1, 2, 3) for target in ("host", "edge-npu")
    ]
    done = over(either, group["id"])
    assert done["counts"] == {"succeeded": 4, "failed": 2}
    ranks = {(j["target"], j["options"]["threads"]): j["rank"] for j in done["jobs"]}
    assert ranks["host", 1] in (1, 2)
    assert ranks["host", 2] is None, "it failed, alone"
    assert ranks["host", 3] is None, "it needs too much memory"
    assert done["best"] in {j["job"] for j in done["jobs"] if j["options"]["threads"] == 1}
    assert set(done["best_by_target"]) == {"host", "edge-npu"}
    unmet = {j["options"]["threads"]: j["unmet"] for j in done["jobs"]}
    assert unmet[2] == ["failed: no 2 threads"]
    assert unmet[3] == ["peak memory is 3000 byte, at most 2500 byte are allowed"]
    job = either.job(done["best"])
    assert job["group"] == group["id"]
    tag = either.http.get(f"/v1/job-groups/{group['id']}").headers["etag"]
    again = either.http.get(f"/v1/job-groups/{group['id']}", headers={"if-none-match": tag})
    assert again.status_code == 304


def test_jobs_of_several_targets_are_a_group_compared_by_latency(service: Served) -> None:
    request = {"model": service.model("ok several"), "targets": ["host", "edge-npu"]}
    made = service.http.post("/v1/jobs", json=request)
    done = over(service, made.json()["id"])
    assert made.headers["location"] == f"/v1/job-groups/{done['id']}"
    assert (done["objective"], done["best"] is not None) == ("latency", True)


def test_a_group_is_cancelled_as_a_whole(service: Served) -> None:
    group = sweep(service, "sleep 600", option_sets=[{"seed": n} for n in range(5)])
    answer = service.http.post(f"/v1/job-groups/{group['id']}/cancel")
    assert answer.status_code == 202
    assert over(service, group["id"])["counts"] == {"cancelled": 5}
    refused(service.http.post("/v1/job-groups/nothing/cancel"), 404, "job-group-not-found")
    refused(service.http.get("/v1/job-groups/nothing"), 404, "job-group-not-found")


def test_a_request_that_comes_again_is_the_same_group(service: Served) -> None:
    body = {"model": service.model("ok"), "targets": ["host"], "option_sets": [{"seed": 1}, {"seed": 2}]}
    headers = {"idempotency-key": "sweep-once"}
    first, second = (service.http.post("/v1/job-groups", json=body, headers=headers).json() for _ in "ab")
    assert first["id"] == second["id"]
    other = service.http.post("/v1/jobs", json={"model": body["model"], "targets": ["host"]}, headers=headers)
    refused(other, 422, "idempotency-key-reused")


def test_too_many_combinations_and_unknown_options_are_refused(service: Served) -> None:
    body = {
        "model": service.model("ok"),
        "targets": ["host"] * 64,
        "option_sets": [{"seed": n} for n in range(5)],
    }
    refused(service.http.post("/v1/job-groups", json=body), 422, "request-invalid")
    body = {"model": body["model"], "targets": ["host"], "option_sets": [{"thread": 1}]}
    refused(service.http.post("/v1/job-groups", json=body), 422, "request-invalid")


def test_a_job_that_failed_is_tried_again_in_its_group(service: Served) -> None:
    failed = service.end(service.submit("fail", labels={"team": "vision"}))
    again = service.http.post(f"/v1/jobs/{failed['id']}/retry")
    assert again.status_code == 202
    second = service.end(again.json()["id"])
    assert again.headers["location"] == f"/v1/jobs/{second['id']}"
    assert (second["state"], second["group"], second["labels"]) == (
        "failed",
        failed["group"],
        {"team": "vision"},
    )
    running = service.submit("sleep 600")
    refused(service.http.post(f"/v1/jobs/{running}/retry"), 409, "job-not-finished")
    service.http.post(f"/v1/jobs/{running}/cancel")
    service.end(running)
