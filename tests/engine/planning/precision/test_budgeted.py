"""Jobs with an error budget: what they promise, checked by onnxruntime on samples of the test's own."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.core.registry import load as load_registry
from app.engine.entry.optimize import optimize
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.oracle import runtime
from app.engine.types.errors import InputError, TargetError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import find, host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.planning.precision import models
from tests.harness import OWN

Json = dict[str, Any]


def optimized(
    folder: Path, compiler: Compiler, name: str = "cnn", target: str = "host", **options: Any
) -> tuple[Json, Path]:
    """Summary of a job, and the file of its model; samples are those of the models."""
    path = models.file(name, folder)
    np.savez(folder / "samples.npz", x=np.stack([s["x"] for s in models.inputs(name, 8)]))
    machine = host() if target == "host" else find(target)
    asked = Options(
        error_budget=options.pop("error_budget", 0.05),
        benchmark_seconds=0.0,
        backends=OWN if target == "host" else (),
        **options,
    )
    bindings = Bindings(samples=str(folder / "samples.npz"))
    return optimize(path, machine, asked, bindings, folder, kernels=compiler.cache), path


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but float32 is faster: what is tested here is not how fast this machine is."""
    monkeypatch.setattr("app.engine.planning.precision.budgeted.seconds.step_seconds", pretended_seconds)
    monkeypatch.setattr("app.engine.planning.precision.budgeted.seconds.raced", lambda *_: [[1.0], [2.0]])


def pretended_seconds(programs: Any, *_: object, narrow: float = 1.0) -> list[list[float]]:
    """`narrow` seconds for a step of an integer or a 4-bit product, 10 for any other product, else 0."""
    return [[seconds_of(step.group.op, narrow) for step in program.steps] for program in programs]


def seconds_of(op: str, narrow: float) -> float:
    return narrow if "Integer" in op or "NBits" in op else 10.0 if op in ("Conv", "MatMul", "Gemm") else 0.0


@pytest.mark.usefixtures("faster")
@pytest.mark.parametrize("name", models.TEXTS)
def test_the_error_told_is_that_of_the_file_on_other_samples(
    name: str, compiler: Compiler, tmp_path: Path
) -> None:
    summary, path = optimized(tmp_path, compiler, name)
    chosen = summary["precision_choice"]["chosen"]
    assert chosen["error"] <= 0.05
    assert sum(count for row, count in chosen["nodes"].items() if row != "f32") > 1
    exact, own = (runtime(p, threads=1, optimized=False) for p in (path, tmp_path / "quantized.onnx"))
    errors = []
    for sample in models.inputs(name, 30, seed=99):
        (a,), (b,) = exact(sample).values(), own(sample).values()
        errors.append(np.abs(np.asarray(b) - np.asarray(a)).max() / np.abs(np.asarray(a)).max())
    assert max(errors[:4]) / 2 <= chosen["error"] <= max(errors) * 2
    assert max(errors) <= 0.05 * 1.3


@pytest.mark.usefixtures("faster")
def test_the_program_is_planned_in_those_precisions_and_verified(compiler: Compiler, tmp_path: Path) -> None:
    summary, _ = optimized(tmp_path, compiler)
    assert summary["verification"]["status"] == "verified"
    decisions = json.loads((tmp_path / "decisions.json").read_text())["decisions"]
    integer = [row["subject"].removesuffix(".1") for row in decisions if "Integer" in row["op"]]
    told = json.loads((tmp_path / "precision.json").read_text())
    assert told == summary["precision_choice"]
    assert integer == [n["name"] for n in told["nodes"] if n["precision"].startswith("int8")]
    assert "Precision under an error budget" in (tmp_path / "report.html").read_text()


@pytest.mark.usefixtures("faster")
@pytest.mark.parametrize("name", models.TEXTS)
def test_the_program_computes_what_the_file_does_in_onnxruntime(
    name: str, compiler: Compiler, tmp_path: Path
) -> None:
    optimized(tmp_path, compiler, name)
    path = tmp_path / "quantized.onnx"
    compilation = session.canonical(load(path), host(), Options(backends=OWN), Bindings(), load_registry())
    program = session.planned(compilation, Options(backends=OWN))
    executor = session.bound(program, compiler)
    for optimizations in (False, True):
        run = runtime(path, threads=1, optimized=optimizations)
        for sample in models.inputs(name, 4, seed=5):
            (a,), (b,) = run(sample).values(), executor.run(sample).values()
            assert np.abs(np.asarray(b) - np.asarray(a)).max() <= 1e-2 * np.abs(np.asarray(a)).max()
    executor.close()


