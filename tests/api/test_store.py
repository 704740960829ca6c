"""What is kept: labels and search, retention, a full disk, results that answer later jobs, metrics."""

import errno
import json
import logging
import time
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from app.jobs.reaper import Reaper
from app.jobs.store import job_repository, model_repository
from app.jobs.store.blobs import Upload
from app.jobs.store.database import Database, blobs, jobs, labels, models, workers
from app.settings import Settings
from app.telemetry import logs
from tests.api.inside import inside
from tests.api.test_keys import job, upload
from tests.api.test_models import address, refused
from tests.jobs.service import Served
from tests.jobs.worker.test_prescan import BOMBS


@pytest.mark.parametrize("name", ["empty nodes", "deep graphs"])
def test_a_bomb_is_refused_and_nothing_of_it_is_kept(settings: Settings, name: str) -> None:
    content = BOMBS[name][0]
    with inside(replace(settings, claim_seconds=0.0)) as api:
        refused(api.http.post("/v1/models", content=content), 413, "model-too-large")
        assert api.http.put(address(content), content=content).status_code in (200, 201)
        manifest = {"model": address(content).rpartition("/")[2]}
        refused(api.http.post("/v1/models", json=manifest), 413, "model-too-large")
        with api.database.write() as connection:
            assert connection.scalar(sa.select(sa.func.count()).select_from(models)) == 0


def test_models_and_jobs_are_found_by_their_labels(settings: Settings) -> None:
    with inside(settings) as api:
        one, two = upload(api.http, "one"), upload(api.http, "two")
        given = {"team": "vision", "name": "ResNet 50%"}
        assert api.http.put(f"/v1/models/{one}/labels", json={"labels": given}).json()["labels"] == given
        api.http.put(f"/v1/models/{two}/labels", json={"labels": {"team": "speech"}})
        found = {
            text: [m["id"] for m in api.http.get(f"/v1/models?{text}").json()["models"]]
            for text in (
                "label=team",
                "label=team%3Dvision",
                "label=team&label=name",
                "q=resnet",
                "q=0%25",
                "q=_",
            )
        }
        assert found["label=team"] == [two, one]
        assert found["label=team%3Dvision"] == found["label=team&label=name"] == [one]
        assert found["q=resnet"] == found["q=0%25"] == [one]
        assert found["q=_"] == []
        made = [job(api.http, one, labels={"run": str(i)}).json() for i in range(3)]
        assert made[0]["labels"] == {"run": "0"}
        page = api.http.get("/v1/jobs?label=run%3D1").json()["jobs"]
        assert [j["id"] for j in page] == [made[1]["id"]]
        first = api.http.get("/v1/jobs?label=run&limit=2")
        assert "label=run" in first.headers["link"]
        rest = api.http.get(first.headers["link"].partition(">")[0].lstrip("<"))
        assert [j["id"] for j in rest.json()["jobs"]] == [made[0]["id"]]
        pages = api.http.get("/v1/models?limit=1").json()
        second = api.http.get("/v1/models", params={"limit": 1, "cursor": pages["next"]}).json()
        assert [pages["models"][0]["id"], second["models"][0]["id"], second["next"]] == [two, one, None]
        refused(api.http.get("/v1/models?cursor=bm8="), 422, "request-invalid")
        refused(api.http.get("/v1/jobs?label=%3Dx"), 422, "request-invalid")
        refused(
            api.http.put(f"/v1/models/{one}/labels", json={"labels": {"a b": ""}}), 422, "request-invalid"
        )
        with api.database.write() as connection:
            row = job_repository.find(connection, made[0]["id"])
            job_repository.finish(connection, row, job_repository.Ending("cancelled"))
        api.http.delete(f"/v1/jobs/{made[0]['id']}")
        with api.database.read() as connection:
            assert connection.scalar(sa.select(sa.func.count()).where(labels.c.subject == row["id"])) == 0


