"""Softmax, norms and reductions against float64, in the simulator."""

import numpy as np
import pytest

from app.kernels.cuda.normalize import group_norm, row_norm
from app.kernels.cuda.reduce import argument, reduce
from app.kernels.cuda.scan import cumulative_sum, top_k
from app.kernels.cuda.softmax import softmax
from tests.kernels.cuda.values import close, decoded, encoded, normal, poisoned, run

pytestmark = pytest.mark.simulated


def _softmax(x, log):
    x = x - x.max(1, keepdims=True)
    total = np.exp(x).sum(1, keepdims=True)
    return x - np.log(total) if log else np.exp(x) / total


@pytest.mark.parametrize(
    ("outer", "n", "inner", "dtype", "log"),
    [
        (5, 40, 1, "bfloat16", False),  # part of a warp
        (3, 333, 1, "float32", True),  # a block
        (2, 4099, 1, "float32", False),  # read again in every sweep
        (2, 37, 12, "float32", False),  # columns
        (2, 9, 7, "float16", True),
    ],
)
def test_softmax(outer, n, inner, dtype, log):
    xb, x = normal(0, (outer, n, inner), dtype)
    y = poisoned(xb.shape, dtype)
    made = softmax(outer, n, inner, dtype, log)
    run(made, seed=1, x=xb, y=y)
    close(y, _softmax(x, log), dtype, 4)
    run(made, seed=2, x=xb, y=xb)
    np.testing.assert_array_equal(xb, y)


def test_softmax_of_columns_that_begin_with_infinities():
    x = np.full((1, 4, 2), -np.inf, np.float32)
    x[0, 2:, 0], x[0, 1:3, 1] = (1, 2), (3, 3)
    y = poisoned(x.shape, "float32")
    run(softmax(1, 4, 2, "float32"), x=x, y=y)
    close(y, _softmax(x.astype(np.float64), False), scale=4)


@pytest.mark.parametrize(
    ("rows", "n", "dtype"), [(3, 72, "bfloat16"), (2, 1000, "float32"), (1, 4101, "float32")]
)
def test_layer_norm(rows, n, dtype):
    (xb, x), (sb, s), (bb, b) = normal(0, (rows, n), dtype), normal(1, n, dtype), normal(2, n, dtype)
    made = row_norm("layer_norm", rows, n, dtype, 1e-5, bias=True, after=(("Relu", (0,), ()),))
    given, y = {"x": xb, "scale": sb, "bias": bb}, poisoned((rows, n), dtype)
    run(made, seed=1, **given, y=y)
    mean, deviation = x.mean(1, keepdims=True), 1 / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    close(y, np.maximum((x - mean) * deviation * s + b, 0), dtype, 8)
    run(made, seed=2, **given, y=xb)
    np.testing.assert_array_equal(xb, y)


def test_layer_norm_is_exact_where_the_mean_is_large():
    x = (1e4 + np.random.default_rng(0).standard_normal((2, 256))).astype(np.float32)
    y, one, zero = poisoned(x.shape, "float32"), np.ones(256, np.float32), np.zeros(256, np.float32)
    run(row_norm("layer_norm", 2, 256, "float32", 0.0, bias=True), x=x, scale=one, bias=zero, y=y)
    w = x.astype(np.float64)
    np.testing.assert_allclose(y, (w - w.mean(1, keepdims=True)) / w.std(1, keepdims=True), atol=2e-3)


@pytest.mark.parametrize(("rows", "n", "dtype"), [(3, 72, "bfloat16"), (1, 4100, "float32")])
def test_rms_norm(rows, n, dtype):
    (xb, x), (sb, s) = normal(0, (rows, n), dtype), normal(2, n, dtype)
    made, y = row_norm("rms_norm", rows, n, dtype, 1e-6), poisoned((rows, n), dtype)
    run(made, seed=1, x=xb, scale=sb, y=y)
    close(y, x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * s, dtype, 8)


def test_rms_norm_with_parameters_of_another_type():
    (xb, x), (sb, s) = normal(0, (3, 96), "float16"), normal(1, 96)
    y = poisoned(xb.shape, "float16")
    made = row_norm("rms_norm", 3, 96, "float16", 1e-6, parameters="float32")
    run(made, x=xb, scale=sb, y=y)
    close(y, x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * s, "float16", 4)
    run(made, x=xb, scale=sb, y=xb)
    np.testing.assert_array_equal(xb, y)


@pytest.mark.parametrize(
    ("batch", "groups", "channels", "pixels", "dtype"),
    [(2, 3, 16, 10, "bfloat16"), (1, 2, 3, 20, "float32"), (1, 5, 1, 70, "float32")],
)
def test_group_norm(batch, groups, channels, pixels, dtype):
    every = groups * channels
    xb, x = normal(0, (batch, every, pixels), dtype)
    (sb, s), (bb, b) = normal(1, every, dtype), normal(2, every, dtype)
    y = poisoned(xb.shape, dtype)
    made = group_norm(batch, groups, channels, pixels, dtype, 1e-5)
    run(made, seed=1, x=xb, scale=sb, bias=bb, y=y)
    rows = x.reshape(batch, groups, -1)
    rows = (rows - rows.mean(2, keepdims=True)) / np.sqrt(rows.var(2, keepdims=True) + 1e-5)
    close(y, rows.reshape(batch, every, pixels) * s[:, None] + b[:, None], dtype, 8)
    run(made, seed=2, x=xb, scale=sb, bias=bb, y=xb)
    np.testing.assert_array_equal(xb, y)