@pytest.mark.usefixtures("faster")
def test_inputs_that_are_bound_stay_in_the_signature(compiler: Compiler, tmp_path: Path) -> None:
    text = """g (float[4,64] x, float s) => (float[4,64] y) { a = MatMul(x, w) b = Mul(a, s) y = Relu(b) }"""
    weights = {"w": models.drawn(np.random.default_rng(0), (64, 64))}
    path = models.saved(f"{models.HEAD} {text}", tmp_path, weights)
    options = Options(error_budget=0.1, benchmark_seconds=0.0, backends=OWN)
    bindings = Bindings(values={"s": 2.0})
    summary = optimize(path, host(), options, bindings, tmp_path, kernels=compiler.cache)
    assert summary["precision_choice"]["chosen"]
    assert [v.name for v in load(tmp_path / "quantized.onnx").model.graph.inputs] == ["x", "s"]


def test_where_float32_is_fastest_it_stays(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slower = partial(pretended_seconds, narrow=11.0)
    monkeypatch.setattr("app.engine.planning.precision.budgeted.seconds.step_seconds", slower)
    summary, _ = optimized(tmp_path, compiler)
    assert summary["precision_choice"]["chosen"] is None
    assert summary["precision_choice"]["reason"] == "no product is faster in a shorter precision"
    assert not (tmp_path / "quantized.onnx").exists()
    decisions = json.loads((tmp_path / "decisions.json").read_text())["decisions"]
    assert not any("Integer" in row["op"] for row in decisions)


def test_a_described_device_is_planned_by_predicted_times_and_simulated_errors(
    compiler: Compiler, tmp_path: Path
) -> None:
    summary, _ = optimized(tmp_path, compiler, target="cpu-neon-dotprod")
    told = summary["precision_choice"]
    assert told["kind"] == "predicted"
    assert all(n["seconds"] is not None for n in told["nodes"])
    if told["chosen"]:
        assert told["chosen"]["error"] is None
        assert told["chosen"]["speedup"] is None
        assert told["chosen"]["simulated"] <= 0.05


def test_random_samples_are_told_in_the_report(compiler: Compiler, tmp_path: Path) -> None:
    path = models.file("mlp", tmp_path)
    options = Options(error_budget=0.05, benchmark_seconds=0.0, backends=OWN, timings="predicted")
    summary = optimize(path, host(), options, Bindings(), tmp_path, kernels=compiler.cache)
    assert summary["precision_choice"]["samples"]["source"] == "drawn"
    assert "no samples were given" in (tmp_path / "report.html").read_text()


def test_an_outlier_of_a_million_is_warned_of_and_kept_within_the_budget(
    compiler: Compiler, tmp_path: Path
) -> None:
    path = models.file("mlp", tmp_path)
    x = np.stack([s["x"] for s in models.inputs("mlp", 8)])
    x[2, 0, 0] = 1e6
    np.savez(tmp_path / "outlier.npz", x=x)
    options = Options(error_budget=0.05, benchmark_seconds=0.0, backends=OWN, timings="predicted")
    bindings = Bindings(samples=str(tmp_path / "outlier.npz"))
    summary = optimize(path, host(), options, bindings, tmp_path, kernels=compiler.cache)
    told = summary["precision_choice"]
    assert any("largest magnitude is 1e+06" in warning for warning in told["warnings"])
    assert told["chosen"] is None or told["chosen"]["error"] <= 0.05


@pytest.mark.parametrize(("options", "target"), [({"precision": "bf16"}, "host"), ({}, "cuda-sm90")])
def test_a_budget_beside_another_precision_is_refused(
    options: Json, target: str, compiler: Compiler, tmp_path: Path
) -> None:
    with pytest.raises(TargetError, match="an error budget chooses precisions by itself"):
        optimized(tmp_path, compiler, target=target, **options)


def test_samples_of_another_shape_fail_the_job(compiler: Compiler, tmp_path: Path) -> None:
    path = models.file("mlp", tmp_path)
    np.savez(tmp_path / "samples.npz", x=np.zeros((3, 5, 64), np.float32))
    bindings = Bindings(samples=str(tmp_path / "samples.npz"))
    with pytest.raises(InputError, match="expected shape"):
        optimize(path, host(), Options(error_budget=0.1), bindings, tmp_path, kernels=compiler.cache)
