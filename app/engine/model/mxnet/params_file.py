"""Parameters of MXNet as `NAME-0000.params` holds them: a list of named arrays.

All numbers are little-endian. A list is u64 0x112, u64 0, u64 count and the arrays, u64 count and the names,
each u64 length and bytes. An array begins with a magic number of its release, or without one with its rank:

    legacy  u32 rank, u32[rank] shape, context, i32 dtype, data
    V1      magic, i32 rank, i64[rank] shape, context, i32 dtype, data
    V2, V3  magic, i32 storage, [stored shape], shape, context, i32 dtype, [i32 dtype, shape]*, data, [data]*

A context is i32 device, i32 number. Brackets hold what sparse arrays have in addition. In V3 rank 0 is a
scalar; before, it is no array.

Source: the format that apache/mxnet 1.9.1 writes (`NDArray::Save`).
"""

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from app.engine.types.errors import DtypeError, ExternalDataError, ModelTooLargeError
from app.engine.types.limits import Limits
from app.engine.types.storage import StorageKind

Array = np.ndarray[Any, Any]

LIST = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
DTYPES: dict[int, np.dtype[Any]] = {
    number: np.dtype(dtype)
    for number, dtype in enumerate(
        ("f4", "f8", "f2", "u1", "i4", "i1", "i8", "?", "i2", "u2", "u4", "u8", ml_dtypes.bfloat16)
    )
}
# Storage types by number, and how many index arrays each has.
STORAGE: dict[int, tuple[StorageKind, int]] = {0: ("default", 0), 1: ("row_sparse", 1), 2: ("csr", 2)}
_MOST_AXES = 32
_MOST_NAME = 4096  # byte


@dataclass(frozen=True, slots=True)
class Parameter:
    """An array, written out, and the storage type in which the file has it."""

    array: Array
    storage: StorageKind = "default"


def read(path: Path, title: str, limits: Limits) -> dict[str, Parameter]:
    """The arrays of a file by name; the prefixes `arg:` and `aux:` are left out.

    Raises:
        ExternalDataError: the file is a link, is no list of arrays, was cut short, or two have the same name.
        ModelTooLargeError, DtypeError: as named.
    """
    if path.is_symlink() or not path.is_file():
        raise ExternalDataError(f"{title}: not a regular file")
    if path.stat().st_size > limits.nbytes:
        raise ModelTooLargeError(f"{title}: {path.stat().st_size} byte, allowed are {limits.nbytes}")
    reader = _Reader(memoryview(path.read_bytes()), title, limits)
    if reader.number("Q") != LIST or reader.number("Q") != 0:
        raise reader.error("it does not begin as a list of arrays of MXNet does (0x112)")
    arrays = [reader.array() for _ in range(reader.count(4))]
    names = [reader.name() for _ in range(reader.count(8))]
    if len(names) != len(arrays):
        raise reader.error(f"{len(arrays)} arrays have {len(names)} names; expected a name for each")
    if reader.at != len(reader.data):
        raise reader.error(f"{len(reader.data) - reader.at} byte follow its end")
    found: dict[str, Parameter] = {}
    for name, parameter in zip(names, arrays):
        plain = name.removeprefix("arg:").removeprefix("aux:")
        if plain in found:
            raise reader.error(f"two arrays are named {plain!r}")
        if parameter is not None:
            found[plain] = parameter
    return found


def write(path: Path, arrays: Mapping[str, Parameter]) -> None:
    """Write arrays under their names, prefixes included, in the format V2; deterministic."""
    with path.open("wb") as file:
        file.write(struct.pack("<3Q", LIST, 0, len(arrays)))
        for parameter in arrays.values():
            for piece in _pieces(parameter):
                file.write(piece)
        file.write(struct.pack("<Q", len(arrays)))
        for name in arrays:
            encoded = name.encode()
            file.write(struct.pack("<Q", len(encoded)) + encoded)


def _pieces(parameter: Parameter) -> Iterator[bytes | memoryview]:
    array = np.ascontiguousarray(parameter.array)
    number = next(n for n, (kind, _) in STORAGE.items() if kind == parameter.storage)
    data: Array = array
    indices: tuple[Array, ...] = ()
    if parameter.storage == "row_sparse":
        rows = np.flatnonzero(array.reshape(len(array), -1).any(axis=1))
        data, indices = array[rows], (rows,)
    elif parameter.storage == "csr":
        at, columns = np.nonzero(array)
        data, indices = array[at, columns], (np.searchsorted(at, np.arange(len(array) + 1)), columns)
    numbers = {dtype: n for n, dtype in DTYPES.items()}
    yield struct.pack("<Ii", V2, number)
    if indices:
        yield _shape(data.shape)
    yield _shape(array.shape) + struct.pack("<iii", 1, 0, numbers[array.dtype])
    for part in indices:
        yield struct.pack("<i", numbers[np.dtype("i8")]) + _shape(part.shape)
    yield data.tobytes()
    for part in indices:
        yield part.astype("<i8").tobytes()


def _shape(shape: tuple[int, ...]) -> bytes:
    return struct.pack(f"<i{len(shape)}q", len(shape), *shape)


