"""Shapes and flags of register tiles, and the packing of constant operands for them; NumPy only."""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

Array = np.ndarray[Any, Any]

# The type of two int16 in one int32, low half first. A step of a reduction over pairs multiplies two of
# them at once and adds both products to an int32, exactly modulo 2 ** 32.
PAIRS = "int16x2"
# The same with right operands whose pairs are int8 in one int16, widened as they are loaded: half the memory.
BYTE_PAIRS = "int16x2 * int8x2"
# Four 8-bit numbers in one int32; of the two that are multiplied the named one is unsigned, the other signed.
# Both sums of two products must fit int16 (see `quads_fit`), else they saturate.
LEFT_UNSIGNED, RIGHT_UNSIGNED = "uint8x4 * int8x4", "int8x4 * uint8x4"
# Two that are both signed (ARM: sdot), whose products never saturate.
BOTH_SIGNED = "int8x4 * int8x4"
# The same without saturation: added to the int32 at once, by one instruction (x86: vpdpbusd), or in pairs
# of int16 on processors that have none.
DOT, SPREAD_DOT = "_dot", "_spread_dot"
DOTS = (
    *(kind + by for kind in (LEFT_UNSIGNED, RIGHT_UNSIGNED) for by in (DOT, SPREAD_DOT)),
    BOTH_SIGNED + DOT,
)
# The same by tile registers, see `integer_tiles`: what they multiply comes in sixteens of fours.
TILE_DOT = "_tile_dot"
TILE_DOTS = tuple(kind + TILE_DOT for kind in (LEFT_UNSIGNED, RIGHT_UNSIGNED))
PACKED = (PAIRS, BYTE_PAIRS, LEFT_UNSIGNED, RIGHT_UNSIGNED, *DOTS, *TILE_DOTS)
# Two bfloat16 in the bits of one float32, low half first. A step of a reduction over them multiplies two of
# each at once and adds both products to a float32: by one instruction (x86: vdpbf16ps, vcvtneps2bf16 makes
# them), or by shifts and fused products on processors that have none, with the same result but for
# subnormal numbers, which the instructions take for zeros.
BFLOATS, SHIFTED_BFLOATS = "bfloat16x2", "bfloat16x2_shifted"
# The same pairs, multiplied by tile registers, see `matrix_tiles`: what they multiply comes in sixteens of
# pairs, zeros at the end.
TILED_BFLOATS = "bfloat16x2_tiled"
BFLOAT_PAIRS = (BFLOATS, SHIFTED_BFLOATS, TILED_BFLOATS)
# Two int16 in the bits of one float32, low half first: float32 in fixed point. Left operands have a scale, of
# a strip of an image or of a row, known when the kernel runs, right ones a scale for each column, which
# follows the last step of their panel; sums of a panel are int32, see `SCALED_MOST`, then float32 times both.
SCALED_PAIRS = "int16x2_scaled"
SCALED_MOST = 2**13 - 1  # of the magnitude of left operands; right ones are so small that no sum leaves int32
ROUNDED_TOGETHER = 1 << 20  # weights that are rounded to them at once, in float64
SCALED_STEPS = 320  # pairs along the reduction of a matrix product that share scales at most
FLOAT_PAIRS = (*BFLOAT_PAIRS, SCALED_PAIRS)
# float32 times right operands of 24 bits in fixed point, with a scale for each column: three quarters of the
# memory, with the precision of a float32 at the largest of the column. Four steps of a reduction lie together
# in three int32, see `pack_fixed`; k counts such fours.
FIXED_POINT = "float32 * fixed24"
FIXED_STEPS, FIXED_WORDS = 4, 3
FIXED_LIMIT = 2**23 - 1  # of their magnitude
# float32 times right operands of 16 bits, which are converted as they are loaded: half the memory, and no
# other result where the numbers have 16 bits.
HALF_RIGHTS = {"float32 * float16": "float16", "float32 * bfloat16": "bfloat16"}
WHOLE = (TILED_BFLOATS, FIXED_POINT)  # whose panels are not split along k

# What a tile does with its sums before it stores them, in this order.
ACCUMULATE, SCALE, ROW_BIAS, COLUMN_BIAS, RESIDUAL, CLAMP = 1, 2, 4, 8, 16, 32
ALPHA, BETA, LOW, HIGH = 0, 1, 2, 3  # places in the scalars of a tile

