"""How the left operand of a product comes into shared memory: rows of a matrix, or patches of images.

A thread copies the same 16-byte chunk (`chunk`) of every `stride`-th row of a tile, `copies` in all. An
operand writes three pieces of text. `prepare`, done once: `row` is the first row that the thread copies, of
`m`, its chunk begins `chunk` elements into a tile that begins at `k0`. `step`, once a tile along the
reduction: the chunk begins at `k`. `copy`: copies chunk i to an element of the tile's stage.

Copies of all 16 bytes or none are cheap; of some bytes (`ragged`) they take six instructions more.
"""

from dataclasses import dataclass
from typing import TypeAlias

from app.kernels.cuda.geometry import NBYTES
from app.kernels.cuda.source import Source

FAR = 1 << 29  # rows away from any image; twice as far the other way, so that both are still outside


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a matrix: matrix[row * matrix_row + k].

    `ragged`: the reduction ends within 16 bytes, `left` of which count.
    """

    ragged: bool = False
    matrix: str = "a"
    rows: str = "m"  # how many there are

    @property
    def name(self) -> str:
        """For the kernel's name."""
        return "gemm_ragged" if self.ragged else "gemm"

    @property
    def parameters(self) -> tuple[str, ...]:
        """Numbers that the kernel takes for it."""
        return (f"{self.matrix}_row",)

    def prepare(self, s: Source, copies: int, stride: int) -> None:
        """Text before the reduction."""
        a = self.matrix
        for i in range(copies):
            s(
                f"{a}_in{i} = uint32(row + {i * stride}) < {self.rows}",
                f"skip = int64(uint32(row + {i * stride})) * int64({a}_row) + int64(k0 + chunk)",
                f"{a}_at{i} = advance({a}, skip)",
            )

    def step(self, s: Source) -> None:
        """Text for each tile along the reduction."""

    def copy(self, s: Source, i: int, to: str, each: int) -> None:
        """Text of a copy."""
        a = self.matrix
        if self.ragged:
            s(f"cp_async16(s, {to}, {a}_at{i}, uint32(0), left if {a}_in{i} else int32(0))")
        else:
            s(f"cp_async16_if(s, {to}, {a}_at{i}, uint32(0), int32({a}_in{i} & (k < k_end)))")
        s(f"{a}_at{i} = advance({a}_at{i}, {each})")

    def output(self, s: Source) -> None:
        """Text of to_y, where row `at_m` of the result lies, column `at_n`."""
        s("to_y = uint32(at_m * y_row + at_n)")


DIVISORS = ("out_height", "out_width", "channels", "window")  # which come with their factors
PATCHES = (
    *("height", "width", "pixel", "out_height", "out_width", "stride_h", "stride_w", "top", "left_pad"),
    *("dilation_h", "dilation_w", "filled", "channels", "window"),  # the window's columns
    *(f"{name}_{part}" for name in DIVISORS for part in ("factor", "shift")),
)


