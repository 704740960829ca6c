"""The benchmark of a GPU and `stowplan bench`, as far as they run without one."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli import main
from app.engine import machines
from app.engine.cuda import driver
from app.engine.target import find
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
    ahead: list[Any] = []
    monkeypatch.setattr(cuda_h200.Bench, "compile_ahead", lambda _, programs: ahead.extend(programs))
    # The sections of large tensors, on small ones.
    monkeypatch.setattr(cuda_h200, "SIZES", (("bf16", 64), ("f32", 64)))
    monkeypatch.setattr(cuda_h200, "LAYERS", ((16, 8, 3, 7),))
    monkeypatch.setattr(cuda_h200, "STREAMED", (16, 64))
    report = tmp_path / "report.json"
    given = [str(model), "--json", str(report), "--kernels", str(tmp_path / "kernels")]
    assert cuda_h200.main(given) == 1  # a device that computes nothing is wrong
    told = json.loads(report.read_text())
    assert told["versions"]["gpu"] == "fake"
    notes: dict[str, list[str]] = {}
    for row in told["rows"]:
        notes.setdefault(row["section"], []).append(row["note"])
    assert notes["check"] == ["WRONG"] * len(list(cuda_h200.checked_cases())) * 4
    counts = {section: len(found) for section, found in notes.items() if section != "check"}
    assert counts == {"product": 2, "conv": 2, "memory": 4, "model": 2}
    assert not [row for row in told["rows"] if row["note"].startswith("FAILED")]
    assert len(ahead) == sum(map(len, notes.values()))
    assert "numba-cuda: " in capsys.readouterr().out


def test_what_fails_is_a_line_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Fake):
        def launch(self, *_: Any) -> None:
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    folder = tmp_path / "cases"
    folder.mkdir()
    bench = cuda_h200.Bench(Failing(), find("cuda-sm90"), folder, tmp_path, 1e18, None)  # type: ignore[arg-type]
    monkeypatch.setattr(cuda_h200.Bench, "compile_ahead", lambda *_: None)
    monkeypatch.setattr(cuda_h200, "SIZES", (("f32", 64), ("bf16", 64)))
    cuda_h200.products(bench, None)
    assert [r.note for r in bench.rows] == ["FAILED: RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS"] * 2


def test_a_peer_that_fails_costs_only_the_comparison() -> None:
    class Torch:
        def no_grad(self) -> Any:
            return contextlib.nullcontext()

    def work() -> Any:
        raise RuntimeError("no compiler")

    assert cuda_h200.peer(Torch(), work) == (None, "peer failed: RuntimeError: no compiler")
    assert cuda_h200.peer(None, work) == (None, "")


def test_without_torch_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda_h200.importlib.util, "find_spec", lambda _: None)
    assert cuda_h200.torch_module() is None
    assert "torch is not installed" in capsys.readouterr().out


def test_what_does_not_fit_the_time_is_left_out(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_h200, "open_gpu", lambda *_: Fake())
    monkeypatch.setattr(cuda_h200.Bench, "compile_ahead", lambda *_: None)
    report = tmp_path / "report.json"
    given = [str(model), "--seconds", "0", "--json", str(report), "--kernels", str(tmp_path)]
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
