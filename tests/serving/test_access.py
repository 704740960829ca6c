"""Who may deploy, see and call what."""

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.jobs.store import deployments, job_repository, keys
from app.jobs.store.auth_context import Caller, acting_for
from app.jobs.store.blobs import BlobStore
from app.jobs.store.database import deployment_files, job_files, jobs, migrate, models
from app.settings import Settings
from tests.api.inside import Inside, inside


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = Settings(data=tmp_path)
    migrate(settings)
    return settings


def succeeded(api: Inside, client: httpx.Client, text: str = "ok") -> str:
    """A job that ended well, as far as the tables tell."""
    model = client.post("/v1/models", content=text.encode()).json()["id"]
    job = client.post("/v1/jobs", json={"model": model, "targets": ["host"]}).json()["id"]
    with api.database.write() as connection:
        connection.execute(
            jobs.update().where(jobs.c.id == job).values(state="succeeded", finished=time.time())
        )
    return str(job)


def wait_for(client: httpx.Client, path: str, status: int) -> httpx.Response:
    """The answer once it has a status: what is deployed is seen a moment later."""
    deadline = time.monotonic() + 10
    while (answer := client.get(path)).status_code != status and time.monotonic() < deadline:
        time.sleep(0.05)
    assert answer.status_code == status, answer.text
    return answer


def names(client: httpx.Client) -> list[Any]:
    return [d["name"] for d in client.get("/v1/deployments").json()["deployments"]]


def test_what_one_deploys_another_neither_sees_nor_calls(settings: Settings) -> None:
    with inside(settings) as api:
        mine, reader, other, admin = (
            api.key("submit", "team"),
            api.key("read", "team"),
            api.key("submit"),
            api.key("admin"),
        )
        job = succeeded(api, mine)
        assert reader.post(f"/v1/jobs/{job}/deploy", json={"name": "model"}).status_code == 403
        assert other.post(f"/v1/jobs/{job}/deploy", json={"name": "model"}).status_code == 404
        made = mine.post(f"/v1/jobs/{job}/deploy", json={"name": "model"})
        assert (made.status_code, made.json()["state"], made.json()["owner"]) == (201, "starting", "team")
        assert made.headers["location"] == "/v2/models/model/versions/1"
        assert [names(c) for c in (mine, reader, other, admin)] == [["model"], ["model"], [], ["model"]]
        wait_for(mine, "/v2/models/model", 503)
        for client in (mine, reader, admin):
            assert client.post("/v2/models/model/infer", content=b"{}").status_code == 503
            assert 'model="model"' in client.get("/metrics").text
        assert other.post("/v2/models/model/infer", content=b"{}").status_code == 404
        assert 'model="model"' not in other.get("/metrics").text
        refused = api.http.post("/v2/models/model/infer", content=b"{}")
        assert (refused.status_code, set(refused.json())) == (401, {"error"})
        assert other.delete("/v1/deployments/model").status_code == 404
        assert reader.delete("/v1/deployments/model").status_code == 403
        own = succeeded(api, other, "another")
        assert other.post(f"/v1/jobs/{own}/deploy", json={"name": "model"}).status_code == 201
        assert mine.delete("/v1/deployments/model").status_code == 204
        assert [names(c) for c in (mine, other)] == [[], ["model"]]
        assert admin.delete("/v1/deployments/model").status_code == 204


def test_a_revoked_key_calls_nothing_a_second_later(settings: Settings) -> None:
    with inside(settings) as api:
        client = api.key("read")
        assert client.get("/v2/models/none").status_code == 404
        with api.database.write() as connection:
            (reader,) = (key for key in keys.listed(connection) if key["scope"] == "read")
            keys.revoke(connection, reader["id"])
        wait_for(client, "/v2/models/none", 401)


def test_the_files_of_a_deployment_are_kept(settings: Settings) -> None:
    with inside(settings) as api:
        job = succeeded(api, api.http)
        with api.database.write() as connection:
            row, is_new = deployments.create(connection, job, "kept")
            connection.execute(jobs.delete())
            connection.execute(models.delete())
        store = BlobStore(settings.data / "blobs", api.database)
        assert is_new
        assert store.free() == 0
        with api.database.write() as connection:
            (sha256,) = deployments.files_of(connection, row["id"]).values()
            assert store.path(sha256).read_bytes() == b"ok"
            deployments.delete(connection, "kept")
            assert connection.execute(deployment_files.select()).all() == []
        assert store.free() == 1


def test_a_deployment_serves_the_model_that_an_error_budget_quantized(settings: Settings) -> None:
    with inside(settings) as api:
        job = succeeded(api, api.http)
        quantized = api.http.post("/v1/blobs", content=b"quantized").json()["sha256"]
        with api.database.write() as connection:
            row = {
                "job_id": job,
                "role": "artifact",
                "name": "quantized.onnx",
                "sha256": quantized,
                "size": 9,
            }
            connection.execute(job_files.insert().values(row))
            deployed, _ = deployments.create(connection, job, "small")
            assert deployments.files_of(connection, deployed["id"]) == {"": quantized}


def test_what_the_job_gave_up_for_exactness_its_deployment_does_not_use(settings: Settings) -> None:
    with inside(settings) as api:
        job = succeeded(api, api.http)
        resolved = {"asked": "bf16", "used": "bf16", "exact": {"a": "why"}, "fast_algorithms": False}
        resolved["int16"] = {"b": "chosen"}
        with api.database.write() as connection:
            connection.execute(jobs.update().values(summary={"precision": resolved}))
            row, _ = deployments.create(connection, job, "exact")
        resolved["precision"] = resolved.pop("used")
        del resolved["asked"]
        assert row["request"]["options"].items() >= resolved.items()


def test_a_job_for_another_machine_is_not_deployed(settings: Settings) -> None:
    with inside(settings) as api:
        target = {"name": "small", "memories": [{"name": "m", "size": 1 << 20}]}
        assert api.http.post("/v1/targets", json=target).status_code in (200, 201)
        model = api.http.post("/v1/models", content=b"ok").json()["id"]
        job = api.http.post("/v1/jobs", json={"model": model, "targets": ["small"]}).json()["id"]
        with api.database.write() as connection, acting_for(Caller()):
            connection.execute(jobs.update().where(jobs.c.id == job).values(state="succeeded"))
            assert job_repository.find(connection, job)["state"] == "succeeded"
        answer = api.http.post(f"/v1/jobs/{job}/deploy", json={"name": "small"})
        assert (answer.status_code, answer.json()["code"]) == (409, "not-deployable")
        assert "'small', which this machine is not" in answer.json()["detail"]
