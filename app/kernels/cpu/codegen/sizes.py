"""Sizes that a kernel takes: one dataclass a kernel, filled by its row and read by its generator."""

from collections import namedtuple
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numba import types

from app.kernels.cpu.codegen.instructions import number, typed


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTable:
    """Base of the sizes of a kernel: int64 that it reads from one array, in the order of fields."""

    def array(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The array that a call passes as `sizes`."""
        return np.array([getattr(self, field.name) for field in fields(self)], np.int64)

    @classmethod
    def unpack(cls, argument: str = "sizes") -> str:
        """The statement of a kernel that binds every size of an argument to a local of its name."""
        names = [field.name for field in fields(cls)]
        return f"{', '.join(names)} = {', '.join(f'{argument}[{i}]' for i in range(len(names)))}"

    @classmethod
    def reader(cls) -> Any:
        """An intrinsic: the named tuple of every size in an array `sizes`, for kernels that are no text."""
        names = [field.name for field in fields(cls)]
        kind = types.NamedUniTuple(types.int64, len(names), namedtuple(cls.__name__, names))

        def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            places = (builder.gep(values[0], [number(i)]) for i in range(len(names)))
            return context.make_tuple(builder, kind, [builder.load(place) for place in places])

        return typed(kind(types.CPointer(types.int64)), generate)
