"""Pooling over channel-blocked images: maximum and average of windows and of whole images.

A vector is one pixel of a block of channels, so neither windows nor whole images need anything
across lanes.
"""

import textwrap
from typing import Any

import llvmlite.ir as ll
from numba.extending import intrinsic

from app.kernels.cpu.codegen.instructions import I32
from app.kernels.cpu.pool import WINDOWS
from app.kernels.cpu.strips import STRIPS

SUMS = 8  # that a whole image is added up in side by side, to hide the latency of an addition
RUN = 1024  # pixels added up before their sum joins the total, so that errors do not grow with the size
LINE = SUMS  # pixels of a row at least, where it is rows that are added up before: strips have whole ones

PIXELS = 4  # of a tile

_WINDOW = """\
import math

from numba import float32
from app.kernels.cpu.codegen.inner import njit

from app.kernels.cpu.nchwc_pool import either, larger, unordered
from app.kernels.cpu.extrema import maximum
from app.kernels.cpu.codegen.vectors import load, splat, store


@njit(error_model="numpy", boundscheck=False)
def each(x, y, columns, columns_counted, begin, end, base, height, line_step, column_step, counted, target):
    for column in range(begin, end):
        place = base + columns[2 * column] * {L}
        a = splat({start}, {L})
        for i in range(height):
            for j in range(columns[2 * column + 1]):
                b = load(x, place + i * line_step + j * column_step, {L})
                a = {step}
        n = splat(counted * columns_counted[column], {L})
        store(y, target + column * {L}, {finish})


def kernel(
    x, y, lines, columns, lines_counted, columns_counted, h, w, oh, ow, inner, outer, line_step, column_step,
    begin, end,
):
    for unit in range(begin, end):
        row = unit % oh
        height, counted = lines[2 * row + 1], lines_counted[row]
        base = (unit // oh * h + lines[2 * row]) * w * {L}
        target = unit * ow * {L}
        first, last = inner, outer
        if height != {kh} or last - first < {pixels}:
            first, last = ow, ow
        each(x, y, columns, columns_counted, 0, first, base, height, line_step, column_step, counted, target)
        for column in range(first, last, {pixels}):
            column = min(column, last - {pixels})
            place, to = base + columns[2 * column] * {L}, target + column * {L}
            n = splat(counted * columns_counted[column], {L})
{tile}
        each(x, y, columns, columns_counted, last, ow, base, height, line_step, column_step, counted, target)
"""


def _binary(name: str, write: Any) -> Any:
    """An intrinsic on two float32 vectors whose result is one."""

    def body(_context, a, b):
        def generate(_context, builder, _signature, values):
            return write(builder, *values)

        return a(a, b), generate

    body.__name__ = name
    return intrinsic(body)


def _bits(builder: Any, vector: Any) -> Any:
    return builder.bitcast(vector, ll.VectorType(I32, vector.type.count))


# The larger of two numbers, but the second if either is NaN: one instruction of x86.
larger = _binary("larger", lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))
# All bits set, which is a NaN, where either is NaN; else zero.
unordered = _binary(
    "unordered",
    lambda b, x, y: b.bitcast(
        b.sext(b.fcmp_unordered("uno", x, y), ll.VectorType(I32, x.type.count)), x.type
    ),
)
# Bits that are set in either.
either = _binary("either", lambda b, x, y: b.bitcast(b.or_(_bits(b, x), _bits(b, y)), x.type))


def _tile(
    op: str, lanes: int, kh: int, kw: int, stride: int, dilation: int, row_offset: str = "{i} * line_step"
) -> list[str]:
    """Lines that reduce PIXELS whole windows; a column that several read is reduced once.

    `row_offset` is where row i of a window begins. A maximum that keeps NaN takes three instructions; so
    maxima that lose it are taken beside a mask of where it was.
    """
    row = WINDOWS[op]
    keeps = op == "max"
    lines: list[str] = []

    def reduced(name: str, values: list[str]) -> None:
        total = values[0]
        for value in values[1:]:
            total = f"larger({total}, {value})" if keeps else f"({row.step.format(a=total, b=value)})"
        lines.append(f"{name} = {total}")

    made: set[int] = set()
    for p in range(PIXELS):
        window = [p * stride + t * dilation for t in range(kw)]
        for j in window:
            if j in made:
                continue
            made.add(j)
            for i in range(kh):
                lines.append(f"r{i} = load(x, place + {row_offset.format(i=i)} + {j * lanes}, {lanes})")
            reduced(f"m{j}", [f"r{i}" for i in range(kh)])
            if keeps:
                masks = [f"unordered(r{i}, r{min(i + 1, kh - 1)})" for i in range(0, kh, 2)]
                lines.append(f"n{j} = {_joined(masks)}")
        reduced("a", [f"m{j}" for j in window])
        if keeps:
            lines.append(f"a = either(a, {_joined([f'n{j}' for j in window])})")
        lines.append(f"store(y, to + {p * lanes}, {row.finish.format(t='a', n='n')})")
    return lines


