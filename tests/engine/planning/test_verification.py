"""What of a job is verified, by whom, and what its exported graphs are made of."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from app.engine.core.registry import PlanningContext
from app.engine.core.registry import load as load_registry
from app.engine.entry import optimize
from app.engine.model.load import load
from app.engine.model.spool import Spool
from app.engine.planning import session
from app.engine.planning.verification import Verification
from app.engine.report.exports import Exported
from app.engine.report.functions import with_functions
from app.engine.report.onnx import write
from app.engine.runtime import oracle
from app.engine.types.errors import ExportMismatchError
from app.engine.types.options import Bindings, Options
from app.engine.types.saturation import VNNI
from app.engine.types.target import Target, host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.canonical import Array, saved
from tests.engine.report.test_functions import assert_equal_results, planned
from tests.harness import group_of, model_of

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
FILES = {
    "exported": "optimized.onnx",
    "functions": "optimized.functions.onnx",
    "inlined": "optimized.inlined.onnx",
}
INTEGER = {"ConvInteger", "MatMulInteger"}
Json = dict[str, Any]


def without_vnni() -> Target:
    return dataclasses.replace(host(), isa=tuple(f for f in host().isa if f not in VNNI))


@pytest.fixture
def old_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine as one without VNNI."""
    monkeypatch.setattr(optimize, "host", without_vnni)


def dequantized(folder: Path) -> Path:
    """Convolutions, then a product, of dequantized operands; one has a zero point for each channel."""
    rng = np.random.default_rng(3)
    weights: dict[str, Array] = {
        "xs": np.array(0.02, np.float32),
        "ms": np.array(0.9, np.float32),
        "z": np.array(128, np.uint8),
        "ws": (rng.random(16) * 0.01 + 0.001).astype(np.float32),
        "wz": np.arange(16).astype(np.int8),
        "w0": rng.integers(-127, 128, (16, 8, 3, 3)).astype(np.int8),
        "w1": rng.integers(-127, 128, (16, 16, 3, 3)).astype(np.int8),
        "fs": np.array(0.01, np.float32),
        "fw": rng.integers(-127, 128, (16, 5)).astype(np.int8),
    }
    body = """q = QuantizeLinear(x, xs, z) a = DequantizeLinear(q, xs, z)
        b = DequantizeLinear <axis = 0> (w0, ws, wz) c = Conv <pads = [1, 1, 1, 1]> (a, b)
        d = QuantizeLinear(c, ms, z) e = DequantizeLinear(d, ms, z)
        f = DequantizeLinear <axis = 0> (w1, ws, wz) g = Conv <pads = [1, 1, 1, 1]> (e, f)
        h = GlobalAveragePool(g) i = Flatten(h) j = QuantizeLinear(i, ms, z) k = DequantizeLinear(j, ms, z)
        l = DequantizeLinear(fw, fs) y = MatMul(k, l)"""
    return saved(f"{HEAD} g (float[1,8,12,12] x) => (float[1,5] y) {{ {body} }}", folder, weights)


def integer(folder: Path) -> Path:
    rng = np.random.default_rng(3)
    weights = {"w": rng.integers(-127, 128, (64, 16)).astype(np.int8), "z": np.array(128, np.uint8)}
    text = f"{HEAD} g (uint8[4,64] x) => (int32[4,16] y) {{ y = MatMulInteger(x, w, z) }}"
    return saved(text, folder, weights).rename(folder / "integer.onnx")


def optimized(path: Path, compiler: Compiler, **options: Any) -> Json:
    asked = Options(timings="predicted", autotune=False, **options)
    return optimize.optimize(
        path,
        host(),
        asked,
        Bindings(ranges={"x": (0, 256)} if path.stem == "integer" else {}),
        path.parent,
        kernels=compiler.cache,
    )


def operators(path: Path) -> set[str]:
    proto = onnx.load(path)
    return {n.op_type for n in (*proto.graph.node, *(n for f in proto.functions for n in f.node))}


@pytest.mark.usefixtures("old_cpu")
def test_exports_of_a_quantized_model_are_verified_on_a_cpu_without_vnni(
    tmp_path: Path, compiler: Compiler
) -> None:
    found = optimized(dequantized(tmp_path), compiler)["verification"]
    assert found["status"] == "verified"
    assert found["oracle"] == "onnxruntime"
    for place in ("outputs", *FILES):
        assert [row["ok"] for row in found[place]] == [True], place
    assert {place: row["name"] for place, row in found["runtimes"].items()} == dict.fromkeys(
        FILES, "onnxruntime without optimizations"
    )
    assert "VNNI" in found["runtimes"]["exported"]["reason"]


