"""Generated chains, copies and casts against NumPy, in the simulator."""

import math

import numpy as np
import pytest

from app.kernels.cuda.elementwise import copy, elementwise
from app.kernels.cuda.functions import unsupported
from app.kernels.cuda.geometry import Strided, broadcast, collapsed, contiguous, vector_width
from app.kernels.expressions import Recipe
from tests.kernels.cuda.values import close, decoded, encoded, normal, poisoned, run

pytestmark = pytest.mark.simulated

GELU: Recipe = (("Add", (0, 1), ()), ("Gelu", (2,), ()))


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


@pytest.mark.parametrize(
    ("shape", "bias", "dtype", "width"),
    [
        ((4, 3, 64), (64,), "bfloat16", 8),
        ((2, 5, 6), (5, 1), "float32", 2),
        ((3, 7), (3, 7), "float16", 8),
        ((5, 9), (9,), "float32", 1),
        ((2, 3, 4), (), "float16", 8),
    ],
)
def test_a_chain_with_a_broadcast_operand(shape, bias, dtype, width):
    (xb, x), (bb, b) = normal(0, shape, dtype), normal(1, bias, dtype)
    steps = contiguous(shape)
    inputs = (Strided(dtype, steps), Strided(dtype, broadcast(bias, shape)))
    y = poisoned(shape, dtype)
    made = elementwise(GELU, shape, inputs, ((3, Strided(dtype, steps)),))
    assert vector_width(*collapsed(shape, (*inputs, Strided(dtype, steps)))) == width
    run(made, seed=1, x0=xb, x1=bb, y0=y)
    close(y, gelu(x + b), dtype, 2)
    run(made, seed=2, x0=xb, x1=bb, y0=xb)
    np.testing.assert_array_equal(xb, y)


def test_two_results_may_lie_over_two_operands():
    (ab, a), (bb, b) = normal(0, 37), normal(1, 37)
    one = Strided("float32", (1,))
    recipe: Recipe = (("Sub", (0, 1), ()), ("Mul", (0, 2), ()))
    made = elementwise(recipe, (37,), (one, one), ((2, one), (3, one)))
    run(made, x0=ab, x1=bb, y0=bb, y1=ab)
    close(bb, a - b)
    close(ab, a * (a - b), scale=2)


def test_comparisons_choose_and_types_mix():
    (ab, a), (bb, b) = normal(0, (3, 10), "bfloat16"), normal(1, 10)
    recipe: Recipe = (
        ("Cast", (0,), ("float32",)),
        ("Less", (2, 1), ()),
        ("Where", (3, 2, 1), ()),
        ("Cast", (3,), ("int32",)),
    )
    y, mask, count = poisoned((3, 10), "float16"), poisoned((3, 10), "bool"), poisoned((3, 10), "int32")
    made = elementwise(
        recipe,
        (3, 10),
        (Strided("bfloat16", (10, 1)), Strided("float32", (0, 1))),
        ((4, Strided("float16", (10, 1))), (3, Strided("bool", (10, 1))), (5, Strided("int32", (10, 1)))),
    )
    run(made, x0=ab, x1=bb, y0=y, y1=mask, y2=count)
    close(y, np.where(a < b, a, b), "float16")
    np.testing.assert_array_equal(mask, a < b)
    np.testing.assert_array_equal(count, a < b)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


FUNCTIONS = {
    "Exp": np.exp, "Tanh": np.tanh, "Sigmoid": _sigmoid, "Silu": lambda x: x * _sigmoid(x), "Abs": np.abs,
    "Softplus": lambda x: np.log1p(np.exp(x)), "Mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "GeluTanh": lambda x: x * _sigmoid(1.5957691216057308 * (x + 0.044715 * x**3)), "Floor": np.floor,
    "Round": np.rint, "Sign": np.sign, "Sinh": np.sinh, "Asinh": np.arcsinh, "Atan": np.arctan,
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1), "Relu": lambda x: np.maximum(x, 0),
    "Reciprocal": lambda x: 1 / x, "Softsign": lambda x: x / (1 + np.abs(x)),
}  # fmt: skip


def test_functions_of_one_operand_in_one_kernel():
    xb, x = normal(0, 11)
    recipe: Recipe = tuple((name, (0,), ()) for name in FUNCTIONS)
    one = Strided("float32", (1,))
    made = elementwise(recipe, (11,), (one,), [(1 + k, one) for k in range(len(FUNCTIONS))])
    found = {f"y{k}": poisoned(11, "float32") for k in range(len(FUNCTIONS))}
    run(made, x0=xb, **found)
    for y, function in zip(found.values(), FUNCTIONS.values()):
        close(y, function(x), scale=4)


