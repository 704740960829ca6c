"""Rows times transposed matrices: which products turn around, and that the outputs stay the same."""

from pathlib import Path

import pytest

from app.engine.backends.cpu.rewrites import row_times_transposed
from app.engine.core.rewriter import RewriteRule
from tests.engine.canonical import assert_same_outputs, canonical, saved

RULE = RewriteRule(row_times_transposed, ("MatMul",), nested=False, backends=("numba-cpu",))
TURNED = ["Reshape", "MatMul", "Reshape"]


def operators(signature: str, body: str, folder: Path) -> list[str]:
    path = saved(f'<ir_version: 10, opset_import: ["": 21]> g {signature} {{ {body} }}', folder, {})
    compilation = canonical(path, rewrites=(RULE,))
    assert_same_outputs(path, compilation)
    return [n.op_type for n in compilation.graph]


@pytest.mark.parametrize(
    ("signature", "perm"),
    [
        ("(float[1,9] x, float[30,9] m) => (float[a,b] y)", "1, 0"),
        ("(float[4,1,9] x, float[1,30,9] m) => (float[a,b,c] y)", "0, 2, 1"),
        ("(double[2,3,1,9] x, double[2,3,7,9] m) => (double[a,b,c,d] y)", "0, 1, 3, 2"),
    ],
)
def test_a_row_becomes_a_column(signature: str, perm: str, tmp_path: Path) -> None:
    body = f"t = Transpose<perm = [{perm}]>(m) y = MatMul(x, t)"
    assert operators(signature, body, tmp_path) == TURNED


@pytest.mark.parametrize(
    ("signature", "body"),
    [
        ("(float[2,9] x, float[30,9] m) => (float[a,b] y)", "t = Transpose(m) y = MatMul(x, t)"),
        ("(int32[1,9] x, int32[30,9] m) => (int32[a,b] y)", "t = Transpose(m) y = MatMul(x, t)"),
        (
            "(float[1,9] x, float[30,9] m, float[1,30] z) => (float[a,b] y)",
            "t = Transpose(m) s = MatMul(x, t) w = Mul(s, z) y = Softmax(w)",
        ),
    ],
)
def test_others_stay(signature: str, body: str, tmp_path: Path) -> None:
    assert operators(signature, body, tmp_path)[:2] == ["Transpose", "MatMul"]
