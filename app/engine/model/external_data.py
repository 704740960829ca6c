"""Tensors whose data lie outside the model file.

A name in a model is never used as a path: data come only from files that the caller mapped to
that name. Everything an uploaded model says about them is checked before a byte is read.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
import onnx_ir as ir

from app.engine.model.tensor_data import data_type, raw_nbytes
from app.engine.types.errors import ExternalDataError, ModelTooLargeError
from app.engine.types.limits import Limits

Files = Mapping[str, Path]


def names(model: onnx.ModelProto) -> tuple[str, ...]:
    """The files that a model refers to, each once, as it names them."""
    return tuple(dict.fromkeys(_entries(t).get("location", "") for t in _external(model)))


def inline(model: onnx.ModelProto, files: Files, limits: Limits, nbytes: int) -> None:
    """Move external data into the message. `nbytes` is what the model file takes of the limit.

    Raises:
        ExternalDataError: a name leaves the model's folder or was not given, or a file is a link,
            absent or too short.
        ModelTooLargeError: model and data exceed the limit.
    """
    for tensor in _external(model):
        entries = _entries(tensor)
        path = _resolve(tensor, entries.get("location", ""), files)
        offset, length = _range(tensor, entries, path)
        nbytes += length
        if nbytes > limits.nbytes:
            raise ModelTooLargeError(
                f"model and external data exceed {limits.nbytes} byte", pointer=f"value:{tensor.name}"
            )
        with path.open("rb") as file:
            file.seek(offset)
            tensor.raw_data = file.read(length)
        tensor.ClearField("external_data")
        tensor.data_location = onnx.TensorProto.DEFAULT


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    return {e.key: e.value for e in tensor.external_data}


def _external(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    of_functions = (t for f in model.functions for n in f.node for t in _attribute_tensors(n))
    for tensor in (*_tensors(model.graph), *of_functions):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        yield from _attribute_tensors(node)


def _attribute_tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("g"):
            yield from _tensors(attribute.g)
        for graph in attribute.graphs:
            yield from _tensors(graph)


def _invalid(tensor: onnx.TensorProto, reason: str) -> ExternalDataError:
    return ExternalDataError(f"tensor {tensor.name!r}: {reason}", pointer=f"value:{tensor.name}")


def _resolve(tensor: onnx.TensorProto, location: str, files: Files) -> Path:
    parts = PurePosixPath(location.replace("\\", "/")).parts
    leaves = PurePosixPath(location).is_absolute() or PureWindowsPath(location).is_absolute()
    if not location or leaves or ".." in parts or PureWindowsPath(location).drive:
        raise _invalid(
            tensor,
            f"external data are named {location!r}; expected a relative path inside the model's folder",
        )
    path = files.get(location)
    if path is None:
        raise _invalid(
            tensor,
            f"its data are in {location!r}, which was not given. Give that file with the model: "
            "drop both on the page, put it beside the model for `stowplan`, or name it in a manifest "
            "(`createModel`)",
        )
    if path.is_symlink() or not path.is_file():
        raise _invalid(tensor, f"{location!r} is not a regular file")
    return path


def _range(tensor: onnx.TensorProto, entries: dict[str, str], path: Path) -> tuple[int, int]:
    """Offset and length in bytes, checked against the tensor's size and the file's."""
    kind = data_type(tensor.data_type, f"tensor {tensor.name!r}", f"value:{tensor.name}")
    if kind == ir.DataType.STRING:
        raise _invalid(tensor, "strings cannot be external data")
    expected = raw_nbytes(tensor.dims, kind)
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries.get("length", str(expected)))
    except ValueError:
        raise _invalid(tensor, "offset and length must be numbers") from None
    if length != expected:
        raise _invalid(
            tensor, f"{kind.name}{list(tensor.dims)} needs {expected} byte, the model says {length}"
        )
    size = path.stat().st_size
    if offset < 0 or offset + length > size:
        raise _invalid(
            tensor,
            f"needs byte {offset} to {offset + length} of {entries['location']!r}, which has {size}",
        )
    return offset, length
