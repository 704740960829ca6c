"""Gemm whose third operand is scaled: which scale it apart, and that the outputs stay the same."""

from pathlib import Path

import pytest

from app.engine.backends.cpu.rewrites import scaled_apart
from app.engine.core.rewriter import RewriteRule
from tests.engine.canonical import assert_same_outputs, canonical, operators, saved

RULE = RewriteRule(scaled_apart, ("Gemm",), backends=("numba-cpu",))


@pytest.mark.parametrize(
    ("shape", "beta", "expected"),
    [
        ("[3,1]", 2.0, ["Mul", "Gemm"]),
        ("[1]", -0.5, ["Mul", "Gemm"]),
        ("", 2.0, ["Mul", "Gemm"]),
        ("[3,1]", 1.0, ["Gemm"]),
        ("[3,5]", 2.0, ["Gemm"]),
        ("[5]", 2.0, ["Gemm"]),
    ],
)
def test_columns_that_are_scaled(shape: str, beta: float, expected: list[str], tmp_path: Path) -> None:
    signature = f"(float[4,3] x, float[5,4] z, float{shape} c) => (float[a,b] y)"
    body = f"y = Gemm<alpha = 0.5, beta = {beta}, transA = 1, transB = 1>(x, z, c)"
    path = saved(f'<ir_version: 10, opset_import: ["": 21]> g {signature} {{ {body} }}', tmp_path)
    compilation = canonical(path, rewrites=(RULE,))
    assert_same_outputs(path, compilation)
    assert operators(compilation.graph) == expected
