"""`stowplan values`, `extract`, `compose` and `convert` on files, without a server."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from app.cli.main import main
from tests.engine.canonical import runtime, saved

TEXT = """<ir_version: 7, opset_import: ["": 12]> g (float[n,3] x) => (float[n,1] y) {
    a = Mul(x, w)
    y = ReduceSum<axes = [1]>(a)
}"""
W = np.arange(900, dtype=np.float32).reshape(300, 3)
X = np.ones((300, 3), np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(TEXT, tmp_path, {"w": W})


def test_values_are_listed(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["values", str(model)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == ["x", "input", "float32", "nx3"]
    assert ["a", "internal", "float32", "300x3", "Mul"] in lines
    assert main(["values", str(model), "--role", "output", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["y"]


def test_a_part_and_its_composition(model: Path, tmp_path: Path) -> None:
    head, tail, whole = (str(tmp_path / f"{name}.onnx") for name in ("head", "tail", "whole"))
    assert main(["extract", str(model), "--outputs", "a", head]) == 0
    assert main(["extract", str(model), "--inputs", "a", "--outputs", "y", tail, "--external-data"]) == 0
    assert main(["compose", head, tail, "--connect", "a=a", whole]) == 0
    found, expected = runtime(Path(whole), {"x": X}), runtime(model, {"x": X})
    np.testing.assert_array_equal(found["y"], expected["y"])


def test_another_opset_and_weights_beside_the_file(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert main(["convert", str(model), str(out), "--opset", "17", "--external-data"]) == 0
    onnx.checker.check_model(str(out), full_check=True)
    assert (tmp_path / "out.onnx.data").stat().st_size == W.nbytes
    assert onnx.load(out).opset_import[0].version == 17
    back = tmp_path / "back.onnx"
    assert main(["convert", str(out), str(back), "--opset", "12"]) == 0
    assert [a.name for a in onnx.load(back).graph.node[1].attribute if a.name == "axes"] == ["axes"]
    for path in (out, back):
        np.testing.assert_array_equal(runtime(path, {"x": X})["y"], runtime(model, {"x": X})["y"])


def test_what_is_refused_tells_the_reason(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["extract", str(model), "--outputs", "q", str(tmp_path / "o.onnx")]) == 1
    assert "no value 'q'; it has 'x', 'w', 'a', 'y' [input-invalid]" in capsys.readouterr().err
    assert main(["convert", str(model), str(tmp_path / "o.onnx"), "--opset", "99"]) == 1
    assert main(["convert", str(model), str(tmp_path / "o.json")]) == 1
    assert "o.json: expected a name that ends with .onnx" in capsys.readouterr().err
    assert main(["values", str(tmp_path / "absent.onnx")]) == 2
