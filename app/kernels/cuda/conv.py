"""Convolutions of NHWC images as products: rows are pixels of the output, the reduction is the window.

`packed_weights` says how weights lie: the reduction [kh][kw][channel], channels filled up with zeros to 16
bytes. Groups are the batches of the product; a 1 x 1 convolution without stride or padding is a plain
matrix product. A transposed convolution is one convolution for each remainder of the output's position by
the stride: each has the taps of its remainder only, and writes every stride-th pixel.
"""

from dataclasses import dataclass, replace

import numpy as np

from app.kernels.cuda import gemm, realign
from app.kernels.cuda.epilogue import Epilogue
from app.kernels.cuda.gemm import dtype_of, vector
from app.kernels.cuda.geometry import NBYTES
from app.kernels.cuda.kernel import Launches, Ref
from app.kernels.cuda.operands import DIVISORS, Patches, Rows, reciprocal
from app.kernels.cuda.product import Product
from app.kernels.cuda.realign import Matrices

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution x[n, h, w, ci] -> y[n, ho, wo, co], `groups` of both channels.

    `pads` are top, left, bottom, right; negative ones crop. Pixels of x, y and residual begin `*_pixel`
    elements apart (0: their channels), which is more where they are slices of a wider tensor; groups of x
    begin `x_group` apart (0: their channels).
    """

    n: int
    h: int
    w: int
    ci: int
    co: int
    kernel: Pair
    strides: Pair = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: Pair = (1, 1)
    groups: int = 1
    x_pixel: int = 0
    y_pixel: int = 0
    residual_pixel: int = 0
    x_group: int = 0

    @property
    def out(self) -> Pair:
        """Height and width of the output."""
        sizes = self.h + self.pads[0] + self.pads[2], self.w + self.pads[1] + self.pads[3]
        ho, wo = (
            (size - d * (k - 1) - 1) // s + 1
            for size, d, k, s in zip(sizes, self.dilations, self.kernel, self.strides)
        )
        return ho, wo

    @property
    def is_product(self) -> bool:
        """True if the patches are the pixels themselves."""
        return self.kernel == (1, 1) and self.strides == (1, 1) and not any(self.pads)


def padded(channels: int, precision: str) -> int:
    """Channels filled up to 16 bytes."""
    return -(-channels // vector(precision)) * vector(precision)


def packed_shape(c: Conv, precision: str) -> tuple[int, int, int]:
    """Shape of the packed weights: groups, rows, elements of a row."""
    k = c.kernel[0] * c.kernel[1] * padded(c.ci // c.groups, precision)
    co = c.co // c.groups
    return (c.groups, k, padded(co, precision)) if precision == "f32" else (c.groups, co, k)


def packed_weights(w: np.ndarray, groups: int, precision: str) -> np.ndarray:
    """Weights [co, ci / groups, kh, kw], float32, in the kernels' order, still float32.

    Tensor cores take [groups, co / groups, kh kw ci'], the exact kernel [groups, kh kw ci', co'], where
    ci' and co' are filled up with zeros to 16 bytes of the storage type.
    """
    co, ci, kh, kw = w.shape
    full = padded(ci, precision)
    rows = np.zeros((groups, co // groups, kh, kw, full), np.float32)
    rows[..., :ci] = w.reshape(groups, co // groups, ci, kh, kw).transpose(0, 1, 3, 4, 2)
    rows = rows.reshape(groups, co // groups, kh * kw * full)
    if precision != "f32":
        return rows
    columns = np.zeros((groups, kh * kw * full, padded(co // groups, precision)), np.float32)
    columns[..., : co // groups] = rows.transpose(0, 2, 1)
    return columns


def conv(c: Conv, precision: str, after: Epilogue, tile: str, splits: int = 1) -> Launches:
    """Launches of a convolution; roles are x, w (packed), y, bias, residual, workspace.

    Where pixels or groups of x do not begin at multiples of 16 bytes, x is copied to the workspace first.
    Arguments as for `gemm.gemm`.
    """
    dtype = dtype_of(precision)
    copies = realign.copies({"x": pixels(c)}, dtype, beside=True)
    for _, made in copies.values():
        c = replace(c, x_pixel=made.row, x_group=made.step)
    return realign.after_copies(launches(c, precision, after, tile, splits), copies, dtype)


def pixels(c: Conv) -> Matrices:
    """X as matrices, one for each group."""
    ci = c.ci // c.groups
    step = (c.x_group or ci) if c.groups > 1 else 0
    return Matrices(c.n * c.h * c.w, ci, c.x_pixel or c.ci, c.groups, step)


@dataclass(frozen=True, slots=True)
class Scatter:
    """Where a convolution writes: pixel (i, j) to `first` + (i, j) `strides` of images of `out` pixels."""

    strides: Pair
    first: Pair
    out: Pair


def launches(
    c: Conv,
    precision: str,
    after: Epilogue,
    tile: str,
    splits: int = 1,
    scatter: Scatter | None = None,
    w_start: int = 0,
) -> Launches:
    """The same for aligned x; also a part of a transposed convolution, with weights from byte `w_start`."""
    dtype = dtype_of(precision)
    ho, wo = c.out
    ci, co = c.ci // c.groups, c.co // c.groups
    full = padded(ci, precision)
    _, b_rows, b_row = packed_shape(c, precision)
    pixel = c.x_pixel or c.ci
    aligned = vector(precision)
    grouped = c.groups > 1
    product = Product(
        m=c.n * ho * wo,
        n=co,
        k=c.kernel[0] * c.kernel[1] * full,
        a_row=pixel,
        b_row=b_row,
        y_row=c.y_pixel or c.co,
        residual_row=c.residual_pixel or c.co,
        batch=c.groups,
        a_batch=pixels(c).step,
        b_batch=b_rows * b_row if grouped else 0,
        y_batch=co if grouped else 0,
        bias_batch=co if grouped else 0,
        residual_batch=co if grouped else 0,
    )
    numbers = {}
    if scatter:
        down, across = scatter.strides
        line = scatter.out[1] * product.y_row
        start = scatter.first[0] * line + scatter.first[1] * product.y_row
        numbers = {"y_line": down * line, "y_image": scatter.out[0] * line}
        product = replace(product, y_row=across * product.y_row, y_start=start)
    longest = max(c.n * c.h * c.w * pixel, product.m * product.y_row)
    if c.is_product and not grouped and not scatter:
        rows, left = replace(product, k=ci), Rows(ragged=ci % aligned != 0)
        made = gemm.launches(rows, precision, after, tile, splits, left, {"a_row": pixel}, longest)
    else:
        operand = Patches(NBYTES[dtype], ci % aligned != 0, scatter is not None)
        numbers |= _numbers(c, pixel, full)
        made = gemm.launches(product, precision, after, tile, splits, operand, numbers, longest)
    return made.moved({"a": Ref("x"), "b": Ref("w", w_start)})


def _numbers(c: Conv, pixel: int, full: int) -> dict[str, int]:
    ho, wo = c.out
    numbers = {
        "height": c.h,
        "width": c.w,
        "pixel": pixel,
        "out_height": ho,
        "out_width": wo,
        "stride_h": c.strides[0],
        "stride_w": c.strides[1],
        "top": c.pads[0],
        "left_pad": c.pads[1],
        "dilation_h": c.dilations[0],
        "dilation_w": c.dilations[1],
        "filled": c.ci // c.groups,
        "channels": full,
        "window": c.kernel[1],
    }
    for name in DIVISORS:
        numbers[f"{name}_factor"], numbers[f"{name}_shift"] = reciprocal(numbers[name])
    return numbers
