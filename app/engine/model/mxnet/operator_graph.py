"""The nodes of a symbol as they are, as operators of MXNet: its inference is told of these."""

import onnx_ir as ir

from app.engine.model.mxnet.symbol_file import VARIABLE, Symbol
from app.engine.types.errors import GraphError
from app.engine.types.storage import DECLARED, MXNET

_UNDEFINED = "-1"
# Variables that an executor adds for gradients of heads: their storage types are inferred, while arguments
# that declare none are dense.
_HEAD_GRADIENT = "_head_grad_"


def operator_graph(symbol: Symbol) -> ir.Graph:
    """A graph with one node for each that is no variable; its types and shapes are not known.

    Raises:
        GraphError: a node reads an output that the symbol says there is not.
    """
    values: list[tuple[ir.Value, ...]] = []
    inputs, nodes = [], []
    for node in symbol.nodes:
        if node.op == VARIABLE:
            value = ir.Value(name=node.name)
            declared = node.attributes.get(DECLARED, _UNDEFINED)
            if declared != _UNDEFINED:
                value.metadata_props[DECLARED] = declared
            elif not node.name.startswith(_HEAD_GRADIENT):
                value.metadata_props[DECLARED] = "default"
            inputs.append(value)
            values.append((value,))
            continue
        title = f"{node.op} {node.name!r}"
        operands = [_entry(values, entry, title) for entry in node.inputs]
        outputs = [ir.Value(name=f"{node.name}_output{i}") for i in range(node.outputs)]
        attributes = [ir.AttrString(name, text) for name, text in node.attributes.items()]
        nodes.append(ir.Node(MXNET, node.op, operands, attributes, outputs=outputs, name=node.name))
        values.append(tuple(outputs))
    heads = [_entry(values, entry, f"head {i}") for i, entry in enumerate(symbol.heads)]
    return ir.Graph(inputs, heads, nodes=nodes, name="symbol")


def _entry(values: list[tuple[ir.Value, ...]], entry: tuple[int, int], title: str) -> ir.Value:
    node, output = entry
    if output >= len(values[node]):
        raise GraphError(
            f"{title}: there is no output {output} of node {node}, which has {len(values[node])}"
        )
    return values[node][output]
