"""Resampling of channel-blocked images: a vector is one pixel of a block.

float32[planes, h, w, lanes] becomes float32[planes, oh, ow, lanes]. Pixels are taken from the places
of tables, one along each axis; a negative place lies outside and takes the fill value.
"""

import textwrap

from app.kernels.cpu.strips import STRIPS

_NEAREST = """\
from app.kernels.cpu.codegen.vectors import load, splat, store


def kernel(x, {parameters}y, lines, columns, fill, h, w, oh, ow, begin, end):
    outside = splat(fill[0], {L})
    for unit in range(begin, end):
        row = lines[unit % oh]
        line = (unit // oh * h + row) * w
        target = beside = unit * ow * {L}
{copy}
"""

_NEAREST_STRIP = """\
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.vectors import load, splat, store


def kernel(
    x, {parameters}y, lines, columns, fill, blocks, w, rows, ow, rings, cursors, most, begin, end, thread
):
    {unpack_rings}
    outside = splat(fill[0], {L})
{span}
    while first < last:
{piece}{planes}            for i in range(upper, lower):
                row = lines[first + i]
                line = (plane * x_ring + (row - x_origin) % x_ring) * w
                target = (plane * y_ring + y_slot + i) * ow * {L}
                beside = r_at + (plane * r_ring + r_slot + i) * ow * {L}
{copy}
        first += count
"""

_COPY = """\
if row < 0:
    for j in range(ow):
        store(y, target + j * {L}, {added}outside)
else:
    for j in range(ow):
        if columns[j] < 0:
            store(y, target + j * {L}, {added}outside)
        else:
            store(y, target + j * {L}, {added}load(x, (line + columns[j]) * {L}, {L}))
"""

_TAPS = """\
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.vectors import load, splat, store


def kernel(
    x, y, lines, line_weights, columns, column_weights, fill, buffer, h, w, oh, ow, begin, end, thread
):
    outside = splat(fill[0], {L})
    line = at(buffer, thread * w * {L})
    for unit in range(begin, end):
        row = unit % oh
        image = at(x, unit // oh * h * w * {L})
{whole}
        target = unit * ow * {L}
{blend}
"""

_TAPS_STRIP = """\
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.vectors import load, splat, store


def kernel(
    x, y, lines, line_weights, columns, column_weights, fill, blocks, w, rows, ow, rings, cursors, most,
    buffer, begin, end, thread,
):
    {unpack_rings}
    outside = splat(fill[0], {L})
    line = at(buffer, work_at + thread * w * {L})
{span}
    while first < last:
{piece}{planes}            image = at(x, plane * x_ring * w * {L})
            for i in range(upper, lower):
                row = first + i
{ring}
                target = (plane * y_ring + y_slot + i) * ow * {L}
{blend}
        first += count
"""

_BLEND = """\
if lines[row * {down}] < 0:
    for j in range(ow):
        store(y, target + j * {L}, outside)
    continue
for j in range(w):
{rows}
    store(line, j * {L}, a)
for j in range(ow):
    if columns[j * {along}] < 0:
        store(y, target + j * {L}, outside)
    else:
{columns}
        store(y, target + j * {L}, a)
"""


def emit_nearest(lanes: int, addends: int) -> str:
    """The module of a copy of pixels.

    lines: int64[oh], columns: int64[ow]: places in x; fill: float32[1]. Units are output rows.

    Args:
        lanes: channels in a block.
        addends: operands after x that are added: of the shape of y, one maybe in its memory.
    """
    return _nearest(_NEAREST, lanes, addends, 8)


def emit_nearest_strip(lanes: int, addends: int) -> str:
    """The module of a kernel that copies the pixels of the next rows, see `strips`.

    x: float32[blocks, x_ring, w, lanes]; y: float32[blocks, y_ring, ow, lanes]; an addend: the same with
    r_ring rows; rows: of the output; rings: RingSizes; cursors: int64[operators], the next rows; most: rows
    of the call. The other arguments are those of `emit_nearest`, for an image alone and one addend at most.
    Units are shares of the rows of all blocks.
    """
    return _nearest(_NEAREST_STRIP, lanes, addends, 16)


def _nearest(kernel: str, lanes: int, addends: int, indent: int) -> str:
    names = [f"added{i}" for i in range(addends)]
    added = "".join(f"load({name}, beside + j * {lanes}, {lanes}) + " for name in names)
    return kernel.format(
        L=lanes,
        parameters="".join(f"{name}, " for name in names),
        copy=textwrap.indent(_COPY.format(L=lanes, added=added), " " * indent),
        **STRIPS,
    )


def emit_taps(lanes: int, down: int, along: int) -> str:
    """The module of a weighted sum: rows are blended into a line, whose pixels are blended then.

    lines: int64[oh, down], line_weights: float32[oh, down], columns: int64[ow, along], column_weights:
    float32[ow, along]; fill: float32[1]; buffer: float32[threads, w, lanes]. Units are output rows.

    Args:
        lanes: channels in a block.
        down: rows that an output pixel is made of.
        along: columns of those.
    """
    return _taps(_TAPS, lanes, down, along, 8)


def emit_taps_strip(lanes: int, down: int, along: int) -> str:
    """The module of a kernel that blends the next rows, see `strips`.

    x: float32[blocks, x_ring, w, lanes]; y: float32[blocks, y_ring, ow, lanes]; rows: of the output; rings:
    RingSizes; cursors: int64[operators], the next rows; most: rows of the call. The other arguments are those
    of `emit_taps`, for an image alone. Units are shares of the rows of all blocks.
    """
    return _taps(_TAPS_STRIP, lanes, down, along, 16)


def _taps(kernel: str, lanes: int, down: int, along: int, indent: int) -> str:
    rows = [
        _term(
            t, f"load(image, (source{t} + j) * {lanes}, {lanes})", f"line_weights[row * {down} + {t}]", lanes
        )
        for t in range(down)
    ]
    columns = []
    for t in range(along):
        place, weight = f"columns[j * {along} + {t}] * {lanes}", f"column_weights[j * {along} + {t}]"
        columns.append(_term(t, f"load(line, {place}, {lanes})", weight, lanes))
    blend = _BLEND.format(
        L=lanes,
        down=down,
        along=along,
        rows=textwrap.indent("\n".join(rows), " " * 4),
        columns=textwrap.indent("\n".join(columns), " " * 8),
    )
    sources = [f"lines[row * {down} + {t}]" for t in range(down)]
    whole = [f"source{t} = {line} * w" for t, line in enumerate(sources)]
    ring = [f"source{t} = ({line} - x_origin) % x_ring * w" for t, line in enumerate(sources)]
    return kernel.format(
        L=lanes,
        blend=textwrap.indent(blend, " " * indent),
        whole=textwrap.indent("\n".join(whole), " " * indent),
        ring=textwrap.indent("\n".join(ring), " " * indent),
        **STRIPS,
    )


def _term(index: int, pixel: str, weight: str, lanes: int) -> str:
    product = f"splat({weight}, {lanes}) * {pixel}"
    return f"a = {product}" if index == 0 else f"a = a + {product}"
