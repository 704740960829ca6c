"""Models have names: that of the file, until someone changes it."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command

from app.client import Client, ServiceFailureError
from app.jobs.store import database as tables
from app.jobs.store import model_repository
from app.settings import Settings
from tests.api.inside import Inside, inside
from tests.external_model import with_external_data


@pytest.fixture
def api(settings: Settings) -> Iterator[Inside]:
    with inside(settings) as running:
        yield running


@pytest.fixture
def client(api: Inside) -> Iterator[Client]:
    with Client(str(api.http.base_url)) as client:
        yield client


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_an_upload_carries_the_name_of_its_file(client: Client, tmp_path: Path) -> None:
    model = client.upload(file(tmp_path, "café net.onnx", "ok one"))
    assert model.name == "café net.onnx"
    assert [m.name for m in client.models()] == ["café net.onnx"]
    external = client.upload(file(tmp_path, "two.onnx", "ok"), {"w.bin": file(tmp_path, "w.bin", "w")})
    assert external.name == "two.onnx"
    assert client.upload(file(tmp_path, "a\tb.onnx", "ok three"), name="x" * 300).name == "x" * 255


def test_the_same_file_under_another_name_keeps_its_name(client: Client, tmp_path: Path) -> None:
    first = client.upload(file(tmp_path, "first.onnx", "ok same"))
    assert client.upload(file(tmp_path, "second.onnx", "ok same")) == first


def test_a_model_is_renamed_and_found_by_its_name(client: Client, tmp_path: Path) -> None:
    model = client.upload(file(tmp_path, "old.onnx", "ok rename"))
    job = client.submit(model.id)
    assert client.rename_model(model.id, "new name").name == "new name"
    assert client.model(model.id).name == "new name"
    assert client.job(job.id).model_name == "new name"
    assert [m.id for m in client.models(q="EW NAM")] == [model.id]
    assert [j.id for j in client.jobs(q="EW NAM")] == [job.id]
    assert list(client.models(q="old")) == []
    for wrong in ("", "a\nb", "x" * 256):
        with pytest.raises(ServiceFailureError):
            client.rename_model(model.id, wrong)
    with pytest.raises(ServiceFailureError, match="there is no model"):
        client.rename_model("0" * 32, "x")


def test_a_model_without_a_name_is_called_by_the_start_of_its_id(api: Inside) -> None:
    model = api.http.post("/v1/models", content=b"ok nameless").json()
    assert model["name"] == ""
    job = api.http.post("/v1/jobs", json={"model": model["id"], "targets": ["host"]}).json()
    assert job["model_name"] == model["id"][:12]
    assert api.http.post("/v1/models?name=late.onnx", content=b"ok nameless").json()["name"] == "late.onnx"


def test_names_that_pages_kept_as_labels_are_kept(settings: Settings) -> None:
    database = tables.Database(settings.jobs_database_url)
    config = tables._history()
    with database.write() as connection:
        config.attributes["connection"] = connection
        model, _ = _model(connection)
        command.downgrade(config, "0004")
        labels = {"subject": model, "name": "name", "value": "kept.onnx"}
        connection.execute(tables.labels.insert().values(**labels))
        connection.execute(tables.labels.insert().values(subject=model, name="team", value="vision"))
        command.upgrade(config, "head")
        assert model_repository.names_of(connection, [model]) == {model: "kept.onnx"}
        assert connection.scalars(sa.select(tables.labels.c.name)).all() == ["team"]
    database.close()


def _model(connection: sa.Connection) -> tuple[str, list[str]]:
    blob = {"sha256": "a" * 64, "size": 1, "created": 0.0}
    connection.execute(tables.blobs.insert().values(**blob))
    connection.execute(tables.holdings.insert().values(sha256="a" * 64, owner="", claimed_until=9e9))
    return model_repository.add_model(connection, {"": "a" * 64}, {}, "")


def test_a_blob_needs_no_hash_of_its_sender(api: Inside) -> None:
    answer = api.http.post("/v1/blobs", content=b"some bytes")
    assert answer.status_code == 201
    assert answer.json() == {"sha256": hashlib.sha256(b"some bytes").hexdigest(), "size": 10}
    assert api.http.post("/v1/blobs", content=b"some bytes").status_code == 200


def test_external_data_are_found_by_the_last_part_of_their_location(api: Inside) -> None:
    model, data = (
        api.http.post("/v1/blobs", content=c).json()["sha256"]
        for c in (with_external_data("deep/down/w.bin"), b"x" * 16)
    )
    body = {"model": model, "external_data": {"w.bin": data}}
    assert api.http.post("/v1/models", json=body).json()["files"] == {"": model, "deep/down/w.bin": data}


def test_a_last_part_that_two_locations_have_is_left_as_it_is() -> None:
    files = {"": "a", "w.bin": "b"}
    assert model_repository.located(files, ("x/w.bin", "y/w.bin")) == files
    assert model_repository.located(files, ("w.bin",)) == files
