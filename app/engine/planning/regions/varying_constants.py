"""Constants of a canonical graph that depend on the shape: what they are at any point of a region."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.types.errors import RegionError
from app.engine.types.regions.formula import Formula
from app.engine.types.regions.region import Point

Array: TypeAlias = np.ndarray[Any, Any]
Dims: TypeAlias = tuple[Formula, ...]
Rows: TypeAlias = Sequence[Sequence[int | None]]  # numbers by sample; None where a sample does not tell one
Formulas: TypeAlias = Callable[[Rows, str], tuple[Formula, ...]]
FEW = 64  # elements of a constant that are formulas one by one


@dataclass(frozen=True, slots=True)
class VaryingConstant:
    """A constant of the canonical graph that depends on the shape.

    At most one of `elements` and `ramp` is given; without both it is the first elements of `whole` along
    every axis.

    Attributes:
        dims: of its shape.
        elements: of few integers.
        ramp: of many integers, the first and by how much they grow along each axis.
        whole: the array at the largest shape.
    """

    dims: Dims
    elements: tuple[Formula, ...] | None
    ramp: tuple[Formula, ...] | None
    whole: Array

    def at(self, point: Point) -> Array:
        """The array at a point."""
        shape = tuple(d.at(point) for d in self.dims)
        if self.elements is not None:
            return np.array([e.at(point) for e in self.elements], self.whole.dtype).reshape(shape)
        if self.ramp is not None:
            return _ramp(shape, [f.at(point) for f in self.ramp]).astype(self.whole.dtype)
        return np.ascontiguousarray(self.whole[tuple(map(slice, shape))])

    def same_numbers(self, other: "VaryingConstant") -> bool:
        """True if two constants that are equal at the largest shape are equal at every point."""
        return (self.dims, self.elements, self.ramp) == (other.dims, other.elements, other.ramp)


def varying_constant(
    operand: tuple[str, int], tensors: Sequence[ir.TensorProtocol], formulas: Formulas
) -> VaryingConstant | None:
    """A constant operand of a node from its tensors at samples; None where it is the same at all.

    Args:
        operand: name of the node, position among its inputs.
        tensors: that of the largest shape first.
        formulas: of numbers by sample, see `app.engine.planning.regions.extents`.

    Raises:
        RegionError: it depends on the shape in another way than a `VaryingConstant` can say.
    """
    if all(t is tensors[0] for t in tensors):
        return None
    arrays = [t.numpy() for t in tensors]
    whole = arrays[0]
    what = f"the constant at position {operand[1]} of {operand[0]!r}"
    if all(a.shape == whole.shape and _is_begin(a, whole) for a in arrays):
        return None
    elements = ramp = None
    if whole.dtype.kind in "iu" and whole.size <= FEW and len({a.shape for a in arrays}) == 1:
        elements = formulas([tuple(map(int, a.reshape(-1))) for a in arrays], what)
    elif not all(_is_begin(a, whole) for a in arrays):
        slopes = [_slopes(a) for a in arrays]
        if any(s is None for s in slopes):
            raise RegionError(
                f"{what} depends on the shape: it is neither the beginning of that of the largest shape, nor "
                "integers that grow by the same number along each axis",
                pointer=f"node:{operand[0]}",
            )
        ramp = formulas([s for s in slopes if s is not None], what)
    dims = formulas([a.shape for a in arrays], f"the shape of {what}")
    return VaryingConstant(dims, elements, ramp, whole)


def _is_begin(array: Array, whole: Array) -> bool:
    """True if an array is the first elements of another along every axis."""
    if array.ndim != whole.ndim or array.dtype != whole.dtype:
        return False
    begin = whole[tuple(map(slice, array.shape))]
    return np.array_equal(array, begin, equal_nan=array.dtype.kind == "f")


def _slopes(array: Array) -> tuple[int | None, ...] | None:
    """The first element, and by how much the elements grow along each axis; None for an axis of one element.

    None where the array is not that: it has no integers, or they grow by several numbers.
    """
    if array.dtype.kind not in "iu" or not array.size:
        return None
    first = int(array.reshape(-1)[0])
    second = (tuple(int(axis == at) for axis in range(array.ndim)) for at in range(array.ndim))
    slopes = [int(array[at]) - first if n > 1 else None for n, at in zip(array.shape, second)]
    if not np.array_equal(_ramp(array.shape, [first, *(s or 0 for s in slopes)]), array.astype(np.int64)):
        return None
    return first, *slopes


def _ramp(shape: tuple[int, ...], numbers: Sequence[int]) -> Array:
    """int64 array of a shape from its first element and the growth along each axis."""
    found = np.full(shape, numbers[0], np.int64)
    for axis, slope in enumerate(numbers[1:]):
        steps = np.arange(shape[axis], dtype=np.int64) * slope
        found += steps.reshape([-1 if at == axis else 1 for at in range(len(shape))])
    return found
