"""Products by Strassen's algorithm against NumPy in double precision."""

from dataclasses import replace

import numpy as np
import pytest

from app.engine.core.registry import load
from app.kernels.cpu import strassen
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness
from tests.kernels.test_matmul import EPILOGUES, check_what_follows, exact, random, run

REGISTRY = load()
SHAPES = [
    ((16, 192), (192, 96)),
    ((19, 200), (200, 192)),  # an odd row, tiles that are not whole
    ((2, 65, 192), (192, 288)),
    ((251, 1400), (1400, 96)),  # several blocks of rows and chunks of the reduction
]


def test_the_algorithm_is_exact_on_integers() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (10, 12)).astype(np.float64), rng.integers(-9, 9, (12, 8)).astype(np.float64)
    np.testing.assert_array_equal(strassen.multiply(a, b), a @ b)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_product_equals_numpy(
    compiler: Compiler, shapes: tuple, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = harness.context
    monkeypatch.setattr(harness, "context", lambda threads=1, _lanes=0: known(threads, lanes))
    rng = np.random.default_rng(0)
    a, b = (random(rng, "float32", s) for s in shapes)
    expected = exact(a) @ exact(b)
    for threads in (1, 2):
        found = run(
            compiler, "matmul.strassen", "y = MatMul(a, b)", {"a": a, "b": b}, expected.shape,
            fixed=("b",), threads=threads,
        )  # fmt: skip
        harness.assert_close(found, expected.astype(np.float32), 2e-6)


@pytest.mark.parametrize("inplace", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_what_follows_is_computed_in_the_same_step(compiler: Compiler, epilogue: str, inplace: bool) -> None:
    check_what_follows(compiler, "matmul.strassen", ((19, 192), (192, 192)), epilogue, inplace, 2e-6)


def test_gemm_scales_and_transposes_the_constant(compiler: Compiler) -> None:
    rng = np.random.default_rng(0)
    a, b, c = (random(rng, "float32", s) for s in ((20, 192), (96, 192), (96,)))
    found = run(
        compiler, "gemm.strassen", "y = Gemm <transB = 1, alpha = 0.5> (a, b, c)", {"a": a, "b": b, "c": c},
        (20, 96), fixed=("b", "c"),
    )  # fmt: skip
    harness.assert_close(found, (0.5 * exact(a) @ exact(b).T + c).astype(np.float32), 2e-6)


def rejection(b: np.ndarray, **facts: object) -> str:
    model = harness.model_of(
        f"""<ir_version: 10, opset_import: ["": 21]> g (float[32,{b.shape[0]}] a, float[{b.shape[0]},{b.shape[1]}] b)
        => (float[32,{b.shape[1]}] y) {{ y = MatMul(a, b) }}""",
        {"b": b},
    )
    row = harness.implementation("matmul.strassen", REGISTRY)
    return row.rejection(harness.group_of(model, REGISTRY), replace(harness.context(), **facts)) or ""  # type: ignore[arg-type]


def test_it_is_refused_where_it_is_off_or_loses_precision() -> None:
    b = np.random.default_rng(0).standard_normal((192, 192)).astype(np.float32)
    assert rejection(b) == ""
    assert "switched off" in rejection(b, fast_algorithms=False)
    assert "relative rms error" in rejection(b, tolerance=1e-7)
    # Blocks of very different size: their sums lose the small one.
    uneven = b.copy()
    uneven[:96, :96] *= 1e6
    assert "relative rms error" in rejection(uneven)
    assert "whole tiles" in rejection(b[:, :190])
