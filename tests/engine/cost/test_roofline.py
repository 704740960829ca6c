"""Operations of the textbook's algorithm, counted by hand."""

import pytest

from app.engine.cost.roofline import arithmetic
from tests.harness import model_of

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g '
SIZES = "K = 32, N = 6, bits = 4, block_size = 16"
RECURRENT = "(float[9,2,8] x, float[2,20,8] w, float[2,20,5] r) => (float[9,2,2,5] y)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(float[3,8] a, float[8,6] b) => (float[3,6] y) { y = MatMul(a, b) }", 2 * 3 * 8 * 6),
        (
            "(float[3,32] a, uint8[6,2,8] b, float[12] s) => (float[3,6] y) "
            f"{{ y = com.microsoft.MatMulNBits<{SIZES}>(a, b, s) }}",
            2 * 3 * 32 * 6,
        ),
        (
            f'{RECURRENT} {{ y = LSTM<hidden_size = 5, direction = "bidirectional">(x, w, r) }}',
            2 * 9 * 2 * 2 * 20 * (8 + 5),
        ),
    ],
    ids=["MatMul", "MatMulNBits", "LSTM"],
)
def test_operations_of_products_are_counted(text: str, expected: int) -> None:
    (node,) = model_of(HEAD + text).graph
    assert arithmetic(node) == expected
