"""`stowplan gradient` writes a training graph and tells what it takes."""

import json
from pathlib import Path

import onnx
import pytest

from app.cli.main import main

TEXT = """<ir_version: 10, opset_import: ["": 21]> g (float[n, 8] x) => (float[n, 2] y)
    <float[8, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}> { h = Tanh(x) m = MatMul(h, w) y = Sigmoid(m) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return path


def test_the_training_graph_is_written_and_described(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = model.with_name("training.onnx")
    assert main(["gradient", str(model), "--loss", "y", "--input", "x=4x8", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "gradient of w: w_grad" in told
    assert "kept for backward: 160 byte" in told
    assert "128 byte  h" in told
    assert "peak of activations:" in told
    assert "in any order of the steps at least" in told
    assert [o.name for o in onnx.load(out).graph.output] == ["y", "y_sum", "w_grad"]


def test_variables_are_named_and_the_answer_is_json(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = model.with_name("training.onnx")
    arguments = ["--loss", "h", "--wrt", "x", "--input", "x=4x8", "--out", str(out), "--no-peaks", "--json"]
    assert main(["gradient", str(model), *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["gradients"] == {"x": "x_grad"}


def test_external_data_is_found_beside_the_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = model.with_name("training.onnx")
    proto = onnx.load(model)
    wanted = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    proto.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(wanted, "w")
    )  # bytes, which can lie outside
    onnx.save(proto, model, save_as_external_data=True, location="weights.bin", size_threshold=0)
    arguments = ["--loss", "y", "--input", "x=4x8", "--out", str(out)]
    assert main(["gradient", str(model), *arguments]) == 0
    found = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(out).graph.initializer}
    assert (found["w"] == wanted).all()
    model.with_name("weights.bin").unlink()
    assert main(["gradient", str(model), *arguments]) == 1
    assert "weights.bin" in capsys.readouterr().err


def test_a_refusal_is_one_line(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = model.with_name("training.onnx")
    assert main(["gradient", str(model), "--loss", "q", "--input", "x=4x8", "--out", str(out)]) == 1
    assert "stowplan gradient: loss 'q': expected a value of the graph" in capsys.readouterr().err
    assert not out.exists()