# float32 lanes of a register: rows of a tile, rows of the small tile for what is left over,
# vectors of columns, unroll. 6 x 2 accumulators are what 16 registers hold; unrolling further
# lets LLVM hoist broadcasts and spill (87 moves to the stack at 4, none in the loop at 2; compiled for Zen 4
# and Sapphire Rapids 8 x 3 of the widest do the same, 250 and 232 moves at 4, none at 2).
Shapes: TypeAlias = Mapping[int, tuple[int, int, int, int]]
SHAPES: Shapes = {4: (6, 4, 2, 2), 8: (6, 4, 2, 2), 16: (8, 4, 3, 2)}
# The same for row-major products: 4 x 3 takes 7 loads a step where 6 x 2 takes 8, and cuts into 64,
# 128 or 196 rows evenly.
WIDE: Shapes = {4: (4, 2, 3, 2), 8: (4, 2, 3, 2), 16: (8, 4, 3, 2)}
# The same for few columns, which wide tiles would compute up to twice: by vectors of columns.
NARROW: Mapping[int, Shapes] = {
    3: WIDE,
    2: {4: (6, 4, 2, 2), 8: (6, 4, 2, 2), 16: (12, 6, 2, 2)},
    1: {4: (8, 4, 1, 2), 8: (8, 4, 1, 2), 16: (16, 8, 1, 2)},
}
# Time of a vector of their columns: narrower tiles load more for each product.
LOADS = {3: 1.0, 2: 1.02, 1: 1.15}
# The same for PAIRS, whose products take a register before they are added: 6 x 2 is all that 16 hold.
PAIRED: Shapes = {4: (6, 4, 2, 1), 8: (6, 4, 2, 1), 16: (8, 4, 3, 1)}
# And for quads, which keep a register of ones too.
QUADS: Shapes = {4: (5, 3, 2, 1), 8: (5, 3, 2, 1), 16: (8, 4, 3, 1)}
# Both with two vectors of columns, for which 32 registers hold more rows.
TWO_VECTORS: Shapes = {16: (12, 6, 2, 1)}

LINE = 64  # bytes of a cache line
TILE = 16  # rows of a tile register, and elements of four bytes of a row

# Shapes for tile registers, see `matrix_tiles` and `integer_tiles`.
TILED: Shapes = {16: (32, 16, 2, 1)}
# Of fixed point, which takes four registers for a vector of columns.
FIXED: Shapes = {4: (2, 1, 2, 1), 8: (2, 1, 2, 1), 16: (4, 2, 3, 1)}


def shapes_of(dtype: str, vectors: int) -> Shapes:
    """Shapes of tiles with so many vectors of columns, if their type leaves a choice."""
    if dtype == SCALED_PAIRS and vectors == max(NARROW):
        return PAIRED
    return {TILED_BFLOATS: TILED, FIXED_POINT: FIXED}.get(dtype) or NARROW[vectors]


