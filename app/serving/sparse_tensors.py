"""Sparse tensors of inferences: parts by name, in JSON or as bytes one behind the other.

The parameter `sparse` of an input, or of an output that is asked for, names the form. `values` has the
tensor's datatype; as bytes, all other parts are INT32 but `indptr`, which is INT64.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from app.engine.types.sparse_array import SparseArray
from app.engine.types.storage import StorageKind

Array = np.ndarray[Any, Any]
Form: TypeAlias = Literal["csr", "row_sparse", "triples"]
FORMS: tuple[Form, ...] = get_args(Form)
PARTS: Mapping[Form, tuple[str, ...]] = {
    "csr": ("values", "indices", "indptr"),
    "row_sparse": ("values", "indices"),
    "triples": ("values", "rows", "columns"),
}
MAX_DENSE_BYTES = 2**28  # byte of a tensor of a free shape when it is written out


def rejection(form: Form, shape: tuple[int, ...], dtype: np.dtype[Any], *, is_free: bool) -> str | None:
    """Reason why no tensor of this shape comes in this form; None where one may."""
    if len(shape) != 2 if form != "row_sparse" else not shape:
        return (
            f"{form} has {'an axis or more' if form == 'row_sparse' else '2 axes'}, found shape {list(shape)}"
        )
    nbytes = math.prod(max(d, 1) for d in shape) * dtype.itemsize
    if is_free and nbytes > MAX_DENSE_BYTES:
        return f"shape {list(shape)} takes {nbytes} byte when written out, the limit is {MAX_DENSE_BYTES}"
    return None


def sizes(
    form: Form, shape: tuple[int, ...], entries: int, dtype: np.dtype[Any]
) -> tuple[tuple[str, Any, int], ...]:
    """(part, dtype, number of elements) of a tensor as bytes, in their order."""
    places, heads = np.dtype(np.int32), np.dtype(np.int64)
    width = math.prod(shape[1:]) if form == "row_sparse" else 1
    counts = {"values": (dtype, entries * width), "indptr": (heads, shape[0] + 1)}
    return tuple((name, *counts.get(name, (places, entries))) for name in PARTS[form])


def assembled(form: Form, shape: tuple[int, ...], parts: Mapping[str, Array]) -> SparseArray | str:
    """The array of these parts, or the reason why they are none."""
    values = parts["values"]
    if form == "triples":
        return SparseArray.of_triples(shape, parts["rows"], parts["columns"], values)
    if form == "row_sparse":
        count = len(parts["indices"])
        if values.size != (expected := count * math.prod(shape[1:])):
            return f"{count} rows of shape {list(shape[1:])} have {expected} values, found {values.size}"
        values = values.reshape(count, *shape[1:])
    found = SparseArray(
        "row_sparse" if form == "row_sparse" else "csr", shape, values, parts["indices"], parts.get("indptr")
    )
    return found.fault() or found


def taken_apart(form: Form, array: Array | SparseArray) -> dict[str, Array] | str:
    """The parts of an output in the order and types of their bytes, or the reason why it has none."""
    shape = array.shape
    reason = rejection(form, shape, np.dtype(np.bool_), is_free=False)
    if reason is not None:
        return reason
    kind: StorageKind = "row_sparse" if form == "row_sparse" else "csr"
    if not (isinstance(array, SparseArray) and array.kind == kind):
        array = SparseArray.of_dense(kind, np.asarray(array))
    found = {"values": array.values, "indices": array.indices, "columns": array.indices}
    if array.indptr is not None:
        found |= {"indptr": array.indptr, "rows": np.repeat(np.arange(shape[0]), np.diff(array.indptr))}
    parts = sizes(form, shape, array.entries, array.values.dtype)
    return {name: np.ascontiguousarray(found[name], dtype).reshape(-1) for name, dtype, _ in parts}
