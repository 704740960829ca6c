"""What outputs may differ by: the tolerance, and in a quantized model what it makes of rounding itself."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.entry.optimize import optimize
from app.engine.model.load import load
from app.engine.runtime import oracle
from app.engine.runtime.oracle import Oracle, evaluate, rounds, runtime, spread
from app.engine.runtime.verify import Difference, allowing, check
from app.engine.types.errors import NumericsError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.canonical import Array, saved

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
STEP = {"s": np.array(1.0, np.float32), "z": np.array(0, np.uint8)}


def oracle_of(path: Path, name: str) -> Oracle:
    if name == "onnxruntime":
        return Oracle(name, runtime(path, threads=1, optimized=False))
    return Oracle(name, lambda inputs: evaluate(load(path).model, inputs))


@pytest.mark.parametrize("name", ["onnxruntime", "reference"])
@pytest.mark.parametrize(
    ("edge", "expected"), [(2.5, 0.01), (2.2, 0.0)], ids=["at an edge", "far from edges"]
)
def test_a_value_at_the_edge_of_a_step_spreads_by_a_step(
    tmp_path: Path, name: str, edge: float, expected: float
) -> None:
    path = saved(f"{HEAD} g (float[2] x) => (uint8[2] y) {{ y = QuantizeLinear(x, s, z) }}", tmp_path, STEP)
    x = np.array([edge, 100.2], np.float32)
    assert rounds(load(path).model.graph)
    assert spread(path, {"x": x}, oracle_of(path, name)) == {"y": pytest.approx(expected)}


@pytest.mark.parametrize(("level", "rounding", "expected"), [(4, True, 1 / 129), (0, False, 0.0)])
def test_activations_that_a_product_rounds_spread_by_a_step(
    level: int, rounding: bool, expected: float, tmp_path: Path
) -> None:
    sizes = f"K = 16, N = 1, bits = 4, block_size = 16, accuracy_level = {level}"
    text = f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        g (float[1,16] x) => (float[1,1] y) {{ y = com.microsoft.MatMulNBits<{sizes}>(x, w, s) }}"""
    path = saved(text, tmp_path, {"w": np.full((1, 1, 8), 0x99, np.uint8), "s": np.ones(1, np.float32)})
    x = np.zeros((1, 16), np.float32)
    x[0, :2] = 127, 2.5
    assert rounds(load(path).model.graph) == rounding
    assert spread(path, {"x": x}, oracle_of(path, "reference"))["y"] == pytest.approx(expected, abs=1e-5)


def test_spread_is_the_same_every_time(tmp_path: Path) -> None:
    weights = {**STEP, "w": np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)}
    text = f"{HEAD} g (float[8, 32] x) => (float[8, 32] y) {{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = MatMul(d, w) }}"
    path = saved(text, tmp_path, weights)
    x = np.random.default_rng(1).uniform(0, 200, (8, 32)).astype(np.float32)
    found = [spread(path, {"x": x}, oracle_of(path, "onnxruntime")) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0]["y"] > 0


def test_a_quantized_model_may_differ_by_twice_its_own_spread_and_no_more() -> None:
    row = Difference("y", max_abs=1.0, max_rel=0.1, tolerance=1e-4)
    check(allowing((row,), {"y": 0.051}))
    with pytest.raises(NumericsError, match="allowed is 0.098 of its maximum"):
        check(allowing((row,), {"y": 0.049}))
    check(allowing((Difference("y", 1e-6, 1e-5, 1e-4),), {"y": 0.0}))


