"""Pages as answers: signing in, what the cookie may do, problems for people, names from strangers' models."""

import json
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from app.api.http.auth_middleware import COOKIE
from app.api.pages import views
from app.api.pages.views import ABOUT, PHASES
from app.engine.entry.optimize import PHASES as THOSE_OF_THE_ENGINE
from app.jobs.store import job_repository, keys
from app.jobs.store.database import migrate
from app.jobs.worker.child_request import ARTIFACTS
from app.settings import Settings
from app.web.rendering import option
from tests.api.inside import Inside, inside
from tests.api.test_keys import job, upload

LOOKED_AT = {"accept": "text/html,application/xhtml+xml", "sec-fetch-site": "same-origin"}
PATHS = ("/", "/models", "/jobs", "/targets", "/keys", "/compare")
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = Settings(data=tmp_path_factory.mktemp("tables"))
    migrate(settings)
    return settings


@pytest.fixture
def settings(tables: Settings, tmp_path: Path) -> Settings:
    """On one database: pages ask what the API asks, which is tested on both."""
    shutil.copytree(tables.data, tmp_path, dirs_exist_ok=True)
    return Settings(data=tmp_path)


def key(api: Inside, scope: str) -> str:
    with api.database.write() as connection:
        if scope != "admin" and not keys.exist(connection):
            keys.create(connection, "first", "admin")
        return keys.create(connection, scope, scope)[1]


def browser(api: Inside, text: str | None = None, **headers: str) -> httpx.Client:
    """A client that asks as a browser does; it is signed in with a key."""
    client = api.client(**(LOOKED_AT | headers))
    if text is not None:
        answer = client.post("/login", data={"key": text, "next": "/jobs"})
        assert answer.status_code == 303, answer.text
        assert answer.headers["location"] == "/jobs"
    return client


def test_the_phases_and_artifacts_are_those_of_the_engine() -> None:
    assert PHASES == THOSE_OF_THE_ENGINE
    assert set(ABOUT) == set(ARTIFACTS)


def test_what_is_told_of_a_phase_after_a_colon_is_part_of_it() -> None:
    told = ("load", "tune: 5.1 ms predicted, measuring", "plan")
    events = [{"kind": "progress", "data": {"phase": p}, "created": float(i)} for i, p in enumerate(told)]
    rows = views._phases(events, {"finished": 3.5, "state": "succeeded"})
    assert {r["name"]: r["seconds"] for r in rows if r["state"] == "done"} == {
        "load": 1.0,
        "tune": 1.0,
        "plan": 1.5,
    }


def test_every_page_forbids_what_is_not_its_own(settings: Settings) -> None:
    with inside(settings) as api:
        for path in (*PATHS, "/login", "/nothing"):
            answer = browser(api).get(path)
            assert answer.headers["content-type"].startswith("text/html"), path
            policy = answer.headers["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "unsafe" not in policy
            assert "://" not in answer.text, path
            assert "style=" not in answer.text, path
            assert "<script>" not in answer.text, path
            assert answer.headers["x-content-type-options"] == "nosniff"


def test_without_keys_pages_are_open_and_with_keys_they_lead_to_the_sign_in(settings: Settings) -> None:
    with inside(settings) as api:
        assert all(browser(api).get(path).status_code == 200 for path in PATHS)
        text = key(api, "admin")
        for path in (*PATHS, "/jobs?state=failed"):
            answer = browser(api).get(path)
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/login?next=%2F")
        assert browser(api).get("/jobs", headers={"accept": "*/*"}).status_code == 401
        assert browser(api).get("/v1/jobs").json()["code"] == "key-required"
        assert "Sign in" in browser(api).get("/login").text
        signed_in = browser(api, text)
        assert all(signed_in.get(path).status_code == 200 for path in PATHS)
        assert signed_in.get("/v1/jobs").status_code == 200


def test_the_key_is_in_a_cookie_that_no_script_reads_and_no_other_site_sends(settings: Settings) -> None:
    with inside(settings) as api:
        text = key(api, "admin")
        answer = browser(api).post("/login", data={"key": f"  {text} ", "next": "/jobs"})
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"{COOKIE}={text};")
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
        assert text not in answer.headers["location"]
        signed_in = browser(api, text)
        answer = signed_in.post("/logout")
        assert answer.headers["location"] == "/login"
        assert signed_in.get("/jobs").status_code == 303


