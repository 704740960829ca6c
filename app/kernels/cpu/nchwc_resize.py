"""Resampling of channel-blocked images: a vector is one pixel of a block.

float32[planes, h, w, lanes] becomes float32[planes, oh, ow, lanes]. Pixels are taken from the places
of tables, one along each axis; a negative place lies outside and takes the fill value.
"""

_NEAREST = """\
from app.kernels.cpu.codegen.vectors import load, splat, store


def kernel(x, {parameters}y, rows, columns, fill, h, w, oh, ow, begin, end):
    outside = splat(fill[0], {L})
    for unit in range(begin, end):
        row = rows[unit % oh]
        line = (unit // oh * h + row) * w
        target = unit * ow * {L}
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
    x, y, rows, row_weights, columns, column_weights, fill, buffer, h, w, oh, ow, begin, end, thread
):
    outside = splat(fill[0], {L})
    line = at(buffer, thread * w * {L})
    for unit in range(begin, end):
        i = unit % oh
        image = at(x, unit // oh * h * w * {L})
        target = unit * ow * {L}
        if rows[i * {down}] < 0:
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

    rows: int64[oh], columns: int64[ow]: places in x; fill: float32[1]. Units are output rows.

    Args:
        lanes: channels in a block.
        addends: operands after x that are added: of the shape of y, one maybe in its memory.
    """
    names = [f"added{i}" for i in range(addends)]
    return _NEAREST.format(
        L=lanes,
        parameters="".join(f"{name}, " for name in names),
        added="".join(f"load({name}, target + j * {lanes}, {lanes}) + " for name in names),
    )


def emit_taps(lanes: int, down: int, along: int) -> str:
    """The module of a weighted sum: rows are blended into a line, whose pixels are blended then.

    rows: int64[oh, down], row_weights: float32[oh, down], columns: int64[ow, along], column_weights:
    float32[ow, along]; fill: float32[1]; buffer: float32[threads, w, lanes]. Units are output rows.

    Args:
        lanes: channels in a block.
        down: rows that an output pixel is made of.
        along: columns of those.
    """
    rows, columns = [], []
    for t in range(down):
        place, weight = f"(rows[i * {down} + {t}] * w + j) * {lanes}", f"row_weights[i * {down} + {t}]"
        rows.append(_term(t, f"load(image, {place}, {lanes})", weight, lanes))
    for t in range(along):
        place, weight = f"columns[j * {along} + {t}] * {lanes}", f"column_weights[j * {along} + {t}]"
        columns.append(_term(t, f"load(line, {place}, {lanes})", weight, lanes))
    return _TAPS.format(
        L=lanes,
        down=down,
        along=along,
        rows="\n".join(" " * 12 + line for line in rows),
        columns="\n".join(" " * 16 + line for line in columns),
    )


def _term(index: int, pixel: str, weight: str, lanes: int) -> str:
    product = f"splat({weight}, {lanes}) * {pixel}"
    return f"a = {product}" if index == 0 else f"a = a + {product}"
