"""Reductions over the channels of blocked images, whole blocks at a time.

Vectors of all blocks of a pixel are joined, then the lanes of the result: so padded lanes count like
channels, and must hold what changes nothing.
"""

from app.kernels.cpu.reduce import REDUCTIONS

PIXELS = 8  # side by side, to hide the latency of an addition
RUN = 64  # blocks that are joined before their sum joins the total, so that errors do not grow

_SOURCE = """\
import math

from numba import float32
from app.kernels.cpu.codegen.inner import njit

from app.kernels.cpu.extrema import maximum, minimum
from app.kernels.cpu.codegen.vectors import load, splat, store


@njit(error_model="numpy", boundscheck=False)
def joined(spare, at, count):
    t = spare[at]
    for i in range(at + 1, at + {L}):
        a, b = t, spare[i]
        t = {step}
    return {finish}


def kernel(x, y, spare, blocks, channels, pixels, begin, end, thread):
    count = float32(channels)
    scratch = thread * {width}
    parts = (pixels + {pixels} - 1) // {pixels}
    for unit in range(begin, end):
        image, first = unit // parts, unit % parts * {pixels}
        last = min(first + {pixels}, pixels)
        start = image * blocks * pixels * {L}
        target = image * pixels
        if last - first == {pixels}:
{totals}
            for begin_run in range(0, blocks, {run}):
                end_run = min(begin_run + {run}, blocks)
{partials}
                for block in range(begin_run, end_run):
                    place = start + (block * pixels + first) * {L}
{steps}
{joins}
{stores}
            for j in range({pixels}):
                y[target + first + j] = joined(spare, scratch + j * {L}, count)
        else:
            for j in range(first, last):
                a = splat(float32({start}), {L})
                for block in range(blocks):
                    v = load(x, start + (block * pixels + j) * {L}, {L})
                    b = {element}
                    a = {step}
                store(spare, scratch, a)
                y[target + j] = joined(spare, scratch, count)
"""


def emit_channels(op: str, lanes: int) -> str:
    """The module of a kernel that reduces the channels of every pixel.

    x: float32[batch, blocks, pixels, lanes]; y: float32[batch, pixels]; spare: float32[threads, PIXELS,
    lanes]; channels: how many a mean counts. Units are parts of PIXELS pixels (fastest) of images.

    Args:
        op: of `app.kernels.cpu.reduce.REDUCTIONS`. Padded lanes of x hold 0 where it adds; where it does
            not, there are none.
        lanes: channels in a block.
    """
    row = REDUCTIONS[op]
    start = {"lowest": "-math.inf", "highest": "math.inf"}.get(row.start, row.start)
    numbers = range(PIXELS)

    def lines(indent: int, *texts: str) -> str:
        return "\n".join(" " * indent + text.format(k=k, at=k * lanes) for k in numbers for text in texts)

    initial = f"splat(float32({start}), {lanes})"
    step = row.step  # of a and b
    return _SOURCE.format(
        L=lanes,
        start=start,
        pixels=PIXELS,
        width=PIXELS * lanes,
        run=RUN,
        element=row.element,
        step=step,
        finish=row.finish,
        totals=lines(12, f"t{{k}} = {initial}"),
        partials=lines(16, f"p{{k}} = {initial}"),
        steps=lines(
            20, f"v = load(x, place + {{at}}, {lanes})", f"b = {row.element}", "a = p{k}", f"p{{k}} = {step}"
        ),
        joins=lines(16, "a = t{k}", "b = p{k}", f"t{{k}} = {step}"),
        stores=lines(12, "store(spare, scratch + {at}, t{k})"),
    )
