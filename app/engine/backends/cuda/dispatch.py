"""Which tile, and how many blocks share one reduction: pure functions of sizes and of the device.

A multiprocessor that waits for the last wave costs more than a smaller tile's traffic, so the largest tile
is taken that gives every multiprocessor one; where none does, blocks share the reduction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.engine.types.precision import Computed
from app.kernels.cuda.tiles import SIMT_TILES, TENSOR_TILES, WARPGROUP_TILES, Tile
from app.kernels.cuda.warpgroup_product import GENERATION

# What each instruction reaches on large products, as a multiple of the target's peak in float32. Estimates
# from published figures (design note cuda.md, section 2); none was measured by us.
RATES: Mapping[str, float] = {"f32": 0.65, "tf32": 3.0, "3xtf32": 1.0, "bf16": 6.0, "fp16": 6.0}
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
WAVES = 2  # of blocks that a shared reduction aims at, at most
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


def cut(
    tiles: Mapping[str, Tile], m: int, n: int, k: int, batch: int, processors: int, *, shares: bool = True
) -> Cut:
    """The tile of a product, and the blocks that share a reduction.

    Args:
        tiles: those there are, largest first.
        m: rows of the result.
        n: its columns.
        k: elements of the reduction.
        batch: how many such products.
        processors: of the device.
        shares: whether a reduction may be shared.
    """
    wide = _fitting(tiles, m, n)
    for name in wide:
        blocks = tiles_of(tiles[name], m, n) * batch
        if blocks >= processors:
            return Cut(name, 1, blocks)
    # Of tiles no wider than needed the one that computes least beside the result, of equals the larger; then
    # the reduction is cut until there is work for all.
    computed = {t: tiles_of(tiles[t], m, n) * tiles[t].m * tiles[t].n for t in wide}
    name = min(wide, key=computed.__getitem__) if shares else wide[-1]
    blocks = tiles_of(tiles[name], m, n) * batch
    splits = 1
    if shares:
        most = max(k // SHORTEST, 1)
        splits = max(min(most, WAVES * processors // blocks, -(-processors // blocks)), 1)
        step = -(-k // splits)
        splits = -(-k // step)
    return Cut(name, splits, blocks * splits)


def _fitting(tiles: Mapping[str, Tile], m: int, n: int) -> Sequence[str]:
    """Tiles that are not twice as large as the result; the smallest, if all are."""
    names = list(tiles)
    found = [t for t in names if tiles[t].m < 2 * m and tiles[t].n < 2 * n]
    return found or names[-1:]