def test_a_full_disk_is_told_and_leaves_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Upload) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with inside(settings) as api:
        monkeypatch.setattr("app.jobs.store.blobs.os.fsync", full)
        refused(api.http.post("/v1/models", content=b"ok"), 507, "storage-full")
        refused(api.http.get("/readyz"), 503, "not-ready")
        monkeypatch.undo()
        assert list(api.service.blobs.incoming.iterdir()) == []
        assert api.http.get("/readyz").status_code == 200
        assert api.http.post("/v1/models", content=b"ok").status_code == 201
    with inside(replace(settings, reserve_bytes=2**62)) as api:
        body = refused(api.http.post("/v1/models", content=b"ok"), 507, "storage-full")
        assert "delete" in body["detail"]


def test_what_is_older_than_the_rules_allow_goes(settings: Settings, database: Database) -> None:
    rules = replace(settings, retain_jobs_seconds=100.0, retain_models_seconds=1000.0)
    with inside(rules) as api:
        old, new, needed = (upload(api.http, text) for text in ("old", "new", "needed"))
        ended, waits = job(api.http, new).json()["id"], job(api.http, needed).json()["id"]
        with database.write() as connection:
            job_repository.finish(
                connection, job_repository.find(connection, ended), job_repository.Ending("cancelled")
            )
            connection.execute(jobs.update().where(jobs.c.id == ended).values(finished=time.time() - 200))
            ages = models.update().where(models.c.id.in_([old, needed])).values(used=time.time() - 2000)
            connection.execute(ages)
        reaper = Reaper(rules, database, "n:0", [])
        reaper.beat()
        reaper.leave()
        with database.read() as connection:
            assert set(connection.scalars(sa.select(models.c.id))) == {new, needed}
            found = connection.scalars(sa.select(jobs.c.id).where(jobs.c.kind == "optimize")).all()
            assert found == [waits]
            assert connection.scalar(sa.select(sa.func.count()).select_from(blobs)) == 2
        assert not api.service.blobs.path(address(b"old").rpartition("/")[2]).exists()


def test_an_equal_job_is_answered_from_the_store_at_once_and_says_so(service: Served) -> None:
    http = service.http
    body = {"model": service.model("ok to reuse"), "targets": ["cpu-avx512"], "labels": {"n": "1"}}
    first = service.end(http.post("/v1/jobs", json=body).json()["id"])
    assert first["cached_from"] is None
    answer = http.post("/v1/jobs", json=body | {"labels": {"n": "2"}}).json()
    assert (answer["state"], answer["cached_from"], answer["labels"]) == (
        "succeeded",
        first["id"],
        {"n": "2"},
    )
    assert answer["summary"] == first["summary"]
    names = [(a["name"], a["sha256"]) for a in answer["artifacts"]]
    assert names == [(a["name"], a["sha256"]) for a in first["artifacts"]]
    events = http.get(f"/v1/jobs/{answer['id']}/events").text
    assert events.count('"succeeded"') == 1
    assert http.delete(f"/v1/jobs/{first['id']}").status_code == 204
    assert http.get(answer["artifacts"][0]["url"]).status_code == 200, "it keeps what both had"
    again = http.post("/v1/jobs", json=body).json()
    assert again["cached_from"] == answer["id"] or again["state"] != "succeeded"
    for change in (
        {"reuse": False},
        {"targets": ["cuda-sm90"]},
        {"options": {"seed": 5}},
        {"input_shapes": {"x": [1]}},
        {"model": service.model("ok to reuse, too")},
    ):
        other = http.post("/v1/jobs", json=body | change).json()
        assert other["cached_from"] is None, change
        service.end(other["id"])


def test_a_measured_result_answers_until_the_timings_change(service: Served) -> None:
    body = {"model": service.model("ok measured"), "targets": ["host"]}
    first = service.end(service.http.post("/v1/jobs", json=body).json()["id"])
    assert service.http.post("/v1/jobs", json=body).json()["cached_from"] == first["id"]
    table = service.settings.data / "kernels" / "timings.json"
    table.parent.mkdir(exist_ok=True)
    table.write_text('{"a row": 1.0}')
    try:
        other = service.http.post("/v1/jobs", json=body).json()
        assert other["cached_from"] is None
        service.end(other["id"])
    finally:
        table.unlink()


