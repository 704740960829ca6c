"""A first plan by predicted times: told before anything is measured, and all of a quick job."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.entry.optimize import optimize
from app.engine.model.load import load
from app.engine.planning import autotune, session
from app.engine.planning.timing_cache import stored
from app.engine.report.units import duration
from app.engine.types.errors import TargetError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.canonical import saved

TEXT = """<ir_version: 10, opset_import: ["": 21]>
net (float[1, 3, 12, 12] x) => (float[1, 16, 12, 12] y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    y = Relu (c)
}"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = np.random.default_rng(0).standard_normal((16, 3, 3, 3), np.float32)
    return saved(TEXT, tmp_path_factory.mktemp("model"), {"w": weights})


def run(model: Path, folder: Path, kernels: Path, **options: Any) -> tuple[dict[str, Any], list[str]]:
    """Summary and phases of a job."""
    told: list[str] = []
    chosen = Options(benchmark_seconds=0.01, **options)
    folder.mkdir()
    summary = optimize(
        model,
        host(),
        chosen,
        Bindings(),
        folder,
        kernels=kernels,
        progress=lambda phase, *_: told.append(phase),
    )
    return summary, list(dict.fromkeys(told))


def predicted(model: Path, compiler: Compiler) -> Program:
    """The plan by predicted times on this machine."""
    started = session.canonical(load(model), host(), Options(), Bindings(), load_registry())
    return session.planned(session.on_this_machine(started, Compiler(compiler.cache)), Options())


def test_a_quick_job_is_verified_and_measures_nothing(
    model: Path, tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune, "sampler", lambda *_: pytest.fail("measured"))
    summary, phases = run(model, tmp_path / "out", compiler.cache, quick=True)
    assert summary["timings"] == "predicted"
    assert summary["verification"]["status"] == "verified"
    assert summary["comparison"]["lines"][-1]["text"].endswith("a run, predicted (the job is quick)")
    assert not [p for p in phases if p.startswith(("tune", "benchmark"))]
    plan = predicted(model, compiler)
    assert summary["latency"]["after"] == pytest.approx(plan.seconds)


def test_a_quick_job_cannot_be_measured(model: Path, tmp_path: Path, compiler: Compiler) -> None:
    with pytest.raises(TargetError, match="measures nothing") as refused:
        run(model, tmp_path / "out", compiler.cache, quick=True, timings="measured")
    assert refused.value.pointer == "/options/timings"


def test_the_first_plan_is_told_before_it_is_measured_and_only_then(
    model: Path, tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compiler, "__init__", _with_table(tmp_path))
    summary, phases = run(model, tmp_path / "first", compiler.cache)
    plan = predicted(model, compiler)
    assert f"tune: {duration(plan.seconds)} predicted, measuring" in phases
    assert stored(tmp_path)
    assert "tune" in summary["memory"]["phases"]  # what is told of a phase is no other phase
    _, phases = run(model, tmp_path / "second", compiler.cache)
    assert not [p for p in phases if "predicted" in p]


def _with_table(folder: Path) -> Any:
    """A constructor of compilers that share kernels and have the table of timings of a folder."""
    init = Compiler.__init__

    def made(self: Compiler, cache: Path, processes: int | None = None) -> None:
        init(self, cache, processes)
        self.folder = folder

    return made
