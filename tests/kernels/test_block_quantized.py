"""Products with weights of 4 and 8 bits in blocks, against NumPy in double precision and onnxruntime."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from app.engine import reference as evaluated
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext, load
from app.engine.operators import block_quantized as meaning
from app.engine.types.target import Target, host
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness
from tests.harness import Array, assert_close
from tests.kernels.single_node import node_text, rejection_of, run_node, text_group

NAME = "matmul_nbits.blocks"
ZEROS = ("none", "bytes", "floats")
CASES = [  # m, k, n, block
    ((1,), 64, 16, 32),
    ((1,), 200, 100, 32),
    ((1,), 16, 1, 16),
    ((3,), 130, 33, 64),
    ((2, 9), 256, 70, 128),
    ((5,), 300, 130, 256),
    ((130,), 48, 20, 16),
    ((0,), 32, 8, 32),
]


def case(
    shape: tuple[int, ...],
    k: int,
    n: int,
    block: int,
    bits: int = 4,
    zeros: str = "none",
    level: int = 0,
    seed: int = 0,
) -> tuple[str, dict[str, Array], dict[str, Array], Array]:
    """Body of a node, its activations, its constants, and its weights as float64[n, k]."""
    rng = np.random.default_rng(seed)
    form = meaning.Form(k, n, bits, block, rounds=level == 4)
    q = rng.integers(0, 1 << bits, (n, form.blocks, block)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.2, (n, form.blocks)).astype(np.float32)
    constants = {"b": meaning.packed(q, bits), "s": scales}
    origin: Any = np.full((n, form.blocks), float(form.default_zero))
    if zeros == "bytes":
        whole = rng.integers(0, 1 << bits, (n, form.blocks)).astype(np.uint8)
        constants["z"], origin = meaning.packed(whole, bits), whole.astype(np.float64)
    elif zeros == "floats":
        constants["z"] = rng.uniform(0, (1 << bits) - 1, (n, form.blocks)).astype(np.float32)
        origin = constants["z"].astype(np.float64)
    weights = ((q - origin[..., None]) * scales[..., None]).reshape(n, -1)[:, :k]
    sizes = f"K = {k}, N = {n}, bits = {bits}, block_size = {block}, accuracy_level = {level}"
    body = f"com.microsoft.MatMulNBits<{sizes}>({', '.join(('x', *constants))})"
    return body, {"x": rng.standard_normal((*shape, k)).astype(np.float32)}, constants, weights


def group_of(body: str, inputs: dict[str, Array], constants: dict[str, Array]) -> Group:
    (columns,) = re.findall(r"N = (\d+)", body)
    like = np.zeros((*inputs["x"].shape[:-1], int(columns)), np.float32)
    return text_group(body, inputs, constants, {"y": like}, domain="com.microsoft")


def by_onnxruntime(body: str, inputs: dict[str, Array], constants: dict[str, Array]) -> Array:
    import onnx

    text = node_text(body, {**inputs, **constants}, {"y": np.float32}, domain="com.microsoft")
    model = onnx.parser.parse_model(text)
    del model.graph.input[len(inputs) :]  # only constants are packed, and rounded products need that
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, inputs)[0])


def targets() -> list[Target]:
    """This machine, and what it would be with shorter registers or fewer instructions."""
    here = host()
    plain = tuple(f for f in here.isa if "vnni" not in f)
    found = [here, replace(here, isa=plain), replace(here, isa=plain, vector_lanes=8)]
    return [*found, replace(here, vector_lanes=8), replace(here, isa=(), vector_lanes=4)]


@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_products_are_those_of_the_dequantized_weights(
    compiler: Compiler, sizes: Any, bits: int, zeros: str
) -> None:
    body, inputs, constants, weights = case(*sizes, bits, zeros)
    expected = inputs["x"].astype(np.float64) @ weights.T
    for threads in (1, 2):
        (found,) = run_node(compiler, NAME, group_of(body, inputs, constants), inputs, threads=threads)
        assert_close(found, expected.astype(np.float32), 2e-6)


@pytest.mark.parametrize("zeros", ["none", "bytes"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("sizes", CASES[:6], ids=str)
@pytest.mark.parametrize("level", [0, 4])
def test_products_are_those_of_onnxruntime(
    compiler: Compiler, sizes: Any, bits: int, zeros: str, level: int
) -> None:
    body, inputs, constants, _ = case(*sizes, bits, zeros, level, seed=1)
    (found,) = run_node(compiler, NAME, group_of(body, inputs, constants), inputs)
    assert_close(found, by_onnxruntime(body, inputs, constants), 2e-6)


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("number", range(5))
def test_products_are_the_same_on_every_processor(
    compiler: Compiler, number: int, bits: int, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = targets()[number]
    monkeypatch.setattr(harness, "context", lambda threads=1, lanes=0: PlanningContext(target, threads))
    # Each machine meets each size of blocks with each kind of zero points, in turn over bits and levels.
    for i, sizes in enumerate((CASES[1], CASES[3], CASES[5])):
        zeros = ZEROS[(i + number + bits // 4 + level // 4) % len(ZEROS)]
        body, inputs, constants, weights = case(*sizes, bits, zeros, level, seed=2)
        (found,) = run_node(compiler, NAME, group_of(body, inputs, constants), inputs)
        expected = inputs["x"].astype(np.float64) @ weights.T
        assert_close(found, expected.astype(np.float32), 2e-6 if level == 0 else 2e-2)


@pytest.mark.parametrize("bits", [4, 8])
def test_extreme_weights_and_activations_do_not_saturate(
    compiler: Compiler, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, k, n, block = 2, 512, 24, 256
    form = meaning.Form(k, n, bits, block, rounds=True)
    constants = {
        "b": np.full((n, form.blocks, block * bits // 8), 255, np.uint8),
        "s": np.ones((n, form.blocks), np.float32),
        "z": np.zeros((n, form.blocks * bits // 8), np.uint8),
    }
    x = np.ones((m, k), np.float32)
    x[1] = -1
    sizes = f"K = {k}, N = {n}, bits = {bits}, block_size = {block}, accuracy_level = 4"
    group = group_of(f"com.microsoft.MatMulNBits<{sizes}>(x, b, s, z)", {"x": x}, constants)
    expected = (
        np.float32(k * ((1 << bits) - 1)) * np.array([[1], [-1]], np.float32) * np.ones((1, n), np.float32)
    )
    for target in targets():
        monkeypatch.setattr(
            harness, "context", lambda threads=1, lanes=0, target=target: PlanningContext(target, threads)
        )
        (found,) = run_node(compiler, NAME, group, {"x": x})
        assert_close(found, expected, 1e-6)


@pytest.mark.parametrize("magnitude", [1e-30, 1e-3, 1e30])
def test_activations_of_any_magnitude_keep_their_precision(compiler: Compiler, magnitude: float) -> None:
    body, inputs, constants, weights = case(*CASES[3])
    inputs["x"] *= np.float32(magnitude)
    inputs["x"][1] = 0
    (found,) = run_node(compiler, NAME, group_of(body, inputs, constants), inputs)
    expected = inputs["x"].astype(np.float64) @ weights.T
    assert_close(found / np.float32(magnitude), (expected / magnitude).astype(np.float32), 2e-6)


def test_a_row_with_an_activation_that_is_no_number_is_no_number(compiler: Compiler) -> None:
    body, inputs, constants, _ = case(*CASES[3])
    inputs["x"][1, 7] = np.nan
    inputs["x"][2, 100] = np.inf
    (found,) = run_node(compiler, NAME, group_of(body, inputs, constants), inputs)
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1:]).all()


EPILOGUES = {
    "a = Add(p, c)\n y = Relu(a)": lambda p, c, r: np.maximum(p + c, 0),
    "a = Add(p, r)\n y = Mul(a, c)": lambda p, c, r: (p + r) * c,
    "d = Sigmoid(p)\n a = Mul(p, d)\n y = Mul(a, r)": lambda p, _c, r: p / (1 + np.exp(-p)) * r,
}


@pytest.mark.parametrize("nodes", EPILOGUES)
@pytest.mark.parametrize("rows", [1, 7])
def test_what_follows_is_computed_on_sums_in_cache(compiler: Compiler, rows: int, nodes: str) -> None:
    body, inputs, constants, weights = case((rows,), 96, 50, 32, seed=3)
    rng = np.random.default_rng(4)
    channel = rng.standard_normal(50).astype(np.float32)
    residual = rng.standard_normal((rows, 50)).astype(np.float32)
    (kx, kb, ks) = (inputs["x"], constants["b"], constants["s"])
    text = f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g
        (float[{rows},96] x, uint8[{",".join(map(str, kb.shape))}] b, float[{",".join(map(str, ks.shape))}] s,
         float[50] c, float[{rows},50] r) => (float[{rows},50] y) <float[{rows},50] p, float[{rows},50] a, float[{rows},50] d> {{ p = {body}\n {nodes} }}"""

    group = harness.group_of(harness.model_of(text, {**constants, "c": channel}), load())
    given = {"x": kx, "r": residual}
    (found,) = run_node(
        compiler, NAME, group, {n: a for n, a in given.items() if n in {v.name for v in group.inputs}}
    )
    expected = EPILOGUES[nodes](kx.astype(np.float64) @ weights.T, channel, residual)
    assert_close(found, expected.astype(np.float32), 3e-6)


def test_blocks_that_other_elements_belong_to_are_rejected() -> None:
    body, inputs, constants, _ = case((1,), 64, 16, 32)
    order = np.arange(64, dtype=np.int32) // 32
    body = body.replace("(x, b, s)", '(x, b, s, "", g)')
    assert rejection_of(NAME, group_of(body, inputs, {**constants, "g": order})) is None
    reason = rejection_of(NAME, group_of(body, inputs, {**constants, "g": order[::-1].copy()}))
    assert reason is not None
    assert "other blocks" in reason


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("bits", [4, 8])
def test_the_reference_evaluator_computes_what_onnxruntime_does(bits: int, zeros: str, level: int) -> None:
    if zeros == "floats" and bits == 8:
        pytest.skip("onnxruntime reads zero points of 8 bits as bytes")
    body, inputs, constants, _ = case(*CASES[4], bits, zeros, level, seed=5)
    operands = [inputs["x"], *constants.values()]
    (found,) = evaluated.prepare(group_of(body, inputs, constants).anchor)(operands)
    assert_close(np.asarray(found), by_onnxruntime(body, inputs, constants), 2e-6)
