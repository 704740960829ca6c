"""Strided copies and index lookups, in elements."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Indices = np.ndarray[Any, np.dtype[np.int64]]  # source index by target index; negative is outside


@dataclass(frozen=True, slots=True)
class StridedCopy:
    """y[y0 + Σ i·sy] = x[x0 + Σ i·sx] for all i below the sizes; everything counts elements."""

    sizes: tuple[int, ...]
    sx: tuple[int, ...]
    sy: tuple[int, ...]
    x0: int = 0
    y0: int = 0

    def __post_init__(self) -> None:
        if not len(self.sizes) == len(self.sx) == len(self.sy):
            raise ValueError(f"sizes {self.sizes}, strides {self.sx} and {self.sy} must be of one length")


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