def _joined(masks: list[str]) -> str:
    total = masks[0]
    for mask in masks[1:]:
        total = f"either({total}, {mask})"
    return total


def emit_window(op: str, lanes: int, kh: int, kw: int, stride: int, dilation: int) -> str:
    """The module of a pooling kernel.

    x: float32[planes, h, w, lanes]; y: float32[planes, oh, ow, lanes]; lines: int64[oh, 2], columns:
    int64[ow, 2]: first index inside x and number of those that a window spans; lines_counted:
    float32[oh], columns_counted: float32[ow]: how many the average counts; inner, outer: the columns
    [inner, outer) of whole windows that count alike; line_step, column_step: elements from tap to
    tap. Units are output rows.

    Args:
        op: `max` or `average`.
        lanes: channels in a block.
        kh: rows of windows without a loop.
        kw: columns of those.
        stride: along the width.
        dilation: along the width.
    """
    row = WINDOWS[op]
    return _WINDOW.format(
        L=lanes,
        start="float32(-math.inf)" if row.start == "lowest" else f"float32({row.start})",
        kh=kh,
        pixels=PIXELS,
        step=row.step.format(a="a", b="b"),
        finish=row.finish.format(t="a", n="n"),
        tile="\n".join(" " * 12 + line for line in _tile(op, lanes, kh, kw, stride, dilation)),
    )


_STRIP = """\
import math

from numba import float32
from app.kernels.cpu.codegen.inner import njit

from app.kernels.cpu.nchwc_pool import either, larger, unordered
from app.kernels.cpu.extrema import maximum
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.vectors import load, splat, store


@njit(error_model="numpy", boundscheck=False)
def each(x, y, columns, columns_counted, begin, end, base, slot, height, ring, line, dilation, column_step,
         counted, target):
    for column in range(begin, end):
        place = base + columns[2 * column] * {L}
        a = splat({start}, {L})
        for i in range(height):
            row = place + (slot + i * dilation) % ring * line
            for j in range(columns[2 * column + 1]):
                b = load(x, row + j * column_step, {L})
                a = {step}
        n = splat(counted * columns_counted[column], {L})
        store(y, target + column * {L}, {finish})


def kernel(
    x, y, lines, columns, lines_counted, columns_counted, blocks, w, rows, ow, inner, outer, dilation,
    column_step, rings, cursors, most, begin, end, thread,
):
    {unpack_rings}
{span}
    line = w * {L}
    while first < last:
{piece}{planes}            base = plane * x_ring * line
            for i in range(upper, lower):
                row = first + i
                height, counted = lines[2 * row + 1], lines_counted[row]
                slot = (lines[2 * row] - x_origin) % x_ring
{offsets}
                target = (plane * y_ring + y_slot + i) * ow * {L}
                begun, ended = inner, outer
                if height != {kh} or ended - begun < {pixels}:
                    begun, ended = ow, ow
                each(x, y, columns, columns_counted, 0, begun, base, slot, height, x_ring, line, dilation,
                     column_step, counted, target)
                for column in range(begun, ended, {pixels}):
                    column = min(column, ended - {pixels})
                    place, to = base + columns[2 * column] * {L}, target + column * {L}
                    n = splat(counted * columns_counted[column], {L})
{tile}
                each(x, y, columns, columns_counted, ended, ow, base, slot, height, x_ring, line, dilation,
                     column_step, counted, target)
        first += count
"""


def emit_strip(op: str, lanes: int, kh: int, kw: int, stride: int, dilation: int) -> str:
    """The module of a pooling kernel that computes the next rows, see `strips`.

    x: float32[blocks, x_ring, w, lanes]; y: float32[blocks, y_ring, ow, lanes]; rows: of the output;
    dilation: rows from tap to tap; rings: RingSizes; cursors: int64[operators], the next rows; most: rows of
    the call. The other arguments are those of `emit_window`, for an image alone. Units are
    shares of the rows of all blocks.
    """
    row = WINDOWS[op]
    offsets = [f"o{i} = (slot + {i} * dilation) % x_ring * line" for i in range(kh)]
    return _STRIP.format(
        L=lanes,
        start="float32(-math.inf)" if row.start == "lowest" else f"float32({row.start})",
        kh=kh,
        pixels=PIXELS,
        step=row.step.format(a="a", b="b"),
        finish=row.finish.format(t="a", n="n"),
        **STRIPS,
        offsets="\n".join(" " * 16 + line for line in offsets),
        tile="\n".join(" " * 20 + line for line in _tile(op, lanes, kh, kw, stride, dilation, "o{i}")),
    )


