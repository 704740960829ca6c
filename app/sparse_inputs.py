"""Sparse matrices for requests: files of a job's inputs, and tensors of an inference.

A matrix is anything with `shape`, `data`, `indices` and `indptr`, as the csr arrays of SciPy have them, or
what `from_triples` makes of (row, column, value).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
_DATATYPES = {"float32": "FP32", "float64": "FP64", "float16": "FP16", "int32": "INT32", "int64": "INT64"}


class CsrMatrix(Protocol):
    """A matrix in compressed rows; column numbers increase strictly in each row."""

    shape: tuple[int, int]
    data: Array
    indices: Array
    indptr: Array


@dataclass(frozen=True, slots=True)
class Csr:
    """See `CsrMatrix`."""

    shape: tuple[int, int]
    data: Array
    indices: Array
    indptr: Array


def from_triples(
    shape: tuple[int, int], rows: Sequence[int], columns: Sequence[int], values: Sequence[float] | Array
) -> Csr:
    """The matrix with these elements, in any order; the type of its elements is that of `values`.

    Raises:
        ValueError: the lists differ in length, an index is outside, or an element is there twice.
    """
    i, j, data = np.asarray(rows, np.int64), np.asarray(columns, np.int64), np.asarray(values)
    if not i.shape == j.shape == data.shape or i.ndim != 1:
        found = f"{i.shape}, {j.shape}, {data.shape}"
        raise ValueError(f"rows, columns and values must be lists of one length, found {found}")
    for title, places, most in (("row", i, shape[0]), ("column", j, shape[1])):
        if len(places) and not 0 <= places.min() <= places.max() < most:
            raise ValueError(
                f"{title} numbers must be 0 to {most - 1}, found {places.min()} to {places.max()}"
            )
    order = np.lexsort((j, i))
    i, j = i[order], j[order]
    if np.any((np.diff(i) == 0) & (np.diff(j) == 0)):
        raise ValueError("an element is there twice")
    return Csr(shape, data[order], j, np.searchsorted(i, np.arange(shape[0] + 1)))


def write(path: Path | str, matrix: CsrMatrix) -> None:
    """A file for `inputs` of a job, in the format of scipy.sparse.save_npz."""
    np.savez(
        path,
        format=np.array(b"csr"),
        shape=np.array(matrix.shape, np.int64),
        data=matrix.data,
        indices=matrix.indices,
        indptr=matrix.indptr,
    )


def inference_input(name: str, matrix: CsrMatrix) -> tuple[dict[str, Any], bytes]:
    """A tensor of an inference request, and the bytes that follow the JSON of the request.

    Raises:
        ValueError: the protocol does not have the type of the elements.
    """
    kind = str(matrix.data.dtype)
    if kind not in _DATATYPES:
        raise ValueError(f"elements are {kind}, expected one of {', '.join(_DATATYPES)}")
    parts = (
        np.ascontiguousarray(matrix.data),
        np.ascontiguousarray(matrix.indices, np.int32),
        np.ascontiguousarray(matrix.indptr, np.int64),
    )
    block = b"".join(part.tobytes() for part in parts)
    parameters = {"sparse": "csr", "entries": len(matrix.data), "binary_data_size": len(block)}
    row = {
        "name": name,
        "datatype": _DATATYPES[kind],
        "shape": [int(d) for d in matrix.shape],
        "parameters": parameters,
    }
    return row, block
