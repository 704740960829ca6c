"""Upper limits of what sparse values of a run store, from those of what they are computed from."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from app.engine.types.storage import StorageType, most_entries


class Stored(NamedTuple):
    """An operand: its storage type and shape."""

    storage: StorageType
    shape: tuple[int, ...]

    @property
    def bound(self) -> int:
        """Most entries that it stores."""
        most = most_entries(self.storage.kind, self.shape)
        if self.storage.bound is not None:
            return min(self.storage.bound, most)
        return math.ceil(self.storage.density * most)


# MXNet's names of operators of which each entry of the result is computed from entries of the operands at
# the same place, and is zero where none of them is stored.
_PLACEWISE = (
    "elemwise_add elemwise_sub add_n identity relu tanh sqrt square abs sign floor ceil round negative sin "
    "arcsin arcsinh arctan arctanh cbrt degrees expm1 fix log1p radians rint sinh tan trunc _mul_scalar "
    "_div_scalar _plus_scalar _minus_scalar clip concat Concat slice _maximum _minimum _grad_add cast_storage"
)
_PRODUCTS = "elemwise_mul broadcast_mul broadcast_div"  # zero where one operand is


def _dot(result: Stored, operands: Sequence[Stored]) -> int:
    """A row for each element of a turned csr matrix; a column for each of one on the right."""
    if result.storage.kind == "row_sparse":
        return operands[0].bound
    return result.shape[0] * operands[1].bound


def _take(result: Stored, operands: Sequence[Stored]) -> int:
    """Each index takes a row of the csr matrix, the same one perhaps."""
    return result.shape[0] * min(operands[0].bound, result.shape[-1])


def _indices(_result: Stored, operands: Sequence[Stored]) -> int:
    """A row for each index."""
    return math.prod(operands[1].shape)


# By MXNet's names of operators; operands of backward ones begin with the gradient of the result.
_RULES: Mapping[str, Callable[[Stored, Sequence[Stored]], int]] = {
    "dot": _dot,
    "take": _take,
    "sparse_retain": lambda result, operands: min(operands[0].bound, _indices(result, operands)),
    "_backward_dot": lambda _result, operands: operands[1].bound,
    "_backward_Embedding": _indices,
    "_backward_sparse_retain": _indices,
}


def after_mxnet(op: str, result: Stored, operands: Sequence[Stored]) -> int:
    """Bound of the result of an operator of MXNet on finite numbers; where none is known, of all entries.

    `operands` are all of them; dense ones give no bound. A product with an infinity is NaN where the other
    operand stores nothing: casts to a sparse value then store NaN only.
    """
    most = most_entries(result.storage.kind, result.shape)
    alike = [o.bound for o in operands if o.storage.kind == result.storage.kind]
    if op in _PRODUCTS.split() and alike:
        return min(*alike, most)
    if op in _PLACEWISE.split() and len(alike) == len(operands):
        return min(sum(alike), most)
    rule = _RULES.get(op)
    return most if rule is None else min(rule(result, operands), most)


def of_elementwise(products: bool, kept: Sequence[Stored]) -> int:
    """Bound of a group of elementwise nodes that keep zero, on operands of one storage type."""
    bounds = [o.bound for o in kept]
    most = most_entries(kept[0].storage.kind, kept[0].shape)
    return min(min(bounds) if products else sum(bounds), most)
