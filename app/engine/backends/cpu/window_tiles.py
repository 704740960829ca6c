"""Register tiles over the windows of an image with channels last, and the blocks that threads share."""

import itertools
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

ADDRESSES = 9  # windows whose addresses stay in registers
TILE_COST = 24.0  # dot products that take as long as what a tile of any size does besides
SUMS = 8192  # of a block: they stay in the first cache
BLOCK = 96  # pixels, whose windows stay in the second cache
REREAD, REREAD_FAR = 4.0, 16.0  # dots of a step that reading a vector of weights again takes, by cache
NEAR = 1.05  # work of shapes that threads may share better than the one of the least


@dataclass(frozen=True, slots=True)
class Reduction:
    """Stretches of windows, and which of them lines of the output read.

    Attributes:
        steps: of a stretch.
        reach: first stretch of each line of the output and the one behind its last.
        columns: pixels of a line.
    """

    steps: int
    reach: tuple[tuple[int, int], ...]
    columns: int

    @property
    def pixels(self) -> int:
        """Pixels of the output."""
        return len(self.reach) * self.columns

    def stretches(self, rows: int) -> tuple[int, ...]:
        """Stretches that tiles of so many rows take, in turn."""
        reach = np.array(self.reach)
        first = np.arange(0, self.pixels, rows)
        last = np.minimum(first + rows, self.pixels) - 1
        return tuple((reach[first // self.columns, 1] - reach[last // self.columns, 0]).tolist())


@dataclass(frozen=True, slots=True)
class Tiling:
    """A shape of tiles, in pixels and vectors of output channels, and of the blocks that they form."""

    shape: tuple[int, int]
    width: int  # output channels of a tile
    block_m: int  # pixels
    block_n: int  # output channels


def dots(shape: tuple[int, int]) -> int:
    """Dot products, or loads where those last longer, of a step of a tile.

    Addresses of more windows than ADDRESSES are loaded again in every step (the stem of ResNet-18, 12 x 2 and
    6 x 4: 208 and 162 us by two threads).
    """
    rows, vectors = shape
    return max(rows * vectors, rows + vectors) + max(rows - ADDRESSES, 0)


def panels_of(vectors: int, width: int) -> list[int]:
    """Vectors of each panel of weights of up to `width`."""
    whole, rest = divmod(vectors, width)
    return [width] * whole + [rest] * (rest > 0)


def work(shape: tuple[int, int], vectors: int, reduction: Reduction) -> float:
    """Dot products that last as long as all tiles of an image."""
    rows, width = shape
    taken = reduction.stretches(rows)
    steps, panels = sum(taken) * reduction.steps, panels_of(vectors, width)
    return sum(steps * dots((rows, n)) + len(taken) * TILE_COST for n in panels)


@dataclass(frozen=True, slots=True)
class Sharing:
    """Images and groups, the threads that share them, and whether weights leave the second cache."""

    repeats: int
    threads: int
    far: bool


@lru_cache(maxsize=1024)
def tiling(
    shapes: tuple[tuple[int, int], ...], vectors: int, lanes: int, reduction: Reduction, sharing: Sharing
) -> Tiling:
    """The tiles that compute an image soonest, and blocks of them of which threads get equal shares."""
    least = min(work(shape, vectors, reduction) for shape in shapes)
    near = [s for s in shapes if work(s, vectors, reduction) <= NEAR * least]
    found = {shape: _block(shape, vectors, lanes, reduction, sharing) for shape in near}
    shape = min(found, key=lambda s: found[s][0])
    rows, width = shape
    _, m, n = found[shape]
    return Tiling(shape, width * lanes, m * rows, n * width * lanes)


def _block(
    shape: tuple[int, int], vectors: int, lanes: int, reduction: Reduction, sharing: Sharing
) -> tuple[float, int, int]:
    """Dot products of the slowest thread, and tiles and panels of the blocks that make it fastest."""
    rows, width = shape
    panels = panels_of(vectors, width)
    stretches = np.array(reduction.stretches(rows), float) * reduction.steps
    again = (REREAD_FAR if sharing.far else REREAD) * stretches.max(initial=0.0)

    def slowest(m: int, n: int) -> float:
        tiles = np.add.reduceat(stretches, np.arange(0, len(stretches), m))
        starts = np.arange(0, len(panels), n)
        each = np.add.reduceat(np.array([dots((rows, p)) for p in panels], float), starts)
        read = np.add.reduceat(np.array(panels, float), starts) * again
        block = np.multiply.outer(tiles, each) + read + TILE_COST * (m * n + 1)
        units = np.tile(block.ravel(), sharing.repeats)
        ends = [len(units) * share // sharing.threads for share in range(sharing.threads + 1)]
        return max(float(units[a:b].sum()) for a, b in itertools.pairwise(ends))

    most = range(1, min(len(stretches), max(BLOCK // rows, 1)) + 1)
    sizes = [
        (m, n)
        for m, n in itertools.product(most, range(1, len(panels) + 1))
        if (m, n) == (1, 1) or m * n * rows * width * lanes <= SUMS
    ]
    return min(((slowest(m, n), m, n) for m, n in sizes), key=lambda found: (found[0], -found[1] * found[2]))
