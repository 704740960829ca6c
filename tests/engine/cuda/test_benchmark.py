"""The benchmark of a GPU and `stowplan bench`, as far as they run without one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli import main
from app.engine import machines
from app.engine.cuda import driver
from benchmarks import cuda_h200
from tests.engine.cuda.devices import FakeDevice
from tests.engine.cuda.programs import saved


class Fake(FakeDevice):
    driver, processors = "13.0", 132


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(
        tmp_path, "y = MatMul(x, w)", "float[8,16] x", "float[8,16] y", {"w": np.eye(16, dtype=np.float32)}
    )


def test_the_benchmark_ends_with_a_table_and_json(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda_h200, "open_gpu", lambda *_: Fake())
    monkeypatch.setattr(cuda_h200, "torch_module", lambda: None)
    for name in ("products", "convolutions", "memory_bound"):
        monkeypatch.setattr(cuda_h200, name, lambda *_: None)  # of large tensors
    report = tmp_path / "report.json"
    given = [str(model), "--json", str(report), "--kernels", str(tmp_path / "kernels")]
    assert cuda_h200.main(given) == 1  # a device that computes nothing is wrong
    told = json.loads(report.read_text())
    assert told["versions"]["gpu"] == "fake"
    sections = {row["section"] for row in told["rows"]}
    assert sections == {"check", "model"}
    assert sum(row["note"] == "WRONG" for row in told["rows"]) == len(list(cuda_h200.checked_cases())) * 4
    assert "numba-cuda: " in capsys.readouterr().out


def test_what_does_not_fit_the_time_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_h200, "open_gpu", lambda *_: Fake())
    report = tmp_path / "report.json"
    given = ["none.onnx", "--seconds", "0", "--json", str(report), "--kernels", str(tmp_path)]
    assert cuda_h200.main(given) == 0
    assert len(json.loads(report.read_text())["left_out"]) == 5


def test_without_a_gpu_both_say_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(driver, "absent", lambda _sm: "no GPU 0 answers on this machine")
    assert cuda_h200.main(["--kernels", str(tmp_path)]) == 2
    assert "no GPU 0 answers" in capsys.readouterr().err
    assert main(["bench", "--target", "cuda"]) == 2
    assert "no GPU 0 answers" in capsys.readouterr().out


def test_bench_times_a_model_where_its_target_is(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("STOWPLAN_DATA", str(tmp_path))
    monkeypatch.setattr(machines, "absence", lambda _t: None)
    opened: list[Any] = []
    monkeypatch.setattr(driver, "open_gpu", lambda *_: opened.append(Fake()) or opened[-1])
    assert main(["bench", "--target", "cuda", "--seconds", "0.01", str(model)]) == 0
    assert "cuda.matmul_of_few_rows" in capsys.readouterr().out
    assert opened[0].log.of("replay")
    assert opened[0].log.of("close")
