"""How a tensor's elements lie in memory: a permutation of logical axes with blocked splits.

`NCHW16c` has order N, C, H, W and one block: axis C split by 16, innermost. A layout never
changes what a value means; it is a column of the plan, and sizes follow from it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """Physical order of logical axes, outermost first, then blocks, innermost last.

    `order` is a permutation of the axes; `blocks` are (axis, lanes) pairs.
    """

    order: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.order))):
            raise ValueError(
                f"layout order must be a permutation of 0..{len(self.order) - 1}, found {self.order}"
            )
        for axis, lanes in self.blocks:
            if axis not in self.order or lanes < 2:
                raise ValueError(
                    f"layout block ({axis}, {lanes}): the axis must exist and hold at least 2 lanes"
                )

    @property
    def is_plain(self) -> bool:
        """Whether elements lie in row-major order without padding."""
        return not self.blocks and self.order == tuple(range(len(self.order)))

    def physical_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Extents in memory order, padding included."""
        lanes = dict(self.blocks)
        outer = tuple(-(-shape[axis] // lanes.get(axis, 1)) for axis in self.order)
        return outer + tuple(n for _, n in self.blocks)

    def elements(self, shape: Sequence[int]) -> int:
        """Elements that a tensor of this logical shape takes, padding included."""
        return math.prod(self.physical_shape(shape))


def plain(rank: int) -> Layout:
    """Row-major order, no blocks."""
    return Layout(tuple(range(rank)))