def test_integers_wrap_and_divide_as_onnx_says():
    a = np.array([7, -7, 7, -7, 2**31 - 1, 5], np.int32)
    b = np.array([2, 2, -2, 3, 2, 0], np.int32)
    names = ("Div", "Mod", "Fmod", "Max", "Mul", "Pow")
    one = Strided("int32", (1,))
    recipe: Recipe = tuple((name, (0, 1), ()) for name in names)
    made = elementwise(recipe, (6,), (one, one), [(2 + k, one) for k in range(len(names))])
    found = [poisoned(6, "int32") for _ in names]
    run(made, x0=a, x1=b, **{f"y{k}": y for k, y in enumerate(found)})
    np.testing.assert_array_equal(found[0], [3, -3, -3, -2, 2**30 - 1, 0])
    np.testing.assert_array_equal(found[1], [1, 1, -1, 2, 1, 0])
    np.testing.assert_array_equal(found[2], [1, -1, 1, -1, 1, 0])
    np.testing.assert_array_equal(found[3], np.maximum(a, b))
    np.testing.assert_array_equal(found[4], a * b)
    np.testing.assert_array_equal(found[5][:2], [49, 49])


@pytest.mark.parametrize("dtype", ["bfloat16", "int64", "bool"])
def test_a_slice_lands_in_a_wider_row(dtype):
    x = encoded(np.random.default_rng(0).integers(0, 2, (3, 4, 10)), dtype)
    y = poisoned((3, 4, 24), dtype)
    untouched = y.copy()
    source = Strided(dtype, (40, 10, 1), 2)
    made = copy((3, 4, 6), source, Strided(dtype, (96, 24, 1), 16))
    run(made, x0=x, y0=y)
    np.testing.assert_array_equal(y[..., 16:22], x[..., 2:8])
    untouched[..., 16:22] = x[..., 2:8]
    np.testing.assert_array_equal(y, untouched)


def test_a_copy_walks_backwards_and_broadcasts():
    x, y = np.arange(12, dtype=np.float32), poisoned((2, 3, 4), "float32")
    run(copy((2, 3, 4), Strided("float32", (0, -4, 1), 8), Strided("float32", (12, 4, 1))), x0=x, y0=y)
    np.testing.assert_array_equal(y, np.broadcast_to(x.reshape(3, 4)[::-1], (2, 3, 4)))


def test_casts_between_types_and_in_place():
    def cast(source, target):
        return copy((21,), Strided(source, (1,)), Strided(target, (1,)))

    xb, x = normal(0, 21)
    y, z = poisoned(21, "bfloat16"), poisoned(21, "int64")
    run(cast("float32", "bfloat16"), x0=xb, y0=y)
    np.testing.assert_array_equal(y, encoded(x, "bfloat16"))
    run(cast("float32", "int64"), x0=xb, y0=z)
    np.testing.assert_array_equal(z, np.trunc(x))
    run(cast("bfloat16", "float16"), x0=y, y0=y)
    np.testing.assert_array_equal(y, encoded(decoded(encoded(x, "bfloat16"), "bfloat16"), "float16"))


def test_what_has_no_kernel_is_refused():
    assert unsupported((("Exp", (0,), ()),), ("float64",)) == "float64 has no GPU kernels"
    assert unsupported((("Exp", (0,), ()),), ("int32",)) == "Exp has no expression for int32"
    with pytest.raises(ValueError, match="4294967296 elements"):
        copy((2**32,), Strided("float32", (1,)), Strided("float32", (1,)))
    with pytest.raises(ValueError, match="spans 6000000001 elements"):
        copy((2, 4), Strided("float32", (4, 1)), Strided("float32", (6 * 10**9 - 3, 1)))


def test_numbers_and_nothing():
    x, y = np.float32(2.5).reshape(()), poisoned((), "float32")
    number = Strided("float32", ())
    run(elementwise((("Mul", (0, 0), ()),), (), (number,), ((1, number),)), x0=x, y0=y)
    assert y == 6.25
    assert not elementwise(
        (("Exp", (0,), ()),), (3, 0), (Strided("float32", (0, 1)),), ((1, Strided("float32", (0, 1))),)
    ).steps
