"""Permutations of axes, and images between channels first and channels last.

A copy whose innermost axes differ goes through a tile in shared memory, so that both sides touch
neighbouring elements; one whose innermost axis stays is a strided copy. A few channels are packed by
one thread a pixel.
"""

import math
from collections.abc import Sequence

from app.kernels.cuda import functions, vectors
from app.kernels.cuda.elementwise import copy
from app.kernels.cuda.geometry import (
    NBYTES,
    Strided,
    check_size,
    check_spans,
    collapsed,
    contiguous,
    indented,
    place,
    unpacked,
)
from app.kernels.cuda.kernel import Kernel, Launch, Launches, Ref
from app.kernels.cuda.units import per_unit
from app.kernels.expressions import computed, converted

THREADS = 256
NARROW = 16  # channels that one thread packs
FLOATS = ("float32", "float16", "bfloat16")


def transpose(shape: Sequence[int], permutation: Sequence[int], dtype: str) -> Launches:
    """Axes in another order: y's axis i is x's axis permutation[i].

    Roles x0, y0: dtype[shape] and dtype[the permuted shape], contiguous. No aliasing. Every element
    type: bits are moved.
    """
    steps = contiguous(shape)
    extents = [shape[a] for a in permutation]
    source = Strided(dtype, tuple(steps[a] for a in permutation))
    return moved(extents, source, Strided(dtype, contiguous(extents)))


def moved(extents: Sequence[int], source: Strided, target: Strided) -> Launches:
    """A box of elements of one type to other places, as `elementwise.copy`, by tiles where that is faster.

    Roles x0, y0. No aliasing.
    """
    check_spans("transpose", extents, (source, target))
    box, (x, y) = collapsed(extents, (source, target))
    across = [a for a, s in enumerate(x.strides) if s == 1]
    if not across or x.strides[-1] == 1 or y.strides[-1] != 1 or x.nbytes > 4 or 0 in box:
        return copy(extents, source, target, "transpose")
    a = across[0]
    if box[a] < 8 or box[-1] < 8:  # a tile would be mostly empty
        return copy(extents, source, target, "transpose")
    outer = [i for i in range(len(box) - 1) if i != a]
    return _tiles(
        [box[i] for i in outer],
        [(x.strides[i], y.strides[i]) for i in outer],
        (box[a], box[-1], box[-1]),
        (y.strides[a], x.strides[-1]),
        (x.start, y.start),
        {4: "uint32", 2: "uint16", 1: "uint8"}[x.nbytes],
        "",
    )


