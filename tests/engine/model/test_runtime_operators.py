"""Operators that only onnxruntime has are loaded; what own kernels compute runs on them, the rest there."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from app.engine.core import graph
from app.engine.core.registry import load as load_registry
from app.engine.entry.optimize import optimize
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.report import decisions
from app.engine.types.errors import UnknownOperatorError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.canonical import drawn, exported, runtime, saved

pytestmark = pytest.mark.libraries

RNG = np.random.default_rng(0)
WEIGHTS = {
    "s": RNG.standard_normal(8).astype(np.float32),
    "w": RNG.standard_normal((8, 24)).astype(np.float32),
    "b": RNG.standard_normal(24).astype(np.float32),
    "q": RNG.integers(0, 255, (4, 1, 8), dtype=np.uint8),
    "qs": RNG.uniform(0.1, 0.2, 4).astype(np.float32),
}
HEAD = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> agraph '
MODELS = {
    # As onnxruntime's optimizer writes it: in the default domain.
    "SimplifiedLayerNormalization": """(float[2, 3, 8] x) => (float[2, 3, 8] y) {
        a = Relu (x)
        n = SimplifiedLayerNormalization <axis = -1, epsilon = 1e-5, stash_type = 1> (a, s)
        y = Add (n, x)
    }""",
    "SkipSimplifiedLayerNormalization": """(float[2, 3, 8] x) => (float[2, 3, 8] y, float[2, 3, 8] z) {
        a = Relu (x)
        y, , , z = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 1e-5> (a, x, s)
    }""",
    "FastGelu": """(float[2, 8] x) => (float[2, 8] y) {
        a = Relu (x)
        g = com.microsoft.FastGelu (a)
        y = Sigmoid (g)
    }""",
    # Another operator than that of ONNX with the same name.
    "Attention": """(float[2, 3, 8] x) => (float[2, 3, 8] y) {
        a = Relu (x)
        t = com.microsoft.Attention <num_heads = 2> (a, w, b)
        y = Add (t, x)
    }""",
    "Inverse": """(float[2, 3, 3] x) => (float[2, 3, 3] y) {
        a = Exp (x)
        i = com.microsoft.Inverse (a)
        y = Relu (i)
    }""",
    "MatMulNBits": """(float[2, 16] x) => (float[2, 4] y) {
        a = Relu (x)
        m = com.microsoft.MatMulNBits <K = 16, N = 4, bits = 4, block_size = 16> (a, q, qs)
        y = Sigmoid (m)
    }""",
}


def written(op: str, folder: Path) -> Path:
    used = {k: v for k, v in WEIGHTS.items() if f" {k})" in MODELS[op] or f" {k}," in MODELS[op]}
    return saved(HEAD + MODELS[op], folder, used)


@pytest.mark.parametrize("op", sorted(MODELS.keys() - {"Inverse"}))
def test_an_operator_of_onnxruntime_runs_on_own_kernels(op: str, tmp_path: Path, compiler: Compiler) -> None:
    path = written(op, tmp_path)
    options = Options(autotune=False, backends=("numba-cpu",))
    compilation = session.canonical(load(path), host(), options, Bindings(), load_registry())
    inputs = drawn(path)
    expected = runtime(path, inputs)
    compilation, program = session.runnable(compilation, options, compiler, inputs)
    rows = decisions.decisions_json(program.compilation)["decisions"]
    assert {r["backend"] for r in rows} == {"numba-cpu"}
    executor = session.bound(program, compiler, poison=True)
    found = executor.run(inputs)
    executor.close()
    for name, array in expected.items():
        np.testing.assert_allclose(np.asarray(found[name]), array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["Inverse"])
def test_an_operator_of_onnxruntime_is_loaded_typed_run_there_and_exported_as_it_is(
    op: str, tmp_path: Path, compiler: Compiler
) -> None:
    path = written(op, tmp_path)
    options = Options(autotune=False)
    compilation = session.canonical(load(path), host(), options, Bindings(), load_registry())
    (node,) = (n for n in compilation.graph if n.op_type == op)
    inputs = drawn(path)
    expected = runtime(path, inputs)
    assert graph.shape(node.outputs[0]) is not None, "as onnxruntime infers it"
    compilation, program = session.runnable(compilation, options, compiler, inputs)
    rows = {r["op"]: r["backend"] for r in decisions.decisions_json(program.compilation)["decisions"]}
    assert "onnxruntime" in rows.values()
    assert "reference" not in rows.values()
    executor = session.bound(program, compiler, poison=True)
    found = executor.run(inputs)
    executor.close()
    for name, array in expected.items():
        np.testing.assert_allclose(np.asarray(found[name]), array, rtol=1e-4, atol=1e-5)
    file = exported(compilation.model, tmp_path)
    assert op in [n.op_type for n in onnx.load(file).graph.node]
    assert {n.domain for n in onnx.load(file).graph.node} <= {"", "com.microsoft"}
    for name, array in runtime(file, inputs).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-5)


def test_a_job_verifies_a_model_with_operators_of_onnxruntime(tmp_path: Path, compiler: Compiler) -> None:
    path = saved(HEAD + MODELS["Inverse"], tmp_path)
    options = Options(benchmark_seconds=0.0, autotune=False)
    summary = optimize(path, host(), options, Bindings(), tmp_path, kernels=compiler.cache)
    assert summary["verification"]["oracle"] == "onnxruntime"
    assert all(row["ok"] for row in summary["verification"]["outputs"])
    assert [(row["op"], row["backend"]) for row in summary["libraries"]] == [("Inverse", "onnxruntime")]


def test_without_onnxruntime_among_the_backends_the_message_names_the_operator(tmp_path: Path) -> None:
    path = saved(HEAD + MODELS["Inverse"], tmp_path)
    options = Options(autotune=False, backends=("numba-cpu",))
    compilation = session.canonical(load(path), host(), options, Bindings(), load_registry())
    with pytest.raises(UnknownOperatorError, match="Inverse"):
        session.planned(compilation, options)


def test_an_operator_that_nobody_has_is_still_refused(tmp_path: Path) -> None:
    text = HEAD + "(float[2] x) => (float[2] y) { y = com.microsoft.NoSuchThing (x) }"
    with pytest.raises(UnknownOperatorError, match="NoSuchThing"):
        load(saved(text, tmp_path))
    text = HEAD + "(float[2] x) => (float[2] y) { y = NoSuchThing (x) }"
    with pytest.raises(UnknownOperatorError, match="NoSuchThing"):
        load(saved(text, tmp_path))
