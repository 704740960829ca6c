"""How the left operand of a product comes into shared memory: rows of a matrix, or patches of images.

A thread copies the same 16-byte chunk (`chunk`) of every `stride`-th row of a tile, `copies` in all. An
operand writes three pieces of text: what is done once, what is done once a tile along the reduction
(`k`, the first element of the thread's chunk), and for each copy where from and how many bytes.
"""

from dataclasses import dataclass
from typing import Protocol

from app.kernels.cuda.source import Source

FAR = 1 << 29  # rows away from any image; twice as far the other way, so that both are still outside


class Operand(Protocol):
    """The left operand, by its parameters and its text."""

    name: str
    parameters: tuple[str, ...]  # all uint32

    def prepare(self, s: Source, copies: int, stride: int) -> None:
        """Once: `row` is the first row of the result that this thread copies for, of `m` rows."""

    def step(self, s: Source) -> None:
        """Once a tile: chunk at `k`, `left` bytes of it before the reduction's end (-16 to 16 and beyond)."""

    def copy(self, s: Source, i: int) -> tuple[str, str]:
        """(index of the element, bytes to copy) of copy i."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a matrix: a[row * a_row + k]."""

    name: str = "gemm"
    parameters: tuple[str, ...] = ("a_row",)

    def prepare(self, s: Source, copies: int, stride: int) -> None:
        for i in range(copies):
            s(
                f"a_in{i} = int32(-1) if uint32(row + {i * stride}) < m else int32(0)",
                f"a_at{i} = uint32(uint32(row + {i * stride}) * a_row)",
            )

    def step(self, s: Source) -> None:
        pass

    def copy(self, s: Source, i: int) -> tuple[str, str]:
        return f"uint32(a_at{i} + k)", f"int32(left & a_in{i})"


@dataclass(frozen=True, slots=True)
class Patches:
    """Patches of images [n, height, width, pixel] in the order [row of window][column][channel].

    `pixel` elements lie between neighbouring pixels, `filled` of them belong to this product; the reduction
    counts `channels` for them, a multiple of 16 bytes, the rest zeros. Divisors come with their factors,
    see `reciprocal`.
    """

    element: int  # bytes
    name: str = "conv"
    parameters: tuple[str, ...] = (
        "height",
        "width",
        "pixel",
        "out_height",
        "out_width",
        "stride_h",
        "stride_w",
        "top",
        "left_pad",
        "dilation_h",
        "dilation_w",
        "filled",
        "channels",
        "window",  # columns of the window
        "out_height_factor",
        "out_height_shift",
        "out_width_factor",
        "out_width_shift",
        "channels_factor",
        "channels_shift",
        "window_factor",
        "window_shift",
    )

    def prepare(self, s: Source, copies: int, stride: int) -> None:
        for i in range(copies):
            s(
                f"at = uint32(row + {i * stride})",
                f"line = {quotient('at', 'out_width')}",
                "x = uint32(at - line * out_width)",
                f"image = {quotient('line', 'out_height')}",
                "y_ = uint32(line - image * out_height)",
                f"a_h{i} = int32(y_ * stride_h) - int32(top) if at < m else int32({-2 * FAR})",
                f"a_w{i} = int32(x * stride_w) - int32(left_pad)",
                # May wrap below zero; with the window's offset it is right again.
                f"a_at{i} = uint32((int32(image * height) + a_h{i}) * int32(width) + a_w{i})",
                f"a_at{i} = uint32(a_at{i} * pixel)",
            )

    def step(self, s: Source) -> None:
        s(
            f"tap = {quotient('k', 'channels')}",
            "channel = uint32(k - tap * channels)",
            f"tap_h = {quotient('tap', 'window')}",
            "tap_w = uint32(uint32(tap - tap_h * window) * dilation_w)",
            "tap_h = uint32(tap_h * dilation_h)",
            "from_tap = uint32(uint32(tap_h * width + tap_w) * pixel + channel)",
            f"tap_h = tap_h if left > int32(0) else uint32({FAR})",
            f"some = int32(min((int32(filled) - int32(channel)) * {self.element}, 16))",
        )

    def copy(self, s: Source, i: int) -> tuple[str, str]:
        s(
            f"inside = (uint32(a_h{i} + tap_h) < height) & (uint32(a_w{i} + tap_w) < width)",
        )
        return f"uint32(a_at{i} + from_tap)", "some if inside else int32(0)"


def quotient(dividend: str, divisor: str) -> str:
    """Text of dividend // divisor by its reciprocal."""
    return f"uint32((uint64({dividend}) * uint64({divisor}_factor)) >> uint64({divisor}_shift))"


def reciprocal(divisor: int) -> tuple[int, int]:
    """(factor, shift): x // divisor == x * factor >> shift for 0 <= x < 2^31.

    Source: Granlund and Montgomery, 1994, "Division by invariant integers using multiplication".
    """
    log = (divisor - 1).bit_length()
    return -(-(1 << (31 + log)) // divisor), 31 + log