ORACLES = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
    "l2": lambda x, axis: np.sqrt((x * x).sum(axis)),
    "l1": lambda x, axis: np.abs(x).sum(axis),
}


@pytest.mark.parametrize(
    ("operation", "shape", "axes", "dtype"),
    [
        ("sum", (5, 40), (1,), "bfloat16"),
        ("mean", (3, 7, 5, 6), (1, 3), "float32"),
        ("max", (3, 50, 16), (1,), "bfloat16"),  # a block's rows meet in shared memory
        ("l2", (4, 300, 5), (0, 1), "float32"),
        ("mean", (2, 49, 64), (1,), "float16"),  # global average, channels last
        ("min", (2, 2000), (1,), "float32"),
        ("mean", (2, 20000), (1,), "float32"),  # two kernels
        ("l1", (6, 1), (1,), "float32"),
    ],
)
def test_reductions_of_floats(operation, shape, axes, dtype):
    xb, x = normal(0, shape, dtype)
    if operation == "max":
        xb.reshape(-1)[5] = 0x7FC0  # a NaN stays
        x = decoded(xb, dtype)
    y = poisoned(tuple(n for a, n in enumerate(shape) if a not in axes), dtype)
    run(reduce(operation, shape, axes, dtype), x=xb, y=y)
    close(y, ORACLES[operation](x, axis=axes), dtype, 8)


@pytest.mark.parametrize(
    ("operation", "shape", "axes", "dtype"),
    [
        ("sum", (7, 33), (0, 1), "int32"),
        ("max", (7, 33), (0,), "int64"),
        ("mean", (2, 41), (1,), "int64"),
        ("prod", (5, 3), (1,), "int32"),
    ],
)
def test_reductions_of_integers(operation, shape, axes, dtype):
    x = np.random.default_rng(0).integers(-100, 100, shape).astype(dtype)
    y = poisoned(tuple(n for a, n in enumerate(shape) if a not in axes), dtype)
    run(reduce(operation, shape, axes, dtype), x=x, y=y)
    np.testing.assert_array_equal(y, np.trunc(ORACLES[operation](x, axis=axes)).astype(dtype))


@pytest.mark.parametrize(
    ("largest", "shape", "dtype", "last"),
    [
        (True, (3, 40, 1), "bfloat16", False),
        (False, (2, 700, 1), "float32", True),
        (True, (2, 9, 5), "int64", True),
    ],
)
def test_positions_of_extrema(largest, shape, dtype, last):
    x = np.random.default_rng(0).integers(-3, 4, shape)
    y = poisoned((shape[0], shape[2]), "int64")
    run(argument(largest, *shape, dtype, last=last), x=encoded(x, dtype), y=y)
    z = x if largest else -x
    expected = shape[1] - 1 - np.argmax(z[:, ::-1], 1) if last else np.argmax(z, 1)
    np.testing.assert_array_equal(y, expected)


def test_the_position_of_a_nan_is_told():
    x = np.array([[1, np.nan, 3, np.nan]], np.float32).reshape(1, 4, 1)
    y = poisoned((1, 1), "int64")
    run(argument(True, 1, 4, 1, "float32"), x=x, y=y)
    assert y[0, 0] == 1


@pytest.mark.parametrize(
    ("shape", "dtype", "exclusive", "reverse"),
    [
        ((3, 70, 1), "float32", False, True),
        ((2, 40, 1), "int32", True, False),
        ((2, 9, 3), "int64", True, True),
        ((1, 5, 2), "bfloat16", False, False),
    ],
)
def test_cumulative_sum(shape, dtype, exclusive, reverse):
    x = np.random.default_rng(0).integers(-9, 9, shape)
    xb, y = encoded(x, dtype), poisoned(shape, dtype)
    made = cumulative_sum(*shape, dtype, exclusive=exclusive, reverse=reverse)
    run(made, seed=1, x=xb, y=y)
    z = x[:, ::-1] if reverse else x
    total = np.cumsum(z, 1) - (z if exclusive else 0)
    np.testing.assert_array_equal(decoded(y, dtype), total[:, ::-1] if reverse else total)
    run(made, seed=2, x=xb, y=xb)
    np.testing.assert_array_equal(xb, y)


@pytest.mark.parametrize(
    ("shape", "k", "dtype", "largest"),
    [((2, 300, 1), 3, "float32", True), ((1, 7, 2), 7, "int64", False), ((1, 40, 1), 2, "bfloat16", False)],
)
def test_top_k(shape, k, dtype, largest):
    x = np.random.default_rng(0).integers(-9, 9, shape)
    y, index = poisoned((shape[0], k, shape[2]), dtype), poisoned((shape[0], k, shape[2]), "int64")
    run(top_k(*shape, k, dtype, largest=largest), x=encoded(x, dtype), y=y, index=index)
    places = np.argsort(-x if largest else x, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(index, places)
    np.testing.assert_array_equal(decoded(y, dtype), np.take_along_axis(x, places, 1))