@dataclass(frozen=True, slots=True)
class Patches:
    """Patches of images [n, height, width, pixel] in the order [row of window][column][channel].

    `pixel` elements lie between neighbouring pixels, `filled` of them belong to this product; the reduction
    counts `channels` for them, a multiple of 16 bytes, the rest zeros. Factors of divisors: see `reciprocal`.
    """

    element: int  # bytes
    ragged: bool = False  # whether `filled` ends within 16 bytes
    scattered: bool = False  # whether pixels of y lie `y_row` apart; lines and images have their own pitches

    @property
    def parameters(self) -> tuple[str, ...]:
        """Numbers that the kernel takes for it."""
        return (*PATCHES, "y_line", "y_image") if self.scattered else PATCHES

    @property
    def name(self) -> str:
        """For the kernel's name."""
        return "conv" + "_scattered" * self.scattered + "_ragged" * self.ragged

    def prepare(self, s: Source, copies: int, stride: int) -> None:
        """Text before the reduction."""
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
                f"a_at{i} = opaque(uint32(a_at{i} * pixel))",
            )

    def step(self, s: Source) -> None:
        """Text for each tile along the reduction."""
        s(
            f"tap = {quotient('k', 'channels')}",
            "channel = uint32(k - tap * channels)",
            f"tap_h = {quotient('tap', 'window')}",
            "tap_w = uint32(uint32(tap - tap_h * window) * dilation_w)",
            "tap_h = uint32(tap_h * dilation_h)",
            "from_tap = uint32(uint32(tap_h * width + tap_w) * pixel + channel)",
            f"tap_h = tap_h if k < k_end else uint32({FAR})",
        )
        if self.ragged:
            s(f"some = int32(min((int32(filled) - int32(channel)) * {self.element}, 16))")

    def copy(self, s: Source, i: int, to: str, each: int) -> None:  # noqa: ARG002  # as Rows has it
        """Text of a copy."""
        s(
            f"inside = (uint32(a_h{i} + tap_h) < height) & (uint32(a_w{i} + tap_w) < width)",
            f"at = uint32(a_at{i} + from_tap)",
        )
        if self.ragged:
            s(f"cp_async16(s, {to}, a, at, some if inside else int32(0))")
        else:
            s(f"cp_async16_if(s, {to}, a, at, int32(inside))")

    def output(self, s: Source) -> None:
        """Text of to_y, where row `at_m` of the result lies, column `at_n`."""
        if not self.scattered:
            s("to_y = uint32(at_m * y_row + at_n)")
            return
        s(
            f"line = {quotient('at_m', 'out_width')}",
            "x = uint32(at_m - line * out_width)",
            f"image = {quotient('line', 'out_height')}",
            "line = uint32(line - image * out_height)",
            "to_y = uint32(image * y_image + line * y_line + x * y_row + at_n)",
        )


Operand: TypeAlias = Rows | Patches


@dataclass(frozen=True, slots=True)
class Columns:
    """The right operand as b[k * b_row + column]: `depth` rows of `columns` elements in a tile.

    In shared memory its rows lie `pitch` elements apart, from element `start` of a stage.
    """

    dtype: str
    columns: int
    depth: int
    threads: int
    start: int
    pitch: int

    @property
    def _chunks(self) -> int:
        return self.columns * NBYTES[self.dtype] // 16

    @property
    def _copies(self) -> range:
        return range(0, self.depth, self.threads // self._chunks)

    def prepare(self, s: Source) -> None:
        """Text before the reduction."""
        vector = 16 // NBYTES[self.dtype]
        s(
            f"b_line = uint32(thread() // uint32({self._chunks}))",
            f"b_column = uint32((thread() - b_line * {self._chunks}) * {vector})",
            f"to_b = uint32({self.start} + b_line * {self.pitch} + b_column)",
            "b_column = uint32(first_n + b_column)",
        )
        for i in self._copies:
            s(f"b_at{i} = advance(b, int64(k0 + b_line + {i}) * int64(b_row) + int64(b_column))")

    def copy(self, s: Source, at: str) -> None:
        """Text of all copies to the stage at an element; columns from n on may be anything."""
        for i in self._copies:
            s(
                f"inside = (uint32(k0 + b_line + {i}) < k_end) & (b_column < n)",
                f"to_line = uint32({at} + to_b + {i * self.pitch})",
                f"cp_async16_if(s, to_line, b_at{i}, uint32(0), int32(inside))",
                f"b_at{i} = advance(b_at{i}, int64(b_row) * {self.depth})",
            )


def quotient(dividend: str, divisor: str) -> str:
    """Text of dividend // divisor by its reciprocal."""
    return f"uint32((uint64({dividend}) * uint64({divisor}_factor)) >> uint64({divisor}_shift))"


def reciprocal(divisor: int) -> tuple[int, int]:
    """(factor, shift): x // divisor == x * factor >> shift for 0 <= x < 2^31.

    Source: Granlund and Montgomery, 1994, "Division by invariant integers using multiplication".
    """
    log = (divisor - 1).bit_length()
    return -(-(1 << (31 + log)) // divisor), 31 + log
