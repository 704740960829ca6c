"""Answers of the Open Inference Protocol, version 2; see `oip_codec`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from app.serving.oip_codec import (
    DATATYPE_NAMES,
    JSON_DATATYPES,
    NO_HEADER,
    Array,
    Inference,
    InferenceError,
)

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
        InferenceError: an output is wanted as JSON and has numbers that JSON does not.
    """
    given = {w.name: np.asarray(outputs[w.name]) for w in inference.outputs}
    tensors = tuple((name, DATATYPE_NAMES[a.dtype], a.shape, a.nbytes) for name, a in given.items())
    arrays = tuple(np.ascontiguousarray(given[w.name]) for w in inference.outputs if w.binary)
    data = {w.name: _as_json(w.name, given[w.name]) for w in inference.outputs if not w.binary}
    told = (name, version, inference.id, tensors)
    return Answer(_header(*told, data) if data else _header_of_bytes(*told), arrays)


_Tensors = tuple[tuple[str, str, tuple[int, ...], int], ...]  # name, datatype, shape, bytes


def _header(
    name: str, version: str, identifier: str | None, tensors: _Tensors, data: Mapping[str, list[Any]]
) -> bytes:
    rows: list[dict[str, Any]] = []
    for tensor, datatype, shape, nbytes in tensors:
        row: dict[str, Any] = {"name": tensor, "datatype": datatype, "shape": shape}
        own = {"data": data[tensor]} if tensor in data else {"parameters": {"binary_data_size": nbytes}}
        rows.append(row | own)
    told: dict[str, Any] = {"model_name": name, "model_version": version, "outputs": rows}
    if identifier is not None:
        told["id"] = identifier
    return json.dumps(told).encode()


@lru_cache(maxsize=_MAX_HEADERS)
def _header_of_bytes(name: str, version: str, identifier: str | None, tensors: _Tensors) -> bytes:
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