def lanes_of(dtype: str, lanes: int) -> int:
    """Elements of a type in a register that holds `lanes` float32."""
    return max(lanes * 4 // np.dtype(element(dtype)).itemsize, 1)


def element(dtype: str) -> str:
    """The type of an element in memory, as NumPy and numba name it."""
    if dtype in PACKED:
        return "int32"
    return "float32" if dtype in (*FLOAT_PAIRS, FIXED_POINT, *HALF_RIGHTS) else dtype


def vectors_for(columns: int, dtype: str, lanes: int) -> int:
    """Vectors of columns of the tiles that compute the fewest that are not there; of equals the widest."""
    lane = lanes_of(dtype, lanes)

    def computed(vectors: int) -> float:
        whole, rest = divmod(columns, vectors * lane)
        # A last panel of one vector has a tile of its own, whose sums may be too few to hide their latency.
        last = max(1.0, 8 / NARROW[vectors][lanes][0]) if rest <= lane else vectors
        return whole * vectors + (last if rest else 0)

    return min(NARROW, key=lambda v: (computed(v) * LOADS[v], -v))


def row_groups(rows: int, block: int, lanes: int, shapes: Shapes = SHAPES) -> list[tuple[int, int]]:
    """(first row, rows) of every tile, for blocks of `block` rows. `product` walks the same way."""
    large, small = shapes[lanes][:2]
    groups = []
    for first in range(0, rows, block):
        row, end = first, min(first + block, rows)
        while row < end:
            left = end - row
            size = small if large < left <= 2 * small else min(left, large)
            groups.append((row, size))
            row += size
    return groups


def pack_row_tiles(a: Array) -> Array:
    """T[m, k] to [ceil(m / 16), ceil(k / 16), 16, 16] for tile registers, filled up with zeros."""
    rows, steps = (-(-size // TILE) for size in a.shape)
    whole = np.zeros((rows * TILE, steps * TILE), a.dtype)
    whole[: a.shape[0], : a.shape[1]] = a
    return np.ascontiguousarray(whole.reshape(rows, TILE, steps, TILE).swapaxes(1, 2))


def pack_rows(a: Array, block: int, lanes: int, shapes: Shapes = SHAPES) -> Array:
    """[m, k] to one [k][rows] panel for every group of rows, one after the other; the size stays."""
    panels = [a[r : r + size].T.ravel() for r, size in row_groups(a.shape[0], block, lanes, shapes)]
    return np.concatenate(panels) if panels else np.zeros(0, a.dtype)


def columns_of(dtype: str, lanes: int, shapes: Shapes = SHAPES) -> int:
    """Columns of a tile."""
    return shapes[lanes][2] * lanes_of(dtype, lanes)


def right_element(dtype: str) -> str:
    """The type of an element of the second operand in memory."""
    return {BYTE_PAIRS: "int16", FIXED_POINT: "int32", **HALF_RIGHTS}.get(dtype) or element(dtype)


def right_bytes(dtype: str) -> int:
    """Bytes of an element of the second operand."""
    return 2 if dtype in HALF_RIGHTS else np.dtype(right_element(dtype)).itemsize


def symbol(dtype: str) -> str:
    """The name of a type in those of tiles."""
    return dtype.replace(" * ", "_")


def panel_sizes(dtype: str, width: int) -> tuple[int, int]:
    """Right elements of a step of a panel of columns, and of what follows its last step or its chunks."""
    step = FIXED_WORDS * width if dtype == FIXED_POINT else width
    return step, width if dtype in (FIXED_POINT, SCALED_PAIRS) else 0


def spare(dtype: str, lanes: int, shapes: Shapes = SHAPES) -> int:
    """Elements of the scratch tile of a product, which is also the buffer of an epilogue."""
    return max(shapes[lanes][0] * columns_of(dtype, lanes, shapes), 256)


def pack_columns(b: Array, width: int) -> Array:
    """[..., k, n] to [..., ceil(n / width), k, width], filled up with zeros."""
    *batch, k, n = b.shape
    panels = -(-n // width)
    wide = np.zeros((*batch, k, panels * width), b.dtype)
    wide[..., :n] = b
    return np.ascontiguousarray(np.moveaxis(wide.reshape(*batch, k, panels, width), -2, -3))


def packed_panels(dtype: str, b: Array, width: int, lanes: int, steps: int = 0) -> Array:
    """A constant second operand [..., k, n] as panels of columns for tiles, scaled in chunks of `steps`."""
    if dtype == SCALED_PAIRS:
        return pack_scaled(b.reshape(b.shape[-2:]), width, steps)
    if dtype == FIXED_POINT:
        return pack_fixed(b.reshape(b.shape[-2:]), width, lanes)
    return in_right_element(dtype, pack_columns(b, width))


def in_right_element(dtype: str, packed: Array) -> Array:
    """Packed second operands in the type of their elements: bits of 16-bit floats, which must be exact."""
    kind = HALF_RIGHTS.get(dtype)
    if kind is None:
        return packed
    return half_bits(packed, kind)


def half_bits(x: Array, kind: str) -> Array:
    """The bits of the nearest 16-bit floats of float32, as uint16."""
    if kind == "bfloat16":
        return bfloat_bits(x).astype(np.uint16)
    with np.errstate(over="ignore"):
        return x.astype(np.float16).view(np.uint16)


def exact_halves(x: Array) -> str | None:
    """The 16-bit type that holds every one of these float32; None if none does, or one is not finite."""
    flat = x.reshape(-1)
    left = list(HALF_RIGHTS.values())
    for start in range(0, flat.size, _EXACT_PART):
        part = np.ascontiguousarray(flat[start : start + _EXACT_PART])
        if "bfloat16" in left and np.any(part.view(np.uint32) & np.uint32(0xFFFF)):
            left.remove("bfloat16")
        if "float16" in left:
            with np.errstate(over="ignore", invalid="ignore"):
                if not np.array_equal(part.astype(np.float16).astype(np.float32), part):
                    left.remove("float16")
        if not left or not np.all(np.isfinite(part)):
            return None
    return left[0]


_EXACT_PART = 1 << 16  # elements that are looked at together


def pack_fixed(b: Array, width: int, lanes: int) -> Array:
    """float32[k, n] to panels of fixed point for tiles of `width` columns: int32, flat. k is a multiple of 4.

    Of a panel each four steps are [width / lanes, 3, lanes]: numbers of the first three steps in the upper 24
    bits, and the bytes of the fourth step's, the highest first, in the lowest eight, which count as parts of
    the numbers above them. The bits of float32[width] follow: what columns are multiplied by once they are
    summed. Absent columns are zeros.
    """
    k, n = b.shape
    step, tail = panel_sizes(FIXED_POINT, width)
    fours = k // FIXED_STEPS
    panels = np.zeros((-(-n // width), fours * step + tail), np.int32)
    scales = fixed_scales(b)
    for panel, first in zip(panels, range(0, n, width)):
        scale = scales[first : first + width]
        whole = np.zeros((fours, FIXED_STEPS, width))
        exact = np.where(scale, scale, 1).astype(np.float64)
        whole.reshape(k, width)[:, : scale.size] = b[:, first : first + width] / exact
        fourth = np.rint(whole[:, 3]).astype(np.int32)
        low = fourth[:, None] >> np.array([[16], [8], [0]], np.int32) & 255
        words = np.rint(whole[:, :3] - low / 256).astype(np.int32) << 8 | low
        vectors = words.reshape(fours, FIXED_WORDS, width // lanes, lanes)
        panel[: fours * step] = vectors.transpose(0, 2, 1, 3).ravel()
        panel[fours * step :][: scale.size] = (scale / np.float32(256)).view(np.int32)
    return panels.ravel()


def fixed_scales(b: Array) -> Array:
    """float32[k, n] to float32[n]: what one stands for in fixed point, by columns."""
    largest = np.maximum(b.max(0, initial=0), -b.min(0, initial=0)).astype(np.float64)
    # Rounded upwards, so that the largest stays within the limit.
    found: Array = np.nextafter((largest / FIXED_LIMIT).astype(np.float32), np.float32(np.inf))
    return np.where(largest, found, np.float32(0))


def rounded_to_fixed(b: Array) -> Array:
    """float32[k, n] to the nearest numbers in fixed point, again as float32."""
    scales = fixed_scales(b).astype(np.float64)
    found: Array = (np.rint(b / np.where(scales, scales, 1)) * scales).astype(np.float32)
    return found


def pack_steps(b: Array, together: int) -> Array:
    """[..., k, n] to int32[..., ceil(k / together), n]: neighbours along k in one element, zeros at the end.

    Elements fit int16 (two together) or int8 (four).
    """
    *batch, k, n = b.shape
    whole = np.zeros((*batch, -(-k // together) * together, n), {2: np.int16, 4: np.int8}[together])
    whole[..., :k, :] = b
    steps = np.moveaxis(whole.reshape(*batch, -1, together, n), -2, -1)
    return np.ascontiguousarray(steps).view(np.int32)[..., 0]


def narrowed(pairs: Array) -> Array:
    """Pairs of int16 that fit int8, in half the memory: int16 of two bytes each."""
    found: Array = pairs.view(np.int16).astype(np.int8).view(np.int16)
    return found


def pack_bfloats(b: Array) -> Array:
    """float32[..., k, n] to float32[..., ceil(k / 2), n]: neighbours along k as bfloat16 in one element.

    Rounded to the nearest, the even one of two; the last of an odd number has a zero beside it.
    """
    *batch, k, n = b.shape
    whole = np.zeros((*batch, k + k % 2, n), np.uint32)
    whole[..., :k, :] = bfloat_bits(b)
    return np.ascontiguousarray(whole[..., ::2, :] | whole[..., 1::2, :] << np.uint32(16)).view(np.float32)


def bfloat_bits(x: Array) -> Array:
    """The bits of the nearest bfloat16 of float32, the even one of two, as uint32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))
    quiet = bits | np.uint32(0x400000)  # a NaN must not round to infinity
    found: Array = np.where(np.isnan(x), quiet, rounded) >> np.uint32(16)
    return found


def rounded_to_bfloat(x: Array) -> Array:
    """float32 rounded to the nearest bfloat16."""
    return (bfloat_bits(x) << np.uint32(16)).view(np.float32)


def quads_fit(quads: Array) -> bool:
    """True if no sum of two products of these weights (see `pack_steps`) and uint8 leaves int16."""
    pairs = quads.view(np.int8).reshape(-1, 2)
    positive, negative = (limit(pairs, np.int8(0)) for limit in (np.maximum, np.minimum))
    # 255 * 128 fits, and whatever the numbers, a sum is between those of its positive and negative parts.
    sums = (np.add(part[:, 0], part[:, 1], dtype=np.int16) for part in (positive, negative))
    return all(bool(np.all((own <= 128) & (own >= -128))) for own in sums)


def block_groups(blocks: int, wide: int) -> list[tuple[int, int]]:
    """(first block, blocks) of every tile over output channels: `wide` each, and never one that is left."""
    groups, first = [], 0
    while first < blocks:
        left = blocks - first
        size = min(left, 3) if left < wide else wide
        if left == wide + 1:
            size = (left + 1) // 2 if wide > 2 else 3
        groups.append((first, size))
        first += size
    return groups


def scaled_integers(array: Array) -> tuple[Array, Array]:
    """float32[outputs, ...] as integers of 16 bits and the scale of each output, float32.

    Scales are the least with which no sum of their products with SCALED_MOST leaves int32.
    """
    flat = array.reshape(len(array), math.prod(array.shape[1:]))
    integers, scales = np.empty(flat.shape, np.int16), np.empty(len(flat), np.float32)
    step = max(ROUNDED_TOGETHER // max(flat.shape[1], 1), 1)
    for first in range(0, len(flat), step):
        part = slice(first, first + step)
        integers[part], scales[part] = _scaled_integers(flat[part].astype(np.float64))
    return integers.reshape(array.shape), scales


def _scaled_integers(flat: Array) -> tuple[Array, Array]:
    magnitudes = np.abs(flat)
    # Rounding adds a half to each magnitude at most.
    most = (2**31 - 1) // SCALED_MOST - (flat.shape[1] + 1) / 2
    scales = np.maximum(magnitudes.max(1, initial=0.0) / (2**15 - 1), magnitudes.sum(1) / most)
    scales = np.nextafter(scales.astype(np.float32), np.float32(np.inf))
    scales[~flat.any(1)] = 0.0
    return np.rint(flat / np.where(scales, scales, 1.0).astype(np.float64)[:, None]), scales


def pack_shorts(integers: Array) -> Array:
    """int16[..., k, n] to float32[..., ceil(k / 2), n]: neighbors along k in one element."""
    return pack_steps(integers, 2).view(np.float32)


def pack_scaled(b: Array, width: int, steps: int) -> Array:
    """float32[k, n] to panels [ceil(n / width), ...] of pairs of integers, in chunks of `steps` pairs.

    Of a panel each chunk is [steps, width], fewer steps in the last one, and float32[width]: the scales of
    its columns. Absent columns are zeros.
    """
    parts = []
    for first in range(0, len(b), 2 * steps):
        integers, scales = scaled_integers(b[first : first + 2 * steps].T)
        parts += [pack_columns(pack_shorts(integers.T), width), pack_columns(scales[None], width)]
    return np.concatenate(parts, axis=1)


def pack_blocks(
    weights: Array,
    lanes: int,
    wide: int,
    part: int,
    chunks: list[tuple[int, int]],
    tails: Array | None = None,
) -> Array:
    """Weights of a convolution over blocked images in the order of use.

    Args:
        weights: T[outputs, channels, taps].
        lanes: channels of a block of the output.
        wide: see `block_groups`.
        part: blocks of output channels that are grouped together.
        chunks: (first, count) channels of each chunk of the reduction.
        tails: T[outputs, chunks], a further step behind those of each chunk.

    Returns:
        for each group of blocks, each chunk: [taps, channels, blocks * lanes], one after the other;
        absent output channels are zeros.
    """
    outputs, channels, taps = weights.shape
    blocks = -(-outputs // lanes)
    whole = np.zeros((blocks * lanes, channels, taps), weights.dtype)
    whole[:outputs] = weights
    ends = np.zeros((blocks * lanes, 0 if tails is None else len(chunks)), weights.dtype)
    if tails is not None:
        ends[:outputs] = tails
    panels = []
    for start in range(0, blocks, part):
        for first, size in block_groups(min(part, blocks - start), wide):
            own = slice((start + first) * lanes, (start + first + size) * lanes)
            for i, (c, count) in enumerate(chunks):
                panels += [whole[own, c : c + count].transpose(2, 1, 0).ravel(), ends[own, i : i + 1].ravel()]
    return np.concatenate(panels)
