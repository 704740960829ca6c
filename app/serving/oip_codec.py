"""Requests of the Open Inference Protocol, version 2: tensors in JSON or behind it in bytes.

A body is a JSON object, and after it the bytes of those tensors that have a `binary_data_size`,
little-endian and row-major, in the order of the tensors. Nothing is copied here but numbers that
come as JSON: an array is a view of the body.

Source: Open Inference Protocol v2 (kserve.github.io, "Open Inference Protocol REST API"); binary tensor
data extension (Triton Inference Server, `extension_binary_data.md`).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from app.engine.types.sparse_array import SparseArray
from app.jobs.worker.engine_protocol import Port
from app.serving import sparse_tensors

Array = np.ndarray[Any, Any]
_LONGEST = 600  # characters of a message
ERROR_NBYTES = 4096  # a character takes 6 byte of JSON at most
_LONGEST_TIMEOUT = 1 << 53  # microseconds
NO_HEADER = -1  # bytes of the header, where the whole body is JSON

# The protocol's name, ours, whether JSON can hold its numbers.
_ROWS: tuple[tuple[str, np.dtype[Any], bool], ...] = (
    ("BOOL", np.dtype(np.bool_), True),
    ("INT8", np.dtype(np.int8), True),
    ("INT16", np.dtype(np.int16), True),
    ("INT32", np.dtype(np.int32), True),
    ("INT64", np.dtype(np.int64), True),
    ("UINT8", np.dtype(np.uint8), True),
    ("UINT16", np.dtype(np.uint16), True),
    ("UINT32", np.dtype(np.uint32), True),
    ("UINT64", np.dtype(np.uint64), True),
    ("FP16", np.dtype(np.float16), False),
    ("BF16", np.dtype(ml_dtypes.bfloat16), False),
    ("FP32", np.dtype(np.float32), True),
    ("FP64", np.dtype(np.float64), True),
)
DATATYPES = tuple(name for name, _, _ in _ROWS)
DATATYPE_NAMES = {dtype: name for name, dtype, _ in _ROWS}
JSON_DATATYPES = {name for name, _, fits in _ROWS if fits}
_REFUSED_PARAMETERS = {
    "sequence_id": "stateful sequences are not served",
    "shared_memory_region": "tensors come in the body, shared memory of clients is not read",
    "classification": "outputs come as the model computes them",
}


class InferenceError(Exception):
    """A request that is refused or failed; `status` is HTTP's."""

    def __init__(self, message: str, status: int = 400, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.retry_after = retry_after  # seconds

    def body(self) -> bytes:
        """As the protocol has it, at most `ERROR_NBYTES`."""
        return json.dumps({"error": self.message[:_LONGEST]}).encode()


def unserved(ports: Sequence[Port]) -> str | None:
    """Reason why tensors cannot be sent; None when they can."""
    for port in ports:
        if port.dtype not in DATATYPE_NAMES:
            have = ", ".join(DATATYPES)
            return f"{port.name!r} is {port.dtype}, which the protocol cannot carry; it has {have}"
    return None


def metadata(port: Port) -> dict[str, Any]:
    """A tensor as the model's metadata tell it; -1 for what differs from call to call."""
    shape = [-1] if port.shape is None else [-1 if d is None else d for d in port.shape]
    return {"name": port.name, "datatype": DATATYPE_NAMES[port.dtype], "shape": shape}


@dataclass(frozen=True, slots=True)
class Wanted:
    """An output that the caller wants: as bytes or JSON, all elements or the parts of a sparse form."""

    name: str
    binary: bool
    sparse: sparse_tensors.Form | None = None


@dataclass(frozen=True, slots=True)
class Inference:
    """A request that fits the model.

    Attributes:
        seconds: in which the client wants an answer; None where it does not say.
        form: that it has in common with others, where it is known.
    """

    id: str | None
    inputs: Mapping[str, Array | SparseArray]
    outputs: tuple[Wanted, ...]
    seconds: float | None = None
    form: "Form | None" = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs."""
        return {name: array.shape for name, array in self.inputs.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A request without its numbers: what a header says that only tensors as bytes follow.

    Tensors are by name, dtype, shape, number of elements, and where they begin in the body.
    """

    id: str | None
    tensors: tuple[tuple[str, np.dtype[Any], tuple[int, ...], int, int], ...]
    outputs: tuple[Wanted, ...]
    seconds: float | None = None

    def filled(self, body: memoryview) -> Inference:
        """The request with a body."""
        arrays = {
            name: np.frombuffer(body, dtype, count, begin).reshape(shape)
            for name, dtype, shape, count, begin in self.tensors
        }
        return Inference(self.id, arrays, self.outputs, self.seconds, self)


def parse(
    body: memoryview,
    header_nbytes: int,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    fixed: Mapping[str, float | int | bool],
) -> Inference:
    """A request whose tensors are those of the model.

    Raises:
        InferenceError: something is missing, unknown, or of another shape, type or size than expected.
    """
    header, rest = _divided(body, header_nbytes)
    request = _object(header, "the request")
    parameters = _parameters(request, "the request")
    known = {p.name: p for p in inputs}
    arrays: dict[str, Array | SparseArray] = {}
    for row in _rows(request, "inputs"):
        name = _name(row, "inputs")
        if name in arrays:
            raise InferenceError(f"input {name!r} is there twice")
        array, rest = _tensor(name, row, known.get(name), known, fixed, rest)
        if name in known:
            arrays[name] = array
    if len(rest):
        raise InferenceError(f"{len(rest)} byte follow the tensors: `binary_data_size` adds up to less")
    missing = [name for name in known if name not in arrays]
    if missing:
        raise InferenceError(f"input {missing[0]!r} is missing; the model takes {_listed(known)}")
    identifier = request.get("id")
    if identifier is not None and not isinstance(identifier, str):
        raise InferenceError(f"id: expected a string, found {_told(identifier)}")
    by_default = _flag(parameters, "binary_data_output", False, "the request")
    return Inference(identifier, arrays, _outputs(request, outputs, by_default), _seconds(parameters))


def _seconds(parameters: Mapping[str, Any]) -> float | None:
    """The `timeout` of a request, microseconds there; 0 is the limit of the service.

    Source: Triton Inference Server, `extension_schedule_policy.md`.
    """
    found = parameters.get("timeout", 0)
    if type(found) is not int or found < 0:
        raise InferenceError(f"timeout: expected a number of microseconds, found {_told(found)}")
    return min(found, _LONGEST_TIMEOUT) * 1e-6 or None


def _divided(body: memoryview, header_nbytes: int) -> tuple[memoryview, memoryview]:
    if header_nbytes == NO_HEADER:
        return body, body[:0]
    if not 0 < header_nbytes <= len(body):
        raise InferenceError(
            f"Inference-Header-Content-Length: expected 1 to {len(body)}, the bytes of the body, "
            f"found {header_nbytes}"
        )
    return body[:header_nbytes], body[header_nbytes:]


def _object(text: memoryview, what: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise InferenceError(f"{what} has {constant}, which JSON does not: send the tensor as binary data")

    try:
        found = json.loads(bytes(text), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InferenceError(f"{what}: expected a JSON object: {error}") from error
    if not isinstance(found, dict):
        raise InferenceError(f"{what}: expected a JSON object, found {_told(found)}")
    return found


def _rows(request: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    rows = request.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InferenceError(f"{key}: expected a list of objects, found {_told(rows)}")
    return rows


def _name(row: Mapping[str, Any], key: str) -> str:
    name = row.get("name")
    if not isinstance(name, str):
        raise InferenceError(f"{key}: expected a `name` for each, found {_told(name)}")
    return name


def _parameters(row: Mapping[str, Any], what: str) -> dict[str, Any]:
    found = row.get("parameters")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InferenceError(f"{what}: parameters: expected an object, found {_told(found)}")
    for name, why in _REFUSED_PARAMETERS.items():
        if found.get(name):
            raise InferenceError(f"{what}: parameter {name!r}: {why}")
    return found


def _flag(parameters: Mapping[str, Any], name: str, default: bool, what: str) -> bool:
    found = parameters.get(name, default)
    if not isinstance(found, bool):
        raise InferenceError(f"{what}: parameter {name!r}: expected true or false, found {_told(found)}")
    return found


def _tensor(
    name: str,
    row: Mapping[str, Any],
    port: Port | None,
    known: Mapping[str, Port],
    fixed: Mapping[str, float | int | bool],
    rest: memoryview,
) -> tuple[Array | SparseArray, memoryview]:
    """An input, and the bytes after it."""
    what = f"input {name!r}"
    if port is None and name not in fixed:
        raise InferenceError(f"{what} is unknown; the model takes {_listed(known)}")
    shape = _shape(what, row.get("shape"))
    datatype = row.get("datatype")
    if datatype == "BYTES":
        raise InferenceError(f"{what}: BYTES is refused: models with strings are not served")
    dtype = next((d for n, d, _ in _ROWS if n == datatype), None)
    if dtype is None:
        names = ", ".join(DATATYPES)
        raise InferenceError(f"{what}: datatype: expected one of {names}, found {_told(datatype)}")
    if port is not None:
        if dtype != port.dtype:
            raise InferenceError(f"{what}: expected {DATATYPE_NAMES[port.dtype]}, found {datatype}")
        _check_shape(what, shape, port)
    parameters = _parameters(row, what)
    size = parameters.get("binary_data_size")
    if "sparse" in parameters:
        if port is None:
            raise InferenceError(f"{what} was bound when the model was optimized: leave it out")
        return _sparse(what, row, port, shape, parameters, rest)
    if size is None:
        array = _from_json(what, str(datatype), dtype, shape, row)
    else:
        array, rest = _from_bytes(what, dtype, shape, size, row, rest)
    if name in fixed and not (array.size == 1 and array.reshape(-1)[0] == fixed[name]):
        raise InferenceError(f"{what} was bound to {fixed[name]} when the model was optimized: leave it out")
    return array, rest


def _sparse(
    what: str,
    row: Mapping[str, Any],
    port: Port,
    shape: tuple[int, ...],
    parameters: Mapping[str, Any],
    rest: memoryview,
) -> tuple[SparseArray, memoryview]:
    """A sparse input, and the bytes after it."""
    form, size = _sparse_form(what, parameters), parameters.get("binary_data_size")
    if port.dtype == np.bool_:
        raise InferenceError(f"{what}: BOOL comes dense only")
    reason = sparse_tensors.rejection(
        form, shape, port.dtype, is_free=port.shape is None or None in port.shape
    )
    if reason is not None:
        raise InferenceError(f"{what}: {reason}")
    if size is None:
        parts = _parts_of_json(what, row, port, sparse_tensors.PARTS[form])
    else:
        parts, rest = _parts_of_bytes(what, row, parameters, port, shape, rest)
    found = sparse_tensors.assembled(form, shape, parts)
    if isinstance(found, str):
        raise InferenceError(f"{what}: {found}")
    return found, rest


def _sparse_form(what: str, parameters: Mapping[str, Any]) -> sparse_tensors.Form:
    form: sparse_tensors.Form = parameters["sparse"]
    if form not in sparse_tensors.FORMS:
        expected = ", ".join(sparse_tensors.FORMS)
        raise InferenceError(f"{what}: parameter 'sparse': expected one of {expected}, found {_told(form)}")
    return form


def _parts_of_json(what: str, row: Mapping[str, Any], port: Port, names: tuple[str, ...]) -> dict[str, Array]:
    data = row.get("data")
    if not isinstance(data, dict) or data.keys() != set(names):
        raise InferenceError(f"{what}: data: expected an object with {', '.join(names)}, found {_told(data)}")
    integers = np.dtype(np.int64)
    found = {}
    for name in names:
        dtype = port.dtype if name == "values" else integers
        inner = f"{what}: data.{name}"
        if not isinstance(data[name], list):
            raise InferenceError(f"{inner}: expected a list of numbers, found {_told(data[name])}")
        if any(isinstance(v, list) for v in data[name]):
            raise InferenceError(f"{inner}: expected a flat list")
        count = (len(data[name]),)
        found[name] = _from_json(inner, DATATYPE_NAMES[dtype], dtype, count, {"data": data[name]})
    return found


def _parts_of_bytes(
    what: str,
    row: Mapping[str, Any],
    parameters: Mapping[str, Any],
    port: Port,
    shape: tuple[int, ...],
    rest: memoryview,
) -> tuple[dict[str, Array], memoryview]:
    entries = parameters.get("entries")
    if not isinstance(entries, int) or isinstance(entries, bool) or entries < 0:
        raise InferenceError(
            f"{what}: parameter 'entries': expected a number of entries, found {_told(entries)}"
        )
    parts = sparse_tensors.sizes(parameters["sparse"], shape, entries, port.dtype)
    nbytes = sum(dtype.itemsize * count for _, dtype, count in parts)
    block, rest = _from_bytes(what, np.dtype(np.uint8), (nbytes,), parameters["binary_data_size"], row, rest)
    found, begin = {}, 0
    for name, dtype, count in parts:
        found[name] = np.frombuffer(block, dtype, count, begin)
        begin += dtype.itemsize * count
    return found, rest


def _shape(what: str, found: Any) -> tuple[int, ...]:
    right = isinstance(found, list) and all(isinstance(d, int) and not isinstance(d, bool) for d in found)
    if not right or len(found) > 64:
        raise InferenceError(f"{what}: shape: expected a list of integers, found {_told(found)}")
    if any(d < 0 for d in found):
        raise InferenceError(f"{what}: shape: expected no negative number, found {found}")
    return tuple(found)


def _check_shape(what: str, shape: tuple[int, ...], port: Port) -> None:
    if port.shape is None:
        return
    if len(shape) != len(port.shape) or any(d not in (None, s) for d, s in zip(port.shape, shape)):
        expected = metadata(port)["shape"]
        raise InferenceError(f"{what}: expected shape {expected}, found {list(shape)}")


def _from_bytes(
    what: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    size: Any,
    row: Mapping[str, Any],
    rest: memoryview,
) -> tuple[Array, memoryview]:
    expected = math.prod(shape) * dtype.itemsize
    if not isinstance(size, int) or isinstance(size, bool) or size != expected:
        raise InferenceError(
            f"{what}: binary_data_size: expected {expected} byte for {DATATYPE_NAMES[dtype]}{list(shape)}, "
            f"found {_told(size)}"
        )
    if "data" in row:
        raise InferenceError(f"{what} has both `data` and `binary_data_size`")
    if size > len(rest):
        raise InferenceError(
            f"{what}: expected {size} byte of binary data, found {len(rest)} byte in the body"
        )
    array = np.frombuffer(rest[:size], np.uint8 if dtype == np.bool_ else dtype).reshape(shape)
    if dtype == np.bool_:
        if size and array.max() > 1:
            raise InferenceError(f"{what}: expected bytes 0 and 1 for BOOL, found {array.max()}")
        array = array.view(np.bool_)
    return array, rest[size:]


def _from_json(
    what: str, datatype: str, dtype: np.dtype[Any], shape: tuple[int, ...], row: Mapping[str, Any]
) -> Array:
    if "data" not in row:
        raise InferenceError(f"{what} has neither `data` nor the parameter `binary_data_size`")
    if datatype not in JSON_DATATYPES:
        raise InferenceError(f"{what}: {datatype} comes as binary data only: JSON has no such numbers")
    data = row["data"]
    data = data if isinstance(data, list) else [data]
    try:
        found = np.array(data) if data else np.zeros(0, dtype)
    except (ValueError, OverflowError, RecursionError) as error:
        raise InferenceError(
            f"{what}: data: expected a list of numbers, flat or as the shape says"
        ) from error
    if found.size != math.prod(shape):
        raise InferenceError(
            f"{what}: data: expected {math.prod(shape)} numbers for shape {list(shape)}, found {found.size}"
        )
    if found.ndim != 1 and found.shape != shape:
        raise InferenceError(f"{what}: data: expected shape {list(shape)} or flat, found {list(found.shape)}")
    return _converted(what, datatype, dtype, found).reshape(shape)


def _converted(what: str, datatype: str, dtype: np.dtype[Any], found: Array) -> Array:
    kinds = {"b": "b", "f": "fiu"}.get(dtype.kind, "iu")
    if found.size and found.dtype.kind not in kinds:
        expected = {"b": "true and false", "f": "numbers"}.get(dtype.kind, "integers")
        held = {"b": "true or false", "f": "fractions", "U": "strings"}.get(
            found.dtype.kind, str(found.dtype)
        )
        raise InferenceError(f"{what}: data: expected {expected} for {datatype}, found {held}")
    if found.size and dtype.kind in "iu":
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        if int(found.min()) < least or int(found.max()) > most:
            raise InferenceError(
                f"{what}: data: {datatype} holds {least} to {most}, found {found.min()} to {found.max()}"
            )
    if dtype.kind == "f" and found.size:
        largest = float(max(found.max(), -found.min()))
        if not largest <= float(np.finfo(dtype).max):
            raise InferenceError(f"{what}: data: {datatype} does not hold {largest:g}")
    return found.astype(dtype)


def _outputs(request: Mapping[str, Any], ports: Sequence[Port], by_default: bool) -> tuple[Wanted, ...]:
    rows = _rows(request, "outputs")
    known = {p.name: p for p in ports}
    if not rows:
        return tuple(Wanted(name, by_default) for name in known)
    wanted: dict[str, Wanted] = {}
    for row in rows:
        name = _name(row, "outputs")
        if name not in known:
            raise InferenceError(f"output {name!r} is unknown; the model has {_listed(known)}")
        if name in wanted:
            raise InferenceError(f"output {name!r} is there twice")
        what = f"output {name!r}"
        parameters = _parameters(row, what)
        form = _sparse_form(what, parameters) if "sparse" in parameters else None
        wanted[name] = Wanted(name, _flag(parameters, "binary_data", by_default, what), form)
    return tuple(wanted.values())


def _listed(known: Mapping[str, Port]) -> str:
    return ", ".join(map(repr, known)) or "none"


def _told(value: Any) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
