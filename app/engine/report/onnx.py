"""Export as one plain ONNX file that any runtime can run."""

from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from app.engine.gradient.marks import NOTE
from app.engine.model.spool import Spool
from app.engine.passes.infer_types import DECLARED_SHAPES, bound_inputs
from app.engine.types import map_type
from app.engine.types.errors import ModelTooLargeError
from app.engine.types.storage import DECLARED, SPARSE_GRADIENT

LARGEST = 2**31 - 1  # byte; what one protobuf message can hold
STREAMED = 1024  # byte; larger weights never lie in a message

Weights: TypeAlias = Mapping[str, ir.TensorProtocol]
NO_WEIGHTS: Weights = {}
_Parts: TypeAlias = Iterable[onnx.ValueInfoProto | onnx.TensorProto | onnx.NodeProto]
# Field numbers: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9


def export(model: ir.Model, path: Path, *, external: bool = False, notes: bool = False) -> None:
    """Write a graph with the names, order and types of its original inputs and outputs.

    See `proto_of`; the same graph gives the same bytes. Large weights are written one at a time; with
    `external`, into a file beside it, `<name>.data`.

    Raises:
        ModelTooLargeError: the weights do not fit into one file.
    """
    proto, weights = apart(model, most=None if external else LARGEST, notes=notes)
    if external and weights:
        _write_beside(proto, path.with_name(f"{path.name}.data"), weights)
        weights = NO_WEIGHTS
    write(proto, path, weights)


def _write_beside(proto: onnx.ModelProto, path: Path, weights: Weights) -> None:
    """Write weights to a file of external data, each at the start of a page, and refer to them."""
    spool = Spool(path)
    for name, tensor in weights.items():
        spool.write(name, tensor.tobytes())
        proto.graph.initializer.append(_placed(name, tensor, spool))
    spool.close()


def _placed(name: str, tensor: ir.TensorProtocol, spool: Spool) -> onnx.TensorProto:
    """The message of a weight whose data are in the spool."""
    written = _head(name, tensor)
    offset, length = spool.places[name]
    written.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", spool.path.name), ("offset", offset), ("length", length)):
        written.external_data.add(key=key, value=str(value))
    return written


def export_beside(model: ir.Model, path: Path, spool: Spool) -> None:
    """Write a graph whose large weights stay in the spool, a file beside it: external data."""
    proto, weights = apart(model)
    for name, tensor in weights.items():
        if name in spool.places:
            written = _placed(name, tensor, spool)
        else:
            written = _head(name, tensor)
            written.raw_data = tensor.tobytes()
        proto.graph.initializer.append(written)
    write(proto, path)


def apart(
    model: ir.Model, *, most: int | None = LARGEST, notes: bool = False
) -> tuple[onnx.ModelProto, Weights]:
    """The message of a graph without its large weights, and these by name; see `proto_of`.

    Raises:
        ModelTooLargeError: the weights have more than `most` bytes.
    """
    large = {
        name: value.const_value
        for name, value in model.graph.initializers.items()
        if value.const_value is not None and _is_large(value.const_value, notes)
    }
    nbytes = sum(tensor.nbytes for tensor in large.values())
    if most is not None and nbytes > most:
        raise ModelTooLargeError(f"the graph has {nbytes} byte of weights, one ONNX file holds {most}")
    try:
        for name, tensor in large.items():
            model.graph.initializers[name].const_value = ir.Tensor(
                np.zeros(0, tensor.dtype.numpy()), name=name
            )
        proto = proto_of(model, notes=notes)
    finally:
        for name, tensor in large.items():
            model.graph.initializers[name].const_value = tensor
    _drop(proto.graph, large)
    return proto, large


def _is_large(tensor: ir.TensorProtocol, notes: bool) -> bool:
    """True for a weight that never lies in a message; one with notes that are wanted does."""
    if notes and tensor.metadata_props:
        return False
    return tensor.nbytes > STREAMED and tensor.dtype != ir.DataType.STRING