@pytest.mark.parametrize(
    "wrong", ["", "sp_0123456789abcdef_" + "x" * 43, "sp_x", "\x00", "é" * 100, "x" * 3000]
)
def test_a_wrong_key_is_told_so_and_kept_nowhere(settings: Settings, wrong: str) -> None:
    with inside(settings) as api:
        key(api, "admin")
        answer = browser(api).post("/login", data={"key": wrong})
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
        assert "no key of this service" in answer.text


@pytest.mark.parametrize(
    "address",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "", "jobs"],
)
def test_after_the_sign_in_a_browser_stays_here(settings: Settings, address: str) -> None:
    with inside(settings) as api:
        text = key(api, "admin")
        answer = browser(api).post("/login", data={"key": text, "next": address})
        assert answer.headers["location"] == "/"


def test_another_site_changes_nothing_with_the_cookie(settings: Settings) -> None:
    with inside(settings) as api:
        text = key(api, "admin")
        host = f"{api.http.base_url.host}:{api.http.base_url.port}"
        model = upload(api.client(text), "ok")
        tries = (
            ({"sec-fetch-site": "cross-site"}, False),
            ({"sec-fetch-site": "same-site"}, False),
            ({"sec-fetch-site": "none"}, False),
            ({"sec-fetch-site": "cross-site", "origin": f"http://{host}"}, False),
            ({"origin": "https://evil.example"}, False),
            ({"origin": "null"}, False),
            ({}, False),
            ({"origin": f"http://{host}"}, True),
            ({"sec-fetch-site": "same-origin"}, True),
        )
        for headers, allowed in tries:
            client = api.client(cookie=f"{COOKIE}={text}", **headers)
            answer = job(client, model, reuse=False)
            assert answer.status_code == (202 if allowed else 403), (headers, answer.text)
            assert client.post("/login", data={"key": text}).status_code == (303 if allowed else 403)
        # A key in the header is no cookie: no browser sends it by itself.
        assert job(api.client(text, origin="https://evil.example"), model).status_code == 202


def test_a_link_on_another_site_finds_the_browser_signed_in(settings: Settings) -> None:
    """The cookie is not sent along with it; the page that comes asks again, as a page of ours."""
    with inside(settings) as api:
        key(api, "admin")
        answer = browser(api, **{"sec-fetch-site": "cross-site"}).get("/jobs?state=failed")
        assert answer.status_code == 200
        assert 'content="0;url=/jobs?state=failed"' in answer.text


def test_a_cookie_of_another_service_on_this_host_does_no_harm(settings: Settings) -> None:
    with inside(settings) as api:
        stranger = api.client(cookie=f"{COOKIE}=sp_0123456789abcdef_{'x' * 43}", **LOOKED_AT)
        assert stranger.get("/jobs").status_code == 200
        key(api, "admin")
        assert stranger.get("/jobs").status_code == 303


def test_pages_offer_what_the_scope_allows(settings: Settings) -> None:
    with inside(settings) as api:
        admin, submit, read = (browser(api, key(api, scope)) for scope in ("admin", "submit", "read"))
        assert 'href="/keys"' in admin.get("/").text
        assert 'href="/keys"' not in submit.get("/").text
        assert 'id="drop"' in submit.get("/models").text
        assert 'id="drop"' not in read.get("/models").text
        answer = submit.get("/keys")
        assert answer.status_code == 403
        assert "Your key may not do that" in answer.text


def test_pages_show_nothing_of_other_owners(settings: Settings) -> None:
    with inside(settings) as api:
        mine, other = key(api, "submit"), key(api, "submit")
        model = upload(api.client(mine), "ok")
        made = job(api.client(mine), model).json()["id"]
        for path in (f"/models/{model}", f"/jobs/{made}", f"/jobs/{made}/report", f"/compare?jobs={made}"):
            assert browser(api, other).get(path).status_code == 404, path
        assert made not in browser(api, other).get("/jobs").text
        assert made in browser(api, mine).get("/jobs").text


def test_a_problem_is_told_to_people_as_a_page_and_to_programs_as_json(settings: Settings) -> None:
    with inside(settings) as api:
        for path in ("/jobs/none", "/models/none", "/jobs/none/report", "/nowhere"):
            answer = browser(api).get(path)
            assert answer.status_code == 404, path
            assert "That is not here" in answer.text
            assert api.client().get(path).headers["content-type"] == "application/problem+json"
        assert browser(api).get("/v1/jobs/none").headers["content-type"] == "application/problem+json"
        model = upload(api.http, "ok")
        waiting = job(api.http, model).json()["id"]
        assert browser(api).get(f"/jobs/{waiting}/report").status_code == 409


