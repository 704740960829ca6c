"""Matrix products of int16 pairs against sums in double precision of the rounded operands."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.engine.core.registry import PlanningContext
from app.engine.types.target import host
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness
from tests.kernels.test_bfloat import FOLLOWING
from tests.kernels.test_conv import close
from tests.kernels.test_matmul import run

Array = np.ndarray[Any, Any]

PRODUCTS = [
    ((6, 9), (9,), "MatMul", "none"),
    ((1, 64), (64, 1000), "Gemm", "relu"),
    ((1, 1700), (1700, 97), "MatMul", "residual"),
    ((1, 33), (33, 5), "MatMul", "none"),
    ((13, 31), (31, 50), "Gemm <transB = 1, alpha = 0.5>", "none"),
    ((200, 17), (17, 33), "MatMul", "residual"),
    ((5, 1900), (1900, 70), "MatMul", "none"),
    ((64, 642), (642, 96), "MatMul", "relu"),
    ((2, 3, 7, 11), (11, 19), "MatMul", "gelu"),
    ((29, 1), (1, 48), "MatMul", "none"),
]


def chunks(k: int) -> list[slice]:
    """Parts of the reduction that share scales."""
    pairs = -(-k // 2)
    count = -(-pairs // tiles.SCALED_STEPS)
    steps = -(-pairs // count)
    return [slice(first, first + 2 * steps) for first in range(0, k, 2 * steps)]


def rounded(a: Array) -> Array:
    """Rows as multiples of their scale, in double precision."""
    most = np.maximum(np.abs(a).max(-1, keepdims=True), np.float32(1e-30))
    whole = np.rint(a * (np.float32(tiles.SCALED_MOST) / most))
    found: Array = whole.astype(np.float64) * (most / np.float32(tiles.SCALED_MOST))
    return found


def expected(a: Array, b: Array) -> Array:
    """The product of the rounded operands."""
    b = b.reshape(len(b), -1)
    total = np.zeros((*a.shape[:-1], b.shape[1]))
    for part in chunks(a.shape[-1]):
        integers, scales = tiles.scaled_integers(b[part].T)
        total += rounded(a[..., part]) @ (integers.T * scales.astype(np.float64))
    return total


@pytest.fixture(params=[8, 16])
def registers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    target = replace(host(), vector_lanes=request.param)
    monkeypatch.setattr(harness, "context", lambda threads=1, lanes=0: PlanningContext(target, threads))


@pytest.mark.usefixtures("registers")
@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_products(case: tuple[Any, ...], compiler: Compiler) -> None:
    *shapes, op, follows = case
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    a *= np.exp(rng.standard_normal((*shapes[0][:-1], 1))).astype(np.float32)  # each row has its scale
    y = expected(a, b) * (0.5 if "alpha" in op else 1.0)
    y = y[..., 0] if b.ndim == 1 else y
    exact = a.astype(np.float64) @ b
    r = rng.standard_normal(y.shape).astype(np.float32)
    nodes, oracle = FOLLOWING[follows]
    values = {"a": a, "b": np.ascontiguousarray(b.T) if "transB" in op else b}
    values |= {"r": r} if follows == "residual" else {}
    for threads in (1, 2):
        found = run(
            compiler, f"{op.split()[0].lower()}.blocked_int16", nodes.format(op), values, y.shape,
            fixed=("b",), threads=threads, inplace=follows == "residual",
        )  # fmt: skip
        close(found, oracle(y, r), shapes[0][-1])
    assert np.abs(y / (0.5 if "alpha" in op else 1.0) - exact).max() < 2e-3 * np.abs(exact).max()


@pytest.mark.usefixtures("registers")
@pytest.mark.parametrize("rows", [1, 9])
def test_rows_of_zeros_and_of_numbers_that_are_not_finite(rows: int, compiler: Compiler) -> None:
    rng = np.random.default_rng(0)
    a, b = (
        rng.standard_normal((rows, 50)).astype(np.float32),
        rng.standard_normal((50, 64)).astype(np.float32),
    )
    for number in (0.0, np.nan, np.inf):
        a[-1] = 0.0
        a[-1, 7] = number
        y = run(
            compiler, "matmul.blocked_int16", "y = MatMul(a, b)", {"a": a, "b": b}, (rows, 64), fixed=("b",)
        )
        assert np.all(y[-1] == 0) if number == 0.0 else not np.any(np.isfinite(y[-1]))
        close(y[:-1], expected(a[:-1], b), 50)
