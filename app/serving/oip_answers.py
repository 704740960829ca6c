"""Answers of the Open Inference Protocol, version 2; see `oip_codec`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from app.engine.types.sparse_array import SparseArray
from app.serving import sparse_tensors
from app.serving.oip_codec import (
    DATATYPE_NAMES,
    JSON_DATATYPES,
    NO_HEADER,
    Array,
    Inference,
    InferenceError,
    Wanted,
)
from app.serving.sparse_tensors import Form

_MAX_HEADERS = 64  # headers of answers that are remembered


@dataclass(frozen=True, slots=True)
class Answer:
    """A body: JSON, and the arrays whose bytes follow it, contiguous.

    Attributes:
        nbytes: of the whole body.
    """

    header: bytes
    arrays: tuple[Array, ...]
    nbytes: int = field(init=False)
    _pieces: tuple[memoryview, ...] = field(init=False)

    def __post_init__(self) -> None:
        """See the arrays as bytes: an answer may be written many times (`is_of`)."""
        pieces = tuple(a.reshape(-1).view(np.uint8).data for a in self.arrays)
        object.__setattr__(self, "_pieces", pieces)
        object.__setattr__(self, "nbytes", len(self.header) + sum(p.nbytes for p in pieces))

    @property
    def header_nbytes(self) -> int:
        """Bytes of the JSON header, where binary data follows it."""
        return len(self.header) if self.arrays else NO_HEADER

    def is_of(self, inference: Inference, outputs: Mapping[str, object]) -> bool:
        """True if its arrays are these outputs themselves: then it answers all requests of one form."""
        wanted = inference.outputs
        return len(wanted) == len(self.arrays) and all(
            outputs[w.name] is a for w, a in zip(wanted, self.arrays)
        )

    def kept(self) -> "Answer":
        """The same, of arrays that no other run overwrites."""
        return Answer(self.header, tuple(a.copy() for a in self.arrays))

    def write(self, place: memoryview) -> None:
        """Put the body into memory of its size."""
        end = len(self.header)
        place[:end] = self.header
        for piece in self._pieces:
            begin, end = end, end + piece.nbytes
            place[begin:end] = piece


def answer(name: str, version: str, inference: Inference, outputs: Mapping[str, object]) -> Answer:
    """Body of the answer.

    Raises:
        InferenceError: an output is wanted as JSON and has numbers that JSON does not, or it is wanted in a
            sparse form that its shape does not have.
    """
    tensors: list[_Tensor] = []
    arrays: list[Array] = []
    data: dict[str, object] = {}
    for wanted in inference.outputs:
        found = outputs[wanted.name]
        row, held = _whole(wanted, found) if wanted.sparse is None else _parts(wanted, wanted.sparse, found)
        tensors.append(row)
        if isinstance(held, np.ndarray):
            arrays.append(held)
        else:
            data[wanted.name] = held
    told = (name, version, inference.id, tuple(tensors))
    return Answer(_header(*told, data) if data else _header_of_bytes(*told), tuple(arrays))


# Name, datatype, shape and parameters.
_Tensor: TypeAlias = tuple[str, str, tuple[int, ...], tuple[tuple[str, object], ...]]
# Contiguous where it goes as bytes, else numbers for JSON.
_Held: TypeAlias = Array | list[Any] | dict[str, list[Any]]


def _whole(wanted: Wanted, found: object) -> tuple[_Tensor, _Held]:
    """All elements of an output."""
    array = np.asarray(found)
    sizes = (("binary_data_size", array.nbytes),) if wanted.binary else ()
    row = wanted.name, DATATYPE_NAMES[array.dtype], array.shape, sizes
    return row, np.ascontiguousarray(array) if wanted.binary else _as_json(wanted.name, array)


def _parts(wanted: Wanted, form: Form, found: object) -> tuple[_Tensor, _Held]:
    """The parts of an output in a sparse form."""
    array = found if isinstance(found, SparseArray) else np.asarray(found)
    parts = sparse_tensors.taken_apart(form, array)
    if isinstance(parts, str):
        raise InferenceError(f"output {wanted.name!r}: {parts}")
    own: tuple[tuple[str, object], ...] = (("sparse", form),)
    held: _Held = {name: _as_json(wanted.name, part) for name, part in parts.items() if not wanted.binary}
    if wanted.binary:
        held = np.concatenate([part.view(np.uint8) for part in parts.values()])
        entries = len(parts["rows" if form == "triples" else "indices"])
        own = (*own, ("entries", entries), ("binary_data_size", held.nbytes))
    return (wanted.name, DATATYPE_NAMES[parts["values"].dtype], array.shape, own), held


def _header(
    name: str, version: str, identifier: str | None, tensors: tuple[_Tensor, ...], data: Mapping[str, object]
) -> bytes:
    rows: list[dict[str, Any]] = []
    for tensor, datatype, shape, parameters in tensors:
        row: dict[str, Any] = {"name": tensor, "datatype": datatype, "shape": shape}
        given = {"parameters": dict(parameters)} if parameters else {}
        rows.append(row | given | ({"data": data[tensor]} if tensor in data else {}))
    told: dict[str, Any] = {"model_name": name, "model_version": version, "outputs": rows}
    if identifier is not None:
        told["id"] = identifier
    return json.dumps(told).encode()


@lru_cache(maxsize=_MAX_HEADERS)
def _header_of_bytes(name: str, version: str, identifier: str | None, tensors: tuple[_Tensor, ...]) -> bytes:
    """The header where all tensors follow it: the same for all requests of one form."""
    return _header(name, version, identifier, tensors, {})


def _as_json(name: str, array: Array) -> list[Any]:
    datatype = DATATYPE_NAMES[array.dtype]
    if datatype not in JSON_DATATYPES:
        raise InferenceError(
            f"output {name!r} is {datatype}, which JSON does not have: ask for `binary_data`"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InferenceError(
            f"output {name!r} has infinite values or NaN, which JSON does not have: ask for `binary_data`"
        )
    return list(array.reshape(-1).tolist())
