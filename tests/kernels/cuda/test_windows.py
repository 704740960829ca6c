"""Pooling and depthwise convolution against NumPy, in the simulator."""

import numpy as np
import pytest

from app.kernels.cuda import windows
from app.kernels.cuda.windows import Axis, depthwise, pool
from tests.kernels.cuda.values import close, normal, poisoned, run

pytestmark = pytest.mark.simulated


def _windows(x, axes, fill):
    """[n, out..., c, taps...] of x[n, sizes..., c]."""
    ends = [(a.out - 1) * a.stride + (a.taps - 1) * a.dilation + 1 - a.size - a.before for a in axes]
    around = [(0, 0), *((a.before, max(a.after, end)) for a, end in zip(axes, ends)), (0, 0)]
    x = np.pad(x, around, constant_values=fill)
    for k, a in enumerate(axes):
        places = np.arange(a.out)[:, None] * a.stride + np.arange(a.taps) * a.dilation
        x = np.moveaxis(np.take(x, places, axis=1 + k), 2 + k, -1)
    return x


@pytest.mark.parametrize(
    ("kind", "last", "channels", "axes", "dtype", "counts_padding"),
    [
        ("max", True, 24, (Axis(9, 3, 5, 2, 1, 1, 1), Axis(8, 3, 4, 2, 1, 1, 1)), "bfloat16", False),
        ("average", True, 5, (Axis(7, 2, 4, 2), Axis(7, 3, 3, 2)), "float32", False),  # ends outside
        ("average", False, 3, (Axis(6, 3, 6, 1, 1, 1, 1),), "float32", True),
        ("average", True, 4, (Axis(6, 3, 4, 2, 1, 1, 1), Axis(5, 1, 5)), "float16", True),
        ("max", False, 3, (Axis(9, 3, 5, 1, 2), Axis(4, 2, 3), Axis(3, 2, 2)), "float32", False),
    ],
)
def test_pool(kind, last, channels, axes, dtype, counts_padding):
    sizes = [a.size for a in axes]
    xb, x = normal(0, (2, *sizes, channels), dtype)
    taps = tuple(range(-len(axes), 0))
    seen = _windows(x, axes, np.nan)
    if kind == "max":
        expected = np.nanmax(seen, taps)
    elif not counts_padding:
        expected = np.nanmean(seen, taps)
    else:
        whole = [Axis(a.size + a.before + a.after, a.taps, a.out, a.stride, a.dilation) for a in axes]
        counted = _windows(np.ones((2, *(a.size for a in whole), channels)), whole, 0)
        expected = np.nansum(seen, taps) / counted.sum(taps)
    made = pool(kind, 2, channels, axes, dtype, last=last, counts_padding=counts_padding)
    if last:
        y = poisoned(expected.shape, dtype)
        run(made, x=xb, y=y)
    else:
        y = poisoned(np.moveaxis(expected, -1, 1).shape, dtype)
        run(made, x=np.ascontiguousarray(np.moveaxis(xb, -1, 1)), y=y)
        y = np.moveaxis(y, 1, -1)
    close(y, expected, dtype, 4)


def test_max_pool_keeps_a_nan_and_takes_bytes():
    x = np.array([1, np.nan, 3, 4], np.float32).reshape(1, 4, 1)
    y = poisoned((1, 2, 1), "float32")
    run(pool("max", 1, 1, (Axis(4, 2, 2, 2),), "float32", last=True), x=x, y=y)
    np.testing.assert_array_equal(y.ravel(), [np.nan, 4])
    b, z = np.array([[[3], [250], [7]]], np.uint8), poisoned((1, 2, 1), "uint8")
    run(pool("max", 1, 1, (Axis(3, 2, 2),), "uint8", last=True), x=b, y=z)
    np.testing.assert_array_equal(z.ravel(), [250, 250])


@pytest.mark.parametrize(
    ("channels", "axes", "dtype", "multiplier", "residual", "full"),
    [
        (16, (Axis(7, 3, 7, 1, 1, 1, 1), Axis(9, 3, 9, 1, 1, 1, 1)), "bfloat16", 1, True, 0),
        (16, (Axis(9, 9, 9, 1, 1, 4, 4), Axis(10, 9, 10, 1, 1, 4, 4)), "float16", 1, False, 0),
        (6, (Axis(8, 5, 4, 2, 1, 2, 2), Axis(8, 5, 4, 2, 1, 2, 2)), "float32", 1, False, 0),
        (3, (Axis(6, 3, 6, 1, 2, 2, 2), Axis(5, 3, 5, 1, 2, 2, 2)), "float16", 2, False, 10**9),
    ],
)
def test_depthwise(channels, axes, dtype, multiplier, residual, full, monkeypatch):
    monkeypatch.setattr(windows, "FULL", full)  # with 0 a thread has several pixels
    every = channels * multiplier
    xb, x = normal(0, (2, *(a.size for a in axes), channels), dtype)
    wb, w = normal(1, (*(a.taps for a in axes), every), dtype)
    bb, b = normal(2, every)
    expected = np.einsum("nhwckl,klc->nhwc", np.repeat(_windows(x, axes, 0), multiplier, 3), w) + b
    rb, r = normal(3, expected.shape, dtype)
    expected = expected + r if residual else np.maximum(expected, 0)
    made = depthwise(
        2, channels, axes, dtype, multiplier=multiplier, residual=residual,
        after=() if residual else (("Relu", (0,), ()),),
    )  # fmt: skip
    y = poisoned(expected.shape, dtype)
    given = {"x": xb, "w": wb, "bias": bb} | ({"r": rb} if residual else {})
    run(made, seed=1, **given, y=y)
    close(y, expected, dtype, 4)
    if residual:
        run(made, seed=2, **given, y=rb)
        np.testing.assert_array_equal(rb, y)
