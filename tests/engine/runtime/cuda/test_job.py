"""A job for a GPU on a machine without one: planned, compiled, predicted."""

import json
from pathlib import Path

import numpy as np
import pytest

from app.engine.entry import execution, optimize
from app.engine.runtime.benchmark import Samples
from app.engine.runtime.cuda import driver
from app.engine.types.errors import TargetError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Target, find
from app.kernels.cuda import compiler as compilation
from app.kernels.cuda.compiler import MissingToolkitError
from tests.engine.runtime.cuda.devices import SimulatedDevice
from tests.engine.runtime.cuda.programs import saved
from tests.needed import numba_cuda

RNG = np.random.default_rng(0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = {
        "w": RNG.standard_normal((16, 16), np.float32),
        "b": RNG.standard_normal(16).astype(np.float32),
    }
    return saved(
        tmp_path, "h = MatMul(x, w) a = Add(h, b) y = Relu(a)", "float[4,16] x", "float[4,16] y", weights
    )


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "absent", lambda _sm: "no GPU 0 answers on this machine")


def run(model: Path, tmp_path: Path, kernels: Path, **options: object) -> dict:
    folder = tmp_path / "out"
    folder.mkdir(exist_ok=True)
    return optimize.optimize(
        model, find("cuda-sm90"), Options(**options), Bindings(), folder, kernels=kernels
    )


def test_without_a_device_a_job_is_compiled_and_predicted(model: Path, tmp_path: Path, compiler) -> None:
    numba_cuda()
    summary = run(model, tmp_path, compiler.cache)
    assert summary["timings"] == "predicted"
    assert summary["steps"]["fallback"] == 0
    assert summary["latency"]["onnxruntime"] is None
    built = summary["cuda"]
    assert built["sm"] == "sm_90"
    (kernel,) = built["kernels"]
    assert kernel["name"].startswith("gemv")
    assert kernel["launches"] == built["launches"] == 1
    assert 0 < kernel["registers"] <= 255
    assert kernel["spilled_bytes"] == 0
    assert kernel["code_bytes"] > 0
    assert list((compiler.cache / "cuda").glob(f"{kernel['name']}_sm_90_*.cubin"))
    decisions = json.loads((tmp_path / "out" / "decisions.json").read_text())["decisions"]
    assert [d["chosen"] for d in decisions] == ["cuda.matmul_of_few_rows"]
    assert all(a["reason"] for a in decisions[0]["alternatives"] if a["seconds"] is None)


def without_the_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> dict[str, str]:
        raise MissingToolkitError("compiling for CUDA needs 'nvidia-nvvm': pip install 'stowplan[cuda]'")

    monkeypatch.setattr(compilation, "versions", missing)


def test_without_the_toolkit_the_report_says_so(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_the_toolkit(monkeypatch)
    built = run(model, tmp_path, tmp_path)["cuda"]
    assert built["uncompiled"].endswith("pip install 'stowplan[cuda]'")
    assert "kernels" not in built


def test_without_the_toolkit_what_the_cache_has_is_used(
    model: Path, tmp_path: Path, compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    numba_cuda()
    before = run(model, tmp_path, compiler.cache)["cuda"]
    without_the_toolkit(monkeypatch)
    assert run(model, tmp_path, compiler.cache)["cuda"] == before


def test_a_measurement_needs_the_device(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        TargetError, match=r"no GPU 0 answers on this machine\): ask for 'predicted' or 'auto'"
    ):
        run(model, tmp_path, tmp_path, timings="measured")


def test_with_a_device_a_job_is_verified_and_measured_there(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[SimulatedDevice] = []

    def open_gpu(_cache: Path, _target: Target) -> SimulatedDevice:
        opened.append(SimulatedDevice())
        return opened[-1]

    monkeypatch.setattr(driver, "absent", lambda _sm: None)
    monkeypatch.setattr(driver, "open_gpu", open_gpu)
    monkeypatch.setattr(optimize, "_built", lambda *_: {"sm": "sm_90"})
    monkeypatch.setattr(
        execution, "measure_in_turn", lambda works, _s, **_k: [Samples((1.0,), 0) for w in works if not w()]
    )
    summary = run(model, tmp_path, tmp_path, precision="bf16", benchmark_seconds=0.01, timings="measured")
    assert summary["timings"] == "measured"
    assert summary["precision"]["used"] == "bf16"
    (difference,) = summary["verification"]["outputs"]
    assert difference["ok"]
    assert difference["max_rel"] < 1e-2
    assert all(device.log.of("close") for device in opened)
    assert any(device.log.of("record") for device in opened)
