"""The rule by which a free instance takes requests: in the executor, under load, and in predictions."""

from collections.abc import Sequence


def count_to_take(waiting: int, patience: float, sizes: Sequence[int]) -> int:
    """Number of requests to compute together now; 0 while the first is to wait for others.

    Args:
        waiting: requests that can be computed together, the first of them included; at least 1.
        patience: seconds that the first of them waits for others yet; 0 or less when it waits no more.
        sizes: numbers of requests for which there are programs, 1 among them.
    """
    if waiting < max(sizes) and patience > 0.0:
        return 0
    return max(size for size in sizes if size <= waiting)
