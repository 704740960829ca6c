"""Transposed convolutions: one convolution for each remainder of the output's position by the strides.

The pixels of y whose position leaves a remainder see only the taps that meet a pixel of x from there, at
distances that are a convolution's again: nothing is multiplied with zeros in between. Roles as for `conv`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, prod

import numpy as np

from app.kernels.cuda import conv, gemm, realign
from app.kernels.cuda.conv import Conv, Pair, Scatter
from app.kernels.cuda.epilogue import Epilogue
from app.kernels.cuda.geometry import NBYTES
from app.kernels.cuda.kernel import KernelError, Launch, Launches


@dataclass(frozen=True, slots=True)
class ConvTranspose(Conv):
    """A transposed convolution x[n, h, w, ci] -> y[n, ho, wo, co], other fields as in `Conv`."""

    output_padding: Pair = (0, 0)

    @property
    def out(self) -> Pair:
        """Height and width of the output."""
        ho, wo = (
            (size - 1) * self.strides[i]
            - self.pads[i]
            - self.pads[i + 2]
            + self.dilations[i] * (self.kernel[i] - 1)
            + 1
            + self.output_padding[i]
            for i, size in enumerate((self.h, self.w))
        )
        return ho, wo


@dataclass(frozen=True, slots=True)
class Phase:
    """The pixels of y at `first` and every stride after: a convolution with some of the taps."""

    conv: Conv
    first: Pair
    taps: tuple[tuple[int, ...], tuple[int, ...]]  # of the window, in the convolution's order; -1: zeros


def phases(c: ConvTranspose) -> Iterator[Phase]:
    """The convolutions, by remainder; those without a pixel of y are left out."""
    out = c.out
    for p in range(c.strides[0]):
        for q in range(c.strides[1]):
            if p >= out[0] or q >= out[1]:
                continue
            axes = [_axis(c, i, first) for i, first in enumerate((p, q))]
            taps, tops, bottoms, dilations = zip(*axes, strict=True)
            part = Conv(
                c.n,
                c.h,
                c.w,
                c.ci,
                c.co,
                (len(taps[0]), len(taps[1])),
                pads=(*tops, *bottoms),
                dilations=dilations,
                groups=c.groups,
                x_pixel=c.x_pixel,
                y_pixel=c.y_pixel,
                x_group=c.x_group,
            )
            yield Phase(part, (p, q), taps)


def _axis(c: ConvTranspose, i: int, first: int) -> tuple[tuple[int, ...], int, int, int]:
    """(taps, padding before and after, dilation) along one axis for pixels first, first + stride ..."""
    stride, dilation = c.strides[i], c.dilations[i]
    # y[stride j + first] takes x[j + (first + pad - dilation tap) / stride].
    offsets = {
        (first + c.pads[i] - dilation * tap) // stride: tap
        for tap in range(c.kernel[i])
        if (first + c.pads[i] - dilation * tap) % stride == 0
    } or {0: -1}
    places = sorted(offsets)
    step = dilation // gcd(stride, dilation)
    size = (c.h, c.w)[i]
    many = -(-(c.out[i] - first) // stride)
    after = many - size + places[0] + step * (len(places) - 1)
    return tuple(offsets[place] for place in places), -places[0], after, step


def packed_weights(w: np.ndarray, c: ConvTranspose, precision: str) -> np.ndarray:
    """Weights [ci, co / groups, kh, kw], float32, as one float32 array: those of each phase in turn."""
    ci, co = c.ci // c.groups, c.co // c.groups
    by_group = w.reshape(c.groups, ci, co, *c.kernel).transpose(0, 2, 1, 3, 4).reshape(c.co, ci, *c.kernel)
    filled = np.pad(by_group, ((0, 0), (0, 0), (0, 1), (0, 1)))  # tap -1
    parts = [
        conv.packed_weights(filled[:, :, phase.taps[0]][..., phase.taps[1]], c.groups, precision)
        for phase in phases(c)
    ]
    return np.concatenate([part.reshape(-1) for part in parts])


def conv_transpose(c: ConvTranspose, precision: str, after: Epilogue, tile: str) -> Launches:
    """Launches, one for each phase; arguments as for `gemm.gemm`.

    Raises:
        KernelError: there is a residual.
    """
    if after.residual:
        raise KernelError("a transposed convolution adds no residual")
    dtype = gemm.dtype_of(precision)
    copies = realign.copies({"x": conv.pixels(c)}, dtype, beside=True)
    for _, made in copies.values():
        c = replace(c, x_pixel=made.row, x_group=made.step)
    steps: list[Launch] = []
    start = 0
    for phase in phases(c):
        to = Scatter(c.strides, phase.first, c.out)
        steps += conv.launches(phase.conv, precision, after, tile, scatter=to, w_start=start).steps
        start += prod(conv.packed_shape(phase.conv, precision)) * NBYTES[dtype]
    return realign.after_copies(Launches(tuple(steps)), copies, dtype)
