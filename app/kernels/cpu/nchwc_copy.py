"""Copies between row-major and channel-blocked images, by transposes of square tiles in registers.

A tile is `lanes` channels times as many pixels: a register of pixels per channel on one side, a
register of channels per pixel on the other. With channels last (NHWC) the row-major image too has
registers of channels, which are copied as they are.
"""

from typing import Any

from numba import types

from app.kernels.cpu.codegen.instructions import Vectors, number, typed
from app.kernels.cpu.copies import transposed
from app.kernels.cpu.strips import STRIPS

_SOURCE = """\
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.nchwc_copy import {tile} as tile
from app.kernels.cpu.codegen.generator import at

LANES = {lanes}
whole = tile(LANES, False)
partial = tile(LANES, True)


@njit
def copied(x, y, stride, pixels, start, stop, count):
    # Pixels start..stop of `pixels` side by side, of `count` channels; `stride` lies from channel to channel.
    if pixels < LANES:
        for i in range(start, stop):
{few}
        return
    for j in range(start, stop, LANES):
        i = min(j, pixels - LANES)  # the last tile overlaps the one before
        if count == LANES:
            whole({addresses}, stride, count)
        else:
            partial({addresses}, stride, count)


"""

_KERNEL = """\
def kernel(x, y, blocks, channels, pixels, part, begin, end):
    parts = (pixels + part - 1) // part
    for unit in range(begin, end):
        plane, start = unit // parts, unit % parts * part
        channel = plane % blocks * LANES
        lines, vectors = (plane // blocks * channels + channel) * pixels, plane * pixels * LANES
        copied(at(x, {x_place}), at(y, {y_place}), pixels, pixels, start, min(start + part, pixels),
               min(channels - channel, LANES))
"""

_STRIP = """\
def kernel(x, y, blocks, channels, rows, w, rings, cursors, most, begin, end, thread):
    {unpack_rings}
{span}
    while first < last:
{piece}
        x_slot = (first - x_origin) % x_ring
        count = min(count, x_ring - x_slot)
{planes}            channel = plane * LANES
            lines = (channel * {plain}_ring + {plain}_slot) * w
            vectors = (plane * {blocked}_ring + {blocked}_slot) * w * LANES
            copied(at(x, {x_place}), at(y, {y_place}), {plain}_ring * w, count * w, upper * w, lower * w,
                   min(channels - channel, LANES))
        first += count
"""

_FEW_BLOCK = """\
            for c in range(LANES):
                y[i * LANES + c] = x[c * stride + i] if c < count else 0"""

_FEW_UNBLOCK = """\
            for c in range(count):
                y[c * stride + i] = x[i * LANES + c]"""


def _signature() -> Any:
    address, size = types.CPointer(types.float32), types.int64
    return types.void(address, address, size, size)


def block_tile(lanes: int, partial: bool) -> Any:
    """An intrinsic: block(x, y, x_row, m) sets y[p * lanes + c] = x[c * x_row + p], all below `lanes`.

    When `partial`, only m >= 1 channels are read, and the others are 0.
    """

    def generate(context, builder, _signature, values):
        x, y, x_row, m = values
        v = Vectors(builder, "float32", lanes)
        rows = []
        for c in range(lanes):
            row = number(c)
            if partial:
                inside = builder.icmp_signed("<", row, m)
                row = builder.select(inside, row, number(0))
            vector = v.load(v.at(x, builder.mul(row, x_row)))
            rows.append(builder.select(inside, vector, v.zero) if partial else vector)
        for p, vector in enumerate(transposed(v, rows)):
            v.store(vector, v.at(y, p * lanes))
        return context.get_dummy_value()

    return typed(_signature(), generate)


def unblock_tile(lanes: int, partial: bool) -> Any:
    """An intrinsic: unblock(x, y, y_row, m) sets y[c * y_row + p] = x[p * lanes + c], all below `lanes`.

    When `partial`, only m channels are written.
    """

    def generate(context, builder, _signature, values):
        x, y, y_row, m = values
        v = Vectors(builder, "float32", lanes)
        rows = transposed(v, [v.load(v.at(x, p * lanes)) for p in range(lanes)])
        v.store_lines(rows, y, y_row, m if partial else number(lanes))
        return context.get_dummy_value()

    return typed(_signature(), generate)


def emit_block(lanes: int) -> str:
    """The module of a copy to blocks; `lanes` is a power of two, at least 4.

    x: float32[batch, channels, pixels]; y: float32[batch, blocks, pixels, lanes], whose lanes beyond
    the channels become 0. Units are parts of `part` pixels, a multiple of `lanes` (fastest), blocks,
    images.
    """
    return _module(lanes, _KERNEL, x_place="lines", y_place="vectors")


