"""Layers of sequences: convolutions along one axis and recurrent cells, in the simulator as onnxruntime has them."""

from pathlib import Path

import numpy as np
import pytest

from tests.engine.runtime.cuda.programs import check, saved

pytestmark = pytest.mark.simulated

RNG = np.random.default_rng(9)


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32) / 3


LINES = {
    "convolution": (
        "h = Conv<strides=[2], pads=[1,2]>(x, w, b) a = Add(h, r) y = Relu(a)",
        "float[2,8,11] x, float[2,12,6] r", "float[2,12,6] y", {"w": f(12, 8, 3), "b": f(12)},
    ),
    "three channels": (
        "y = Conv<dilations=[2], pads=[2,2]>(x, w)", "float[1,3,9] x", "float[1,5,9] y", {"w": f(5, 3, 3)},
    ),
    "depthwise": (
        "h = Conv<group=6, pads=[2,2]>(x, w) y = Relu(h)", "float[2,6,9] x", "float[2,6,9] y", {"w": f(6, 1, 5)},
    ),
    "groups that are not aligned": (
        "y = Conv<group=2, pads=[1,1,1,1]>(x, w)", "float[1,6,4,5] x", "float[1,10,4,5] y", {"w": f(10, 3, 3, 3)},
    ),
    "transposed": (
        "y = ConvTranspose<strides=[3], pads=[1,0]>(x, w, b)", "float[2,6,5] x", "float[2,4,15] y",
        {"w": f(6, 4, 4), "b": f(4)},
    ),
    "pooled": (
        "h = Conv<pads=[1,1]>(x, w) a = Relu(h) p = MaxPool<kernel_shape=[2], strides=[2]>(a) "
        "y = ReduceMean(p, last)",
        "float[2,8,10] x", "float[2,8,1] y", {"w": f(8, 8, 3), "last": np.array([2])},
    ),
    "joined": (
        "h = Conv<pads=[1,1]>(x, w) g = Relu(h) a = Concat<axis=1>(g, x) y = Conv(a, v)",
        "float[1,8,6] x", "float[1,8,6] y", {"w": f(8, 8, 3), "v": f(8, 16, 1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_a_convolution_along_one_axis(name: str, tmp_path: Path) -> None:
    text, inputs, output, constants = LINES[name]
    path = saved(tmp_path, text, inputs, output, constants)
    given = {
        v.split("] ")[1]: f(*map(int, v.split("[")[1].split("]")[0].split(","))) for v in inputs.split(", ")
    }
    check(path, given, tolerance=2e-5)


H = 5  # of the state
LAYERS = {
    "lstm": ("y, h, c = LSTM<hidden_size=5>(x, w, r, b)", 4, 1, "", {}),
    "lstm of both directions": (
        'y, h, c = LSTM<hidden_size=5, direction="bidirectional">(x, w, r, b, lengths, h0, c0, p)', 4, 2,
        "int32[2] lengths, float[2,2,5] h0, float[2,2,5] c0", {"p": f(2, 15)},
    ),
    "gru": ('y, h = GRU<hidden_size=5, direction="reverse", clip=0.3>(x, w, r, b, lengths)', 3, 1,
            "int32[2] lengths", {}),
    "gru that resets after": (
        'y, h = GRU<hidden_size=5, linear_before_reset=1, direction="bidirectional">(x, w, r, b)', 3, 2, "", {},
    ),
    "rnn": (
        'y, h = RNN<hidden_size=5, direction="bidirectional", activations=["Relu", "Tanh"]>(x, w, r)', 1, 2, "", {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_recurrent_layer(name: str, tmp_path: Path) -> None:
    text, gates, d, more, constants = LAYERS[name]
    weights = {"w": f(d, gates * H, 3), "r": f(d, gates * H, H), "b": f(d, 2 * gates * H)}
    used = {k: v for k, v in (weights | constants).items() if f"{k})" in text or f" {k}," in text}
    results = [f"float[4,{d},2,5] y", f"float[{d},2,5] h", f"float[{d},2,5] c"][
        : text.split("=")[0].count(",") + 1
    ]
    inputs = ", ".join(filter(None, ("float[4,2,3] x", more)))
    path = saved(tmp_path, text, inputs, ", ".join(results), used)
    given = {"x": f(4, 2, 3) * 3, "h0": f(2, 2, 5), "c0": f(2, 2, 5), "lengths": np.array([4, 2], np.int32)}
    check(path, {k: v for k, v in given.items() if f" {k}" in f" {inputs}"}, tolerance=2e-5)
