"""The command line finds external data beside the model, and nowhere else."""

from pathlib import Path

import pytest

from app.cli.submit import beside
from app.engine.model.load import inspect
from app.engine.types.errors import ExternalDataError
from app.jobs.worker import prescan
from tests.external_model import with_external_data, write


def test_external_data_are_found_beside_the_model(tmp_path: Path) -> None:
    model = write(tmp_path, "weights/w.bin")
    assert beside(model) == {"weights/w.bin": tmp_path / "weights" / "w.bin"}
    (tmp_path / "weights" / "w.bin").unlink()
    assert beside(model) == {}


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "link", "."])
def test_nothing_outside_of_the_models_folder_is_uploaded(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_text("a secret")
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "model.onnx").write_bytes(with_external_data(location))
    assert beside(folder / "model.onnx") == {}


def test_the_scan_tells_the_locations(tmp_path: Path) -> None:
    assert prescan.scan(with_external_data("a b/c.bin")).locations == ("a b/c.bin",)
    assert prescan.scan(with_external_data("x")[:-20]).locations in ((), ("x",))


def test_the_error_of_missing_data_names_the_ways(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(with_external_data("weights.bin"))
    with pytest.raises(ExternalDataError) as caught:
        inspect(tmp_path / "m.onnx", {})
    for way in ("'weights.bin'", "page", "beside the model", "manifest"):
        assert way in caught.value.message
