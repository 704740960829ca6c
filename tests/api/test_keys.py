"""Keys: who gets in, what he may do, whose things he sees, how much he may have."""

import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import httpx
import pytest

from app.api.http.auth_middleware import check_binding, scope_of
from app.client import Client
from app.jobs.errors import RequestError
from app.jobs.store import keys
from app.jobs.store.database import Database, migrate
from app.settings import Settings, SettingsError
from tests.api.inside import description, inside
from tests.api.test_models import address, refused
from tests.jobs.service import serve

OPERATIONS = [
    (method.upper(), path) for path, methods in description()["paths"].items() for method in methods
]


def upload(client: httpx.Client, text: str) -> str:
    answer = client.post("/v1/models", content=text.encode())
    assert answer.status_code in (200, 201), answer.text
    return str(answer.json()["id"])


def job(client: httpx.Client, model: str, **body: Any) -> httpx.Response:
    return client.post("/v1/jobs", json={"model": model, "targets": ["host"]} | body)


def test_no_operation_but_the_public_ones_answers_without_a_key(settings: Settings) -> None:
    with inside(settings) as api:
        api.key("admin")
        wrong = api.client("sp_0123456789abcdef_" + "x" * 43)
        for method, path in [*OPERATIONS, ("POST", "/v1/not/yet/written"), ("GET", "/v2/not/yet/written")]:
            if scope_of(method, path) == "public":
                continue
            for client in (api.http, wrong, api.client("nonsense"), api.client(authorization="Basic eDp5")):
                answer = client.request(method, path)
                assert answer.status_code == 401, (method, path, answer.text)
                assert answer.headers["www-authenticate"] == "Bearer"
        for path in ("/healthz", "/docs", "/openapi.json", "/v1/problems/key-required"):
            assert api.http.get(path).status_code == 200


def test_a_scope_includes_those_before_it_and_no_more(settings: Settings) -> None:
    with inside(settings) as api:
        read, submit, admin = (api.key(scope, "team") for scope in ("read", "submit", "admin"))
        model = upload(submit, "ok")
        assert read.get(f"/v1/models/{model}").status_code == 200
        refused(read.post("/v1/models", content=b"ok"), 403, "forbidden")
        refused(read.delete(f"/v1/models/{model}"), 403, "forbidden")
        refused(submit.get("/v1/keys"), 403, "forbidden")
        refused(submit.post("/v1/keys", json={"name": "more", "scope": "admin"}), 403, "forbidden")
        assert admin.get("/v1/keys").status_code == 200


def test_what_one_made_another_neither_sees_nor_can_guess(settings: Settings) -> None:
    with inside(settings) as api:
        mine, other, admin = api.key("submit"), api.key("submit"), api.key("admin")
        secret = b"a secret model"
        assert mine.put(address(secret), content=secret).status_code == 201
        model = upload(mine, "a secret model")
        job_id = job(mine, model, labels={"team": "mine"}).json()["id"]
        assert other.head(address(secret)).status_code == 404
        manifest = {"model": address(secret).rpartition("/")[2]}
        refused(other.post("/v1/models", json=manifest), 404, "blob-not-found")
        refused(job(other, model), 404, "model-not-found")
        for path in (f"/v1/models/{model}", f"/v1/jobs/{job_id}", f"/v1/jobs/{job_id}/events"):
            assert other.get(path).status_code == 404, path
            assert admin.get(path if "events" not in path else "/v1/jobs").status_code == 200, path
        for path in (f"/v1/models/{model}/labels", f"/v1/jobs/{job_id}/labels"):
            assert other.put(path, json={"labels": {}}).status_code == 404
        refused(other.post(f"/v1/jobs/{job_id}/cancel"), 404, "job-not-found")
        refused(other.delete(f"/v1/models/{model}"), 404, "model-not-found")
        assert other.get("/v1/jobs").json()["jobs"] == other.get("/v1/models").json()["models"] == []
        assert [j["id"] for j in mine.get("/v1/jobs").json()["jobs"]] == [job_id]
        theirs = other.post("/v1/models", content=secret)
        assert theirs.status_code == 201, "he cannot tell that someone has it"
        assert theirs.json()["id"] != model
        assert other.put(address(secret), content=secret).status_code == 200
        assert mine.delete(f"/v1/jobs/{job_id}").status_code == 409