def test_behind_a_prefix_all_addresses_have_it(settings: Settings) -> None:
    with inside(replace(settings, root_path="/stow")) as api:
        found = _Addresses()
        for path in PATHS:
            found.feed(browser(api).get(path).text)
        assert found.seen
        assert all(a.startswith(("/stow/", "#")) for a in found.seen), found.seen
        key(api, "admin")
        assert browser(api).get("/jobs").headers["location"] == "/stow/login?next=%2Fstow%2Fjobs"


class _Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen += [v or "" for k, v in attrs if k in ("href", "src", "action")]


def test_names_from_strangers_are_text(settings: Settings) -> None:
    with inside(settings) as api:
        model = upload(api.http, "ok")
        api.http.patch(f"/v1/models/{model}", json={"name": HOSTILE})
        made = job(api.http, model, labels={"team": HOSTILE}).json()["id"]
        with api.database.write() as connection:
            row = job_repository.start(connection, made)
            assert row is not None
            notes = {"notes": [HOSTILE], "model": HOSTILE, "backends": {HOSTILE: 1}}
            job_repository.finish(connection, row, job_repository.Ending("succeeded", summary=notes))
        for path in ("/", "/models", f"/models/{model}", "/jobs", f"/jobs/{made}", f"/jobs/{made}/report"):
            answer = browser(api).get(path)
            assert answer.status_code == 200, path
            assert "&lt;img" in answer.text, path
            assert "<img src=x" not in answer.text, path
        assert browser(api).get(f"/compare?model={model}").status_code == 200


def test_jobs_come_in_pages_with_their_filters(settings: Settings) -> None:
    with inside(settings) as api:
        model = upload(api.http, "ok")
        ids = [job(api.http, model, labels={"n": str(i % 2)}).json()["id"] for i in range(28)]
        first = browser(api).get("/jobs?label=n%3D1&state=queued").text
        assert sum(i in first for i in ids) == 14
        first = browser(api).get("/jobs?state=queued").text
        assert sum(i in first for i in ids) == 25
        link = first.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
        assert "state=queued" in link
        assert sum(i in browser(api).get(link).text for i in ids) == 3


def test_a_job_is_asked_again(settings: Settings) -> None:
    with inside(settings) as api:
        model = upload(api.http, "ok")
        first = job(api.http, model, labels={"team": "a"}, options={"threads": 2}, input_shapes={"x": [1]})
        made = first.json()["id"]
        assert api.http.post(f"/v1/jobs/{made}/retry").json()["code"] == "job-not-finished"
        api.http.post(f"/v1/jobs/{made}/cancel")
        again = api.http.post(f"/v1/jobs/{made}/retry")
        assert again.status_code == 202
        assert again.json()["id"] != made
        assert again.json()["labels"] == {"team": "a"}
        with api.database.read() as connection:
            old, new = (
                dict(job_repository.find(connection, i)["request"]) for i in (made, again.json()["id"])
            )
        assert old == new
        assert api.http.post("/v1/jobs/none/retry").status_code == 404


def test_a_list_is_told_of_changes_once_and_of_its_own_jobs_only(settings: Settings) -> None:
    with inside(settings) as api:
        mine, other = key(api, "submit"), key(api, "submit")
        model = upload(api.client(mine), "ok")
        first, second = (job(api.client(mine), model).json()["id"] for _ in range(2))
        hidden = job(api.client(other), upload(api.client(other), "other")).json()["id"]
        told: list[dict[str, str]] = []
        asked = {"ids": f"{first},{hidden}", "after": first}
        with browser(api, mine).stream("GET", "/jobs/events", params=asked) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    told.append(json.loads(line[6:]))
                if len(told) == 2 and "cancelled" not in told[-1]["html"]:
                    api.client(mine).post(f"/v1/jobs/{second}/cancel")
                if len(told) == 3:
                    break
        assert [row["id"] for row in told] == [first, second, second]
        assert "cancelled" in told[-1]["html"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "yes"), (False, "no"), (["c", "wheel"], "c, wheel"), (0.01, "0.01"), ("f32", "f32")],
)
def test_options_are_told_for_people(value: object, text: str) -> None:
    assert option(value) == text