def _head(name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
    """The message of a weight, without its data."""
    return onnx.TensorProto(name=name, data_type=int(tensor.dtype), dims=tensor.shape.numpy())


def proto_of(model: ir.Model, *, notes: bool = False) -> onnx.ModelProto:
    """A graph with the names, order and types of its original inputs and outputs.

    An input that was bound to a value stays in the signature; nothing reads it. What tools noted
    on nodes and values, paths of whoever exported the model among them, is left out unless `notes` are
    wanted.

    Raises:
        ModelTooLargeError: the weights do not fit into one file.
    """
    nbytes = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    if nbytes > LARGEST:
        raise ModelTooLargeError(f"the graph has {nbytes} byte of weights, one ONNX file holds {LARGEST}")
    proto = ir.to_proto(model)
    inputs = list(proto.graph.input)
    for bound in bound_inputs(model):
        inputs.insert(bound.position, ir.to_proto(bound.value))
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    map_type.declare(proto.graph, model.graph)
    _declare_ranks(proto.graph, model.meta.get(DECLARED_SHAPES, {}))
    if notes:
        return proto
    _strip(proto.graph)
    told = [p for p in proto.metadata_props if p.key == NOTE]
    del proto.metadata_props[:]
    proto.metadata_props.extend(told)
    proto.ClearField("doc_string")
    proto.producer_name, proto.producer_version = "stowplan", ""
    return proto


def _declare_ranks(graph: onnx.GraphProto, declared: Mapping[str, ir.Shape]) -> None:
    """Give outputs of which no shape was inferred that of the original file: a valid file states a rank."""
    for value in graph.output:
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type") or kind.HasField("shape") or value.name not in declared:
            continue
        kind.shape.SetInParent()
        for size in declared[value.name]:
            dimension = kind.shape.dim.add()
            if isinstance(size, int):
                dimension.dim_value = size
            elif size.value is not None:
                dimension.dim_param = size.value


def write(proto: onnx.ModelProto, path: Path, weights: Weights = NO_WEIGHTS) -> None:
    """Write a file of a model with these weights besides its own; the same content gives the same bytes.

    Large weights come last, and are written one at a time.
    """
    large = {
        t.name: ir.from_proto(t)
        for t in proto.graph.initializer
        if len(t.raw_data) > STREAMED and not t.metadata_props
    }
    weights = {**large, **weights}
    shell = onnx.ModelProto()
    shell.CopyFrom(proto)
    if large:
        _drop(shell.graph, large)
    graph = shell.graph.SerializeToString(deterministic=True)
    shell.ClearField("graph")
    heads = {name: _head(name, t).SerializeToString() for name, t in weights.items()}
    sizes = {name: len(heads[name]) + _field_size(_RAW_DATA, t.nbytes) for name, t in weights.items()}
    whole = len(graph) + sum(_field_size(_INITIALIZER, n) for n in sizes.values())
    with path.open("wb") as file:
        file.write(shell.SerializeToString(deterministic=True))
        file.write(_key(_GRAPH, whole))
        file.write(graph)
        for name, tensor in weights.items():
            file.write(_key(_INITIALIZER, sizes[name]) + heads[name] + _key(_RAW_DATA, tensor.nbytes))
            file.write(tensor.tobytes())


def _drop(graph: onnx.GraphProto, names: Container[str]) -> None:
    """Remove initializers."""
    kept = [t for t in graph.initializer if t.name not in names]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _key(field: int, length: int) -> bytes:
    """Tag and length before a field of so many bytes.

    Source: protobuf.dev/programming-guides/encoding, tags and length-delimited records.
    """
    return _varint(field << 3 | 2) + _varint(length)


def _field_size(field: int, length: int) -> int:
    """Bytes that a field of so many bytes takes."""
    return len(_key(field, length)) + length


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit says that another byte follows."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _strip(graph: onnx.GraphProto) -> None:
    """Drop comments and metadata, nested graphs included, but what is read of outputs and lookups."""
    del graph.metadata_props[:]
    graph.ClearField("doc_string")
    parts: tuple[tuple[_Parts, str], ...] = (
        *((found, "") for found in (graph.input, graph.value_info, graph.initializer)),
        (graph.output, DECLARED),
        (graph.node, SPARSE_GRADIENT),
    )
    for found, kept in parts:
        for part in found:
            told = [p for p in part.metadata_props if p.key == kept]
            del part.metadata_props[:]
            part.metadata_props.extend(told)
            part.ClearField("doc_string")
    for node in graph.node:
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _strip(body)
