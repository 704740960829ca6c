"""Permutations of axes.

A copy whose innermost axes differ goes through a tile in shared memory, so that both sides touch
neighbouring elements; one whose innermost axis stays is a strided copy.
"""

import math
from collections.abc import Sequence

from app.kernels.cuda import functions, vectors
from app.kernels.cuda.elementwise import copy
from app.kernels.cuda.geometry import (
    BITS,
    NBYTES,
    Strided,
    check_spans,
    collapsed,
    indented,
    place,
    unpacked,
)
from app.kernels.cuda.kernel import Kernel, Launches

THREADS = 256


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
    axes = [(box[i], x.strides[i], y.strides[i]) for i in outer]
    return _tiles(axes, (box[a], box[-1]), (y.strides[a], x.strides[-1]), (x.start, y.start), BITS[x.nbytes])


_TILE = """\
def kernel(x0, y0, blocks):
    tile = shared_u32(uint32(0))
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
            tile[uint32((j + uint32(k)) * uint32({side} + 1) + i)] = uint32(v)
    sync()
    for k in range(0, {side}, {step}):
        a = uint32(a0 + j + uint32(k))
        b = uint32(b0 + i)
        if a < uint32({na}) and b < uint32({nb}):
            v = tile[uint32(i * uint32({side} + 1) + (j + uint32(k)))]
            store(y0, uint32(base_y + a * uint32({step_y}) + b), ({kind}(v),))

"""


def _tiles(
    outer: Sequence[tuple[int, int, int]],
    sizes: tuple[int, int],
    steps: tuple[int, int],
    starts: tuple[int, int],
    kind: str,
) -> Launches:
    """y[outer, a, b] = x[outer, b, a] for an axis a, where x is contiguous, and an axis b, where y is.

    Args:
        outer: extent and strides in x and y of each other axis.
        sizes: extents of a and b.
        steps: strides of a in y and of b in x.
        starts: of x and y.
        kind: type that elements are moved as.
    """
    na, nb = sizes
    side = 32 if NBYTES[kind] == 4 else 64
    extents, steps_x, steps_y = zip(*(outer or [(1, 0, 0)]), strict=True)
    names = [f"n{i}" for i in range(len(extents))]
    tiles_a, tiles_b = -(-na // side), -(-nb // side)
    lines = vectors.load("load", kind, 1) + vectors.store("store", kind, 1)
    text = _TILE.format(
        side=side,
        step=THREADS // side,
        tiles=tiles_a * tiles_b,
        tiles_a=tiles_a,
        outer="\n".join(indented(unpacked("q", extents, names))),
        base_x=place(names, steps_x, starts[0]),
        base_y=place(names, steps_y, starts[1]),
        na=na,
        nb=nb,
        step_x=steps[1],
        step_y=steps[0],
        kind=kind,
    )
    source, pointer = "\n".join([*functions.library(lines), *lines, text]), vectors.pointer(kind)
    shared = 4 * side * (side + 1)
    kernel = Kernel("transpose", source, (pointer, pointer, "uint32"), THREADS, shared_bytes=shared)
    blocks = math.prod(extents) * tiles_a * tiles_b
    return Launches.of(kernel, blocks, ("x0", "y0"), blocks)
