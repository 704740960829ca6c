"""Attention against float64, in the simulator."""

import numpy as np
import pytest

from app.kernels.cuda.attention import attention
from app.kernels.cuda.attention_decode import attention_decode, decode_rejection
from app.kernels.cuda.attention_problem import Attention, Heads, Mask
from tests.kernels.cuda.values import close, decoded, normal, poisoned, run

pytestmark = pytest.mark.simulated


def _heads(heads, rows, width):
    return Heads(heads * rows * width, rows * width, width)


def _tokens(heads, rows, width):
    """[batch, rows, heads, width], as a projection leaves it."""
    return Heads(rows * heads * width, width, heads * width)


def _oracle(a, q, k, v, bias):
    k, v = (np.repeat(x, a.heads // a.kv_heads, 1) for x in (k, v))
    scores = np.einsum("bhid,bhjd->bhij", q, k) * a.scale
    scores = a.softcap * np.tanh(scores / a.softcap) if a.softcap else scores
    scores = scores + bias
    if a.causal:
        i, j = np.indices(scores.shape[2:])
        scores = np.where(j <= i + a.past, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p = p / p.sum(-1, keepdims=True)
    return np.einsum("bhij,bhjd->bhid", np.nan_to_num(p) if a.zero else p, v)


def _case(batch, heads, kv_heads, rows, keys, depth, width, dtype, mask="", lengths=(), lie=_heads, **more):
    """(the attention, what it gives as float64, its arrays)."""
    shapes = {"q": (heads, rows, depth), "k": (kv_heads, keys, depth), "v": (kv_heads, keys, width)}
    arrays, values, places = {}, [], {"y": lie(heads, rows, width)}
    for seed, (name, (h, n, w)) in enumerate(shapes.items()):
        bits, value = normal(seed, (batch, h, n, w), dtype)
        arrays[name] = bits if lie is _heads else np.ascontiguousarray(bits.transpose(0, 2, 1, 3))
        values.append(value)
        places[name] = lie(h, n, w)
    bias = np.zeros((batch, 1, 1, keys))
    described = None
    if mask == "bool":
        seen = np.random.default_rng(7).random((batch, 1, rows, keys)) < 0.6
        seen[:, :, rows // 2] = False  # a row that sees nothing
        arrays["mask"] = seen.astype(np.uint8)
        bias = np.where(seen, 0, -np.inf)
        described = Mask("bool", (rows * keys, 0, keys, 1), keys)
    elif mask:
        arrays["mask"], bias = normal(8, (1, heads, 1, keys), mask)
        described = Mask(mask, (0, keys, 0, 1), keys)
    if lengths:
        arrays["lengths"] = np.array(lengths, np.int64)
        bias = bias + np.where(np.arange(keys) < arrays["lengths"][:, None, None, None], 0, -np.inf)
    a = Attention(
        batch, heads, kv_heads, rows, keys, depth, width, dtype, scale=depth**-0.5, mask=described,
        lengths=bool(lengths), **places, **more,
    )  # fmt: skip
    expected = _oracle(a, *values, bias)
    return a, expected if lie is _heads else expected.transpose(0, 2, 1, 3), arrays


def _check(made, a, expected, arrays):
    y = poisoned(expected.shape, a.dtype)
    run(made, seed=1, **arrays, y=y)
    close(y, expected, a.dtype, 4)
    if a.depth == a.width:
        run(made, seed=2, **{**arrays, "y": arrays["q"]})
        np.testing.assert_array_equal(arrays["q"], y)


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((1, 1, 1, 70, 100, 32, 32, "bfloat16"), {"causal": True, "past": 30}),
        ((1, 1, 1, 20, 70, 64, 32, "float16"), {"mask": "bool", "zero": True}),
        ((1, 2, 1, 5, 9, 40, 40, "bfloat16"), {"mask": "float16", "lengths": (4,), "lie": _tokens}),
    ],
)
def test_attention_by_tensor_cores(sizes, options):
    a, expected, arrays = _case(*sizes, **options)
    made = attention(a)
    assert "mma" in made.steps[0].kernel.source
    _check(made, a, expected, arrays)


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((1, 1, 1, 9, 70, 8, 8, "float32"), {"mask": "float32", "causal": True, "past": 61}),
        ((1, 2, 1, 5, 9, 4, 70, "bfloat16"), {"mask": "bool", "zero": True, "softcap": 0.5}),
    ],
)
def test_attention_in_float32(sizes, options):
    a, expected, arrays = _case(*sizes, **options)
    made = attention(a)
    assert "mma" not in made.steps[0].kernel.source
    _check(made, a, expected, arrays)


@pytest.mark.parametrize(
    ("sizes", "options", "kernels"),
    [
        ((2, 2, 1, 1, 150, 32, 32, "bfloat16"), {"mask": "float32", "lengths": (90, 150)}, 2),
        ((1, 2, 1, 2, 40, 16, 16, "float32"), {"mask": "bool", "causal": True, "past": 38, "zero": True}, 1),
        ((1, 1, 1, 1, 70, 8, 8, "float16"), {"softcap": 2.0}, 1),
    ],
)
def test_attention_of_few_queries(sizes, options, kernels):
    a, expected, arrays = _case(*sizes, **options)
    assert decode_rejection(a) is None
    made = attention_decode(a)
    assert len(made.steps) == kernels
    _check(made, a, expected, arrays)


@pytest.mark.parametrize("make", [attention, attention_decode])
def test_the_lowest_number_as_a_mask_hides_but_a_row_of_it_is_a_mean(make):
    a, _, arrays = _case(1, 2, 1, 1, 40, 16, 16, "bfloat16", mask="float32")
    arrays["mask"][:] = np.finfo(np.float32).min
    arrays["mask"][0, 1, 0, 5] = 0
    y = poisoned((1, 2, 1, 16), "bfloat16")
    run(make(a), **arrays, y=y)
    v = decoded(arrays["v"], "bfloat16")[0, 0]
    close(y, np.stack([v.mean(0), v[5]]).reshape(1, 2, 1, 16), "bfloat16", 4)


def test_a_row_that_sees_nothing_is_nan_unless_zero_is_asked_for():
    a, expected, arrays = _case(1, 1, 1, 3, 70, 16, 16, "bfloat16", mask="bool")
    y = poisoned(expected.shape, "bfloat16")
    run(attention(a), **arrays, y=y)
    assert np.isnan(expected[0, 0, 1]).all()
    close(y, expected, "bfloat16", 4)


def test_heads_that_shared_memory_does_not_hold_are_refused():
    a, _, _ = _case(1, 1, 1, 2, 3, 512, 512, "float32")
    with pytest.raises(ValueError, match="shared memory"):
        attention(a)