def to_last(batch: int, channels: int, pixels: int, padded: int, source: str, target: str) -> Launches:
    """Images with channels first as images with channels last, padded by channels of zeros.

    Roles x0, y0: x0: source[batch, channels, pixels], y0: target[batch, pixels, padded]. No aliasing.
    Casts between float32, float16 and bfloat16; other types stay as they are.
    """
    check_size("to_last", batch * padded * pixels)
    if padded <= NARROW:
        body = [
            *unpacked("u", [batch, pixels], ["b", "p"]),
            f"base = uint32(b * uint32({channels * pixels}) + p)",
        ]
        parts = []
        for c in range(padded):
            if c < channels:
                body.append(f"v{c} = load(x0, uint32(base + uint32({c * pixels})))[0]")
            parts.append(_cast(f"v{c}", source, target) if c < channels else _zero(target))
        width = padded & -padded
        step = min(width, 16 // NBYTES[target])
        for c in range(0, padded, step):
            values = ", ".join(parts[c : c + step])
            body.append(f"store(y0, uint32(u * uint32({padded}) + uint32({c})), ({values},))")
        lines = vectors.load("load", source, 1) + vectors.store("store", target, step)
        return per_unit("to_last", lines, body, [("x0", source), ("y0", target)], batch * pixels)
    return _tiles(
        [batch],
        [(channels * pixels, padded * pixels)],
        (pixels, channels, padded),
        (padded, pixels),
        (0, 0),
        source,
        target,
    )


def to_first(batch: int, channels: int, pixels: int, padded: int, source: str, target: str) -> Launches:
    """Images with channels last, of which padding is dropped, as images with channels first.

    Roles x0, y0: x0: source[batch, pixels, padded], y0: target[batch, channels, pixels]. No aliasing.
    Casts as `to_last`.
    """
    check_size("to_first", batch * padded * pixels)
    if padded <= NARROW:
        step = min(padded & -padded, 16 // NBYTES[source])
        body = [*unpacked("u", [batch, pixels], ["b", "p"])]
        for c in range(0, padded, step):
            if c >= channels:
                break
            body.append(f"v{c} = load(x0, uint32(u * uint32({padded}) + uint32({c})))")
        for c in range(channels):
            value = _cast(f"v{c - c % step}[{c % step}]", source, target)
            at = f"uint32(b * uint32({channels * pixels}) + p + uint32({c * pixels}))"
            body.append(f"store(y0, {at}, ({value},))")
        lines = vectors.load("load", source, step) + vectors.store("store", target, 1)
        return per_unit("to_first", lines, body, [("x0", source), ("y0", target)], batch * pixels)
    return _tiles(
        [batch],
        [(padded * pixels, channels * pixels)],
        (channels, pixels, pixels),
        (pixels, padded),
        (0, 0),
        source,
        target,
    )


def _cast(value: str, source: str, target: str) -> str:
    """Computed values are float32 for all floats, so only other types would change."""
    return converted(value, source, computed(target)).replace("np.", "")


def _zero(dtype: str) -> str:
    return "False" if dtype == "bool" else f"{computed(dtype)}(0)"


_TILE = """\
def kernel(x0, y0, blocks):
    tile = {memory}
    i = uint32(thread() % uint32({side}))
    j = uint32(thread() // uint32({side}))
    q = uint32(block_x() // uint32({tiles}))
    r = uint32(block_x() % uint32({tiles}))
    a0 = uint32(r % uint32({tiles_a}) * uint32({side}))
    b0 = uint32(r // uint32({tiles_a}) * uint32({side}))
{outer}
    base_x = {base_x}
    base_y = {base_y}
    for k in range(0, {side}, {step}):
        b = uint32(b0 + j + uint32(k))
        if a0 + i < uint32({na}) and b < uint32({nb}):
            v = load(x0, uint32(base_x + (a0 + i) + b * uint32({step_x})))[0]
            tile[uint32((j + uint32(k)) * uint32({side} + 1) + i)] = {into}
    sync()
    for k in range(0, {side}, {step}):
        a = uint32(a0 + j + uint32(k))
        b = uint32(b0 + i)
        if a < uint32({na}) and b < uint32({nb}):
            v = tile[uint32(i * uint32({side} + 1) + (j + uint32(k)))]
            store(y0, uint32(base_y + a * uint32({step_y}) + b), ({out},))
{padding}
"""

_PADDING = """\
        elif a < uint32({na}) and b < uint32({padded}):
            store(y0, uint32(base_y + a * uint32({step_y}) + b), ({zero},))
"""


def _tiles(
    outer: Sequence[int],
    outer_steps: Sequence[tuple[int, int]],
    sizes: tuple[int, int, int],
    steps: tuple[int, int],
    starts: tuple[int, int],
    source: str,
    target: str,
) -> Launches:
    """y[outer, a, b] = x[outer, b, a] for an axis a, where x is contiguous, and an axis b, where y is.

    Args:
        outer: extents of the other axes.
        outer_steps: their strides in x and y.
        sizes: extents of a and b, and of b with zeros behind.
        steps: strides of a in y and of b in x.
        starts: of x and y.
        source: element type of x.
        target: of y; empty for the bits of x.
    """
    na, nb, padded = sizes
    bits, target = not target, target or source
    real = not bits and source in FLOATS
    side = 32 if min(NBYTES[source], NBYTES[target]) == 4 else 64
    names = [f"n{i}" for i in range(len(outer))] or ["n0"]
    tiles_a, tiles_b = -(-na // side), -(-padded // side)
    memory = "shared_f32(uint32(0))" if real else "shared_u32(uint32(0))"
    value = "v" if real else f"{computed(target)}(v)"
    lines = vectors.load("load", source, 1) + vectors.store("store", target, 1)
    pad = _PADDING.format(na=na, padded=padded, step_y=steps[0], zero=_zero(target)) if padded > nb else ""
    text = _TILE.format(
        side=side,
        step=THREADS // side,
        memory=memory,
        tiles=tiles_a * tiles_b,
        tiles_a=tiles_a,
        outer="\n".join(indented(unpacked("q", list(outer) or [1], names))),
        base_x=place(names, [x for x, _ in outer_steps] or [0], starts[0]),
        base_y=place(names, [y for _, y in outer_steps] or [0], starts[1]),
        na=na,
        nb=nb,
        step_x=steps[1],
        step_y=steps[0],
        into="v" if real else "uint32(v)",
        out=value,
        padding=pad,
    )
    kernel = Kernel(
        "transpose",
        "\n".join([*functions.library(lines), *lines, text]),
        (vectors.pointer(source), vectors.pointer(target), "uint32"),
        THREADS,
        shared_bytes=4 * side * (side + 1),
    )
    blocks = math.prod(outer) * tiles_a * tiles_b
    if not blocks:
        return Launches(())
    return Launches((Launch(kernel, (blocks, 1, 1), (Ref("x0"), Ref("y0"), blocks)),))
