"""Outputs of a model as one file of arrays."""

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.types.map_type import ScoreMaps
from app.engine.types.sparse_array import SparseArray


def write_outputs(path: Path, outputs: Mapping[str, object]) -> None:
    """Outputs as arrays in an .npz, never pickled; an empty optional value is left out.

    A sequence becomes one array per element, `name.0` and on. A map becomes its keys, `name.keys`, and
    its values, `name.values`; a sequence of maps with the same keys, these keys and a row of values each.
    A value that the program returns sparse becomes `name.shape`, `name.values` and `name.indices`, of csr
    `name.indptr` too.
    """
    np.savez_compressed(path, **dict(itertools.chain(*(_plain(n, v) for n, v in outputs.items()))))


def _plain(name: str, value: object) -> Iterable[tuple[str, Any]]:
    """Arrays of numbers or strings of fixed length, by name."""
    if value is None:
        return ()
    if isinstance(value, ScoreMaps):
        return (f"{name}.keys", np.asarray(value.labels)), (f"{name}.values", value.scores)
    if isinstance(value, SparseArray):
        heads = () if value.indptr is None else ((f"{name}.indptr", value.indptr),)
        parts = (f"{name}.values", value.values), (f"{name}.indices", value.indices)
        return (f"{name}.shape", np.array(value.shape, np.int64)), *parts, *heads
    if isinstance(value, list):
        if value and all(isinstance(v, dict) and list(v) == list(value[0]) for v in value):
            rows = np.array([list(v.values()) for v in value])
            return (f"{name}.keys", np.asarray(list(value[0]))), (f"{name}.values", rows)
        return itertools.chain(*(_plain(f"{name}.{i}", v) for i, v in enumerate(value)))
    if isinstance(value, dict):
        values = np.asarray(list(value.values()))
        return (f"{name}.keys", np.asarray(list(value))), (f"{name}.values", values)
    array = np.asarray(value)
    return ((name, array.astype(str) if array.dtype == object else array),)