# Adds `count` pixels of a block from element `place` on to `total`, see `_sum`.
_SUM = """\
{starts}
whole = count // {sums} * {sums}
for i in range(place, place + whole * {L}, {sums} * {L}):
{steps}
for i in range(place + whole * {L}, place + count * {L}, {L}):
    b = load(x, i, {L})
    a0 = {step0}
{joins}
a = total
b = a0
total = {step}
"""

_WHOLE_HEAD = """\
import math

from numba import float32

from app.kernels.cpu.extrema import maximum
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.vectors import load, splat, store


"""

_WHOLE = """\
def kernel(x, y, spare, blocks, channels, pixels, run, begin, end, thread):
    for plane in range(begin, end):
        total = splat({start}, {L})
        first = 0
        while first < pixels:
            count = min(run, pixels - first)
            place = (plane * pixels + first) * {L}
{sum}
            first += count
        a = total
        n = splat(float32(pixels), {L})
        result = {finish}
        start = plane % blocks * {L}
        count = min(channels - start, {L})
        target = plane // blocks * channels + start
        if count == {L}:
            store(y, target, result)
        else:
            store(spare, thread * {L}, result)
            for i in range(count):
                y[target + i] = spare[thread * {L} + i]
"""

_WHOLE_STRIP = """\
def kernel(x, y, blocks, channels, rows, w, rings, cursors, most, buffer, begin, end, thread):
    {unpack_rings}
{span}
    spare = at(buffer, work_at + thread * {L})
    while first < last:
        x_slot = (first - x_origin) % x_ring
        held = min(last - first, x_ring - x_slot)  # rows that lie side by side
        for plane in range(blocks * begin // shares, blocks * end // shares):
            target = plane * {L}
            used = min(channels - target, {L})
            total = splat({start}, {L})
            if first > 0:
                for i in range(used):
                    spare[i] = y[target + i]
                total = load(spare, 0, {L})
            count = w
            for row in range(held):
                place = (plane * x_ring + x_slot + row) * w * {L}
{sum}
            a = total
            if first + held == rows:
                n = splat(float32(rows * w), {L})
                a = {finish}
            store(spare, 0, a)
            for i in range(used):
                y[target + i] = spare[i]
        first += held
"""


def emit_whole(op: str, lanes: int) -> str:
    """The module of a kernel that reduces whole images.

    x: float32[batch, blocks, pixels, lanes]; y: float32[batch, channels]; spare: float32[threads,
    lanes]; run: pixels that are added up before their sum joins the total. Units are blocks of images.

    Args:
        op: `max` or `average`.
        lanes: channels in a block.
    """
    return _whole(_WHOLE, op, lanes, 12)


def emit_whole_strip(op: str, lanes: int) -> str:
    """The module of a kernel that adds the next rows of an image to what `emit_whole` makes of it.

    It is that of a run of a row, bit by bit: after the last row y: float32[channels], the total before. x:
    float32[blocks, x_ring, w, lanes]; rows: of x; rings: RingSizes; cursors: int64[operators], the next rows;
    most: rows of the call; buffer: float32[threads, lanes]. Units are shares of the blocks.
    """
    return _whole(_WHOLE_STRIP, op, lanes, 16)


def _whole(kernel: str, op: str, lanes: int, indent: int) -> str:
    row = WINDOWS[op]
    start = "float32(-math.inf)" if row.start == "lowest" else f"float32({row.start})"
    return (_WHOLE_HEAD + kernel).format(
        L=lanes,
        start=start,
        finish=row.finish.format(t="a", n="n"),
        sum=textwrap.indent(_sum(op, lanes, start), " " * indent),
        **STRIPS,
    )


def _sum(op: str, lanes: int, start: str) -> str:
    """Lines that reduce pixels side by side, SUMS at a time, and join the result with the total."""
    row = WINDOWS[op]

    def step(a: str, b: str) -> str:
        return f"{a} = {row.step.format(a=a, b=b)}"

    starts = [f"a{k} = splat({start}, {lanes})" for k in range(SUMS)]
    steps = [step(f"a{k}", f"load(x, i + {k * lanes}, {lanes})") for k in range(SUMS)]
    joins, distance = [], SUMS // 2
    while distance:
        joins += [step(f"a{k}", f"a{k + distance}") for k in range(distance)]
        distance //= 2
    return _SUM.format(
        L=lanes,
        sums=SUMS,
        starts="\n".join(starts),
        steps="\n".join(f"    {line}" for line in steps),
        joins="\n".join(joins),
        step0=row.step.format(a="a0", b="b"),
        step=row.step.format(a="a", b="b"),
    )