def test_the_same_idempotency_key_of_two_callers_is_two(settings: Settings) -> None:
    with inside(settings) as api:
        found = []
        for client in (api.key("submit"), api.key("submit")):
            body = {"model": upload(client, "ok"), "targets": ["host"]}
            answers = [
                client.post("/v1/jobs", json=body, headers={"idempotency-key": "k"}).json()["id"]
                for _ in range(2)
            ]
            assert answers[0] == answers[1]
            found.append(answers[0])
        assert found[0] != found[1]


def test_keys_of_one_owner_share_what_he_has(settings: Settings) -> None:
    with inside(settings) as api:
        one, two = api.key("submit", "team"), api.key("read", "team")
        model = upload(one, "shared")
        answer = two.get(f"/v1/models/{model}").json()
        assert (answer["id"], answer["owner"]) == (model, "team")


def test_a_revoked_key_opens_nothing_and_the_door_stays_closed(settings: Settings) -> None:
    with inside(settings) as api:
        made = api.http.post("/v1/keys", json={"name": "first", "scope": "admin", "require_keys": True})
        assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
        client = api.client(made.json()["key"])
        listed = client.get("/v1/keys")
        assert [k["name"] for k in listed.json()["keys"]] == ["first"]
        assert made.json()["key"][-16:] not in listed.text
        assert listed.json()["keys"][0]["used"] is not None
        assert client.delete(f"/v1/keys/{made.json()['id']}").status_code == 204
        refused(client.get("/v1/jobs"), 401, "key-required")
        refused(api.http.get("/v1/jobs"), 401, "key-required")


@pytest.mark.parametrize("scope", ["read", "submit", "admin"])
def test_no_single_request_without_a_key_locks_everybody_out(settings: Settings, scope: str) -> None:
    with inside(settings) as api:
        refused(api.http.post("/v1/keys", json={"name": "first", "scope": scope}), 422, "request-invalid")
        example = api.http.get("/openapi.json").json()["components"]["schemas"]["KeyRequest"]["examples"][0]
        refused(api.http.post("/v1/keys", json=example), 422, "request-invalid")
        if scope != "admin":
            body = {"name": "first", "scope": scope, "require_keys": True}
            refused(api.http.post("/v1/keys", json=body), 422, "request-invalid")
        assert api.http.get("/v1/jobs").status_code == 200


def test_the_first_key_of_the_command_line_is_an_administrators(database: Database) -> None:
    with database.write() as connection:
        with pytest.raises(RequestError, match="--scope admin"):
            keys.create(connection, "ci", "submit")
        assert not keys.exist(connection)
        keys.create(connection, "admin", "admin")
        keys.create(connection, "ci", "submit")


def test_the_text_of_a_key_is_nowhere_in_the_tables(database: Database) -> None:
    with database.write() as connection:
        identifier, text = keys.create(connection, "a", "admin")
        row = keys.find(connection, text)
        assert row is not None
        assert row["id"] == identifier
        assert text.split("_", 2)[2] not in str(dict(row))  # the secret may hold "_" itself
        assert keys.find(connection, text[:-1] + "!") is None
        assert keys.find(connection, text + "\n") is None
        with pytest.raises(RequestError, match="scope"):
            keys.create(connection, "a", "root")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_nobody_listens_beyond_loopback_without_a_key(
    settings: Settings, database: Database, host: str
) -> None:
    check_binding(settings, database)
    with pytest.raises(SettingsError, match="stowplan keys create"):
        check_binding(replace(settings, host=host), database)
    with pytest.raises(SettingsError, match="no key"):
        check_binding(replace(settings, require_keys=True), database)
    with database.write() as connection:
        keys.create(connection, "a", "admin")
    check_binding(replace(settings, host=host), database)


def test_a_page_from_elsewhere_cannot_use_the_open_service(settings: Settings) -> None:
    with inside(replace(settings, allowed_hosts=("box.lan",))) as api:
        refused(api.client(host="attacker.example").get("/v1/jobs"), 403, "forbidden")
        assert api.client(host="localhost:8000").get("/v1/jobs").status_code == 200
        assert api.client(host="box.lan").get("/v1/jobs").status_code == 200
        foreign = api.client(origin="https://attacker.example")
        refused(foreign.post("/v1/models", content=b"ok"), 403, "forbidden")
        own = api.client(origin=str(api.http.base_url).rstrip("/"))
        assert own.post("/v1/models", content=b"ok").status_code == 201
        for method, path in OPERATIONS:
            if scope_of(method, path) == "submit":
                assert foreign.request(method, path).status_code == 403, (method, path)


