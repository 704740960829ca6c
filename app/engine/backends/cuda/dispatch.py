"""Which tile, and how many blocks share one reduction: pure functions of sizes and of the device.

A multiprocessor computes its tiles one after another, at the speed that was measured for such tiles, and
stores them; the tile of the shortest time is taken. Where tiles leave multiprocessors without work, blocks
may share the reduction, which takes another launch. On an H200, over 24 products and convolutions in bf16,
what is chosen takes 1.4 % longer than the fastest of all tiles (geometric mean; the worst 20 %).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.engine.types.precision import Computed
from app.engine.types.target import Target
from app.kernels.cuda.tiles import SIMT_TILES, TENSOR_TILES, WARPGROUP_TILES, Tile
from app.kernels.cuda.warpgroup_product import GENERATION

# TFLOP/s of an H200 by precision and tile, on products of 8,192 for 16 bits, else of 4,096; by
# `benchmarks.cuda_tiles`. Of tf32 the first alone was measured: the others are as much of it as of bf16.
_HALF = {
    "128x256wg": 769.0,
    "128x128wg": 604.0,
    "64x256wg": 668.0,
    "128x64wg": 429.0,
    "64x128wg": 521.0,
    "64x64wg": 339.0,
    "128x256": 425.0,
    "128x128w4": 423.0,
    "128x128": 423.0,
    "128x64": 388.0,
    "64x64": 315.0,
    "32x64": 215.0,
}
SPEEDS: Mapping[str, Mapping[str, float]] = {
    "bf16": _HALF,
    "fp16": _HALF,
    "tf32": {name: 172.0 * _HALF[name] / _HALF["128x256"] for name in TENSOR_TILES},
    "3xtf32": {"64x64": 39.4, "32x64": 31.7},
    "f32": {"128x128": 43.1, "64x64": 41.4, "32x128": 40.8},
}
PEAK = 66.9  # TFLOP/s of an H200 in float32
ALONE = 0.9  # of its speed that a block reaches beside which there is none, where several fit
STORED = 2.5  # bytes that move in the time in which an element of a tile is finished
# Precision of tensor cores by the type of elements in memory.
HALVES: Mapping[str, str] = {"bfloat16": "bf16", "float16": "fp16"}
# The same as a plan tells it: sums are float32 in any, and the products of 3xtf32 nearly.
TOLD: Mapping[str, Computed] = {"f32": "f32", "3xtf32": "f32", "tf32": "tf32", "bf16": "bf16", "fp16": "fp16"}
PRECISIONS = tuple(TOLD)

# Tiles that spill registers, by precision and whether a reduction ends within 16 bytes.
SPILLING: Mapping[tuple[str, bool], frozenset[str]] = {
    ("tf32", True): frozenset({"128x256", "128x128w4"}),
    ("3xtf32", False): frozenset({"128x256", "128x128w4", "128x128", "128x64"}),
    ("3xtf32", True): frozenset({"128x256", "128x128w4", "128x128", "128x64"}),
}

SHORTEST = 64  # elements of a reduction that are worth a block
WARPS = 16  # of a multiprocessor that keep its memory busy


@dataclass(frozen=True, slots=True)
class Cut:
    """A tile by its name, the blocks that share a reduction, and all blocks."""

    tile: str
    splits: int
    blocks: int


def offered(precision: str, depth: int, isa: Sequence[str] = ()) -> Mapping[str, Tile]:
    """The tiles of a precision, largest first.

    Args:
        precision: of products.
        depth: elements of a row along the reduction.
        isa: of the target, where the right operand's rows run along the reduction; with that of warpgroups,
            their tiles are the first.
    """
    if precision == "f32":
        return SIMT_TILES
    if GENERATION in isa and precision in HALVES.values():
        return {**WARPGROUP_TILES, **TENSOR_TILES}
    vector = 8 if precision in HALVES.values() else 4
    spilling = SPILLING.get((precision, depth % vector != 0), frozenset())
    return {name: tile for name, tile in TENSOR_TILES.items() if name not in spilling}


def tiles_of(tile: Tile, m: int, n: int) -> int:
    """Tiles that cover a matrix."""
    return -(-m // tile.m) * -(-n // tile.n)


def wasted(tile: Tile, m: int, n: int) -> float:
    """Elements that tiles compute for one of the result."""
    return tiles_of(tile, m, n) * tile.m * tile.n / (m * n)


def rate(precision: str, tile: str) -> float:
    """Speed of a tile, as a multiple of the peak in float32."""
    return SPEEDS[precision][tile] / PEAK


def cut(
    precision: str,
    tiles: Mapping[str, Tile],
    m: int,
    n: int,
    k: int,
    batch: int,
    target: Target,
    *,
    shares: bool = True,
) -> Cut:
    """The tile of a product, and the blocks that share a reduction.

    Args:
        precision: of products.
        tiles: those there are; of equal ones the first.
        m: rows of the result.
        n: its columns.
        k: elements of the reduction.
        batch: how many such products.
        target: its multiprocessors, their speed and that of its memory.
        shares: whether a reduction may be shared.
    """
    found = []
    for name, tile in tiles.items():
        blocks = tiles_of(tile, m, n) * batch
        found.append(Cut(name, 1, blocks))
        if shares and blocks < target.cores:
            splits = min(max(k // SHORTEST, 1), -(-target.cores // blocks))
            splits = -(-k // -(-k // splits))
            found.append(Cut(name, splits, blocks * splits))

    def seconds(way: Cut) -> float:
        """Without what they have in common: a launch, and until the first operands are there."""
        tile, memory = tiles[way.tile], target.memories[0].bandwidth
        turns = -(-way.blocks // target.cores)
        speed = target.flops * rate(precision, way.tile) * (ALONE if turns < tile.minimum_blocks else 1.0)
        results = tile.m * tile.n
        each = 2.0 * results * -(-k // way.splits) / speed + results * STORED * target.cores / memory
        added = target.launch + 8.0 * way.splits * batch * m * n / memory if way.splits > 1 else 0.0
        return turns * each + added

    return min(found, key=seconds)
