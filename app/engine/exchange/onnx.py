"""Export as plain ONNX that other runtimes run."""

from pathlib import Path

import onnx
import onnx_ir as ir

from app.engine.passes.infer_types import BOUND


def export(model: ir.Model, path: Path) -> None:
    """Write a graph with the names, order and types of its original inputs and outputs.

    An input that was bound to a value stays in the signature, unread. Same graph, same bytes.
    """
    proto = ir.to_proto(model)
    inputs = list(proto.graph.input)
    for position, value, _ in model.meta.get(BOUND, ()):
        inputs.insert(position, ir.serde.serialize_value(value))
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    _strip(proto.graph)
    del proto.metadata_props[:]
    path.write_bytes(proto.SerializeToString(deterministic=True))


def _strip(graph: onnx.GraphProto) -> None:
    """Drop what tools noted on nodes and values: paths and traces of whoever exported the model."""
    del graph.metadata_props[:]
    graph.ClearField("doc_string")
    for value in (*graph.input, *graph.output, *graph.value_info):
        del value.metadata_props[:]
        value.ClearField("doc_string")
    for node in graph.node:
        del node.metadata_props[:]
        node.ClearField("doc_string")
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _strip(body)
