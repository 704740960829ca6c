"""Checks of inputs that every executor makes."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.types.errors import InputError
from app.engine.types.sparse_array import SparseArray
from app.engine.types.storage import DeclaredStorage, StorageKind

Array = np.ndarray[Any, Any]


def check_known(given: Collection[str], expected: Collection[str]) -> None:
    """Raises InputError for a name that is no input."""
    unknown = next((name for name in given if name not in expected), None)
    if unknown is not None:
        raise InputError(
            f"input {unknown!r} is unknown; the model has {list(expected)}", pointer=f"/inputs/{unknown}"
        )


def check_complete(given: Collection[str], expected: Collection[str]) -> None:
    """Raises InputError for an input that is not given."""
    missing = next((name for name in expected if name not in given), None)
    if missing is not None:
        raise InputError(f"input {missing!r} is missing", pointer=f"/inputs/{missing}")


def as_planned(name: str, value: object, shape: tuple[int, ...], kind: np.dtype[Any] | None) -> Array:
    """The array of an input; raises InputError where shape or dtype are not those of the plan."""
    given = np.asarray(value)
    if given.shape != shape or given.dtype != kind:
        raise InputError(
            f"input {name!r}: expected {kind}{list(shape)}, found {given.dtype}{list(given.shape)}",
            pointer=f"/inputs/{name}",
        )
    return given


def dense(name: str, value: object, planned: ir.Value, declared: Mapping[str, DeclaredStorage]) -> object:
    """The input, written out; raises InputError where it stores more than the job declares."""
    given = value
    if isinstance(value, SparseArray):
        _check_parts(name, value, planned)
        given = value.dense()
    if name in declared:
        kind = declared[name].kind
        array = as_planned(name, given, graph.static_shape(planned), graph.dtype(planned))
        _check_bound(name, SparseArray.of_dense(kind, array), declared[name])
    return given


def sparse(
    name: str, value: object, planned: ir.Value, kind: StorageKind, declared: Mapping[str, DeclaredStorage]
) -> SparseArray:
    """The input, dense or sparse, as its plan stores it.

    Raises:
        InputError: its parts are no sparse array, its shape or dtype are not those of the plan, or it stores
            more than the job declares.
    """
    if isinstance(value, SparseArray) and value.kind == kind:
        _check_parts(name, value, planned)
        given = value
    else:
        array = dense(name, value, planned, {})
        array = as_planned(name, array, graph.static_shape(planned), graph.dtype(planned))
        given = SparseArray.of_dense(kind, array)
    _check_bound(name, given, declared[name])
    return given


def _check_parts(name: str, value: SparseArray, planned: ir.Value) -> None:
    shape, kind = graph.static_shape(planned), graph.dtype(planned)
    reason = value.fault()
    if value.shape != shape or value.values.dtype != kind:
        reason = f"expected {kind}{list(shape)}, found {value.values.dtype}{list(value.shape)}"
    if reason is not None:
        raise InputError(f"input {name!r}: {reason}", pointer=f"/inputs/{name}")


def _check_bound(name: str, value: SparseArray, declared: DeclaredStorage) -> None:
    most = declared.bound(value.shape)
    if value.entries > most:
        unit = "rows" if value.kind == "row_sparse" else "elements"
        raise InputError(
            f"input {name!r} stores {value.entries} {unit}; the job declares {declared}, at most {most} of "
            f"shape {list(value.shape)}: declare more, or leave the declaration out",
            pointer=f"/inputs/{name}",
        )
