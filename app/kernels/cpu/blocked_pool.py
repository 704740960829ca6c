"""Pooling over channel-blocked images: maximum and average of windows and of whole images.

A vector is one pixel of a block of channels, so neither windows nor whole images need anything
across lanes.
"""

from app.kernels.cpu.pool import WINDOWS

SUMS = 8  # that a whole image is added up in side by side, to hide the latency of an addition
RUN = 1024  # pixels added up before their sum joins the total, so that errors do not grow with the size

_WINDOW = """\
import math

from numba import float32

from app.kernels.cpu.extrema import maximum
from app.kernels.cpu.vectors import load, splat, store


def kernel(
    x, y, lines, columns, lines_counted, columns_counted, h, w, oh, ow, line_step, column_step, begin, end
):
    nothing = splat({start}, {L})
    for unit in range(begin, end):
        row = unit % oh
        height = lines[2 * row + 1]
        base = (unit // oh * h + lines[2 * row]) * w
        for column in range(ow):
            width = columns[2 * column + 1]
            place = (base + columns[2 * column]) * {L}
            a = nothing
            if height == {kh} and width == {kw}:
{whole}
            else:
                for i in range(height):
                    for j in range(width):
                        b = load(x, place + i * line_step + j * column_step, {L})
                        a = {step}
            n = splat(lines_counted[row] * columns_counted[column], {L})
            store(y, (unit * ow + column) * {L}, {finish})
"""


def emit_window(op: str, lanes: int, kh: int, kw: int) -> str:
    """The module of a pooling kernel.

    x: float32[planes, h, w, lanes]; y: float32[planes, oh, ow, lanes]; lines: int64[oh, 2], columns:
    int64[ow, 2]: first index inside x and number of those that a window spans; lines_counted:
    float32[oh], columns_counted: float32[ow]: how many the average counts; line_step, column_step:
    elements from tap to tap. Units are output rows.

    Args:
        op: `max` or `average`.
        lanes: channels in a block.
        kh: rows of windows without a loop.
        kw: columns of those.
    """
    row = WINDOWS[op]
    step = row.step.format(a="a", b="b")
    taps = [(i, j) for i in range(kh) for j in range(kw)]
    lines = [
        f"v{k} = load(x, place + {i} * line_step + {j} * column_step, {lanes})"
        for k, (i, j) in enumerate(taps)
    ]
    distance = 1
    while distance < len(taps):  # as a tree, whose steps do not wait for each other
        for k in range(0, len(taps) - distance, 2 * distance):
            lines.append(f"v{k} = {row.step.format(a=f'v{k}', b=f'v{k + distance}')}")
        distance *= 2
    lines.append("a = v0")
    return _WINDOW.format(
        L=lanes,
        start="float32(-math.inf)" if row.start == "lowest" else f"float32({row.start})",
        kh=kh,
        kw=kw,
        whole="\n".join(" " * 16 + line for line in lines),
        step=step,
        finish=row.finish.format(t="a", n="n"),
    )


_WHOLE = """\
import math

from numba import float32

from app.kernels.cpu.extrema import maximum
from app.kernels.cpu.vectors import load, splat, store


def kernel(x, y, spare, blocks, channels, pixels, begin, end, thread):
    for plane in range(begin, end):
        total = splat({start}, {L})
        for first in range(0, pixels, {run}):
            last = min(first + {run}, pixels)
            place = (plane * pixels + first) * {L}
{starts}
            whole = (last - first) // {sums} * {sums}
            for i in range(place, place + whole * {L}, {sums} * {L}):
{steps}
            for i in range(place + whole * {L}, (plane * pixels + last) * {L}, {L}):
                b = load(x, i, {L})
                a0 = {step0}
{joins}
            a = total
            b = a0
            total = {step}
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


def emit_whole(op: str, lanes: int) -> str:
    """The module of a kernel that reduces whole images.

    x: float32[batch, blocks, pixels, lanes]; y: float32[batch, channels]; spare: float32[threads,
    lanes]. Units are blocks of images.

    Args:
        op: `max` or `average`.
        lanes: channels in a block.
    """
    row = WINDOWS[op]
    start = "float32(-math.inf)" if row.start == "lowest" else f"float32({row.start})"

    def step(a: str, b: str) -> str:
        return f"{a} = {row.step.format(a=a, b=b)}"

    starts = [f"a{k} = splat({start}, {lanes})" for k in range(SUMS)]
    steps = [step(f"a{k}", f"load(x, i + {k * lanes}, {lanes})") for k in range(SUMS)]
    joins, distance = [], SUMS // 2
    while distance:
        joins += [step(f"a{k}", f"a{k + distance}") for k in range(distance)]
        distance //= 2
    return _WHOLE.format(
        L=lanes,
        start=start,
        run=RUN,
        sums=SUMS,
        starts="\n".join(" " * 12 + line for line in starts),
        steps="\n".join(" " * 16 + line for line in steps),
        joins="\n".join(" " * 12 + line for line in joins),
        step0=row.step.format(a="a0", b="b"),
        step=row.step.format(a="a", b="b"),
        finish=row.finish.format(t="a", n="n"),
    )
