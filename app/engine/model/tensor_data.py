"""Tensors as a model file holds them: their element types, and whether the data are all there."""

import math
from collections.abc import Iterable

import onnx
import onnx_ir as ir

from app.engine.types.errors import DtypeError, GraphError, ModelTooLargeError
from app.engine.types.limits import Limits

UNSUPPORTED = frozenset({ir.DataType.COMPLEX64, ir.DataType.COMPLEX128})
# Which field of a TensorProto holds the elements of a type when it is not raw_data.
_FIELDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("float_data", frozenset({"FLOAT"})),
    ("double_data", frozenset({"DOUBLE"})),
    ("int64_data", frozenset({"INT64"})),
    ("uint64_data", frozenset({"UINT32", "UINT64"})),
    ("string_data", frozenset({"STRING"})),
)


def data_type(code: int, title: str, pointer: str = "") -> ir.DataType:
    """The element type behind a number of the file.

    Raises:
        DtypeError: there is none of that number, or nothing here computes with it.
    """
    try:
        found = ir.DataType(code)
    except ValueError:
        found = ir.DataType.UNDEFINED
    if found == ir.DataType.UNDEFINED:
        raise DtypeError(f"{title}: unknown element type {code}", pointer=pointer)
    if found in UNSUPPORTED:
        raise DtypeError(f"{title}: element type {found.name} is not supported", pointer=pointer)
    return found


def raw_nbytes(dims: Iterable[int], kind: ir.DataType) -> int:
    """Bytes of the raw data of a tensor; elements of less than a byte share bytes."""
    return -(-math.prod(dims) * kind.bitwidth // 8)


def check_tensor(tensor: onnx.TensorProto, limits: Limits, title: str) -> None:
    """Refuse a tensor whose data do not fit its type and dimensions."""
    pointer = f"value:{tensor.name}"
    kind = data_type(tensor.data_type, title, pointer)
    if any(d < 0 for d in tensor.dims):
        raise GraphError(f"{title}: negative dimension in {list(tensor.dims)}", pointer=pointer)
    count = math.prod(tensor.dims)
    if count > limits.elements:
        raise ModelTooLargeError(f"{title}: {count} elements, allowed are {limits.elements}", pointer=pointer)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return
    if tensor.HasField("segment"):
        raise GraphError(f"{title}: tensors in segments are not supported", pointer=pointer)
    if tensor.HasField("raw_data"):
        if kind == ir.DataType.STRING:
            raise GraphError(f"{title}: strings must not be raw data", pointer=pointer)
        expected, found, unit = raw_nbytes(tensor.dims, kind), len(tensor.raw_data), "byte"
    else:
        field_ = next((f for f, kinds in _FIELDS if kind.name in kinds), "int32_data")
        packed = 8 // kind.bitwidth if kind != ir.DataType.STRING and kind.bitwidth < 8 else 1
        expected = -(-count // packed)
        found, unit = len(getattr(tensor, field_)), f"entries in {field_}"
    if found != expected:
        raise GraphError(
            f"{title}: {kind.name}{list(tensor.dims)} needs {expected} {unit}, found {found}",
            pointer=pointer,
        )
