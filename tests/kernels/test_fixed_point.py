"""Products with constant weights in fixed point against NumPy in double precision."""

from dataclasses import replace

import numpy as np
import pytest

from app.engine.backends.cpu import fixed_point
from app.engine.core.registry import load
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness
from tests.kernels.test_matmul import EPILOGUES, check_what_follows, exact, random, run

Array = np.ndarray
REGISTRY = load()
SHAPES = [
    ((1, 768), (768, 2304)),
    ((1, 1000), (1000, 1001)),  # columns that are no whole tile
    ((500,), (500, 500)),
    ((1, 20000), (20000, 5)),  # fewer columns than lanes
    ((2, 1, 700), (700, 333)),
    ((2, 512), (512, 139)),
]


def unpacked(panels: Array, k: int, n: int, width: int, lanes: int) -> Array:
    """The numbers that panels hold, as float64[k, n]."""
    step, tail = tiles.panel_sizes(tiles.FIXED_POINT, width)
    rows = panels.reshape(-1, k // 4 * step + tail)
    words = rows[:, : k // 4 * step].reshape(-1, k // 4, width // lanes, 3, lanes)
    fourth = sum((words[..., i, :] & 255) << (24 - 8 * i) for i in range(3)).astype(np.int32)
    steps = np.concatenate([words, fourth[..., None, :]], axis=-2).astype(np.float64)
    scales = np.ascontiguousarray(rows[:, k // 4 * step :]).view(np.float32)
    whole = steps.transpose(0, 1, 3, 2, 4).reshape(-1, k, width) * scales[:, None]
    return whole.transpose(1, 0, 2).reshape(k, -1)[:, :n]


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("n", [5, 48, 101])
def test_each_weight_is_off_by_half_a_step_of_its_column(n: int, lanes: int) -> None:
    rng = np.random.default_rng(0)
    b = rng.standard_normal((64, n), np.float32) * 10.0 ** rng.integers(-20, 20, n).astype(np.float32)
    b[:, 3] = 0
    b[7, 4] = -1000 * np.abs(b[:, 4]).max()
    width = tiles.columns_of(tiles.FIXED_POINT, lanes, tiles.FIXED)
    found = unpacked(tiles.pack_fixed(b, width, lanes), 64, n, width, lanes)
    step = np.abs(b).max(0) / tiles.FIXED_LIMIT
    assert np.all(np.abs(found - b) <= 0.5001 * step)
    assert np.all(found[:, 3] == 0)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_product_equals_numpy(
    compiler: Compiler, shapes: tuple, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = harness.context
    monkeypatch.setattr(harness, "context", lambda threads=1, _lanes=0: known(threads, lanes))
    monkeypatch.setattr(fixed_point, "LEAST_BYTES", 0)
    rng = np.random.default_rng(0)
    a, b = (random(rng, "float32", s) for s in shapes)
    expected = exact(a) @ exact(b)
    for threads in (1, 2):
        found = run(
            compiler, "matmul.fixed_point", "y = MatMul(a, b)", {"a": a, "b": b}, expected.shape,
            fixed=("b",), threads=threads,
        )  # fmt: skip
        harness.assert_close(found, expected.astype(np.float32), 5e-6)


@pytest.mark.parametrize("inplace", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("rows", [1, 2])
def test_what_follows_is_computed_in_the_same_step(
    compiler: Compiler, rows: int, epilogue: str, inplace: bool
) -> None:
    check_what_follows(compiler, "matmul.fixed_point", ((rows, 512), (512, 300)), epilogue, inplace, 2e-6)


def test_gemm_scales_and_transposes_the_constant(compiler: Compiler) -> None:
    rng = np.random.default_rng(0)
    a, b, c = (random(rng, "float32", s) for s in ((2, 512), (200, 512), (200,)))
    found = run(
        compiler, "gemm.fixed_point", "y = Gemm <transB = 1, alpha = 0.5> (a, b, c)", {"a": a, "b": b, "c": c},
        (2, 200), fixed=("b", "c"),
    )  # fmt: skip
    harness.assert_close(found, (0.5 * exact(a) @ exact(b).T + c).astype(np.float32), 2e-6)


def test_no_more_is_lost_than_a_sum_of_float32_loses(compiler: Compiler) -> None:
    rng = np.random.default_rng(0)
    a, b = random(rng, "float32", (1, 768)), random(rng, "float32", (768, 3072))
    expected = exact(a) @ exact(b)

    def error(name: str) -> float:
        found = run(compiler, name, "y = MatMul(a, b)", {"a": a, "b": b}, expected.shape, fixed=("b",))
        return float(np.sqrt(np.mean((found - expected) ** 2)))

    assert error("matmul.fixed_point") < 2 * error("matmul.blocked")


def rejection(b: Array, rows: int = 1, **facts: object) -> str:
    model = harness.model_of(
        f"""<ir_version: 10, opset_import: ["": 21]> g (float[{rows},{b.shape[0]}] a, float[{b.shape[0]},{b.shape[1]}] b)
        => (float[{rows},{b.shape[1]}] y) {{ y = MatMul(a, b) }}""",
        {"b": b},
    )
    row = harness.implementation("matmul.fixed_point", REGISTRY)
    return row.rejection(harness.group_of(model, REGISTRY), replace(harness.context(), **facts)) or ""  # type: ignore[arg-type]


def test_it_is_refused_where_it_is_off_or_loses_precision() -> None:
    b = np.random.default_rng(0).standard_normal((512, 256)).astype(np.float32)
    assert rejection(b) == ""
    assert "switched off" in rejection(b, fast_algorithms=False)
    assert "relative rms error" in rejection(b, tolerance=1e-7)
    assert "stay in a cache" in rejection(b[:, :64])
    assert "no multiple of 4" in rejection(b[:511])
    assert "more than the" in rejection(b, rows=9)
    outlier = b.copy()
    outlier[3, 5] = 1e6  # the others of this column would be lost, though little of the sum
    assert "relative rms error" in rejection(outlier)
    few = np.full((512, 256), 1e-36, np.float32)  # their scale is no normal number
    assert "relative rms error inf" in rejection(few)


@pytest.mark.parametrize("strange", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(strange: float) -> None:
    b = np.ones((512, 256), np.float32)
    b[1, 2] = strange
    assert "relative rms error" in rejection(b)
