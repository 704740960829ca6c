"""Products and convolutions over constant weights of 16 bits: the numbers of float32, from half the bytes."""

import ml_dtypes
import numpy as np
import pytest

from app.engine.backends.cpu import half_weights
from app.engine.core.calls import Constant
from app.engine.core.registry import load
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness
from tests.kernels.single_node import text_group
from tests.kernels.test_conv import attributes, operands, run
from tests.kernels.test_matmul import EPILOGUES, SHAPES, exact, random
from tests.kernels.test_matmul import run as run_product
from tests.kernels.test_nchwc_conv import CASES

KINDS = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
REGISTRY = load()
Array = np.ndarray


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_weights, "LEAST_BYTES", 0)


@pytest.fixture(params=[8, 16])
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Registers of 8 or 16 float32, whatever this machine has."""
    known, count = harness.context, request.param
    monkeypatch.setattr(harness, "context", lambda threads=1, _lanes=0: known(threads, count))
    return int(count)


def rounded(x: Array, kind: str) -> Array:
    """float32 that have 16 bits, the smallest and the largest of the type among them."""
    dtype = KINDS[kind]
    found = x.astype(dtype)
    limits = ml_dtypes.finfo(dtype)
    if found.size > 2:
        found.reshape(-1)[:2] = limits.smallest_subnormal, -limits.smallest_normal
    return found.astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shapes", [s for s in SHAPES if s[0][-1] and len(s[1]) > 1], ids=str)
def test_product_equals_numpy(compiler: Compiler, shapes: tuple, kind: str, lanes: int) -> None:
    rng = np.random.default_rng(0)
    a = random(rng, "float32", shapes[0])
    b = rounded(random(rng, "float32", shapes[1]), kind)
    expected = np.asarray(exact(a) @ exact(b))
    for threads in (1, 2):
        found = run_product(
            compiler, "matmul.half_weights", "y = MatMul(a, b)", {"a": a, "b": b}, expected.shape,
            fixed=("b",), threads=threads,
        )  # fmt: skip
        harness.assert_close(found, expected.astype(np.float32))


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("rows", [1, 13])
def test_what_follows_is_computed_as_after_a_product_of_float32(
    compiler: Compiler,
    rows: int,
    epilogue: str,
    lanes: int,
) -> None:
    rng = np.random.default_rng(0)
    a, b = random(rng, "float32", (rows, 300)), rounded(random(rng, "float32", (300, 70)), "float16")
    text, _ = EPILOGUES[epilogue]
    words = text.replace("(", " ").replace(")", " ").replace(",", " ").split()
    shapes = {"r": (rows, 70), "q": (70,), "g": (rows, 1), "s": ()}
    extra = {n: random(rng, "float32", s) for n, s in shapes.items() if n in words}
    found = [
        run_product(
            compiler, f"matmul.{row}", f"c = MatMul(a, b) {text}", {"a": a, "b": b, **extra}, (rows, 70),
            fixed=("b", *(n for n in extra if n == "q")),
        )
        for row in ("half_weights", "blocked")
    ]  # fmt: skip
    harness.assert_close(*found, tolerance=2e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolution_equals_that_of_float32(compiler: Compiler, case: tuple, kind: str, lanes: int) -> None:
    values, y = operands(case)
    values["w"] = rounded(values["w"], kind)
    node = f"y = Conv<{attributes(case)}>(x, w, b)"
    for threads in (1, 2):
        found, expected = (
            run(compiler, row, node, values, y.shape, threads=threads)
            for row in ("conv.blocked_half_weights", "conv.blocked")
        )
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_take_half_the_bytes(kind: str) -> None:
    rng = np.random.default_rng(0)
    b = rounded(random(rng, "float32", (300, 96)), kind)
    group = text_group("MatMul(a, b)", {"a": np.zeros((1, 300), np.float32)}, {"b": b})
    packed = [
        max(c.array.nbytes for c in call.arguments if isinstance(c, Constant))
        for row in ("matmul.half_weights", "matmul.blocked")
        for call in harness.implementation(row, REGISTRY).lower(group, harness.context())
    ]
    assert packed[0] * 2 == packed[1] == b.nbytes


@pytest.mark.parametrize("wrong", [1 + 2.0**-12, 1e-9, 1e6, np.inf, np.nan])
def test_one_weight_that_has_no_16_bits_is_enough_to_refuse(wrong: float) -> None:
    b = rounded(np.random.default_rng(0).standard_normal((300, 300), np.float32), "float16")
    assert tiles.exact_halves(b) == "float16"
    b[-1, -1] = wrong
    assert tiles.exact_halves(b) is None
    group = text_group("MatMul(a, b)", {"a": np.zeros((1, 300), np.float32)}, {"b": b})
    row = harness.implementation("matmul.half_weights", REGISTRY)
    assert row.rejection(group, harness.context()) == "the weights are no 16-bit floats"