def emit_unblock(lanes: int) -> str:
    """The module of a copy from blocks: `emit_block` with x and y exchanged; padded lanes are not read."""
    return _module(lanes, _KERNEL, x_place="vectors", y_place="lines")


def emit_block_strip(lanes: int) -> str:
    """The module of a copy of the next rows to blocks, see `strips`.

    x: float32[channels, x_ring, w]; y: float32[blocks, y_ring, w, lanes]; rows: of the image; rings:
    RingSizes; cursors: int64[operators], the next rows; most: rows of the call. Units are shares of the rows
    of all blocks.
    """
    return _strip(lanes, x_place="lines", y_place="vectors", plain="x", blocked="y")


def emit_unblock_strip(lanes: int) -> str:
    """The module of a copy of the next rows from blocks: `emit_block_strip` with x and y exchanged."""
    return _strip(lanes, x_place="vectors", y_place="lines", plain="y", blocked="x")


def _strip(lanes: int, **names: str) -> str:
    return _module(lanes, _STRIP, **STRIPS, **names)


def _module(lanes: int, kernel: str, **names: str) -> str:
    blocks = names["y_place"] == "vectors"
    source = _SOURCE.format(
        lanes=lanes,
        tile="block_tile" if blocks else "unblock_tile",
        few=_FEW_BLOCK if blocks else _FEW_UNBLOCK,
        addresses="at(x, i), at(y, i * LANES)" if blocks else "at(x, i * LANES), at(y, i)",
    )
    return source + kernel.format(**names)


def zero_lanes(x, y, x_address, y_address, blocks, pixels, lanes, count, begin, end):
    """Y is x with zeros in the lanes from `count` on of the last block of each image; y may be x.

    x, y: float32[batch, blocks, pixels, lanes], and their addresses. Units are blocks.
    """
    for unit in range(begin, end):
        start, stop = unit * pixels * lanes, (unit + 1) * pixels * lanes
        if x_address != y_address:
            for i in range(start, stop):
                y[i] = x[i]
        if unit % blocks == blocks - 1:
            for i in range(start, stop, lanes):
                for lane in range(count, lanes):
                    y[i + lane] = 0


_LAST = """\
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.nchwc_copy import vector_copy
from app.kernels.cpu.codegen.generator import at

LANES = {lanes}
copy = vector_copy(LANES)


def kernel(x, y, blocks, channels, pixels, part, begin, end):
    parts = (pixels + part - 1) // part
    for unit in range(begin, end):
        image, start = unit // parts, unit % parts * part
        stop = min(start + part, pixels)
        for block in range(blocks):
            count = min(channels - block * LANES, LANES)
            vectors = (image * blocks + block) * pixels * LANES
            rows = image * pixels * channels + block * LANES
            if count == LANES:
                for i in range(start, stop):
                    copy({addresses})
            else:
                for i in range(start, stop):
{few}
"""

_FEW_LAST_BLOCK = """\
                    for c in range(LANES):
                        y[vectors + i * LANES + c] = x[rows + i * channels + c] if c < count else 0"""

_FEW_LAST_UNBLOCK = """\
                    for c in range(count):
                        y[rows + i * channels + c] = x[vectors + i * LANES + c]"""


def vector_copy(lanes: int) -> Any:
    """An intrinsic: copy(x, y) sets y[c] = x[c] for all c below `lanes`."""

    def generate(context, builder, _signature, values):
        x, y = values
        v = Vectors(builder, "float32", lanes)
        v.store(v.load(x), y)
        return context.get_dummy_value()

    address = types.CPointer(types.float32)
    return typed(types.void(address, address), generate)


def emit_block_last(lanes: int) -> str:
    """The module of a copy from channels last to blocks.

    x: float32[batch, pixels, channels]; y: float32[batch, blocks, pixels, lanes], whose lanes beyond
    the channels become 0. Units are parts of `part` pixels (fastest), images.
    """
    addresses = "at(x, rows + i * channels), at(y, vectors + i * LANES)"
    return _LAST.format(lanes=lanes, few=_FEW_LAST_BLOCK, addresses=addresses)


def emit_unblock_last(lanes: int) -> str:
    """The module of a copy from blocks: `emit_block_last`, x and y exchanged; padded lanes are not read."""
    addresses = "at(x, vectors + i * LANES), at(y, rows + i * channels)"
    return _LAST.format(lanes=lanes, few=_FEW_LAST_UNBLOCK, addresses=addresses)