@pytest.mark.usefixtures("old_cpu")
def test_exported_integer_products_are_verified_by_the_reference_evaluator_without_vnni(
    tmp_path: Path, compiler: Compiler
) -> None:
    found = optimized(integer(tmp_path), compiler)["verification"]
    assert found["status"] == "verified"
    assert found["oracle"] == "reference"
    for place in ("outputs", *FILES):
        assert [row["max_abs"] for row in found[place]] == [0.0], place
    assert {row["name"] for row in found["runtimes"].values()} == {"reference"}
    assert "saturates the 8-bit products of MatMulInteger" in found["runtimes"]["exported"]["reason"]


def test_a_file_of_several_names_runs_once_and_again_when_it_was_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(f"{HEAD} g (float[4] x) => (float[4] y) {{ y = Relu(x) }}", tmp_path, {})
    other = onnx.parser.parse_model(f"{HEAD} g (float[4] x) => (float[4] y) {{ y = Abs(x) }}")
    for name in FILES.values():
        (tmp_path / name).hardlink_to(path)
    ran: list[str] = []
    usual = oracle.runtime

    def runtime(file: Path, **options: bool) -> oracle.Run:
        ran.append(file.name)
        return usual(file, **options)

    monkeypatch.setattr(oracle, "runtime", runtime)
    x = np.array([-1, 2, -3, 4], np.float32)
    verification = Verification(path, {"x": x}, frozenset({"Relu"}), host(), Spool(tmp_path / "weights"))
    compilation = session.canonical(load(path), host(), Options(), Bindings(), load_registry())
    exports = {place: Exported(tmp_path / name, frozenset({"Relu"})) for place, name in FILES.items()}
    for _ in range(2):
        verification.of(compilation, "not run", exports)
    assert ran == [path.name, FILES["exported"]]
    written = tmp_path / FILES["inlined"]
    written.unlink()
    written.write_bytes(other.SerializeToString())
    with pytest.raises(ExportMismatchError, match=written.name):
        verification.of(compilation, "not run", exports)


def test_exports_keep_the_dequantized_operands_of_the_model(tmp_path: Path, compiler: Compiler) -> None:
    summary = optimized(dequantized(tmp_path), compiler)
    assert any("ConvInteger" in row["op"] for row in summary["operators"])
    for place, name in FILES.items():
        found = operators(tmp_path / name)
        assert not found & INTEGER, name
        assert {"QuantizeLinear", "DequantizeLinear", "Conv", "MatMul"} <= found, name
        assert [row["ok"] for row in summary["verification"][place]] == [True]


def test_a_plan_in_functions_keeps_dequantized_operands(tmp_path: Path) -> None:
    path = dequantized(tmp_path)
    found = planned(path, Bindings(), "blocked")
    assert {n.op_type for n in found.graph} >= INTEGER
    write(with_functions(found), tmp_path / FILES["functions"])
    assert not operators(tmp_path / FILES["functions"]) & INTEGER
    x = {"x": np.random.default_rng(0).standard_normal((1, 8, 12, 12)).astype(np.float32)}
    assert assert_equal_results(path, found, x, tmp_path)


def test_exports_keep_the_integer_products_of_the_model(tmp_path: Path, compiler: Compiler) -> None:
    optimized(integer(tmp_path), compiler)
    for name in FILES.values():
        assert operators(tmp_path / name) == {"MatMulInteger"}, name


@pytest.mark.parametrize(("machine", "refuses"), [(without_vnni, True), (host, False)])
def test_onnxruntime_is_given_no_integer_products_on_a_cpu_without_vnni(
    machine: Callable[[], Target], refuses: bool
) -> None:
    if not refuses and not VNNI & set(host().isa):
        pytest.skip("this CPU has no VNNI")
    text = f"{HEAD} g (uint8[4,64] x, int8[64,16] w) => (int32[4,16] y) {{ y = MatMulInteger(x, w) }}"
    registry = load_registry()
    group = group_of(model_of(text), registry)
    selector = registry.backends["onnxruntime"].selector
    assert selector is not None
    reason = selector.start(group.anchor, PlanningContext(machine()))
    assert (reason is not None and "saturates" in reason) == refuses


@pytest.mark.skipif(
    VNNI.isdisjoint(host().isa), reason="onnxruntime saturates here, so the evaluator runs files"
)
def test_files_of_quantized_models_may_differ_as_the_optimizations_of_onnxruntime_do(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = oracle.runtime

    def moved(path: Path, *, threads: int, optimized: bool) -> Callable[..., dict[str, Any]]:
        run, factor = real(path, threads=threads, optimized=optimized), 1.005 if optimized else 1.0
        return lambda inputs: {name: array * np.float32(factor) for name, array in run(inputs).items()}

    monkeypatch.setattr(oracle, "runtime", moved)
    monkeypatch.setattr(oracle, "spread", lambda *_: {})
    found = optimized(dequantized(tmp_path), compiler)["verification"]
    assert [row["tolerance"] for row in found["exported"]] == [pytest.approx(2 * 0.005, rel=0.01)]
    assert [row["tolerance"] for row in found["outputs"]] == [1e-4]
