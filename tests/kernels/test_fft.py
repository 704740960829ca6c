"""DFT and STFT against NumPy in float64."""

import numpy as np
import pytest

from app.kernels.cpu import fft
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import Array, assert_close, implementation, run_group
from tests.kernels.single_node import node_group, rejection_of, run_node


def complex_of(x: Array) -> Array:
    return x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)


def pairs(z: Array, dtype: type = np.float32) -> Array:
    return np.stack([z.real, z.imag], -1).astype(dtype)


@pytest.mark.parametrize(
    ("n", "inverse"),
    [(1, 0), (2, 0), (15, 0), (64, 0), (77, 0), (91, 0), (289, 0), (1, 1), (30, 1), (128, 1), (1009, 1)],
)
def test_transforms_of_any_length(compiler: Compiler, n: int, inverse: int) -> None:
    x = np.random.default_rng(n).standard_normal((3, n, 2)).astype(np.float32)
    group = node_group("DFT", {"X": x}, {"Y": np.zeros((3, n, 2), np.float32)}, opset=20, inverse=inverse)
    (y,) = run_node(compiler, "dft.stages", group, {"X": x}, threads=2)
    function = np.fft.ifft if inverse else np.fft.fft
    assert_close(y, pairs(function(complex_of(x.astype(np.float64)), axis=1)), 2e-6)


@pytest.mark.parametrize(
    ("axis", "length", "dtype"),
    [(0, None, np.float32), (1, 5, np.float32), (2, 24, np.float32), (2, 5, np.float64), (1, 24, np.float64)],
)
def test_axes_and_lengths(compiler: Compiler, axis: int, length: int | None, dtype: type) -> None:
    x = np.random.default_rng(1).standard_normal((7, 12, 18, 1)).astype(dtype)
    n = length or x.shape[axis]
    constants = {"N": None if length is None else np.array(length), "A": np.array(axis - 4)}
    expected = pairs(np.fft.rfft(x[..., 0].astype(np.float64), n, axis), dtype)
    group = node_group(
        "DFT", {"X": x, **constants}, {"Y": expected}, constants=("N", "A"), opset=20, onesided=1
    )
    (y,) = run_node(compiler, "dft.stages", group, {"X": x}, threads=3)
    assert_close(y, expected, 2e-6 if dtype == np.float32 else 1e-13)


@pytest.mark.parametrize("length", [None, 9, 22, 17])
def test_real_results_of_half_a_spectrum(compiler: Compiler, length: int | None) -> None:
    x = np.random.default_rng(2).standard_normal((5, 9, 2)).astype(np.float32)
    n = length or 16
    expected = np.fft.irfft(complex_of(x.astype(np.float64)), n, 1).astype(np.float32)[..., None]
    constants = {"N": np.array(n)}
    group = node_group(
        "DFT", {"X": x, **constants}, {"Y": expected}, constants=("N",), opset=20, inverse=1, onesided=1
    )
    (y,) = run_node(compiler, "dft.stages", group, {"X": x})
    assert_close(y, expected, 2e-6)


@pytest.mark.parametrize("lanes", [8, 16])
def test_other_registers(compiler: Compiler, lanes: int) -> None:
    x = np.random.default_rng(3).standard_normal((37, 60, 1)).astype(np.float32)
    group = node_group("DFT", {"X": x}, {"Y": np.zeros((37, 60, 2), np.float32)}, opset=20)
    (y,) = run_group(implementation("dft.stages"), group, {"X": x}, compiler, lanes=lanes)
    assert_close(y, pairs(np.fft.fft(x[..., 0].astype(np.float64), axis=1)), 2e-6)


@pytest.mark.parametrize(("windowed", "constant"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("pair", "onesided"), [(0, 1), (1, 1), (1, 0), (2, 0)])
def test_frames_of_a_signal(
    compiler: Compiler, pair: int, onesided: int, windowed: bool, constant: bool
) -> None:
    random = np.random.default_rng(4)
    n, step, length = 20, 7, 105
    shape = (3, length, pair) if pair else (3, length)
    x = random.standard_normal(shape).astype(np.float32)
    window = random.uniform(0.1, 1, n).astype(np.float32) if windowed else None
    inputs = {"X": x, "S": np.array(step), "W": window, "N": np.array(n)}
    signal = complex_of((x if pair else x[..., None]).astype(np.float64))
    frames = np.stack([signal[:, f : f + n] for f in range(0, length - n + 1, step)], 1)
    z = np.fft.fft(frames * (1.0 if window is None else window.astype(np.float64)), axis=2)
    expected = pairs(z[:, :, : n // 2 + 1] if onesided else z)
    fixed = ("S", "N", "W") if constant else ("S", "N")
    group = node_group("STFT", inputs, {"Y": expected}, constants=fixed, opset=17, onesided=onesided)
    (y,) = run_node(compiler, "stft.stages", group, inputs, threads=2)
    assert_close(y, expected, 2e-6)


def test_lengths_of_convolutions_are_short_and_have_small_factors() -> None:
    for n in range(2, 3000, 37):
        length = fft.convolution_length(n)
        assert 2 * n - 1 <= length < 2.3 * n + 8
        assert set(fft.factors(length) or ()) <= {2, 3, 4, 5}


def test_a_transform_along_pairs_is_rejected() -> None:
    inputs = {"X": np.zeros((2, 4, 2), np.float32), "N": None, "A": np.array(2)}
    group = node_group("DFT", inputs, {"Y": inputs["X"]}, constants=("A",), opset=20)
    assert rejection_of("dft.stages", group) == "transforms along the axis of pairs"
