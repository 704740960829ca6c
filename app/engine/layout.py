"""How a tensor's elements lie in memory: a permutation of logical axes with blocked splits.

`NCHW16c` has order N, C, H, W and one block: axis C split by 16, innermost. A layout never
changes what a value means; it is a column of the plan, and sizes follow from it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


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

    def is_same_bytes(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this logical shape lies as in row-major order."""
        parts = [(axis, 0) for axis in self.order] + [(axis, 1) for axis, _ in self.blocks]
        physical = self.physical_shape(shape)
        wide = [part for part, extent in zip(parts, physical) if extent > 1]
        return wide == sorted(wide) and math.prod(physical) == math.prod(shape)

    def __str__(self) -> str:
        letters = "NCHW" if len(self.order) == 4 else "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        return "".join(letters[a] for a in self.order) + "".join(
            f"{lanes}{letters[axis].lower()}" for axis, lanes in self.blocks
        )

    def elements(self, shape: Sequence[int]) -> int:
        """Elements that a tensor of this logical shape takes, padding included."""
        return math.prod(self.physical_shape(shape))


def plain(rank: int) -> Layout:
    """Row-major order, no blocks."""
    return Layout(tuple(range(rank)))


def blocked(rank: int, lanes: int, axis: int = 1) -> Layout:
    """One axis is split, the others lie in row-major order: `NCHW8c` is `blocked(4, 8)`."""
    return Layout(tuple(range(rank)), ((axis, lanes),))


def to_physical(array: np.ndarray[Any, Any], layout: Layout, fill: float = 0) -> np.ndarray[Any, Any]:
    """An array's elements in memory order; padded lanes hold `fill`."""
    shape = list(array.shape)
    for axis, lanes in layout.blocks:
        shape[axis] = -(-shape[axis] // lanes) * lanes
    wide = np.full(shape, fill, array.dtype)
    wide[tuple(slice(n) for n in array.shape)] = array
    split: list[int] = []
    outer: dict[int, int] = {}
    lanes_of = dict(layout.blocks)
    for axis, extent in enumerate(shape):
        outer[axis] = len(split)
        lanes = lanes_of.get(axis, 1)
        split.append(extent // lanes)
        if axis in lanes_of:
            split.append(lanes)
    inner = [outer[axis] + 1 for axis, _ in layout.blocks]
    order = [outer[axis] for axis in layout.order] + inner
    return np.ascontiguousarray(wide.reshape(split).transpose(order))


def to_logical(physical: np.ndarray[Any, Any], layout: Layout, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """The tensor of this logical shape behind elements in memory order; padded lanes are left out."""
    rank = len(layout.order)
    physical = physical.reshape(layout.physical_shape(shape))
    axes: list[int] = []
    extents = []
    for axis in range(rank):
        axes.append(layout.order.index(axis))
        extent = physical.shape[axes[-1]]
        for i, (split, lanes) in enumerate(layout.blocks):
            if split == axis:
                axes.append(rank + i)
                extent *= lanes
        extents.append(extent)
    wide = physical.transpose(axes).reshape(extents)
    return np.ascontiguousarray(wide[tuple(slice(n) for n in shape)])
