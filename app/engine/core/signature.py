"""Structural keys of nodes and groups: operators, attributes, shapes, types and wiring without names."""

import hashlib
import json
from collections.abc import Hashable

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group, of_group

LONGEST = 4000  # characters of a signature; that of a longer one is its hash


@of_group
def signature(group: Group) -> str:
    """Signature of a group: what its time depends on besides row, tuning and threads.

    It is part of the keys of timings tables, which outlive the process.
    """
    numbers: dict[ir.Value, int] = {}

    def reference(value: ir.Value | None) -> str:
        if value is None:
            return ""
        if value in numbers:
            return str(numbers[value])
        numbers[value] = len(numbers)
        kind = "const " if graph.is_constant(value) else ""
        return f"{numbers[value]}={kind}{graph.dtype(value)}{list(graph.shape(value) or ())}"

    rows = [
        [
            node.op_type,
            {k: v.value for k, v in sorted(node.attributes.items()) if v.type in _SCALARS},
            [reference(v) for v in node.inputs],
            [reference(v) for v in node.outputs],
        ]
        for node in group.nodes
    ]
    text = json.dumps(rows, separators=(",", ":"), default=list)
    return text if len(text) <= LONGEST else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


_SCALARS = (
    ir.AttributeType.INT,
    ir.AttributeType.FLOAT,
    ir.AttributeType.STRING,
    ir.AttributeType.INTS,
    ir.AttributeType.FLOATS,
)


def computation(node: ir.Node) -> Hashable | None:
    """Key of what a deterministic node computes from these very operands; None where that cannot be told.

    Operands are told apart by identity, attributes by content, those of tensors too.
    """
    if graph.bodies(node):
        return None
    attributes: list[Hashable] = []
    for name, attribute in sorted(node.attributes.items()):
        value = attribute.value
        if attribute.type == ir.AttributeType.TENSOR and value.dtype != ir.DataType.STRING:
            value = (value.dtype, tuple(value.shape), value.tobytes())
        elif isinstance(value, list | tuple):
            value = tuple(value)
        if not isinstance(value, Hashable):
            return None
        attributes.append((name, attribute.type, value))
    outputs = tuple(bool(v.name) for v in node.outputs)
    return node.domain, node.op_type, tuple(node.inputs), outputs, tuple(attributes)
