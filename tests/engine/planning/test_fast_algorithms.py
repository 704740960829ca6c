"""Models that amplify rounding: fast algorithms are given up node by node, and the oracle is doubted too."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.entry.optimize import optimize
from app.engine.model.load import load
from app.engine.report.onnx import export
from app.engine.runtime import oracle
from app.engine.runtime.oracle import roundoff, runtime, uncertainty
from app.engine.types.errors import NumericsError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine import canonical
from tests.engine.types.test_precision import saved

Json = dict[str, Any]
SHAPE = "[1,64,28,28]"
CONV = "Conv <pads = [1, 1, 1, 1]>"


def iterated(folder: Path, steps: int = 2) -> Path:
    """Steps of the same two convolutions, almost the same, whose difference goes on; a harmless one after them."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 64, 3, 3), np.float32)
    near = w + rng.standard_normal(w.shape, np.float32) * np.float32(1e-2)
    constants = {"w": w, "v": near, "k": rng.standard_normal(w.shape, np.float32)}
    iterations = (
        f"a{i} = {CONV} (h{i}, w) b{i} = {CONV} (h{i}, v) d{i} = Sub(a{i}, b{i}) h{i + 1} = Relu(d{i})"
        for i in range(steps)
    )
    lines = ["h0 = Relu(x)", *iterations, f"y = {CONV} (h{steps}, k)"]
    return saved(folder, "\n".join(lines), (SHAPE, SHAPE), constants)


def optimized(path: Path, tolerance: float, compiler: Compiler) -> Json:
    options = Options(timings="predicted", tolerance=tolerance)
    return optimize(path, host(), options, Bindings(), path.parent, kernels=compiler.cache)


def implementations(summary: Json) -> dict[str, str]:
    return {row["name"]: row["implementation"] for row in summary["operators"]}


def certain(*_: object) -> dict[str, float]:
    return {}


def test_only_nodes_whose_fast_algorithm_is_amplified_are_planned_without(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "uncertainty", certain)
    path = iterated(tmp_path)
    lenient = optimized(path, 1e-2, compiler)
    assert all("winograd" in row for name, row in implementations(lenient).items() if name.startswith("Conv"))
    strict = optimized(path, 0.55 * lenient["verification"]["outputs"][0]["max_rel"], compiler)
    assert strict["verification"]["outputs"][0]["ok"]
    assert strict["precision"]["fast_algorithms"]
    held = strict["precision"]["direct"]
    assert {"Conv a1", "Conv b1"} <= held.keys()
    assert "Conv y" not in held
    rows = implementations(strict)
    assert "winograd" in rows["Conv y"]
    assert not any("winograd" in rows[name] for name in held)
    assert held["Conv a1"].startswith(
        "computed without a fast algorithm: its fast algorithm alone moves output 'y'"
    )
    (note,) = (n for n in strict["notes"] if "fast algorithms" in n)
    assert note.startswith(f"{len(held)} nodes (")
    assert "differs from the original" in note
    assert note.endswith("us longer, as planned")


def test_the_same_model_is_planned_with_the_same_nodes_twice(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "uncertainty", certain)
    path = iterated(tmp_path, steps=1)
    tolerance = optimized(path, 1e-2, compiler)["verification"]["outputs"][0]["max_rel"] / 2
    first, second = (optimized(path, tolerance, compiler)["precision"] for _ in range(2))
    assert first == second
    assert first["direct"]


def test_the_uncertainty_of_the_oracle_counts_in_the_tolerance_and_is_told(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = iterated(tmp_path, steps=1)
    monkeypatch.setattr(oracle, "uncertainty", lambda *_: {"y": 1e-3})
    found = optimized(path, 1e-9, compiler)["verification"]
    assert found["uncertainty"] == {"y": 1e-3}
    assert found["outputs"][0]["tolerance"] == 2e-3
    assert found["outputs"][0]["ok"]
    monkeypatch.setattr(oracle, "uncertainty", certain)
    with pytest.raises(NumericsError, match="allowed is 1e-09"):
        optimized(path, 1e-9, compiler)


def test_the_uncertainty_is_what_optimizations_of_the_oracle_move_outputs_by(tmp_path: Path) -> None:
    path = tmp_path / "converted.onnx"
    export(load(iterated(tmp_path)).model, path)
    inputs = {"x": np.random.default_rng(1).standard_normal((1, 64, 28, 28)).astype(np.float32)}
    plain, moved = (
        np.asarray(runtime(path, threads=1, optimized=o)(inputs)["y"], np.float64) for o in (False, True)
    )
    expected = np.abs(plain - moved).max() / np.abs(plain).max()
    by = oracle.Oracle("onnxruntime", runtime(path, threads=1, optimized=False))
    assert uncertainty(path, inputs, {"y": plain.astype(np.float32)}, by) == {"y": pytest.approx(expected)}
    beyond = uncertainty(path, inputs, {"y": np.zeros_like(plain, np.float32)}, by)
    assert beyond == {"y": oracle.UNCERTAIN}


def test_an_output_in_16_bits_may_be_rounded_to_the_neighbor(tmp_path: Path) -> None:
    """onnxruntime sums float16 in float32 with and without optimizations, in one order: it never differs."""
    text = """<ir_version: 10, opset_import: ["": 17]>
        g (float16[1,16,32,32] x) => (float16[1,8,32,32] y) { y = Conv<pads = [1,1,1,1]>(x, w) }"""
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(s).astype(np.float16) for s in ((1, 16, 32, 32), (8, 16, 3, 3)))
    path = canonical.saved(text, tmp_path, {"w": w})
    by = oracle.Oracle("onnxruntime", runtime(path, threads=1, optimized=False))
    y = np.asarray(by.run({"x": x})["y"])
    allowed = 2 * uncertainty(path, {"x": x}, {"y": y}, by)["y"]
    assert allowed >= 2.0**-10
    neighbor = np.nextafter(y.max(), np.float16(0))
    assert 0 < float(y.max() - neighbor) / float(y.max()) <= allowed


def test_an_output_made_float32_of_16_bits_may_be_rounded_as_these(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 17]>
        g (float[8] x) => (float[8] half, float[8] weighted, int64[1] largest) {
            h = Cast<to = 10>(x)  r = Relu(h)  half = Cast<to = 1>(r)
            v = Cast<to = 1>(w)  weighted = Mul(x, v)  largest = ArgMax(r)
        }"""
    path = canonical.saved(text, tmp_path, {"w": np.ones(8, np.float16)})
    assert roundoff(load(path).model) == {"half": 2.0**-11}
