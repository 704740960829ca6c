"""Values of a stored model, and models made of stored ones."""

from pathlib import Path

from app.client import Client
from tests.jobs.service import Served


def test_values_come_in_pages(service: Served) -> None:
    words = "one two three four five"
    model = service.model(words)
    address = f"/v1/models/{model}/values"
    first = service.http.get(address, params={"limit": 2})
    assert first.status_code == 200, first.text
    assert (first.json()["total"], len(first.json()["values"])) == (5, 2)
    assert 'rel="next"' in first.headers["link"]
    with Client(str(service.http.base_url)) as client:
        assert [v["name"] for v in client.values(model, limit=2)] == words.split()
    assert service.http.get(address, params={"cursor": "AAAA"}).json()["code"] == "request-invalid"


def test_a_part_is_a_model_that_tells_what_it_was_made_of(service: Served) -> None:
    source = service.model("to be extracted from")
    body = {"inputs": ["a"], "outputs": ["b"], "name": "part"}
    made = service.http.post(f"/v1/models/{source}/extract", json=body, params={"wait": 30})
    assert made.status_code == 201, made.text
    model = made.json()
    assert (model["name"], model["state"], model["report"]["nodes"]) == ("part", "ready", 5)
    asked = {"inputs": ["a"], "outputs": ["b"]}
    assert model["origin"] == {"operation": "extract", "models": [source], "request": asked}
    assert made.headers["location"].endswith(model["id"])
    again = service.http.post(f"/v1/models/{source}/extract", json=body | {"name": "other"})
    assert (again.status_code, again.json()["id"], again.json()["name"]) == (200, model["id"], "part")
    assert service.http.get(f"/v1/models/{source}").json()["origin"] is None
    page = service.http.get(f"/models/{model['id']}", headers={"accept": "text/html"})
    assert f'href="/models/{source}"' in page.text


def test_a_symbol_is_a_model_whose_files_are_downloaded(service: Served, tmp_path: Path) -> None:
    source = service.model("to be spelled")
    with Client(str(service.http.base_url)) as client:
        made = client.model(
            client.symbol(source, input_shapes={"x": [1]}, name="net-symbol.json").id, wait=30
        )
        assert made.origin is not None
        assert made.origin["operation"] == "symbol"
        assert client.model_file(made.id, tmp_path / "graph").read_text() == "symbol to be spelled"
        assert client.model_file(made.id, tmp_path / "p", "model-0000.params").read_text() == "parameters"
    answer = service.http.get(f"/v1/models/{made.id}/file", params={"name": "absent"})
    assert (answer.status_code, answer.json()["code"]) == (404, "blob-not-found")
    assert service.http.get(f"/v1/models/{'0' * 32}/file").json()["code"] == "model-not-found"
    page = service.http.get(f"/models/{made.id}", headers={"accept": "text/html"})
    assert f'href="/v1/models/{made.id}/file?name=model-0000.params"' in page.text


def test_two_models_are_one(service: Served) -> None:
    first, second = service.model("the first"), service.model("the second")
    with Client(str(service.http.base_url)) as client:
        whole = client.model(client.compose(first, second, {"x": "y"}).id, wait=30)
    assert whole.report is not None
    assert whole.report["nodes"] == 5
    assert whole.origin is not None
    assert whole.origin["models"] == [first, second]
    assert whole.name.startswith("compose of ")


def test_a_failure_has_the_code_and_the_place_of_its_reason(service: Served) -> None:
    source = service.model("that lacks the value")
    answer = service.http.post(f"/v1/models/{source}/extract", json={"outputs": ["nowhere"]})
    assert (answer.status_code, answer.json()["code"]) == (422, "input-invalid")
    assert answer.json()["errors"][0]["pointer"] == "/outputs/0"


def test_models_that_are_not_there_or_invalid_are_refused(service: Served) -> None:
    there, gone = service.model("there"), "0" * 32
    answer = service.http.post("/v1/models/compose", json={"first": there, "second": gone})
    assert (answer.status_code, answer.json()["code"]) == (404, "model-not-found")
    assert service.http.get(f"/v1/models/{gone}/values").status_code == 404
    bad = service.model("bad")
    service.http.get(f"/v1/models/{bad}", params={"wait": 30})
    answer = service.http.post("/v1/models/compose", json={"first": there, "second": bad})
    assert (answer.status_code, answer.json()["code"]) == (422, "not-onnx")


def test_operations_leave_no_job(service: Served) -> None:
    before = service.http.get("/v1/jobs").json()["jobs"]
    service.http.get(f"/v1/models/{service.model('quiet')}/values")
    assert service.http.get("/v1/jobs").json()["jobs"] == before
