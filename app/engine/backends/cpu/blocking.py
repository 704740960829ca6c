"""How contractions are cut: blocks that fit the caches, units that threads share evenly."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from app.engine.types.target import Target

DEPTH = 384  # float32 steps of the reduction whose panel of 16 columns stays in the first cache
TURNED_DEPTH = 256  # the same where panels of pixels go through that cache beside
SECOND_CACHE = 512 * 1024  # byte of it, where the target tells of none
PACKED = 80 * 1024  # byte of packed columns that stay in the second cache
T = TypeVar("T")
Units: TypeAlias = np.ndarray[Any, np.dtype[np.floating[Any]]]
LINE = 64  # byte of a cache line
SHARED_ROWS = 8  # of a thread at least, where threads share rows: each reads all of the second operand
UNEVEN = 1.03  # of the least share of the busiest thread, which larger blocks are worth
WEIGHTS = 192 * 1024  # byte of packed rows that stay there too


def balanced(size: int, largest: int, multiple: int) -> int:
    """Size of equal parts of `size`, none above `largest`, rounded up to a multiple."""
    parts = max(-(-size // max(largest, multiple)), 1)
    return max(-(-size // (parts * multiple)), 1) * multiple


def depth(size: int, itemsize: int, largest: int = DEPTH) -> int:
    """Chunk of the reduction; `largest` counts float32."""
    return balanced(size, largest * 4 // itemsize, 1)


def second_cache(target: Target) -> int:
    """Bytes of a core's second cache."""
    return target.caches[1] if len(target.caches) > 1 else SECOND_CACHE


def panel_row(columns: int, itemsize: int) -> int:
    """Distance of packed rows: an odd number of cache lines, so that they spread over its sets."""
    lines = -(-columns * itemsize // LINE)
    return (lines + (lines % 2 == 0)) * LINE // itemsize


@dataclass(frozen=True, slots=True)
class Panels:
    """Columns of a result as panels, which threads share block by block.

    Attributes:
        columns: of the result.
        width: columns of a panel.
        lane: columns of a vector, which a last panel may be.
    """

    columns: int
    width: int
    lane: int

    def block(self, largest: int, threads: int, rows: Units, matrices: int = 1) -> int:
        """Columns of a block: the most with which the busiest thread has hardly more than the least to do.

        Args:
            largest: panels of a block at most.
            threads: that share the blocks.
            rows: those of each block of rows, which go round within each block of columns.
            matrices: of which each is all of that.
        """
        sizes = self.blocks(largest, threads, len(rows) * matrices)
        each = (np.tile(np.outer(self.widths(n), rows).reshape(-1), matrices) for n in sizes)
        return first_even(sizes, [busiest(units, threads) for units in each])

    def shared(
        self,
        rows: int,
        tile: tuple[int, int],
        largest: tuple[int, int],
        threads: int,
        matrices: int,
        by_rows: bool,
    ) -> tuple[int, int, bool]:
        """Rows and columns of a block of a product, and whether blocks of the same rows follow one another.

        Threads share columns, of which each reads its own, else rows; the busiest has hardly more than the
        least to do.

        Args:
            rows: of each matrix.
            tile: rows of a large tile and of a small one.
            largest: rows and panels of a block.
            threads: that share the blocks.
            matrices: of the product.
            by_rows: whether they may share rows.
        """
        m, n = (
            balanced(rows, largest[0], tile[0]),
            balanced(self.columns, largest[1] * self.width, self.width),
        )
        first, *finer = self.blocks(largest[1], threads, -(-rows // m) * matrices)
        cuts = [(m, first, False)]
        if by_rows and threads > 1 and rows >= threads * SHARED_ROWS:
            heights = (balanced(rows, -(-m // i), tile[0]) for i in range(1, 4 * threads + 1))
            cuts += [(height, n, True) for height in dict.fromkeys(heights)]
        cuts += [(m, size, False) for size in finer]

        def share(height: int, width: int, turned: bool) -> float:
            units = np.outer(self.widths(width), lengths(rows, height, tile[1]))
            return busiest(np.tile((units.T if turned else units).reshape(-1), matrices), threads)

        return first_even(cuts, [share(*cut) for cut in cuts]) if len(cuts) > 1 else cuts[0]

    def blocks(self, largest: int, threads: int, around: int) -> Sequence[int]:
        """Columns that blocks may have, the most first; each is there `around` times, four a thread."""
        size = balanced(self.columns, largest * self.width, self.width)
        while size > self.width and around * -(-self.columns // size) < 4 * threads:
            size -= self.width
        return range(size, 0, -self.width) if threads > 1 else [size]

    def widths(self, block: int) -> Units:
        """Columns that are computed of each block of so many."""
        first = np.arange(0, self.columns, block)
        widths = np.minimum(first + block, self.columns) - first
        whole, rest = widths // self.width, widths % self.width
        last = np.where(rest <= self.lane, self.lane, self.width)
        return (whole * self.width + np.where(rest == 0, 0, last)).astype(np.float64)


def lengths(size: int, block: int, multiple: int) -> Units:
    """Extents of blocks of `size`, rounded up."""
    first = np.arange(0, size, block)
    return np.ceil((np.minimum(first + block, size) - first) / multiple) * multiple


def first_even(cuts: Sequence[T], shares: Sequence[float]) -> T:
    """The first cut whose busiest thread has hardly more to do than that of the best one."""
    return next(cut for cut, share in zip(cuts, shares, strict=True) if share <= UNEVEN * min(shares))


def busiest(units: Units, threads: int) -> float:
    """Work of the busiest thread, of the work of each unit in order; the driver gives each as many units."""
    done = np.concatenate([[0.0], np.cumsum(units)])
    return float(np.diff(done[np.arange(threads + 1) * len(units) // threads]).max(initial=0.0))


def longest_share(units: int, threads: int) -> float:
    """Work of the busiest thread over an even share, for equal units."""
    return -(-units // threads) * threads / units if units else 1.0