def test_metrics_count_what_happened(settings: Settings) -> None:
    with inside(settings) as api:
        model = upload(api.http, "ok")
        job_id = job(api.http, model).json()["id"]
        for _ in range(2):
            with api.database.write() as connection:
                row = job_repository.find(connection, job_id)
                job_repository.finish(
                    connection, row, job_repository.Ending("failed", code="time-limit", detail="")
                )
                connection.execute(
                    workers.insert().values(id=f"n:{time.time_ns()}", seen=time.time(), queues=["cpu"])
                )
        api.http.get("/v1/jobs/none")
        answer = api.http.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        samples: dict[str, float] = {}
        for line in answer.text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                assert name not in samples, name
                samples[name] = float(value)
        ended = 'stowplan_jobs_ended_total{code="time-limit",kind="optimize",state="failed"}'
        assert samples[ended] == 1
        assert samples['stowplan_job_wait_seconds_bucket{kind="optimize",le="+Inf"}'] == 1
        assert samples['stowplan_job_run_seconds_count{kind="optimize"}'] == 1
        assert samples['stowplan_jobs{kind="inspect",state="queued"}'] == 1
        assert samples["stowplan_blobs"] == samples["stowplan_models"] == 1
        where = 'method="GET",route="/v1/jobs/{job_id}",status="404"'
        assert samples[f"stowplan_http_requests_total{{{where}}}"] == 1
        assert sum(name.startswith("stowplan_worker_heartbeat_age") for name in samples) == 2


def test_ready_means_that_the_tables_fit_and_someone_serves_what_waits(settings: Settings) -> None:
    with inside(settings) as api:
        assert api.http.get("/readyz").json()["warnings"] == ["no worker is running: jobs will wait"]
        with api.database.write() as connection:
            connection.execute(workers.insert().values(id="n:0", seen=time.time(), queues=["cpu"]))
        request = {"targets": ["cpu-avx512"], "options": {"timings": "measured"}}
        assert job(api.http, upload(api.http, "ok"), **request).json()["state"] == "waiting_for_target"
        answer = api.http.get("/readyz").json()
        assert (answer["workers"], len(answer["warnings"])) == (1, 1)
        assert "target:" in answer["warnings"][0]
        with api.database.write() as connection:
            connection.exec_driver_sql("update alembic_version set version_num = '0001'")
        refused(api.http.get("/readyz"), 503, "not-ready")


def test_a_line_of_the_log_carries_the_ids_of_what_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.root.handlers[:], logging.root.level
    try:
        logs.configure(Settings(log_format="json", log_level="info"), "worker")
        with logs.about(job_id="j", request_id="r"):
            logging.getLogger("stowplan.test").info("done", extra={"seconds": 1.5})
        logging.getLogger("stowplan.test").info("outside")
    finally:
        logging.root.handlers[:], level = before
        logging.root.setLevel(level)
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["message"], first["job_id"], first["request_id"], first["seconds"]) == (
        "done",
        "j",
        "r",
        1.5,
    )
    assert first["part"] == "worker"
    assert "job_id" not in second


def test_a_model_that_another_owner_deletes_stays_for_the_first(
    settings: Settings, database: Database
) -> None:
    with inside(settings) as api:
        one, two = api.key("submit"), api.key("submit")
        kept, gone = upload(one, "both"), upload(two, "both")
        for identifier in (kept, gone):
            with database.write() as connection:
                inspection = connection.scalar(sa.select(jobs.c.id).where(jobs.c.model_id == identifier))
                job_repository.finish(
                    connection,
                    job_repository.find(connection, str(inspection)),
                    job_repository.Ending("succeeded"),
                )
        assert two.delete(f"/v1/models/{gone}").status_code == 204
        assert two.head(address(b"both")).status_code == 404
        assert one.head(address(b"both")).status_code == 200
        with database.read() as connection:
            assert model_repository.find_model(connection, kept)["id"] == kept


def test_a_queue_that_takes_no_job_loses_none(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise sa.exc.OperationalError("enqueue", {}, Exception("gone"))

    with inside(settings) as api:
        model = upload(api.http, "ok")
        monkeypatch.setattr(api.service.dispatcher, "send", gone)
        answer = job(api.http, model)
        assert answer.status_code == 202
        with api.database.read() as connection:
            assert not job_repository.find(connection, answer.json()["id"])["enqueued"], (
                "a worker sends it later"
            )
