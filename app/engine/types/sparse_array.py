"""Sparse arrays as a caller gives and gets them, csr or row_sparse, and the checks that they need."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from app.engine.types.storage import SparseFormat, StorageKind

Array = np.ndarray[Any, Any]
LARGEST = 2**31 - 1  # index, which is an int32 in memory


@dataclass(frozen=True, slots=True, eq=False)
class SparseArray:
    """Elements of a matrix (csr) or rows of an array (row_sparse); what is not stored is zero.

    Attributes:
        values: T[entries] of csr, T[entries, ...] of row_sparse.
        indices: columns of csr, rows of row_sparse; integers, strictly increasing, in each row of csr.
        indptr: csr: where the entries of each row begin, and their number; else None.
    """

    kind: StorageKind
    shape: tuple[int, ...]
    values: Array
    indices: Array
    indptr: Array | None = None

    @classmethod
    def of_dense(cls, kind: StorageKind, array: Array) -> Self:
        """The elements that are not zero, or the rows that have one; NaN is none."""
        if kind == "csr":
            rows, columns = np.nonzero(array)
            heads = np.searchsorted(rows, np.arange(array.shape[0] + 1))
            return cls(kind, array.shape, array[rows, columns], columns, heads)
        (kept,) = np.nonzero(array.reshape(array.shape[0], math.prod(array.shape[1:])).any(axis=1))
        return cls(kind, array.shape, array[kept], kept)

    @classmethod
    def of_triples(cls, shape: Sequence[int], rows: Array, columns: Array, values: Array) -> Self | str:
        """A csr matrix of (row, column, value) in any order; or the reason why these are none."""
        if len(shape) != 2:
            return f"triples are of matrices, the shape is {list(shape)}"
        if not rows.ndim == columns.ndim == values.ndim == 1 or not len(rows) == len(columns) == len(values):
            return (
                f"rows, columns and values must be lists of one length, found shapes {list(rows.shape)}, "
                f"{list(columns.shape)} and {list(values.shape)}"
            )
        for title, places, most in (("row", rows, shape[0]), ("column", columns, shape[1])):
            if (reason := _places_fault(title, places, most)) is not None:
                return reason
        order = np.lexsort((columns, rows))
        rows, columns, values = rows[order], columns[order], values[order]
        twice = np.flatnonzero((np.diff(rows) == 0) & (np.diff(columns) == 0))
        if len(twice):
            return f"element [{rows[twice[0]]}, {columns[twice[0]]}] is there twice"
        heads = np.searchsorted(rows, np.arange(shape[0] + 1))
        return cls("csr", tuple(shape), values, columns, heads)

    @property
    def entries(self) -> int:
        """Stored elements of csr, stored rows of row_sparse."""
        return len(self.indices)

    def fault(self) -> str | None:
        """Reason why these parts are no sparse array; None where they are one."""
        if self.kind not in ("csr", "row_sparse"):
            return f"a sparse array is csr or row_sparse, not {self.kind}"
        if len(self.shape) != 2 if self.kind == "csr" else not self.shape:
            return f"{self.kind} of {len(self.shape)} axes, shape {list(self.shape)}"
        size = self.shape[1] if self.kind == "csr" else self.shape[0]
        reason = _places_fault("index", self.indices, size)
        if reason is not None:
            return reason
        expected = (self.entries, *(() if self.kind == "csr" else self.shape[1:]))
        if self.values.shape != expected:
            found = f"found {list(self.values.shape)}"
            return f"values must have shape {list(expected)} for {self.entries} indices, {found}"
        return self._order_fault() if self.indptr is None else self._heads_fault(self.indptr)

    def _heads_fault(self, heads: Array) -> str | None:
        rows = self.shape[0]
        if heads.ndim != 1 or heads.dtype.kind not in "iu" or len(heads) != rows + 1:
            return f"indptr must be {rows + 1} integers, found {heads.dtype}{list(heads.shape)}"
        if int(heads[0]) != 0 or int(heads[-1]) != self.entries:
            return f"indptr must go from 0 to {self.entries}, found {heads[0]} to {heads[-1]}"
        back = np.flatnonzero(heads[1:] < heads[:-1])
        if len(back):
            return f"indptr must not decrease, found {heads[back[0]]} before {heads[back[0] + 1]}"
        return self._order_fault(heads.astype(np.int64))

    def _order_fault(self, heads: Array | None = None) -> str | None:
        if heads is None and self.kind == "csr":
            return "csr needs indptr"
        falls = self.indices[1:] <= self.indices[:-1]
        if heads is not None:
            starts = heads[1:-1]
            falls[starts[(starts > 0) & (starts < self.entries)] - 1] = False
        at = np.flatnonzero(falls)
        if not len(at):
            return None
        within = " in each row" if self.kind == "csr" else ""
        return (
            f"indices must increase strictly{within}: found {self.indices[at[0]]} before "
            f"{self.indices[at[0] + 1]}, at position {at[0]}"
        )

    def dense(self) -> Array:
        """All elements."""
        made: Array = np.zeros(self.shape, self.values.dtype)
        if self.indptr is None:
            made[self.indices] = self.values
        else:
            made[np.repeat(np.arange(self.shape[0]), np.diff(self.indptr)), self.indices] = self.values
        return made

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """All elements, for `numpy.asarray`; ValueError where no copy may be made."""
        if copy is False:
            raise ValueError("a sparse array is written out into a copy")
        return self.dense() if dtype is None else self.dense().astype(dtype)

    @classmethod
    def read(cls, buffer: Array, form: SparseFormat, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Self:
        """The value that lies in the bytes of its format; its parts are views of them."""
        heads = buffer[: 4 * form.places].view(np.int64)
        count = int(heads[-1])
        tail = shape[1:] if form.kind == "row_sparse" else ()
        indices = buffer[4 * form.places :][: 4 * count].view(np.int32)
        nbytes = count * math.prod(tail) * form.itemsize
        values = buffer[form.values * form.itemsize :][:nbytes].view(dtype).reshape(count, *tail)
        return cls(form.kind, shape, values, indices, heads if form.kind == "csr" else None)

    def copy(self) -> Self:
        """The same in memory of its own."""
        heads = None if self.indptr is None else self.indptr.copy()
        return replace(self, values=self.values.copy(), indices=self.indices.copy(), indptr=heads)

    def write(self, buffer: Array, form: SparseFormat) -> None:
        """Write the parts to the bytes of a value in memory, whose format has room for all entries."""
        assert self.entries <= form.capacity, (self.entries, form)
        heads = buffer[: 4 * form.places].view(np.int64)
        heads[:] = self.entries if self.indptr is None else self.indptr
        buffer[4 * form.places :][: 4 * self.entries].view(np.int32)[:] = self.indices
        count = self.values.size * form.itemsize
        buffer[form.values * form.itemsize :][:count].view(self.values.dtype)[:] = self.values.reshape(-1)


def packed(array: Array, form: SparseFormat) -> Array:
    """A dense array in the one buffer of its format, as bytes."""
    buffer = np.zeros(form.nbytes, np.uint8)
    SparseArray.of_dense(form.kind, array).write(buffer, form)
    return buffer


def _places_fault(title: str, places: Array, most: int) -> str | None:
    """Reason why these are no indices below `most`."""
    if places.ndim != 1 or (places.dtype.kind not in "iu" and len(places)):
        return f"{title} numbers must be a list of integers, found {places.dtype}{list(places.shape)}"
    if most - 1 > LARGEST:
        return f"an axis of {most} has indices above {LARGEST}, the largest that are stored"
    if len(places) and not 0 <= int(places.min()) <= int(places.max()) < most:
        return f"{title} numbers must be 0 to {most - 1}, found {places.min()} to {places.max()}"
    return None
