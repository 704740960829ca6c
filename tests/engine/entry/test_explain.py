"""The plan of a model as text, after every pass, without a server."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import app.engine as stowplan
from app.cli.main import main
from app.engine.core.plan import COLUMNS
from app.engine.entry.explain import Planned
from app.engine.planning import session
from app.engine.types.errors import InputError
from app.engine.types.options import Options
from app.samples import SAMPLES


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("explain") / "model.onnx"
    file.write_bytes(SAMPLES["squeezenet"]())
    return file


@pytest.fixture(scope="module")
def planned(path: Path) -> Planned:
    return stowplan.plan(path)


def test_a_plan_has_one_line_a_step(planned: Planned):
    summary, *lines = planned.explain().splitlines()
    assert f"{len(planned.program.steps)} groups" in summary
    assert len(lines) == len(planned.program.steps)
    for line, step in zip(lines, planned.program.steps):
        assert line.startswith(f"%{step.index} ")
        assert step.choice.implementation.name in line
        assert "arena+0x" in line or "output+0x" in line


def test_every_pass_has_a_stage_and_a_difference(planned: Planned):
    names = [p.name for p in (*session.FRONTEND_PASSES, *session.backend_passes(Options()))]
    assert [stage.name for stage in planned.stages][: len(names)] == names
    for name in names:
        assert planned.explain(after=name)
        assert "--- before" in planned.explain(after=name, diff=True) or name in planned.explain(diff=True)
    assert "NCHW" in planned.explain(after="infer_layouts", diff=True)


def test_the_text_before_fusion_has_one_line_a_node(planned: Planned):
    summary, *lines = planned.explain(after="canonicalize").splitlines()
    assert f"{len(lines)} nodes" in summary


def test_an_unknown_pass_is_refused_with_those_that_ran(planned: Planned):
    with pytest.raises(InputError, match="infer_layouts"):
        planned.explain(after="infer_layout")


def test_the_command_prints_diffs_and_writes_a_file_a_pass(
    path: Path,
    tmp_path: Path,
    planned: Planned,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("STOWPLAN_DATA", str(tmp_path / "data"))
    assert main(["explain", str(path), "--after", "order"]) == 0
    assert "squeezenet" in capsys.readouterr().out
    assert main(["explain", str(path), "--dump", str(tmp_path / "stages")]) == 0
    files = sorted((tmp_path / "stages").iterdir())
    assert [f.stem.partition("-")[2] for f in files] == [stage.name for stage in planned.stages]
    assert main(["explain", str(path), "--after", "nothing"]) == 1
    assert "no pass 'nothing' ran" in capsys.readouterr().err


def test_the_command_prints_the_bytes_in_rows_as_predicted(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STOWPLAN_DATA", str(tmp_path / "data"))
    assert main(["explain", str(path), "--target", "edge-npu", "--rows"]) == 0
    printed = capsys.readouterr().out
    assert "predicted and not executed" in printed
    assert "rows in rings" in printed
    assert main(["explain", str(path), "--target", "edge-npu", "--rows", "--capacity", "1048576"]) == 0
    assert "in rows within 1048576 byte, beside a store" in capsys.readouterr().out


def test_one_operator_runs_without_a_server():
    x = np.array([[1.0, 2.0, 3.0]], np.float32)
    (y,) = stowplan.try_operator("Softmax", x, axis=1)
    np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(), rtol=1e-6)


def test_a_log_topic_shows_passes_and_choices(path: Path, tmp_path: Path):
    command = [sys.executable, "-m", "app.cli.main", "explain", str(path), "--after", "order"]
    environment = {
        "STOWPLAN_LOG": "passes,choices,memory",
        "STOWPLAN_DATA": str(tmp_path),
        "PATH": "/usr/bin",
    }
    told = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stderr
    assert "infer_layouts:" in told
    assert "conv1:" in told
    assert "lower bound" in told


def test_the_columns_of_a_plan_are_told_as_they_are_written(planned: Planned):
    assert set(COLUMNS) >= {"storage", "layout", "padding", "placement"}
    assert "arena+" not in planned.explain(after="order")
