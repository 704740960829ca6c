"""Products of columns and rows: which become elementwise, and that the outputs stay the same."""

from pathlib import Path

import pytest

from app.engine.backends.cpu.rewrites import outer_product
from app.engine.core.rewriter import RewriteRule
from tests.engine.canonical import assert_same_outputs, canonical, saved

RULE = RewriteRule(outer_product, ("MatMul",), backends=("numba-cpu",))


@pytest.mark.parametrize(
    ("signature", "operator"),
    [
        ("(float[7,1] x, float[1,5] m) => (float[a,b] y)", "Mul"),
        ("(int64[3,1,7,1] x, int64[2,1,5] m) => (int64[a,b,c,d] y)", "Mul"),
        ("(float[1] x, float[1,5] m) => (float[a] y)", "MatMul"),
        ("(float[7,2] x, float[2,5] m) => (float[a,b] y)", "MatMul"),
    ],
)
def test_a_column_times_a_row_is_elementwise(signature: str, operator: str, tmp_path: Path) -> None:
    path = saved(
        f'<ir_version: 10, opset_import: ["": 21]> g {signature} {{ y = MatMul(x, m) }}', tmp_path, {}
    )
    compilation = canonical(path, rewrites=(RULE,))
    assert_same_outputs(path, compilation)
    assert [n.op_type for n in compilation.graph] == [operator]
