"""Storage types from the file to the result: casts that are planned, shared, and told."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from app.engine.core.registry import PlanningContext
from app.engine.core.registry import load as load_registry
from app.engine.cost import roofline
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.report.decisions import decisions_json
from app.engine.report.report import memory_json
from app.engine.types.errors import GraphError
from app.engine.types.options import Bindings, Options
from app.engine.types.storage import DECLARED
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.session import Session

Array = np.ndarray[Any, Any]
N = 12
MXNET = Options(semantics="mxnet-1.9", autotune=False)


def model(
    tmp_path: Path, nodes: str, *, declared: str | None = None, outputs: str = f"float[{N},{N}] y"
) -> Path:
    """A graph of x: float[N, N] and `a`, a sparse initializer of the same shape."""
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[{N},{N}] x, float[{N},{N}] a) => ({outputs}) {{ {nodes} }}'
    )
    del proto.graph.input[1]
    dense = matrix()
    (places,) = np.nonzero(dense.reshape(-1))
    values = onnx.numpy_helper.from_array(dense.reshape(-1)[places], "a")
    indices = onnx.numpy_helper.from_array(places.astype(np.int64), "a_places")
    sparse = onnx.SparseTensorProto(values=values, indices=indices, dims=dense.shape)
    proto.graph.sparse_initializer.append(sparse)
    if declared is not None:
        proto.graph.input[0].metadata_props.add(key=DECLARED, value=declared)
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    return path


def matrix() -> Array:
    rng = np.random.default_rng(1)
    return (rng.standard_normal((N, N)) * (rng.random((N, N)) < 0.2)).astype(np.float32)


def x() -> Array:
    return np.random.default_rng(2).standard_normal((N, N)).astype(np.float32)


def casts(running: Session) -> list[str]:
    return [g.name for g in running.program.compilation.plan.groups if g.op == "CastStorage"]


def softmax(v: Array) -> Array:
    e = np.exp(v - v.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def test_a_cast_is_planned_and_shared_among_readers(tmp_path: Path, compiler: Compiler) -> None:
    path = model(
        tmp_path, "m = Mul(a, x) e = Exp(m) s = Softmax(m) p = MatMul(m, x) t = Add(e, s) y = Add(t, p)"
    )
    running = Session(path, compiler, options=MXNET, poison=True)
    m = matrix() * x()
    expected = np.exp(m) + softmax(m) + m @ x()
    (found,) = running.run({"x": x()}).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert casts(running) == ["cast_storage:m:default"]
    compilation = running.program.compilation
    memory, decisions = memory_json(compilation), decisions_json(compilation)["decisions"]
    placed = {v["name"]: b for b in memory["buffers"] for v in b["values"]}
    assert placed["m:default"]["bytes"] >= N * N * 4
    assert "cast_storage:m:default" in {s["name"] for s in memory["steps"]}
    rows = {d["subject"]: d for d in decisions}
    chosen = {r["op"]: r["chosen"] for r in rows.values()}
    assert chosen["CastStorage"] == "cast_storage.dense_of_csr"
    assert chosen["Mul"] == "elementwise.csr"
    assert chosen["MatMul"] == "matmul.csr_value"
    modes = {d["op"]: set(d["dispatch"].values()) for d in decisions}
    assert modes["Exp"] == modes["Softmax"] == {"fallback"}
    assert modes["Mul"] == modes["MatMul"] == {"compute_ex"}
    running.close()


def test_a_node_of_the_reference_falls_back_behind_a_cast(tmp_path: Path, compiler: Compiler) -> None:
    path = model(tmp_path, "m = Mul(a, x) d = GlobalLpPool <p = 9> (m) y = Add(d, x)")
    running = Session(path, compiler, options=MXNET, poison=True)
    (found,) = running.run({"x": x()}).values()
    np.testing.assert_allclose(found, np.abs(matrix() * x()) + x(), rtol=1e-4, atol=1e-5)
    assert casts(running) == ["cast_storage:m:default"]
    rows = {d["op"]: d for d in decisions_json(running.program.compilation)["decisions"]}
    assert rows["GlobalLpPool"]["fallback"]
    assert rows["GlobalLpPool"]["backend"] == "reference"
    assert "m:default" in {
        v["name"] for b in memory_json(running.program.compilation)["buffers"] for v in b["values"]
    }
    running.close()


@pytest.mark.parametrize(("kind", "body", "expected"), [
    ("csr", "r = Relu(x) y = MatMul(r, a)", lambda v: np.maximum(v, 0) @ matrix()),
    ("row_sparse", "r = Mul(x, x) y = Add(r, x)", lambda v: v * v + v),
    ("row_sparse", "r = Relu(x) y = Exp(r)", lambda v: np.exp(np.maximum(v, 0))),
])  # fmt: skip
def test_a_declared_input_is_stored_so(
    tmp_path: Path, compiler: Compiler, kind: str, body: str, expected: Any
) -> None:
    running = Session(model(tmp_path, body, declared=kind), compiler, options=MXNET, poison=True)
    given = x()
    given[2:7] = 0
    (found,) = running.run({"x": given}).values()
    np.testing.assert_allclose(found, expected(given), rtol=1e-5, atol=1e-5)
    assert f"cast_storage:x:{kind}" in casts(running)
    running.close()


def test_a_sparse_output_is_given_dense(tmp_path: Path, compiler: Compiler) -> None:
    running = Session(model(tmp_path, "y = Mul(a, x)"), compiler, options=MXNET, poison=True)
    found = running.run({"x": x()})
    assert list(found) == ["y"]
    np.testing.assert_allclose(found["y"], matrix() * x(), rtol=1e-6)
    running.close()


def test_what_mxnet_refuses_is_refused(tmp_path: Path, compiler: Compiler) -> None:
    with pytest.raises(GraphError, match="storage type must be"):
        Session(model(tmp_path, "y = Relu(x)", declared="coo"), compiler, options=MXNET)


def test_of_its_own_accord_values_of_a_run_are_dense(tmp_path: Path, compiler: Compiler) -> None:
    path = model(tmp_path, "m = Mul(a, x) e = Exp(m) y = MatMul(a, e)")
    running = Session(path, compiler, options=Options(autotune=False))
    (found,) = running.run({"x": x()}).values()
    np.testing.assert_allclose(found, matrix() @ np.exp(matrix() * x()), rtol=1e-5, atol=1e-5)
    assert not casts(running)
    running.close()


def pruned(tmp_path: Path) -> Path:
    """One product whose weight is nine tenths zeros."""
    rng = np.random.default_rng(5)
    w = (rng.standard_normal((64, 64)) * (rng.random((64, 64)) < 0.1)).astype(np.float32)
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[4,64] x, float[64,64] w) => (float[4,64] y) { y = Gemm <transB=1> (x, w) }'
    )
    del proto.graph.input[1]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    onnx.save(proto, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.parametrize(("fastest", "kind"), [("gemm.csr_weights", "csr"), ("gemm.blocked", "default")])
def test_a_weight_is_stored_as_the_measured_times_say(tmp_path: Path, fastest: str, kind: str) -> None:
    """And what was not chosen is told with its time."""
    registry = load_registry()
    options = Options()
    start = session.canonical(load(pruned(tmp_path)), host(), options, Bindings(), registry)
    group = session.planned(start, options).steps[0].group
    context = PlanningContext.of(dataclasses.replace(start, options=options))
    rows = [
        r for r in registry.candidates("Gemm", ("numba-cpu",)) if r.rejection_reason(group, context) is None
    ]
    timings = {roofline.key(r, group, context): 1e-6 if r.name == fastest else 3e-6 for r in rows}
    program = session.planned(dataclasses.replace(start, timings=timings), options)
    (row,) = decisions_json(program.compilation)["decisions"]
    assert row["chosen"] == fastest
    assert row["measured"]
    assert row["storage"]["w"]["kind"] == kind
    assert row["storage"]["w"]["density"] == pytest.approx(0.1, abs=0.02)
    assert ("stored csr" in row["reason"]) == (kind == "default")
    lost = {a["name"]: a["seconds"] for a in row["alternatives"] if a["measured"]}
    assert lost == {r.name: 3e-6 for r in rows if r.name != fastest}


def test_timings_of_other_densities_are_not_used(tmp_path: Path) -> None:
    registry = load_registry()
    start = session.canonical(load(pruned(tmp_path)), host(), Options(), Bindings(), registry)
    group = session.planned(start, Options()).steps[0].group
    context = PlanningContext.of(start)
    rows = [
        r for r in registry.candidates("Gemm", ("numba-cpu",)) if r.rejection_reason(group, context) is None
    ]
    names = {r.name: roofline.key(r, group, context) for r in rows}
    assert names["gemm.csr_weights"].startswith("gemm.csr_weights@csr=0.097 x1")
    assert names["gemm.blocked"].startswith("gemm.blocked x1")


def test_a_dense_kernel_between_casts_is_a_fallback(tmp_path: Path, compiler: Compiler) -> None:
    """MXNet adds csr and dense, and there is no such kernel here: the label says how it runs here."""
    running = Session(model(tmp_path, "m = Mul(a, x) y = Add(m, x)"), compiler, options=MXNET)
    (found,) = running.run({"x": x()}).values()
    np.testing.assert_allclose(found, matrix() * x() + x(), rtol=1e-5, atol=1e-5)
    compilation = running.program.compilation
    rows = {d["op"]: d for d in decisions_json(compilation)["decisions"]}
    assert any("'Add y': no kernel for 'm' csr" in note for note in compilation.notes)
    assert set(rows["Add"]["dispatch"].values()) == {"fallback"}
    assert set(rows["Mul"]["dispatch"].values()) == {"compute_ex"}
    running.close()
