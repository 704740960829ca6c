"""Strips of Winograd convolutions over blocked images: whole rows of tiles, between rings of rows.

Transforms and products are those of `winograd`, tile by tile: results are equal bit by bit. Where the rows of
a tile do not lie side by side, at the end of a ring, they are copied.
"""

from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.epilogue import ADVANCE, lanes_run_library
from app.kernels.cpu.strips import STRIPS
from app.kernels.cpu.winograd import WinogradSizes, library_text
from app.kernels.expressions import Recipe

_LIBRARY = """


@shared(types.void(T, N, N, N, N, N, N, N, N, N, N, T, N, N, T, T, T))
def transform_line(x, ring, origin, h, w, row, left, begin, end, first, last, v, v_row, v_plane, lines, zeros,
                   buffer):
    # Tiles begin..end of one row, whose first row of the image is `row`, of blocks first..last.
    r0, r1 = max(-row, 0), min(h - row, TILE)
    slot, line = (row + r0 - origin) % ring, w * LANES
    wraps = slot + r1 - r0 > ring
    for block in range(first, last):
        image = at(x, block * ring * line)
        source = at(image, (slot - r0) * line)
        if wraps:
            for r in range(r1 - r0):
                below = at(image, (slot + r) % ring * line)
                for i in range(line):
                    lines[r * line + i] = below[i]
            source = at(lines, -r0 * line)
        for tile in range(begin, end):
            column = tile * M - left
            c0, c1 = max(-column, 0), min(w - column, TILE)
            input_transform(at(source, column * LANES), line, r0, r1, c0, c1, zeros, buffer,
                            at(v, (tile - begin) * v_row + block * STEP), v_plane)
"""

_KERNEL = """\
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.tiles import RESIDUAL
from LIBRARY0 import LANES, LINE, M, TAIL, TILE, WORDS, multiply, transform_line, transform_output
{imports}

def kernel(x, weights, y, bias, residual, scalars, sizes, rings, cursors, most, work{operands}, begin, end,
           thread):
    {unpack}
    {unpack_rings}
{span}
    if first >= last:
        return
    sums = at(work, work_at + thread * work_step)
    zeros = at(sums, m_size)
    buffer = at(zeros, TILE * LANES)
    lines = at(buffer, {buffer})
    v = at(lines, TILE * max(w, columns) * LANES)
    out_line = columns * LANES
    for i in range(TILE * LANES):
        zeros[i] = 0
    tiles_now = (last - first + M - 1) // M * wide
    low, high_ = tiles_now * begin // shares, tiles_now * end // shares
    above, below = low // wide, (high_ + wide - 1) // wide  # rows of tiles
    for block in range(0, blocks, LINE):
        for s in range(above, below):
            tile, stop = max(low - s * wide, 0), min(high_ - s * wide, wide)
            transform_line(x, x_ring, x_origin, h, w, first + s * M - top, left, tile, stop, block,
                           min(block + LINE, blocks), at(v, (s * wide + tile - low) * v_row), v_row, v_plane,
                           lines, zeros, buffer)
    for group in range(groups):
        own = filters - 2 * group
        vectors = own if own == 3 else min(own, 2)
        matrices = at(weights, group * TILE * TILE * (channels * WORDS + TAIL) * 2 * LANES)
        multiply(v, v_row, v_plane, matrices, channels, vectors, high_ - low, sums, m_plane)
        for s in range(above, below):
            tile, stop = max(low - s * wide, 0), min(high_ - s * wide, wide)
            begun, ended = tile * M * LANES, min(stop * M, columns) * LANES
            row = first + s * M
            count = min(M, last - row)
            y_slot, r_slot = (row - y_origin) % y_ring, (row - r_origin) % r_ring
            apart = y_slot + count > y_ring or (flags & RESIDUAL and r_slot + count > r_ring)
            for i in range(vectors):
                block = 2 * group + i
                plane = at(y, block * y_ring * out_line)
                beside = at(residual, r_at + block * r_ring * out_line)
                to, add = at(plane, y_slot * out_line), at(beside, r_slot * out_line)
                if apart:  # the rows do not lie side by side
                    to = add = lines
                    for r in range(count if flags & RESIDUAL else 0):
                        source = at(beside, (r_slot + r) % r_ring * out_line)
                        for j in range(begun, ended):
                            lines[r * out_line + j] = source[j]
                part = at(sums, ((s * wide + tile - low) * vectors + i) * LANES)
                transform_output(part, vectors * LANES, m_plane, tile, stop,
                                 count, columns, wide, at(bias, block * LANES), scalars, add, to, flags,
                                 buffer)
                for r in range(count if apart else 0):
                    target = at(plane, (y_slot + r) % y_ring * out_line)
                    for j in range(begun, ended):
                        target[j] = lines[r * out_line + j]
{finish}
"""

_RUN = """\
                for r in range(count):
                    r_place = r_at + (block * r_ring + (r_slot + r) % r_ring) * out_line + begun
                    run(at(plane, (y_slot + r) % y_ring * out_line + begun), ended - begun, buffer{places})
"""

# Where operands of a recipe begin in a row, by their place; the batch is one image.
PLACES = {"same": "r_place", "channel": "block * LANES", "plane": "block * LANES", "scalar": "0"}


def emit(
    lanes: int,
    m: int,
    taps: int,
    filters: int,
    buffer: int,
    recipe: Recipe = (),
    places: tuple[str, ...] = (),
    dtype: str = "float32",
) -> Sources:
    """The module of a kernel that computes the next rows of a Winograd convolution, see `strips`.

    x: float32[blocks, x_ring, w, lanes]; y: float32[filters, y_ring, columns, lanes]; residual: the same with
    r_ring rows; rings: RingSizes; cursors: int64[operators], the next rows; most: rows of the call, a
    multiple of m; work: of a strip, per thread. The other arguments are those of `winograd.emit`, for an
    image alone; `places` are those of the recipe's inputs after the first. Units are shares of the tiles.
    """
    library = library_text(lanes, m, taps, filters, dtype) + _LIBRARY
    kernel = _KERNEL.format(
        imports="from LIBRARY1 import run\n" if recipe else "",
        unpack=WinogradSizes.unpack(),
        **STRIPS,
        operands="".join(f", x{i}" for i in range(len(places))),
        buffer=buffer,
        finish=_RUN.format(places="".join(f", at(x{i}, {PLACES[p]})" for i, p in enumerate(places)))
        if recipe
        else "",
    )
    if not recipe:
        return library, kernel
    advances = tuple((ADVANCE[place], "float32") for place in places)
    return library, lanes_run_library("float32", lanes, recipe, advances), kernel
