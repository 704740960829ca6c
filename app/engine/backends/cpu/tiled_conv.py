"""Rows of convolutions whose products tile registers compute, over blocked images and over planes.

A strip of the input is rounded to pairs once. It has neighboring pixels of a row at equal distances, whatever
the stride, and rows as well: a tile takes 32 of them from any place, so no window is ever copied.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from app.engine.backends.cpu import bfloat, nchwc_conv, nchwc_geometry
from app.engine.backends.cpu.nchwc_conv import Form
from app.engine.backends.cpu.nchwc_geometry import Array, Geometry
from app.engine.backends.cpu.rows import after, group_roofline
from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.registry import PlanningContext
from app.engine.operators import conv_geometry
from app.kernels.cpu.bfloat import PLANES
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.matrix_tiles import BEHIND, LANES


@dataclass(frozen=True, slots=True)
class Phased(Geometry):
    """A strip of blocks of 32 channels, which has the phases of the strides apart."""

    tiled: ClassVar[bool] = True

    @property
    def line(self) -> int:
        """Pixels of a row of one phase."""
        return self.columns + (self.along[-1] + self.left) // self.stride_w

    def lines(self, rows: int) -> int:
        """Rows of one phase."""
        return rows + (self.down[-1] + self.top) // self.stride_h

    @property
    def phases(self) -> tuple[int, int]:
        """How many phases of the strides taps read along the axes."""
        down = max((i + self.top) % self.stride_h for i in self.down)
        return down + 1, max((j + self.left) % self.stride_w for j in self.along) + 1

    def strip(self, rows: int) -> int:
        """Elements of a strip and of what is read behind it."""
        images = self.window.channels // self.x_lanes * self.phases[0] * self.phases[1]
        return (images * self.lines(rows) * self.line + BEHIND) * self.x_lanes

    def places(self, rows: int) -> tuple[Array, Array]:
        """Where output pixels of a strip and taps read it."""
        line, image = self.line, self.lines(rows) * self.line
        pixels = np.add.outer(np.arange(rows) * line, np.arange(self.columns))
        taps = []
        for i in self.down:
            row, phase_h = divmod(i + self.top, self.stride_h)
            for j in self.along:
                column, phase_w = divmod(j + self.left, self.stride_w)
                taps.append((phase_h * self.phases[1] + phase_w) * image + row * line + column)
        return pixels * self.x_lanes, np.array(taps, np.int64) * self.x_lanes

    def weights(self, array: Array, *, paired: bool) -> Array:
        """Pairs of channels, zeros at the end."""
        pairs = Geometry.weights(self, array, paired=paired)
        return np.pad(pairs, ((0, 0), (0, self.window.channels - pairs.shape[1]), (0, 0)))


@dataclass(frozen=True, slots=True)
class Interleaved(Geometry):
    """A strip of a few planes whose channels lie side by side, as 2 or 4 bfloat16 of a pixel.

    So the taps of a row are steps of the reduction, neighboring pixels overlap, and no phases are needed.
    What a row has beyond its taps is multiplied with zeros, hence finite in, finite out: infinities and
    NaN reach pixels a little further away, as they do in Winograd's algorithm.
    """

    tiled: ClassVar[bool] = True
    planes: int = 0

    @property
    def pixel(self) -> int:
        """Pairs of a pixel."""
        return -(-self.planes // 2)

    @property
    def line(self) -> int:
        """Pixels of a row: a whole number of steps between output pixels, to the end of the last step."""
        read = max(self.along[-1] + 1, self.along[0] + self.window.channels // self.pixel)
        reach = (self.columns - 1) * self.stride_w + self.left + read
        return -(-max(reach, self.left + 1) // self.stride_w) * self.stride_w

    def strip(self, rows: int) -> int:
        """Elements of a strip and of what is read, or filled, behind it."""
        behind = BEHIND * self.stride_w * self.pixel + self.window.channels + LANES * self.pixel
        return self.lines(rows) * self.line * self.pixel + behind

    def places(self, rows: int) -> tuple[Array, Array]:
        """Where output pixels of a strip and taps read it; the taps of a row begin at one place."""
        row, column = self.stride_h * self.line, self.stride_w
        pixels = np.add.outer(np.arange(rows) * row, np.arange(self.columns) * column) * self.pixel
        taps = [((i + self.top) * self.line + self.along[0] + self.left) * self.pixel for i in self.down]
        return pixels, np.array(taps, np.int64)

    def weights(self, array: Array, *, paired: bool) -> Array:
        """Channels of the taps of a row as steps, one after the other; of what lies between, zeros."""
        steps = np.zeros((array.shape[0], 2 * self.window.channels, array.shape[2]), array.dtype)
        for j, offset in enumerate(self.along):
            first = (offset - self.along[0]) * 2 * self.pixel
            steps[:, first : first + self.planes] = array[:, :, :, j]
        return Geometry.weights(self, steps, paired=paired)

    def row_bytes(self, _blocks: int) -> int:
        """Bytes that a row of the input takes in a strip."""
        return self.pixel * 4 * self.w

    @property
    def static(self) -> tuple[object, ...]:
        """Pairs between neighboring output pixels, and channels of the input."""
        return self.pixel * self.stride_w, self.planes


def _phased(group: Group, context: PlanningContext) -> Phased:
    window, lanes = conv_geometry.of_conv(group), context.target.vector_lanes
    plain = nchwc_geometry.geometry(group, lanes, paired=True)
    channels = -(-window.channels // (2 * lanes)) * lanes
    return Phased(
        replace(plain.window, channels=channels), plain.rows, plain.columns, plain.h, plain.w,
        plain.stride_h, plain.stride_w, plain.down, plain.along, lanes, copied=True,
    )  # fmt: skip


def _interleaved(group: Group) -> Interleaved:
    window = conv_geometry.of_conv(group)
    (_, rows, columns), (_, h, w), (_, down, along) = window.out, window.size, window.offsets
    elements = (along[-1] - along[0] + 1) * -(-window.channels // 2) * 2
    steps = replace(window, channels=-(-elements // (2 * LANES)) * LANES, offsets=((0,), down, (0,)))
    return Interleaved(
        steps,
        rows,
        columns,
        h,
        w,
        *window.stride[1:],
        down,
        along,
        LANES,
        copied=True,
        planes=window.channels,
    )


@dataclass(frozen=True, slots=True)
class TiledForm(Form):
    """Which of the rows it is: over planes or blocks."""

    paired: bool = True

    def geometry(self, group: Group, context: PlanningContext) -> Geometry:
        """The geometry of a convolution in this form."""
        return _interleaved(group) if self.plain_input else _phased(group, context)

    def dtype(self, _group: Group, _context: PlanningContext) -> str:
        """Type of the factors."""
        return tiles.TILED_BFLOATS

    def rejection(self, group: Group, context: PlanningContext) -> str | None:
        """Reason why it does not apply."""
        rejection = _stem_rejection if self.plain_input else nchwc_conv.rejection
        return bfloat.tiles_rejection(context) or rejection(group, context)


@after(nchwc_conv.stem_rejection)
def _stem_rejection(group: Group, _context: PlanningContext) -> str | None:
    channels = conv_geometry.of_conv(group).channels
    return f"{channels} channels; a pixel takes up to {PLANES}" if channels > PLANES else None


def _cost(form: TiledForm, group: Group, context: PlanningContext) -> float:
    """Tiles are whole; the larger part of the time goes to what is read, rounded and written."""
    shape, x, y = form.geometry(group, context), graph.operand(group.anchor, 0), group.outputs[0]
    window = shape.window
    # Those between two rows of the output are computed too; planes keep the pixels that a stride skips.
    along = shape.line // shape.stride_w if form.plain_input else shape.line
    pixels = shape.rows * along * window.batch * window.groups
    outputs = -(-window.outputs // LANES) * LANES
    products = 2.0 * pixels * outputs * 2 * window.depth / bfloat.TILES_RATE
    moved = bfloat.ROUNDING * graph.elements(x) + bfloat.ENDING * graph.elements(y)
    return group_roofline(group, context, products + moved, 0.95)


FORMS = {"conv.blocked_tiles": TiledForm(), "conv.blocked_stem_tiles": TiledForm(plain_input=True)}

IMPLEMENTATIONS = nchwc_conv.rows(FORMS, _cost, rank=0)