def test_a_key_has_so_many_jobs_and_bytes_and_no_more(settings: Settings) -> None:
    limits = {"max_jobs_per_key": 3, "max_bytes_per_key": 1000}
    with inside(replace(settings, **limits)) as api:  # type: ignore[arg-type]
        mine, other = api.key("submit"), api.key("submit")
        model = upload(mine, "one")  # its inspection is a job, too
        assert [job(mine, model).status_code for _ in range(2)] == [202, 202]
        over = job(mine, model)
        refused(over, 429, "too-many")
        assert over.headers["retry-after"]
        assert job(other, upload(other, "one")).status_code == 202
        content = b"x" * 990
        assert mine.put(address(content), content=content).status_code == 201
        refused(mine.put(address(b"y" * 11), content=b"y" * 11), 413, "quota-exceeded")
        assert mine.put(address(content), content=content).status_code == 200
        assert other.put(address(content), content=content).status_code == 201


def test_a_key_has_so_many_requests_at_once(settings: Settings) -> None:
    with inside(replace(settings, max_requests_per_key=1)) as api:
        mine, other = api.key("submit"), api.key("submit")
        model = upload(mine, "ok")
        waiting = threading.Thread(
            target=mine.get, args=(f"/v1/models/{model}",), kwargs={"params": {"wait": 3}}
        )
        waiting.start()
        again = api.client(mine.headers["authorization"].removeprefix("Bearer "))
        deadline = time.monotonic() + 3
        while (answer := again.get("/v1/jobs")).status_code == 200 and time.monotonic() < deadline:
            time.sleep(0.05)
        refused(answer, 429, "too-many")
        assert other.get("/v1/jobs").status_code == 200
        waiting.join()
        assert again.get("/v1/jobs").status_code == 200


def test_every_answer_carries_headers_for_browsers(settings: Settings) -> None:
    with inside(settings) as api:
        for path in ("/v1/jobs", "/nowhere", "/docs", "/healthz", "/static/docs.js"):
            headers = api.http.get(path).headers
            assert "frame-ancestors 'none'" in headers["content-security-policy"], path
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["x-request-id"]
        assert (
            "access-control-allow-origin"
            not in api.client(origin="https://a.example").get("/healthz").headers
        )


def test_a_proxy_may_shorten_addresses_and_pages_of_named_origins_may_ask(settings: Settings) -> None:
    own = {"root_path": "/stow", "cors_origins": ("https://pages.example",)}
    with inside(replace(settings, **own)) as api:  # type: ignore[arg-type]
        made = api.http.post("/v1/models", content=b"ok")
        assert made.headers["location"] == f"/stow/v1/models/{made.json()['id']}"
        assert job(api.http, made.json()["id"]).headers["location"].startswith("/stow/v1/jobs/")
        assert api.http.get("/v1/nothing").json()["type"].startswith("/stow/v1/problems/")
        assert api.http.get("/openapi.json").json()["servers"] == [{"url": "/stow"}]
        asked = {"origin": "https://pages.example", "access-control-request-method": "POST"}
        answer = api.http.options("/v1/jobs", headers=asked)
        assert answer.headers["access-control-allow-origin"] == "https://pages.example"
        assert (
            api.http.options("/v1/jobs", headers=asked | {"origin": "https://b.example"}).status_code == 400
        )


def test_a_job_made_without_keys_is_the_administrators_later(settings: Settings) -> None:
    with inside(settings) as api:
        model = upload(api.http, "ok")
        assert api.key("submit").get(f"/v1/models/{model}").status_code == 404
        assert api.key("admin").get(f"/v1/models/{model}").status_code == 200


def test_jobs_of_one_owner_wait_while_those_of_another_run(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    data = tmp_path_factory.mktemp("shares")
    migrate(Settings(data=data))
    database = Database(Settings(data=data).jobs_database_url)
    with database.write() as connection:
        texts = [keys.create(connection, name, "admin")[1] for name in ("one", "two")]
    database.close()
    with serve(data, max_running_per_key=1) as service, ExitStack() as clients:
        url = str(service.http.base_url)
        one, two = (clients.enter_context(Client(url, key=text)) for text in texts)
        paths = [data / f"{i}.txt" for i in range(3)]
        for i, path in enumerate(paths):
            path.write_text(f"steps 6000 {i}")  # longer than any start of a worker takes
        models = [client.upload(path).id for client, path in zip((one, one, two), paths)]
        made = [client.submit(model).id for client, model in zip((one, one, two), models)]
        deadline = time.monotonic() + 60
        while two.job(made[2]).state != "running" and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1.0)
        states = [client.job(job_id).state for client, job_id in zip((one, one, two), made)]
        assert sorted(states[:2]) == ["queued", "running"]
        assert states[2] == "running"
