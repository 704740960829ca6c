"""Strips of convolutions over blocked images: the products of `nchwc_conv`, between rings of rows.

Every output element is the same sum in the same order as in `nchwc_conv`: results are equal bit by bit.
"""

from app.kernels.cpu.codegen.linking import Sources
from app.kernels.cpu.epilogue import ADVANCE, lanes_run_library
from app.kernels.cpu.nchwc_conv import NchwcConvSizes, product_library
from app.kernels.cpu.strips import STRIPS
from app.kernels.expressions import Recipe

_FILL = """\
from numba import types
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.linking import shared

T, N = types.CPointer(types.float32), types.int64


@shared(types.void(T, N, N, N, N, N, N, N, N, N, N, N, N, T))
def fill(x, x_block, x_lanes, blocks, ring, origin, first, count, lines, h, w, left, line, out):
    # Rows first..first+count of an image in a ring, whose slot 0 has row `origin` or one as many rings later,
    # with their padding; blocks of `out` have `lines` rows.
    row, width, before = line * x_lanes, w * x_lanes, left * x_lanes
    inside = min(width, row - before)
    for block in range(blocks):
        for r in range(count):
            target, y = at(out, (block * lines + r) * row), first + r
            if y < 0 or y >= h:
                for i in range(row):
                    target[i] = 0
                continue
            source = at(x, block * x_block + (y - origin) % ring * width)
            for i in range(before):
                target[i] = 0
            for i in range(inside):
                target[before + i] = source[i]
            for i in range(before + width, row):
                target[i] = 0
"""

_SOURCE = """\
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.tiles import ACCUMULATE, CLAMP, COLUMN_BIAS, RESIDUAL
{imports}
LANES, WIDE = {lanes}, {wide}


@njit
def vectors(left):
    # Blocks of the next tile, as in `tiles.block_groups`.
    if left == WIDE + 1:
        return (left + 1) // 2 if WIDE > 2 else 3
    return min(left, 3) if left < WIDE else WIDE


def kernel(x, weights, y, bias, residual, scalars, pixels, taps, sizes, rings, cursors, most, work{operands},
           begin, end, thread):
    {unpack}
    {unpack_rings}
    strip = at(work, work_at + thread * work_step)
    buffer = at(strip, strip_size)
    plane_size, r_plane = y_ring * columns * LANES, r_ring * columns * LANES
    reach = lines - (strip_rows - 1) * stride  # rows that an output row reads
{span}
    while first < last:
{piece}
        x_slot = 0
        if not copied:
            x_slot = (first * stride - x_origin) % x_ring
            count = min(count, (x_ring - x_slot + stride - 1) // stride)
        pixel, next_pixel = count * columns * begin // shares, count * columns * end // shares
        n, row = next_pixel - pixel, pixel // columns
        for group in range(groups if n else 0):
            chunks = max((blocks + chunk - 1) // chunk, 1)
            for c in range(chunks):
                begin_block = c * chunk
                last_chunk = c == chunks - 1
                size = blocks - begin_block if last_chunk else chunk
                source, step = at(x, group * x_image + begin_block * x_block), x_block
                if copied:
                    step = lines * line * x_lanes
                    above = row * stride
                    fill(source, x_block, x_lanes, x_blocks - begin_block if last_chunk else chunk, x_ring,
                         x_origin, first * stride - top + above,
                         (next_pixel - 1) // columns * stride - above + reach, lines, h, w, left, line,
                         at(strip, above * line * x_lanes))
                    source = strip
                else:
                    source = at(source, x_slot * w * x_lanes)
                now = flags & (COLUMN_BIAS | RESIDUAL) if c == 0 else ACCUMULATE
                block = 0
                while block < out_blocks:
                    wide = vectors(out_blocks - block)
                    plane = group * out_blocks + block
                    place = plane * plane_size + (y_slot * columns + pixel) * LANES
                    r_place = r_at + plane * r_plane + (r_slot * columns + pixel) * LANES
                    panel = plane * depth + begin_block * x_lanes * tap_count * wide
                    then, start = block + wide, begin_block  # of the panel after this one
                    if then >= out_blocks:
                        then, start = 0, 0 if last_chunk else begin_block + chunk
                    following = (group * out_blocks + then) * depth
                    following += start * x_lanes * tap_count * vectors(out_blocks - then) - panel
                    add = at(residual, r_place)
                    if flags & RESIDUAL and r_ring != y_ring and c == 0:
                        # A tile reads the residual at the distances of its output: it is put there.
                        add = at(y, place)
                        for j in range(wide):
                            for i in range(n * LANES):
                                y[place + j * plane_size + i] = residual[r_place + j * r_plane + i]
{products}{finish}
                    block += wide
        first += count
"""

_CALL = """\
                    {keyword} wide == {columns}:
                        product{columns}(source, at(pixels, pixel), n, taps, tap_count, size, step,
                                 tail if last_chunk else 0, at(weights, panel * LANES), following * LANES,
                                 at(y, place), LANES, plane_size, at(bias, plane * LANES), add, scalars,
                                 now | (flags & CLAMP if last_chunk else 0))
"""

_RUN = """\
                    if last_chunk:
                        for j in range(wide):
                            run(at(y, place + j * plane_size), n * LANES, buffer{places})
"""

# Where operands of a recipe begin for block j of a tile: by their place, the offset. The batch is one image.
PLACES = {
    "same": "r_place + j * r_plane",
    "channel": "(plane + j) * LANES",
    "plane": "(plane + j) * LANES",
    "scalar": "0",
}


def emit(
    lanes: int, wide: int, widths: tuple[int, ...], recipe: Recipe = (), places: tuple[str, ...] = ()
) -> Sources:
    """The module of a kernel that computes the next rows of a convolution over blocked images.

    x: float32[groups, blocks, x_ring, w, lanes], or planes; y: float32[groups, out_blocks, y_ring, columns,
    lanes]; residual: the same with r_ring rows; rings: RingSizes; cursors: int64[operators], the next rows;
    most: rows of the call; work: per thread, the rows that are read with their padding, if they are copied,
    of the blocks of a chunk, then the buffer of the recipe. The other arguments are those of
    `nchwc_conv.emit`, for an image alone. Units are shares of the pixels.

    Args:
        lanes: channels of a block of the output.
        wide: blocks of output channels of a tile, see `nchwc_conv.emit`.
        widths: blocks of the tiles that there are.
        recipe: what follows bias, residual and limits.
        places: of the recipe's inputs after the first; see PLACES.
    """
    libraries: list[str | tuple[str, ...]] = [
        _FILL,
        *(product_library("float32", lanes, columns) for columns in widths),
    ]
    imports = ["from LIBRARY0 import fill\n"]
    imports += [f"from LIBRARY{i} import product as product{w}\n" for i, w in enumerate(widths, start=1)]
    if recipe:
        imports.append(f"from LIBRARY{len(libraries)} import run\n")
        advances = tuple((ADVANCE[place], "float32") for place in places)
        libraries.append(lanes_run_library("float32", lanes, recipe, advances))
    calls = [_CALL.format(keyword="elif" if i else "if", columns=columns) for i, columns in enumerate(widths)]
    source = _SOURCE.format(
        lanes=lanes,
        wide=wide,
        imports="".join(imports),
        products="".join(calls),
        operands="".join(f", x{i}" for i in range(len(places))),
        unpack=NchwcConvSizes.unpack(),
        **STRIPS,
        finish=_RUN.format(places="".join(f", at(x{i}, {PLACES[p]})" for i, p in enumerate(places)))
        if recipe
        else "",
    )
    return *libraries, source
