"""Sizes that a kernel takes: one dataclass a kernel, filled by its row and read by its generator."""

from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTable:
    """Base of the sizes of a kernel: int64 that it reads from one array, in the order of fields."""

    def array(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The array that a call passes as `sizes`."""
        return np.array(astuple(self), np.int64)

    @classmethod
    def unpack(cls) -> str:
        """The statement of a kernel that binds every size of `sizes` to a local of its name."""
        names = [field.name for field in fields(cls)]
        return f"{', '.join(names)} = {', '.join(f'sizes[{i}]' for i in range(len(names)))}"