@dataclass(slots=True)
class _Reader:
    data: memoryview
    title: str
    limits: Limits
    at: int = 0
    made: int = 0  # byte of sparse arrays, written out

    def error(self, text: str) -> ExternalDataError:
        return ExternalDataError(f"{self.title}: {text}")

    def take(self, nbytes: int) -> memoryview:
        if nbytes > len(self.data) - self.at:
            raise self.error(
                f"cut short: byte {self.at} to {self.at + nbytes} of {len(self.data)} are needed"
            )
        self.at += nbytes
        return self.data[self.at - nbytes : self.at]

    def number(self, kind: str) -> int:
        return int(struct.unpack("<" + kind, self.take(struct.calcsize(kind)))[0])

    def count(self, least: int) -> int:
        """A number of things that take so many bytes each at least."""
        count = self.number("Q")
        if count * least > len(self.data) - self.at:
            raise self.error(f"cut short: {count} entries do not fit into {len(self.data) - self.at} byte")
        return count

    def name(self) -> str:
        size = self.number("Q")
        if size > _MOST_NAME:
            raise self.error(f"a name has {size} byte, allowed are {_MOST_NAME}")
        try:
            return bytes(self.take(size)).decode()
        except UnicodeDecodeError:
            raise self.error("a name is no UTF-8 text") from None

    def shape(self, rank: int, kind: str = "q") -> tuple[int, ...]:
        if not 0 <= rank <= _MOST_AXES:
            raise self.error(f"an array of {rank} axes; expected 0 to {_MOST_AXES}")
        return self.checked(tuple(self.number(kind) for _ in range(rank)))

    def checked(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if any(d < 0 for d in shape):
            raise self.error(f"an array of the shape {list(shape)}")
        if math.prod(d or 1 for d in shape) > self.limits.elements:  # sizes beside a zero are bounded too
            raise ModelTooLargeError(f"{self.title}: an array of the shape {list(shape)}")
        return shape

    def dtype(self) -> np.dtype[Any]:
        number = self.number("i")
        if number not in DTYPES:
            raise DtypeError(
                f"{self.title}: element type {number} is not known; known are 0 to {len(DTYPES) - 1}"
            )
        return DTYPES[number]

    def values(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.frombuffer(self.take(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)

    def array(self) -> Parameter | None:
        magic = self.number("I")
        if magic in (V2, V3):
            return self.stored(scalars=magic == V3)
        shape = self.shape(self.number("i")) if magic == V1 else self.shape(magic, "I")
        if not shape:
            return None
        self.take(8)  # the device
        return Parameter(self.values(shape, self.dtype()))

    def stored(self, *, scalars: bool) -> Parameter | None:
        number = self.number("i")
        if number not in STORAGE:
            raise self.error(
                f"storage type {number} is not known; known are 0 (dense), 1 (row_sparse) and 2 (csr)"
            )
        kind, indices = STORAGE[number]
        held = self.shape(self.number("i")) if indices else None
        rank = self.number("i")
        shape = self.shape(max(rank, 0))
        if rank < 0 or (rank == 0 and not scalars):
            return None
        self.take(8)
        dtype = self.dtype()
        if held is None:
            return Parameter(self.values(shape, dtype))
        kinds = [(self.dtype(), self.shape(self.number("i"))) for _ in range(indices)]
        data = self.values(held, dtype)
        parts = [self.values(s, d) for d, s in kinds]
        self.made += math.prod(shape) * dtype.itemsize
        if self.made > self.limits.nbytes:
            raise ModelTooLargeError(f"{self.title}: sparse arrays need more than {self.limits.nbytes} byte")
        return Parameter(self.dense(kind, shape, data, parts), kind)

    def dense(self, kind: StorageKind, shape: tuple[int, ...], data: Array, parts: list[Array]) -> Array:
        """A sparse array written out; every index is checked."""
        if any(p.ndim != 1 or p.dtype.kind not in "iu" for p in parts):
            raise self.error("indices of a sparse array must be lists of integers")
        where = tuple(self.places(kind, shape, data, parts))
        for axis, places in enumerate(where):
            if places.size and not 0 <= places.min() <= places.max() < shape[axis]:
                raise self.error(f"a {kind} array has indices outside of its shape {list(shape)}")
        found = np.zeros(shape, data.dtype)
        found[where] = data
        return found

    def places(
        self, kind: StorageKind, shape: tuple[int, ...], data: Array, parts: list[Array]
    ) -> Iterator[Array]:
        if kind == "row_sparse":
            if not shape or data.shape[1:] != shape[1:] or data.shape[:1] != parts[0].shape:
                raise self.error(f"a row_sparse array of the shape {list(shape)} holds {list(data.shape)}")
            yield parts[0].astype(np.int64)
            return
        starts, columns = (p.astype(np.int64) for p in parts)
        fits = len(shape) == 2 and len(starts) == shape[0] + 1 and data.shape == columns.shape
        lengths = np.diff(starts)
        if not fits or starts[0] != 0 or starts[-1] != len(columns) or np.any(lengths < 0):
            raise self.error(f"a csr array of the shape {list(shape)} has row starts that do not fit")
        yield np.repeat(np.arange(shape[0]), lengths)
        yield columns
