"""Pooling over images whose channels lie last (NHWC): maximum and average of windows and whole images.

A vector is some channels of one pixel, so nothing is needed across lanes.
"""

from app.kernels.cpu.nchwc_pool import RUN
from app.kernels.cpu.pool import WINDOWS, start_of

WIDE = 4  # vectors of channels that are reduced side by side
FEWEST = 16  # elements of the vectors that follow wider ones; fewer channels are taken one by one

_WINDOW = """\
import math

from numba import float32, float64, int8, uint8

from app.kernels.cpu.extrema import maximum
from app.kernels.cpu.codegen.vectors import load, splat, store


def kernel(
    x, y, lines, columns, lines_counted, columns_counted, h, w, oh, ow, channels, line_step, column_step,
    begin, end,
):
    for unit in range(begin, end):
        row = unit % oh
        height, counted = lines[2 * row + 1], lines_counted[row]
        base = (unit // oh * h + lines[2 * row]) * w * channels
        for column in range(ow):
            place = base + columns[2 * column] * channels
            target = (unit * ow + column) * channels
            width, number = columns[2 * column + 1], counted * columns_counted[column]
            c = 0
{blocks}
            while c < channels:
                a = {start}
                for i in range(height):
                    for j in range(width):
                        b = x[place + i * line_step + j * column_step + c]
                        a = {step}
                n = number
                y[target + c] = {finish}
                c += 1
"""

_BLOCK = """\
            while {more}:
                c = {first}
{starts}
                for i in range(height):
                    for j in range(width):
                        point = place + i * line_step + j * column_step + c
{steps}
                n = splat(number, {L})
{stores}
                c += {many}
"""

_WHOLE = """\
import math

from numba import float32

from app.kernels.cpu.extrema import maximum


def kernel(x, y, partial, channels, pixels, begin, end, thread):
    n = float32(pixels)
    for image in range(begin, end):
        target, run = image * channels, thread * channels
        for c in range(channels):
            y[target + c] = {start}
        for first in range(0, pixels, {run}):
            for c in range(channels):
                partial[run + c] = {start}
            for pixel in range(first, min(first + {run}, pixels)):
                place = (image * pixels + pixel) * channels
                for c in range(channels):
                    a, b = partial[run + c], x[place + c]
                    partial[run + c] = {step}
            for c in range(channels):
                a, b = y[target + c], partial[run + c]
                y[target + c] = {step}
        for c in range(channels):
            t = y[target + c]
            y[target + c] = {finish}
"""


def emit_window(op: str, lanes: int, dtype: str = "float32") -> str:
    """The module of a pooling kernel.

    x: T[batch, h, w, channels]; y: T[batch, oh, ow, channels]; lines: int64[oh, 2], columns:
    int64[ow, 2]: first index inside x and number of those that a window spans; lines_counted:
    T[oh], columns_counted: T[ow]: how many the average counts; line_step, column_step:
    elements from tap to tap. Units are output rows.

    Args:
        op: `max` or `average`.
        lanes: elements of a vector.
        dtype: of elements in registers.
    """
    row = WINDOWS[op]

    def block(vectors: int, lanes: int, *, overlapping: bool = False) -> str:
        """A loop over whole vectors; an overlapping one ends with the last channels, some of them again."""
        each, many = range(vectors), vectors * lanes
        return _BLOCK.format(
            many=many,
            more=f"c < channels and channels >= {many}" if overlapping else f"c + {many} <= channels",
            first=f"min(c, channels - {many})" if overlapping else "c",
            L=lanes,
            starts="\n".join(f"{'':16}a{v} = splat({start_of(op, dtype)}, {lanes})" for v in each),
            steps="\n".join(
                f"{'':24}a{v} = " + row.step.format(a=f"a{v}", b=f"load(x, point + {v * lanes}, {lanes})")
                for v in each
            ),
            stores="\n".join(
                f"{'':16}store(y, target + c + {v * lanes}, {row.finish.format(t=f'a{v}', n='n')})"
                for v in each
            ),
        )

    blocks = [block(WIDE, lanes)] + ([block(1, lanes)] if lanes > FEWEST else [])
    blocks.append(block(1, min(lanes, FEWEST), overlapping=True))
    return _WINDOW.format(
        blocks="".join(blocks),
        start=start_of(op, dtype),
        step=row.step.format(a="a", b="b"),
        finish=row.finish.format(t="a", n="n"),
    )


def emit_whole(op: str) -> str:
    """The module of a kernel that reduces whole images.

    x: float32[batch, pixels, channels]; y: float32[batch, channels]; partial: float32[threads, channels].
    Units are images.

    Args:
        op: `max` or `average`.
    """
    row = WINDOWS[op]
    return _WHOLE.format(
        start=start_of(op, "float32"),
        run=RUN,
        step=row.step.format(a="a", b="b"),
        finish=row.finish.format(t="t", n="n"),
    )