def layers(body: str, tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    weights: dict[str, Array] = {
        "xs": np.array(0.02, np.float32),
        "ms": np.array(0.03, np.float32),
        "z": np.array(128, np.uint8),
        "ws": np.array(0.003, np.float32),
        "w0": rng.integers(-127, 128, (16, 8, 3, 3)).astype(np.int8),
        "w1": rng.integers(-127, 128, (8, 16, 3, 3)).astype(np.int8),
        "f0": rng.standard_normal((16, 8, 3, 3)).astype(np.float32),
    }
    text = f"{HEAD} g (float[1,8,12,12] x) => (float[1,8,8,8] y) {{ {body} }}"
    return saved(text, tmp_path, {k: v for k, v in weights.items() if f" {k}" in text or f"({k}" in text})


def test_a_quantized_model_is_verified_by_what_rounding_does_to_it(
    tmp_path: Path, compiler: Compiler
) -> None:
    body = """q = QuantizeLinear(x, xs, z) a = DequantizeLinear(q, xs, z) b = DequantizeLinear( w0, ws)
              c = Conv(a, b) d = QuantizeLinear(c, ms, z) e = DequantizeLinear(d, ms, z)
              f = DequantizeLinear( w1, ws) y = Conv(e, f)"""
    path = layers(body, tmp_path)
    options = Options(timings="predicted", tolerance=1e-9)
    summary = optimize(path, host(), options, Bindings(), tmp_path, kernels=compiler.cache)
    found = summary["verification"]
    assert found["spread"]["y"] > 0
    assert [row["tolerance"] for row in found["outputs"]] == [pytest.approx(2 * found["spread"]["y"])]
    assert found["outputs"][0]["max_rel"] > 1e-9


def test_a_model_that_is_not_quantized_is_allowed_nothing_more(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "uncertainty", lambda *_: {})
    # Sigmoid is computed otherwise than by onnxruntime; convolutions may add in its order, and differ by nothing.
    body = "a = Conv(x, f0) s = Sigmoid(a) b = DequantizeLinear( w1, ws) y = Conv(s, b)"
    path = layers(body, tmp_path)
    options = Options(timings="predicted", tolerance=1e-9)
    with pytest.raises(NumericsError, match="allowed is 1e-09"):
        optimize(path, host(), options, Bindings(), tmp_path, kernels=compiler.cache)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_model_of_16_bits_may_differ_by_what_their_rounding_does_to_it(
    kind: str, tmp_path: Path, compiler: Compiler
) -> None:
    """The original rounds every value, programs those that are stored: both are right, and differ by many half steps."""
    rng = np.random.default_rng(1)
    narrow = ir.DataType[kind.upper()].numpy()
    weights = {f"w{i}": (rng.standard_normal((64, 64)) / 8).astype(narrow) for i in range(12)}
    nodes = "".join(
        f"a{i} = MatMul(r{i}, w{i}) t{i} = Tanh(a{i}) r{i + 1} = Add(t{i}, r{i}) " for i in range(12)
    )
    text = f"{HEAD} g ({kind}[4,64] r0) => ({kind}[4,64] y) {{ {nodes} y = Mul(r12, r12) }}"
    options = Options(timings="predicted", autotune=False)
    path = saved(text, tmp_path, weights)
    found = optimize(path, host(), options, Bindings(), tmp_path, kernels=compiler.cache)["verification"]
    assert found["outputs"][0]["max_rel"] > options.tolerance
    assert found["outputs"][0]["tolerance"] == pytest.approx(2 * found["uncertainty"]["y"])
    assert found["uncertainty"]["y"] > oracle.roundoff(load(path).model)["y"]


WRONG_CLAIM = f"""{HEAD} g (bool c, float[3,4] x) => (float[12] y) {{
    r = If (c) <then_branch = t () => (a) {{ n = Constant<value_ints = [-1]>() a = Reshape(x, n) }},
                else_branch = e () => (b) {{ b = Identity(x) }}>
    y = If (c) <then_branch = t () => (float[12] d) {{ d = Neg(r) }},
                else_branch = e () => (float[12] f) {{ f = Neg(r) }}>
}}"""


@pytest.mark.parametrize("rejection", [None, "not asked"], ids=["onnxruntime", "reference"])
def test_an_original_that_claims_a_wrong_shape_is_computed(tmp_path: Path, rejection: str | None) -> None:
    # As torch.onnx.export writes a scatter_reduce: the shape of the branch that is not taken.
    model = load(saved(WRONG_CLAIM, tmp_path)).model
    path = tmp_path / "converted.onnx"
    ir.save(model, path)
    x = np.ones((3, 4), np.float32)
    expected, by = oracle.original(path, {"c": np.array(False), "x": x}, rejection)
    assert by.name == ("reference" if rejection else "onnxruntime")
    np.testing.assert_array_equal(np.asarray(expected["y"]), -x)
