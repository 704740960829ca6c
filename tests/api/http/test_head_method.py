"""What HTTP asks of every address: HEAD, Allow, no empty uploads; and metrics that explain themselves."""

import re
from collections.abc import Iterator

import pytest

from app.settings import Settings
from tests.api.inside import Inside, inside

LOOKED_AT = (
    "/v1/models",
    "/v1/jobs",
    "/v1/targets",
    "/healthz",
    "/openapi.json",
    "/metrics",
    "/v2",
    "/models",
)


@pytest.fixture
def api(settings: Settings) -> Iterator[Inside]:
    with inside(settings) as running:
        yield running


@pytest.mark.parametrize("path", LOOKED_AT)
def test_head_is_answered_where_get_is(api: Inside, path: str) -> None:
    wanted, found = api.http.get(path), api.http.head(path)
    assert (found.status_code, found.content) == (wanted.status_code, b"")
    assert found.headers["content-type"] == wanted.headers["content-type"]
    assert api.http.get("/healthz").status_code == 200  # the connection goes on


def test_the_head_of_a_stream_does_not_wait_for_its_end(api: Inside) -> None:
    model = api.http.post("/v1/models", content=b"ok").json()["id"]
    job = api.http.post("/v1/jobs", json={"model": model, "targets": ["host"]}).json()["id"]
    found = api.http.head(f"/v1/jobs/{job}/events", timeout=10.0)
    assert found.headers["content-type"].startswith("text/event-stream")
    assert api.http.head("/v1/jobs/nothing").status_code == 404
    assert api.http.head("/v1/nothing").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/models/x", {"GET", "HEAD", "DELETE", "PATCH"}),
        ("DELETE", "/v1/models", {"GET", "HEAD", "POST"}),
        ("POST", "/v1/jobs/x", {"GET", "HEAD", "DELETE"}),
        ("GET", "/v1/blobs/sha256/" + "0" * 64, {"HEAD", "PUT"}),
        ("PATCH", "/v1/jobs/x/cancel", {"POST"}),
    ],
)
def test_a_refused_method_tells_all_that_are_allowed(
    api: Inside, method: str, path: str, allowed: set[str]
) -> None:
    answer = api.http.request(method, path)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == allowed


def test_an_empty_body_is_no_model(api: Inside) -> None:
    for headers in ({}, {"content-type": "application/octet-stream"}, {"content-type": "application/json"}):
        answer = api.http.post("/v1/models", content=b"", headers=headers)
        assert answer.status_code == 422, answer.text
        assert answer.json()["code"] == "request-invalid"
    assert api.http.get("/v1/models").json()["models"] == []


def test_every_metric_tells_what_it_is(api: Inside) -> None:
    api.http.get("/v1/models")
    lines = api.http.get("/metrics").text.splitlines()
    families = {line.split()[2] for line in lines if line.startswith("# TYPE ")}
    assert len(families) > 10
    for family in families:
        (at,) = (i for i, line in enumerate(lines) if line.startswith(f"# TYPE {family} "))
        assert re.match(rf"# HELP {family} \S.+\.$", lines[at - 1]), family
