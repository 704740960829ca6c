"""Nodes of a graph that are no core operators and are not expressed in them."""

from collections import Counter

import onnx_ir as ir

from app.engine.types.core_operator import CoreSet, OutsideNode


def outside_core(main: ir.Graph, core: CoreSet) -> tuple[OutsideNode, ...]:
    """Nodes that are not expressed in core operators, nested graphs included; none without any rows."""
    if not core.operators:
        return ()
    found = []
    for node in main.all_nodes():
        domain = "" if node.domain == "ai.onnx" else node.domain
        reason = core.reason(node.op_type, domain) or _no_tensor(node)
        if reason is not None:
            found.append(OutsideNode(node.name or "", node.op_type, domain, reason))
    return tuple(found)


def _no_tensor(node: ir.Node) -> str | None:
    """Reason of a node that reads or writes something else than a tensor of numbers; None of others."""
    for value in (*node.inputs, *node.outputs):
        if value is None or not value.name or value.type is None:
            continue
        if not isinstance(value.type, ir.TensorType):
            return f"its value {value.name!r} is a sequence or optional, core operators know tensors only"
        if value.type.dtype == ir.DataType.STRING:
            return f"its value {value.name!r} holds strings, which core operators have none of"
    return None


def told(outside: tuple[OutsideNode, ...]) -> list[str]:
    """Lines for the notes, one for each operator and reason."""
    counts = Counter((n.domain, n.op, n.reason) for n in outside)
    return [
        f"outside the core operators: {count} {op}, {reason}"
        for (_, op, reason), count in sorted(counts.items())
    ]
