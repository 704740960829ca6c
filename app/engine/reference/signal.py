"""The short-time Fourier transform.

Source: ONNX operator specification of STFT-17, and onnxruntime for signals without a last axis, which
`torch.stft` exports.
"""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from app.engine.reference.correction import Correction

Array = np.ndarray[Any, Any]


def stft(
    signal: Array,
    frame_step: Array,
    window: Array | None = None,
    frame_length: Array | None = None,
    *,
    onesided: int = 1,
) -> list[Array]:
    """Spectra [batch, frames, bins, 2] of frames of a signal [batch, length] or [batch, length, 1 or 2].

    A last axis of two holds real and imaginary parts.
    """
    wide = signal.astype(np.float64)
    parts = wide if signal.ndim == 3 else wide[..., None]
    samples = parts[..., 0] + 1j * parts[..., 1] if parts.shape[2] == 2 else parts[..., 0]
    length = samples.shape[1] if window is None else window.shape[0]
    if frame_length is not None:
        length = int(frame_length.item())
    frames = sliding_window_view(samples, length, axis=1)[:, :: int(frame_step.item())]
    spectra = np.fft.fft(frames if window is None else frames * window.astype(np.float64))
    if onesided:
        spectra = spectra[..., : length // 2 + 1]
    return [np.stack([spectra.real, spectra.imag], axis=-1).astype(signal.dtype)]


CORRECTIONS = (Correction("STFT", stft, "refuses a signal [batch, length]", since=17),)
