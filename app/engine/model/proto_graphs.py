"""Nested graphs of a model file, as the message holds them."""

from collections.abc import Iterable, Iterator

import onnx


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph, then those nested in its nodes."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from all_graphs(body)


def called(node: onnx.NodeProto) -> str:
    """Name of a node; one without a name is called by its operator and its main output."""
    return node.name or f"{node.op_type} {next(filter(None, node.output), '')}"


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph or function, each before those of its bodies."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from all_nodes(body.node)


def nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes of a model: of its graph, of its functions, and of their bodies."""
    for part in (model.graph, *model.functions):
        yield from all_nodes(part.node)
