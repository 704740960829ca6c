"""Quantized symbols against the integer arithmetic in NumPy; `make test-mxnet` compares them with MXNet itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.types.errors import GraphError
from tests.engine.model.mxnet.writing import Symbols, loaded, run

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(9)
X = np.abs(RANDOM.standard_normal((2, 3, 5, 6))).astype(np.float32)
W = RANDOM.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
B = RANDOM.integers(-127, 128, 4).astype(np.int8)
V = RANDOM.integers(-127, 128, (7, 4 * 5 * 6)).astype(np.int8)
C = RANDOM.integers(-127, 128, 7).astype(np.int8)
F = np.float32


def saturated(x: Array, low: int, high: int) -> Array:
    """Half to even."""
    return np.clip(np.rint(x), low, high)


def convolved(q: Array) -> Array:
    """Sums of a convolution with pads of 1, in int64."""
    padded = np.pad(q.astype(np.int64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    found: Array = np.einsum("nchwij,ocij->nohw", windows, W.astype(np.int64))
    return found


def network() -> Symbols:
    """A convolution, its requantization, a layer and the numbers that it stands for."""
    s = Symbols()
    names = ("w", "b", "wl", "wh", "bl", "bh", "v", "c", "vl", "vh", "cl", "ch")
    p = {name: s.var(name) for name in names}
    x = s.var("x", shape=str(X.shape))
    q = s.add("_contrib_quantize_v2", "q", x, out_type="auto", min_calib_range=0.0, max_calib_range=2.5)
    ranges = (p["wl"], p["wh"], p["bl"], p["bh"])
    conv = s.add(
        "_contrib_quantized_conv", "conv", q, p["w"], p["b"], (q, 1), (q, 2), *ranges,
        kernel="(3, 3)", pad="(1, 1)", num_filter=4,
    )  # fmt: skip
    calibrated = {"min_calib_range": -0.8, "max_calib_range": 0.7}
    r = s.add("_contrib_requantize", "r", conv, (conv, 1), (conv, 2), out_type="int8", **calibrated)
    a = s.add("_contrib_quantized_act", "a", r, (r, 1), (r, 2), act_type="relu")
    ranges = (p["vl"], p["vh"], p["cl"], p["ch"])
    dense = s.add(
        "_contrib_quantized_fully_connected",
        "dense",
        a,
        p["v"],
        p["c"],
        (a, 1),
        (a, 2),
        *ranges,
        num_hidden=7,
    )
    last = s.add("_contrib_requantize", "last", dense, (dense, 1), (dense, 2), out_type="int8")
    s.add("_contrib_dequantize", "y", last, (last, 1), (last, 2))
    return s


def weights() -> dict[str, Array]:
    ends = {"wl": -1.5, "wh": 1.2, "bl": -0.1, "bh": 0.3, "vl": -0.4, "vh": 0.7, "cl": -0.2, "ch": 0.2}
    return {"w": W, "b": B, "v": V, "c": C} | {k: np.array([e], np.float32) for k, e in ends.items()}


def test_a_quantized_network_computes_in_integers(tmp_path: Path) -> None:
    q = saturated(X * (F(255.5) / F(2.5)), 0, 255)
    sums = convolved(q) + B[:, None, None]
    step = F(2.5) / F(127) * (F(1.5) / F(127))
    r = saturated(sums.astype(F) * (step * (F(127) / F(0.8))), -128, 127)
    rows = np.maximum(r, 0).reshape(2, -1).astype(np.int64)
    scaled = C.astype(F) * (F(127.5) / F(0.8) * (F(127.5) / F(0.7)) * F(0.2) / F(127.5))
    dense = rows @ V.T.astype(np.int64) + np.trunc(scaled).astype(np.int64)
    step = F(0.8) / F(127) * (F(0.7) / F(127))
    largest = np.abs(dense.astype(F)).max() * step
    last = saturated(dense.astype(F) * (step * (F(127) / largest)), -128, 127)
    (found,) = run(tmp_path, network(), {"x": X}, **weights())
    # A step of the last quantization; nothing is rounded otherwise where no product lies at a half.
    np.testing.assert_allclose(found, last * (largest / F(127.5)), atol=1e-6 * largest)
    (sums_found,) = run(tmp_path, network(), {"x": X}, 14, **weights())
    np.testing.assert_array_equal(sums_found, sums)


@pytest.mark.parametrize(
    ("kind", "level", "low", "high"), [("int8", 127.5, -128, 127), ("uint8", 255.5, 0, 255)]
)
def test_numbers_are_rounded_half_to_even_and_saturated(
    tmp_path: Path, kind: str, level: float, low: int, high: int
) -> None:
    x = np.array([-2.0, -0.5, 0.5, 1.5, 2.5, 99.0, 1000.0], np.float32)
    s = Symbols()
    given = {"out_type": kind, "min_calib_range": 0.0, "max_calib_range": level}
    s.add("_contrib_quantize_v2", "q", s.var("x", shape="(7,)"), **given)
    (found, *_) = run(tmp_path, s, {"x": x}, 1)
    assert str(found.dtype) == kind
    np.testing.assert_array_equal(found, saturated(x, low, high))


def test_a_refusal_names_the_way_out(tmp_path: Path) -> None:
    s = Symbols()
    x, w = s.var("x", shape="(1, 3, 5, 5)", dtype="5"), s.var("w")
    ends = [s.var(name, shape="(1,)") for name in ("a", "b", "c", "d")]
    s.add("_contrib_quantized_conv", "conv", x, w, *ends, kernel="(3, 3)", num_filter=4, no_bias=True)
    with pytest.raises(GraphError, match="quantized_dtype='auto' or 'uint8'"):
        loaded(tmp_path, s, w=W)
    fused = Symbols()
    fused.add("_sg_mkldnn_conv", "sg", fused.var("x"), quantized="True", subgraphs=[network().json()])
    with pytest.raises(GraphError, match="not of get_backend_symbol"):
        loaded(tmp_path, fused)
