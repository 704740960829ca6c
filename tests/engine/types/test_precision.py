"""Whole models in bf16: what a job's precision allows, what is chosen, how far outputs are from float32.

The target is this machine with the arithmetic of bf16 by other instructions, where it lacks those.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from app.engine.entry.optimize import optimize
from app.engine.report.decisions import decisions_json
from app.engine.runtime import oracle
from app.engine.runtime.oracle import runtime
from app.engine.types.errors import NumericsError
from app.engine.types.options import Bindings, Options, Policy
from app.engine.types.precision import BF16_TOLERANCE, TOLERANCES, resolve, tolerance
from app.engine.types.target import find, host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import offering
from tests.session import Session

Array = np.ndarray[Any, Any]

CNN = """
    a0 = Conv<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x, w0, b0)
    a1 = Relu(a0)
    a2 = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a1, w1, b1)
    a3 = Add(a2, a1)
    a4 = Relu(a3)
    a5 = Conv<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(a4, w2, b2)
    a6 = Sigmoid(a5)
    a7 = Mul(a5, a6)
    a8 = Conv<kernel_shape = [1, 1]>(a7, w3, b3)
    a9 = GlobalAveragePool(a8)
    a10 = Flatten(a9)
    y = Gemm<transB = 1>(a10, w4, b4)
"""
CNN_WEIGHTS = {
    "w0": (32, 3, 3, 3),
    "w1": (32, 32, 3, 3),
    "w2": (61, 32, 3, 3),
    "w3": (96, 61, 1, 1),
    "w4": (50, 96),
}
TRANSFORMER = """
    q0 = MatMul(x, wq)
    k0 = MatMul(x, wk)
    v0 = MatMul(x, wv)
    q1 = Reshape(q0, heads)
    k1 = Reshape(k0, heads)
    v1 = Reshape(v0, heads)
    q2 = Transpose<perm = [0, 2, 1, 3]>(q1)
    k2 = Transpose<perm = [0, 2, 3, 1]>(k1)
    v2 = Transpose<perm = [0, 2, 1, 3]>(v1)
    s0 = MatMul(q2, k2)
    s1 = Mul(s0, scale)
    s2 = Softmax<axis = -1>(s1)
    c0 = MatMul(s2, v2)
    c1 = Transpose<perm = [0, 2, 1, 3]>(c0)
    c2 = Reshape(c1, whole)
    o0 = MatMul(c2, wo)
    o1 = Add(o0, x)
    n0 = LayerNormalization<axis = -1>(o1, gamma, beta)
    f0 = MatMul(n0, w1)
    f1 = Add(f0, b1)
    f2 = Gelu(f1)
    f3 = MatMul(f2, w2)
    f4 = Add(f3, n0)
    y = LayerNormalization<axis = -1>(f4, gamma, beta)
