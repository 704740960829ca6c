"""Tiles of matrix products: how much of the result a block of threads makes, and by how many warps."""

from dataclasses import dataclass

from app.kernels.cuda.geometry import NBYTES

ROW = 128  # bytes of a tile's row along the reduction: eight chunks of 16, which eight banks rows apart serve
CHUNKS = ROW // 16


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of `m` x `n` results, made by `down` x `across` warps.

    `stages` tiles of the operands are under way; `minimum_blocks` of blocks share a multiprocessor where
    the operands have 16 bits.
    """

    m: int
    n: int
    down: int
    across: int
    stages: int
    minimum_blocks: int = 1
    suffix: str = ""  # of the label, for another share of the same tile

    def __post_init__(self) -> None:
        assert self.m % (16 * self.down) == 0, self
        assert self.n % (16 * self.across) == 0, self
        assert self.threads % (8 * CHUNKS) == 0, self  # a thread copies the same chunk of every row

    @property
    def threads(self) -> int:
        """In a block."""
        return 32 * self.down * self.across

    @property
    def label(self) -> str:
        """Its name in tables and kernels."""
        return f"{self.m}x{self.n}{self.suffix}"

    @property
    def staging_row(self) -> int:
        """Floats from a row of sums to the next in shared memory; 8 more than n against bank conflicts."""
        return self.n + 8

    @property
    def shared_bytes(self) -> int:
        """Bytes of all stages, or of the sums that take their place in the end."""
        return max(self.stages * (self.m + self.n) * ROW, 4 * self.m * self.staging_row)


SIMT_DEPTH = 16  # floats of a tile's row
SIMT_ROWS = 8  # that a thread makes


@dataclass(frozen=True, slots=True)
class SimtTile(Tile):
    """A tile of float32 sums without tensor cores; `down` x `across` of them are one thread's."""

    def __post_init__(self) -> None:
        assert self.across in (4, 8), self
        assert self.threads % 128 == 0, self  # a thread copies from rows that exchange their chunks alike

    @property
    def threads(self) -> int:
        """In a block."""
        return (self.m // SIMT_ROWS) * (self.n // self.across)

    @property
    def shared_bytes(self) -> int:
        """Bytes of all stages, or of the sums that take their place in the end."""
        return max(4 * self.stages * (self.m + self.n) * SIMT_DEPTH, 4 * self.m * self.staging_row)


WARPGROUP = 4  # warps
BESIDE = 2  # stages that are multiplied while others are filled


@dataclass(frozen=True, slots=True)
class WarpgroupTile(Tile):
    """A tile that warpgroups multiply out of shared memory, each 64 rows of it: `down` is four for each.

    Only sm_90 has the instructions, for operands of 16 bits whose rows run along the reduction.
    """

    def __post_init__(self) -> None:
        assert (self.m, self.across) == (16 * self.down, 1), self
        assert self.down % WARPGROUP == 0, self
        assert self.stages > BESIDE, self


# Largest first; which one is taken is the caller's table (engine/backends/cuda).
TENSOR_TILES = {
    tile.label: tile
    for tile in (
        # Warps of 64 x 64 read shared memory least for what they multiply; three stages fit sm_80, too.
        Tile(128, 256, 2, 4, 3),
        Tile(128, 128, 2, 2, 3, 2, "w4"),
        Tile(128, 128, 2, 4, 3, 2),
        Tile(128, 64, 2, 2, 3, 2),
        Tile(64, 64, 2, 2, 4, 3),
        Tile(32, 64, 2, 2, 4, 4),
    )
}


# The same for sm_90.
WARPGROUP_TILES = {
    tile.label: tile
    for tile in (
        WarpgroupTile(128, 256, 8, 1, 4, 1, "wg"),
        WarpgroupTile(128, 128, 8, 1, 3, 2, "wg"),
        WarpgroupTile(64, 256, 4, 1, 5, 1, "wg"),
        WarpgroupTile(128, 64, 8, 1, 4, 2, "wg"),
        WarpgroupTile(64, 128, 4, 1, 4, 2, "wg"),
        WarpgroupTile(64, 64, 4, 1, 4, 3, "wg"),
    )
}


def depth(dtype: str) -> int:
    """Elements of a tile's row."""
    return ROW // NBYTES[dtype]


SIMT_TILES = {
    tile.label: tile
    for tile in (SimtTile(128, 128, 8, 8, 3), SimtTile(64, 64, 8, 4, 3, 2), SimtTile(32, 128, 8, 4, 3, 2))
}
