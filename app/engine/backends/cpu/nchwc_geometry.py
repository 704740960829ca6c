"""Convolutions over blocked images as kernels see them: geometry, cuts, and weights in the order of use."""

import itertools
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from app.engine.core import graph
from app.engine.core.calls import Constant
from app.engine.core.group import Group
from app.engine.operators import conv_geometry
from app.engine.operators.conv_geometry import Window
from app.kernels.cpu.codegen import tiles

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Cut:
    """How a convolution is cut into units.

    Attributes:
        rows: output rows of a strip at most; strips differ by no more than `step`.
        chunk: whole input blocks of a chunk.
        wide: blocks of output channels of a tile.
        part: blocks of output channels of a unit.
        step: what the rows of a strip are a multiple of.
    """

    rows: int
    chunk: int
    wide: int
    part: int
    step: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution as the kernel sees it.

    Attributes:
        rows, columns: of the output; a pointwise convolution has pixels as rows of one column.
        h, w: of the input in the same sense.
        stride_h, stride_w: in pixels of the input.
        down, along: offsets of taps along the axes.
        x_lanes: elements of a block of the input, each a channel or a pair of them; 1 for planes.
        copied: whether strips are copied with their padding, or rounded to pairs.
    """

    tiled: ClassVar[bool] = False  # whether tile registers multiply, see `tiled_conv`

    window: Window
    rows: int
    columns: int
    h: int
    w: int
    stride_h: int
    stride_w: int
    down: tuple[int, ...]
    along: tuple[int, ...]
    x_lanes: int
    copied: bool

    @property
    def top(self) -> int:
        """Rows before the first of the input."""
        return max(-self.down[0], 0) if self.copied else 0

    @property
    def left(self) -> int:
        """Pixels before the first of a row of the input."""
        return max(-self.along[0], 0) if self.copied else 0

    @property
    def line(self) -> int:
        """Pixels of a row as a strip has it."""
        if not self.copied:
            return self.w
        reach = (self.columns - 1) * self.stride_w + self.along[-1] + self.left + 1
        return max(reach, self.left + 1)

    def lines(self, rows: int) -> int:
        """Input rows of a strip of `rows` output rows."""
        return (rows - 1) * self.stride_h + self.down[-1] + self.top + 1

    @property
    def phases(self) -> tuple[int, int]:
        """How many phases of the strides along the axes a strip has apart."""
        return 1, 1

    @property
    def blocks(self) -> int:
        """Blocks of input channels, or planes, of a group."""
        return -(-self.window.channels // self.x_lanes)

    def strip(self, rows: int) -> int:
        """Elements of a strip of `rows` output rows."""
        return self.blocks * self.lines(rows) * self.line * self.x_lanes

    def places(self, rows: int) -> tuple[Array, Array]:
        """Where output pixels of a strip and taps read it, as offsets of elements.

        Those of taps count from the pixel where the window begins, which is in the strip.
        """
        row, pixel = self.x_lanes * self.stride_h * self.line, self.x_lanes * self.stride_w
        pixels = np.add.outer(np.arange(rows) * row, np.arange(self.columns) * pixel)
        plane = self.lines(rows) * self.line if self.copied else self.h * self.w
        planes = range(self.window.channels if self.x_lanes == 1 else 1)
        down = [(i + self.top) * self.line * self.x_lanes for i in self.down]
        along = [(j + self.left) * self.x_lanes for j in self.along[: 1 if self.side_by_side else None]]
        return pixels, np.array([c * plane + i + j for c in planes for i in down for j in along], np.int64)

    def without_sizes(self) -> "Geometry":
        """The same for any size of the image: what packed weights depend on."""
        window = replace(self.window, batch=0, size=(0, 0, 0), out=(0, 0, 0))
        return replace(self, window=window, rows=0, columns=0, h=0, w=0, copied=False)

    def weights(self, array: Array, *, paired: bool) -> Array:
        """Weights[outputs, channels, taps], or pairs of their channels."""
        flat = array.reshape(*array.shape[:2], -1)
        return tiles.pack_bfloats(flat) if paired else flat

    def row_bytes(self, blocks: int) -> int:
        """Bytes that so many blocks of a row of the input take in a strip."""
        return (blocks * self.x_lanes if self.x_lanes > 1 else self.window.channels) * 4 * self.w

    @property
    def static(self) -> tuple[object, ...]:
        """Further arguments of the generator."""
        return ()

    @property
    def side_by_side(self) -> bool:
        """True if the taps of a row are steps of the reduction: planes without dilation."""
        steps = {b - a for a, b in itertools.pairwise(self.along)}
        return self.x_lanes == 1 and steps <= {1}


def geometry(group: Group, lanes: int, *, paired: bool = False, flat: bool = True) -> Geometry:
    """The geometry of a convolution whose input has blocks of this many channels.

    One of pairs of channels has half as many: those of its window are pairs. With `flat` a pointwise one has
    no rows.
    """
    window = conv_geometry.of_conv(group)
    if paired:
        window, lanes = replace(window, channels=-(-window.channels // 2)), max(lanes // 2, 1)
    if flat and window.flat() is not window:
        return Geometry(window, window.pixels, 1, window.pixels, 1, 1, 1, (0,), (0,), lanes, paired)
    (_, rows, columns), (_, h, w), (_, down, along) = window.out, window.size, window.offsets
    (_, stride_h, stride_w) = window.stride
    outside = paired or down[0] < 0 or along[0] < 0
    outside |= (rows - 1) * stride_h + down[-1] >= h or (columns - 1) * stride_w + along[-1] >= w
    return Geometry(window, rows, columns, h, w, stride_h, stride_w, down, along, lanes, outside)


def packed_weights(group: Group, shape: Geometry, parts: Cut, lanes: int, dtype: str) -> Constant:
    """Weights in the order of use."""
    weights = graph.operand(group.anchor, 1)
    array, paired = graph.array(weights), dtype in tiles.BFLOAT_PAIRS
    scaled = dtype == tiles.SCALED_PAIRS
    # Equal operands are packed once, for any number of shapes.
    unsized, blocks = shape.without_sizes(), replace(parts, rows=0, step=0)

    def packed() -> Array:
        flat = unsized.weights(array, paired=paired)
        panels = _scaled_panels if scaled else _panels
        return tiles.in_right_element(dtype, panels(flat, unsized, blocks, lanes))

    return Constant(packed, weights.name or "")


def _panels(array: Array, shape: Geometry, parts: Cut, lanes: int, ends: Array | None = None) -> Array:
    """Weights[outputs, channels, taps] in the order of use; `ends`[outputs, chunks] follow each chunk."""
    window = shape.window
    matrices = array.reshape(window.groups, window.outputs, window.channels, -1)
    chunks = chunks_of(shape, parts)
    if shape.side_by_side:
        along = len(shape.along)
        matrices = np.moveaxis(matrices.reshape(*matrices.shape[:2], -1, along), 3, 2)
    elif shape.x_lanes == 1:
        matrices = matrices.reshape(*matrices.shape[:2], 1, -1)
    tails = [None] * window.groups if ends is None else ends.reshape(window.groups, window.outputs, -1)
    packed = [
        tiles.pack_blocks(m, lanes, parts.wide, parts.part, chunks, tail) for m, tail in zip(matrices, tails)
    ]
    return np.concatenate(packed)


def _scaled_panels(array: Array, shape: Geometry, parts: Cut, lanes: int) -> Array:
    """Weights[outputs, channels, taps] as pairs of integers, whose scales follow each chunk."""
    chunks = (
        [(0, array.shape[1])] if shape.x_lanes == 1 else [(2 * f, 2 * n) for f, n in chunks_of(shape, parts)]
    )
    found = [tiles.scaled_integers(array[:, first : first + count]) for first, count in chunks]
    integers = np.concatenate([whole for whole, _ in found], axis=1)
    return _panels(
        tiles.pack_shorts(integers), shape, parts, lanes, np.stack([own for _, own in found], axis=1)
    )


def chunks_of(shape: Geometry, parts: Cut) -> list[tuple[int, int]]:
    """(first, count) steps of each chunk of the reduction: channels, or taps of planes side by side."""
    if shape.side_by_side:
        return [(0, len(shape.along))]
    if shape.x_lanes == 1:
        return [(0, 1)]
    firsts = list(range(0, max(shape.window.channels // shape.x_lanes, 1), parts.chunk))
    ends = [*(f * shape.x_lanes for f in firsts[1:]), shape.window.channels]
    return [(f * shape.x_lanes, end - f * shape.x_lanes) for f, end in zip(firsts, ends)]
