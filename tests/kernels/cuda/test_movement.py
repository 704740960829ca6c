"""Transposes, layouts, gathers, scatters and resizes against NumPy, in the simulator."""

import numpy as np
import pytest

from app.kernels.cuda.gather import gather_elements, gather_nd, scatter_elements, scatter_nd
from app.kernels.cuda.resample import blend, lookup
from tests.kernels.cuda.values import close, decoded, encoded, normal, poisoned, run, transpose

pytestmark = pytest.mark.simulated


def _whole(seed, shape, dtype, low=0, high=100):
    high = 2 if dtype == "bool" else high
    return encoded(np.random.default_rng(seed).integers(low, high, shape), dtype)


@pytest.mark.parametrize(
    ("shape", "permutation", "dtype"),
    [
        ((2, 37, 41), (0, 2, 1), "bfloat16"),  # tiles
        ((2, 9, 3, 35), (3, 0, 2, 1), "float32"),
        ((3, 5, 4, 9), (0, 2, 1, 3), "float32"),  # rows stay whole
        ((40, 3), (1, 0), "int64"),
        ((9, 70), (1, 0), "bool"),
    ],
)
def test_transpose(shape, permutation, dtype):
    x, y = _whole(0, shape, dtype), poisoned(tuple(shape[a] for a in permutation), dtype)
    run(transpose(shape, permutation, dtype), seed=1, x0=x, y0=y)
    np.testing.assert_array_equal(y, x.transpose(permutation))


def test_gather_counts_from_the_end_and_poisons_what_is_outside():
    x, y = _whole(0, (2, 7, 12), "float32"), poisoned((2, 5, 12), "float32")
    index = np.array([3, -1, 0, 9, -7], np.int64)
    run(gather_nd(2, (7,), 12, 5, "float32", "int64", shared=True), x=x, index=index, y=y)
    expected = x[:, [3, 6, 0, 0, 0]]
    expected[:, 3] = np.nan
    np.testing.assert_array_equal(y, expected)


def test_gather_nd_and_elements():
    rng = np.random.default_rng(0)
    x, y = _whole(0, (2, 4, 4, 3), "float16"), poisoned((2, 5, 3), "float16")
    index = rng.integers(-4, 4, (2, 5, 2)).astype(np.int32)
    run(gather_nd(2, (4, 4), 3, 5, "float16", "int32"), x=x, index=index, y=y)
    np.testing.assert_array_equal(y, np.stack([x[b][index[b, :, 0], index[b, :, 1]] for b in range(2)]))
    x, y = _whole(1, (3, 6, 4), "int64"), poisoned((3, 5, 4), "int64")
    index = rng.integers(-6, 6, (3, 5, 4))
    made = gather_elements((3, 5, 4), (3, 6, 4), 1, "int64", "int64")
    run(made, x=x, index=index, y=y)
    np.testing.assert_array_equal(y, np.take_along_axis(x, index % 6, 1))
    run(made, x=x, index=index, y=index)
    np.testing.assert_array_equal(index, y)


JOIN = {"none": lambda a, b: b, "add": lambda a, b: a + b, "mul": lambda a, b: a * b, "max": max}


@pytest.mark.parametrize(("dtype", "reduction"), [("bfloat16", "add"), ("int32", "max"), ("bool", "none")])
def test_scatter_elements(dtype, reduction):
    data, updates = _whole(0, (3, 6, 4), dtype, 0, 9), _whole(1, (3, 5, 4), dtype, 0, 9)
    rng = np.random.default_rng(2)
    index = (
        np.argsort(rng.random((3, 6, 4)), 1)[:, :5] if reduction == "none" else rng.integers(-6, 6, (3, 5, 4))
    )
    index = index.astype(np.int32)
    expected = decoded(data, dtype).copy()
    for i, j, k in np.ndindex(3, 5, 4):
        place = i, index[i, j, k] % 6, k
        expected[place] = JOIN[reduction](expected[place], decoded(updates, dtype)[i, j, k])
    made, y = scatter_elements((3, 5, 4), (3, 6, 4), 1, dtype, "int32", reduction), poisoned((3, 6, 4), dtype)
    run(made, data=data, index=index, updates=updates, y=y)
    np.testing.assert_array_equal(decoded(y, dtype), expected)
    run(made, data=data, index=index, updates=updates, y=data)
    np.testing.assert_array_equal(data, y)


@pytest.mark.parametrize(("dtype", "reduction"), [("float32", "mul"), ("float16", "none")])
def test_scatter_nd(dtype, reduction):
    data, updates = _whole(0, (4, 3, 5), dtype, 1, 4), _whole(1, (6, 5), dtype, 1, 4)
    rng = np.random.default_rng(2)
    index = np.stack([rng.integers(-4, 4, 6), rng.integers(-3, 3, 6)], 1)
    if reduction == "none":
        index = np.stack(np.divmod(rng.permutation(12)[:6], 3), 1)
    expected = decoded(data, dtype).copy()
    for (a, b), update in zip(index, decoded(updates, dtype)):
        expected[a, b] = JOIN[reduction](expected[a, b], update)
    made, y = scatter_nd((4, 3), 5, 6, dtype, "int64", reduction), poisoned((4, 3, 5), dtype)
    run(made, data=data, index=index, updates=updates, y=y)
    np.testing.assert_array_equal(decoded(y, dtype), expected)
    run(made, data=data, index=index, updates=updates, y=data)
    np.testing.assert_array_equal(data, y)


def test_lookup_copies_bits_and_fills():
    x, y = _whole(0, (2, 3, 3, 8), "bfloat16"), poisoned((2, 4, 5, 8), "bfloat16")
    rows, columns = np.array([2, -1, 0, 1], np.int32), np.array([1, 1, 0, 2, 2], np.int32)
    run(lookup((2, 4, 5, 8), (2, 3, 3, 8), (1, 2), "bfloat16", 0x3F80), x=x, y=y, t0=rows, t1=columns)
    expected = x[:, rows][:, :, columns]
    expected[:, 1] = 0x3F80
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("last", [True, False])
def test_blend_along_two_axes(last):
    axes = (1, 2) if last else (2, 3)
    shape, sizes = ((2, 4, 5, 8), (2, 3, 4, 8)) if last else ((2, 8, 4, 5), (2, 8, 3, 4))
    (xb, x), (w0, v0), (w1, v1) = normal(0, sizes, "float16"), normal(1, (4, 2)), normal(2, (5, 4))
    t0 = np.array([[0, 1], [1, 2], [-1, 0], [2, 2]], np.int32)
    t1 = np.random.default_rng(3).integers(0, 4, (5, 4)).astype(np.int32)
    y = poisoned(shape, "float16")
    made = blend(shape, sizes, ((axes[0], 2), (axes[1], 4)), "float16", 2.5)
    run(made, x=xb, y=y, t0=t0, w0=w0, t1=t1, w1=w1)
    front = np.moveaxis(x, axes, (0, 1))
    expected = np.einsum("iajb...,ia,jb->ij...", front[t0][:, :, t1], v0, v1)
    expected[2] = 2.5
    close(y, np.moveaxis(expected, (0, 1), axes), "float16", 8)
