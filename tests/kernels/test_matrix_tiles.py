"""Products by tile registers against sums in double precision of the rounded operands."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.engine.core.registry import PlanningContext, load
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness
from tests.kernels import test_bfloat as bfloat_cases
from tests.kernels import test_nchwc_conv as conv_cases
from tests.kernels.test_conv import attributes, run

pytestmark = pytest.mark.skipif(
    "amx_bf16" not in host().isa, reason="this machine has no AMX, or does not permit its use"
)


@pytest.fixture(autouse=True)
def in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    def context(threads: int = 1, lanes: int = 0) -> PlanningContext:
        return PlanningContext(host(), threads, precision="bf16")

    monkeypatch.setattr(harness, "context", context)


@pytest.mark.parametrize("case", conv_cases.CASES, ids=str)
def test_conv(case: tuple[Any, ...], compiler: Compiler) -> None:
    bfloat_cases.check("conv.blocked_tiles", case, "none", compiler, threads=2)


@pytest.mark.parametrize("name", ["relu", "residual", "silu"])
def test_epilogues_of_conv(name: str, compiler: Compiler) -> None:
    for case in (conv_cases.CASES[5], conv_cases.CASES[2]):
        bfloat_cases.check("conv.blocked_tiles", case, name, compiler, inplace=name == "residual")


@pytest.mark.parametrize("case", bfloat_cases.PRODUCTS, ids=str)
def test_products(case: tuple[Any, ...], compiler: Compiler) -> None:
    bfloat_cases.check_product(case, "tiles", compiler)


STEMS = [
    *(case for case in conv_cases.STEMS if case[0][1] <= 4),
    ((1, 2, 9, 40), (17, 2, 3, 11), (1, 3), (1, 5, 1, 5), (1, 1), 1),
    ((1, 3, 32, 48), (40, 3, 16, 16), (16, 16), (0, 0, 0, 0), (1, 1), 1),
]


@pytest.mark.parametrize("case", STEMS, ids=str)
def test_stem(case: tuple[Any, ...], compiler: Compiler) -> None:
    bfloat_cases.check("conv.blocked_stem_tiles", case, "relu", compiler, threads=2)


def test_nan_and_infinity_stay_in_their_rows(compiler: Compiler) -> None:
    registry = load()
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((40, 50), (50, 33)))
    x[3, 7], x[20, 49] = np.nan, np.inf
    text = "g (float[40,50] x, float[50,33] w) => (float[40,33] y) { y = MatMul(x, w) }"
    model = harness.model_of(f'<ir_version: 10, opset_import: ["": 21]> {text}', {"w": w})
    row = harness.implementation("matmul.tiles", registry)
    (y,) = harness.run_group(row, harness.group_of(model, registry), {"x": x}, compiler)
    assert np.isnan(y[3]).all()
    assert np.isinf(y[20]).all()
    assert np.isfinite(np.delete(y, (3, 20), axis=0)).all()


def test_results_are_the_same_bits_for_any_number_of_threads(compiler: Compiler) -> None:
    case = conv_cases.CASES[5]
    values, y = bfloat_cases.operands(case)
    node = f"y = Conv<{attributes(case)}>(x, w, b)"
    first, *others = (
        run(compiler, "conv.blocked_tiles", node, values, y.shape, threads=threads) for threads in (1, 2, 1)
    )
    assert all(np.array_equal(first, other) for other in others)


def test_rows_say_why_they_do_not_apply() -> None:
    registry = load()
    text = "g (float[1,5,9,9] x, float[8,5,3,3] w) => (float[1,8,7,7] y) { y = Conv(x, w) }"
    w = np.ones((8, 5, 3, 3), np.float32)
    group = harness.group_of(
        harness.model_of(f'<ir_version: 10, opset_import: ["": 21]> {text}', {"w": w}), registry
    )

    def reason(name: str, **changes: Any) -> str:
        facts = PlanningContext(replace(host(), **changes), precision="bf16")
        return harness.implementation(name, registry).rejection(group, facts) or ""

    assert "has no amx_bf16" in reason("conv.blocked_tiles", isa=("avx512f",))
    assert "vectors of 8 float32" in reason("conv.blocked_tiles", vector_lanes=8)
    assert "5 channels; a pixel takes up to 4" in reason("conv.blocked_stem_tiles")
    assert reason("conv.blocked_tiles") == ""
    in_f32 = harness.implementation("conv.blocked_tiles", registry).rejection(group, PlanningContext(host()))
    assert in_f32 == "the job computes in f32"
