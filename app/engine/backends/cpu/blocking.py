"""How contractions are cut: blocks that fit the caches, units that threads share evenly."""

from app.engine.types.target import Target

DEPTH = 384  # float32 steps of the reduction whose panel of 16 columns stays in the first cache
TURNED_DEPTH = 256  # the same where panels of pixels go through that cache beside
SECOND_CACHE = 512 * 1024  # byte of it, where the target tells of none
PACKED = 80 * 1024  # byte of packed columns that stay in the second cache
LINE = 64  # byte of a cache line
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


def longest_share(units: int, threads: int) -> float:
    """Work of the busiest thread over an even share, for equal units."""
    return -(-units // threads) * threads / units if units else 1.0