"""
WIDTH = 64
TRANSFORMER_WEIGHTS = {
    **dict.fromkeys(("wq", "wk", "wv", "wo"), (WIDTH, WIDTH)),
    "w1": (WIDTH, 4 * WIDTH),
    "w2": (4 * WIDTH, WIDTH),
}


def saved(folder: Path, nodes: str, shapes: tuple[str, str], constants: dict[str, Array]) -> Path:
    """A model of opset 21 as a file."""
    x, y = shapes
    names = {"float32": "float", "int64": "int64"}
    kinds = ", ".join(
        f"{names[a.dtype.name]}[{','.join(map(str, a.shape))}] {n}" for n, a in constants.items()
    )
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float{x} x, {kinds}) => (float{y} y) {{ {nodes} }}'
    )
    del proto.graph.input[1:]
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in constants.items())
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return path


def weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    """Random weights that keep the size of what they are multiplied with."""
    rng = np.random.default_rng(0)
    found: dict[str, Array] = {}
    for name, shape in shapes.items():
        depth = int(np.prod(shape[1:])) if len(shape) == 4 else shape[-1]
        found[name] = rng.standard_normal(shape, np.float32) * np.float32(1.4 / depth**0.5)
    return found


def cnn(folder: Path) -> tuple[Path, Array]:
    constants = weights(CNN_WEIGHTS)
    rng = np.random.default_rng(1)
    constants.update(
        {n.replace("w", "b"): rng.standard_normal(w.shape[0], np.float32) for n, w in constants.items()}
    )
    return saved(folder, CNN, ("[1,3,40,36]", "[1,50]"), constants), rng.standard_normal(
        (1, 3, 40, 36), np.float32
    )


def transformer(folder: Path) -> tuple[Path, Array]:
    rng = np.random.default_rng(1)
    constants = weights(TRANSFORMER_WEIGHTS) | {
        "gamma": np.ones(WIDTH, np.float32),
        "beta": np.zeros(WIDTH, np.float32),
        "b1": rng.standard_normal(4 * WIDTH, np.float32),
        "scale": np.array(0.25, np.float32),
        "heads": np.array([1, 32, 4, WIDTH // 4], np.int64),
        "whole": np.array([1, 32, WIDTH], np.int64),
    }
    shape = f"[1,32,{WIDTH}]"
    return saved(folder, TRANSFORMER, (shape, shape), constants), rng.standard_normal(
        (1, 32, WIDTH), np.float32
    )


@pytest.mark.parametrize("model", [cnn, transformer])
def test_a_whole_model_in_bf16(model: Any, compiler: Compiler, tmp_path: Path) -> None:
    path, x = model(tmp_path)
    target = replace(offering(host()), name="with-bf16")
    session = Session(path, compiler, options=Options(precision="bf16"), target=target, poison=True)
    found = session.run({"x": x})["y"]
    rows = decisions_json(session.program.compilation)["decisions"]
    session.close()
    expected = np.asarray(runtime(path, threads=1, optimized=False)({"x": x})["y"])
    error = float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))
    assert 1e-5 < error < BF16_TOLERANCE
    precisions = {row["op"].split("+")[0]: row["precision"] for row in rows if row["chosen"] != "layout"}
    if model is cnn:
        assert precisions["Conv"] == "bf16"
        assert precisions["Gemm"] == "bf16"
        assert precisions["GlobalAveragePool"] == "f32"
    else:
        assert precisions["LayerNormalization"] == "f32"
        # Those of weights; those of attention multiply two activations.
        assert sum(row["precision"] == "bf16" for row in rows) == 6


APPLIES = [
    ("f32", 1e-2, "cpu-avx512-bf16", "f32", ""),
    ("bf16", 1e-4, "cpu-avx512-bf16", "bf16", ""),
    ("bf16", 1e-4, "cpu-avx512", "f32", "bf16 is not applicable: target 'cpu-avx512' offers f32"),
    ("tf32", 1e-4, "cpu-avx2", "f32", "tf32 is not applicable: target 'cpu-avx2' offers f32"),
    ("fp16", 1e-4, "cpu-avx512-bf16", "f32", "fp16 is not applicable"),
    ("bf16", 1e-4, "cuda-sm90", "bf16", ""),
    ("tf32", 1e-4, "cuda-sm90", "tf32", ""),
    ("fp16", 1e-4, "cuda-sm90", "fp16", ""),
    ("auto", 1e-4, "cuda-sm90", "f32", "the tolerance is 0.0001"),
    ("auto", 5e-3, "cuda-sm90", "tf32", ""),
    ("auto", 1e-4, "cpu-avx512-bf16", "f32", "the tolerance is 0.0001"),
    ("auto", 2e-2, "cpu-avx512-bf16", "bf16", ""),
    ("auto", 2e-2, "cpu-avx2", "f32", "not applicable"),
]


@pytest.mark.parametrize(("asked", "allowed", "name", "used", "reason"), APPLIES)
def test_what_a_job_computes_in(asked: Policy, allowed: float, name: str, used: str, reason: str) -> None:
    options = Options(precision=asked, tolerance=allowed)
    found = resolve(options, find(name))
    assert found.used == used
    assert reason in found.reason
    assert bool(found.reason) == bool(reason)
    assert tolerance(options, find(name)) == max(allowed, TOLERANCES[used])


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({"int16": {"c": "chosen"}, "error_budget": 3e-3}, 3e-3),
        ({"precision": "bf16", "error_budget": 3e-3}, 3e-3),
        ({"int16": {"c": "chosen"}, "error_budget": 5e-2}, BF16_TOLERANCE),
        ({"int16": {"c": "chosen"}, "error_budget": 1e-5}, 1e-4),
        ({"int16": {"c": "chosen"}, "error_budget": 3e-3, "error_metric": "cosine"}, BF16_TOLERANCE),
        ({"error_budget": 3e-3}, 1e-4),
    ],
)
def test_rounding_under_an_error_budget_is_within_it(changes: dict[str, Any], allowed: float) -> None:
    assert tolerance(Options(**changes), find("cpu-avx512-bf16")) == allowed


@pytest.mark.parametrize(("target", "used"), [("cpu-avx512-bf16", "bf16"), ("cpu-avx512", "f32")])
def test_the_report_tells_the_precision_of_each_node(
    target: str, used: str, compiler: Compiler, tmp_path: Path
) -> None:
    path, _ = cnn(tmp_path)
    folder = tmp_path / "out"
    folder.mkdir()
    options = Options(precision="bf16", timings="predicted")
    summary = optimize(path, find(target), options, Bindings(), folder, kernels=compiler.cache)
    rows = json.loads((folder / "decisions.json").read_text())["decisions"]
    assert summary["precision"]["asked"] == "bf16"
    assert summary["precision"]["used"] == used
    counts = summary["precision"]["steps"]
    assert counts == {p: n for p in ("f32", "bf16") if (n := sum(r["precision"] == p for r in rows))}
    assert ("bf16" in counts) == (used == "bf16")
    page = (folder / "report.html").read_text()
    assert ("bf16 is not applicable" in page) == (used == "f32")


def test_a_model_that_amplifies_rounding_is_computed_in_float32(compiler: Compiler, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 64), np.float32)
    near = {"w": w, "v": w + rng.standard_normal(w.shape, np.float32) * np.float32(1e-3)}
    path = saved(tmp_path, "a = MatMul(x, w) b = MatMul(x, v) y = Sub(a, b)", ("[8,64]", "[8,64]"), near)
    options = Options(precision="bf16", timings="predicted", tolerance=1e-3)
    summary = optimize(path, offering(host()), options, Bindings(), tmp_path, kernels=compiler.cache)
    assert summary["precision"]["used"] == "f32"
    assert "in bf16 output 'y' differs" in summary["precision"]["reason"]
    assert set(summary["precision"]["steps"]) == {"f32"}
    assert all(row["ok"] for row in summary["verification"]["outputs"])


def test_a_model_that_amplifies_rounding_is_computed_without_fast_algorithms(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "uncertainty", lambda *_: {})
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 64, 3, 3), np.float32)
    near = {"w": w, "v": w + rng.standard_normal(w.shape, np.float32) * np.float32(1e-2)}
    text = "a = Conv <pads = [1, 1, 1, 1]> (x, w) b = Conv <pads = [1, 1, 1, 1]> (x, v) y = Sub(a, b)"
    path = saved(tmp_path, text, ("[1,64,28,28]", "[1,64,28,28]"), near)

    def optimized(tolerance: float) -> dict[str, Any]:
        options = Options(timings="predicted", tolerance=tolerance)
        return optimize(path, host(), options, Bindings(), tmp_path, kernels=compiler.cache)

    lenient = optimized(1e-2)
    assert any("winograd" in o["implementation"] for o in lenient["operators"])
    found = lenient["verification"]["outputs"][0]["max_rel"]
    strict = optimized(found / 2)
    assert not any("winograd" in o["implementation"] for o in strict["operators"])
    assert lenient["precision"]["fast_algorithms"]
    assert not strict["precision"]["fast_algorithms"]
    assert any(n.startswith("fast algorithms are off: with them output 'y' differs") for n in strict["notes"])
    assert all(row["ok"] for row in strict["verification"]["outputs"])
    with pytest.raises(NumericsError, match="differs from the original"):
        optimized(1e-9)
