"""Export as one plain ONNX file that any runtime can run."""

from pathlib import Path

import onnx
import onnx_ir as ir

from app.engine import map_type
from app.engine.errors import ModelTooLargeError
from app.engine.passes.infer_types import bound_inputs

LARGEST = 2**31 - 1  # byte; what one protobuf message can hold


def export(model: ir.Model, path: Path) -> None:
    """Write a graph with the names, order and types of its original inputs and outputs.

    See `proto_of`; the same graph gives the same bytes.

    Raises:
        ModelTooLargeError: the weights do not fit into one file.
    """
    write(proto_of(model), path)


def proto_of(model: ir.Model) -> onnx.ModelProto:
    """A graph with the names, order and types of its original inputs and outputs.

    An input that was bound to a value stays in the signature; nothing reads it. What tools noted
    on nodes and values, paths of whoever exported the model among them, is left out.

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
    _strip(proto.graph)
    del proto.metadata_props[:]
    proto.ClearField("doc_string")
    proto.producer_name, proto.producer_version = "stowplan", ""
    return proto


def write(proto: onnx.ModelProto, path: Path) -> None:
    """Write a file; the same content gives the same bytes."""
    path.write_bytes(proto.SerializeToString(deterministic=True))


def _strip(graph: onnx.GraphProto) -> None:
    """Drop comments and metadata, nested graphs included."""
    del graph.metadata_props[:]
    graph.ClearField("doc_string")
    for value in (*graph.input, *graph.output, *graph.value_info):
        del value.metadata_props[:]
        value.ClearField("doc_string")
    for tensor in graph.initializer:
        del tensor.metadata_props[:]
        tensor.ClearField("doc_string")
    for node in graph.node:
        del node.metadata_props[:]
        node.ClearField("doc_string")
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _strip(body)
